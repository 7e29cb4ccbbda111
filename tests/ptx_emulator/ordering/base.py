"""Agents, sites and reports: what every part of the checker shares."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np

from ptx_emulator.errors import EmulationError, Report

from .shadow import SEVERAL, Shadow

if TYPE_CHECKING:
    from ptx_emulator.machine import Machine
    from ptx_emulator.memory import Bytes
    from ptx_emulator.state import Launch
    from ptx_emulator.warp import Warp

MAX_REPORTS = 200


class CheckerBase:
    def __init__(self, machine: Machine):
        self.machine = weakref.proxy(machine)  # which holds the checker
        self.capacity = 256
        self.agents = 1
        self.lane_agents = np.zeros((self.capacity, 32), np.int32)
        self.sites: list[tuple] = [()]
        self._site_ids: dict[tuple, int] = {}
        self.reports: list[Report] = []
        self._seen: set[tuple] = set()
        self.raise_reports = True

    def agent(self, launch: Launch) -> int:
        """A new agent, complete for the next launch of the rank when `launch` ends."""
        if self.agents == self.capacity:
            self.capacity *= 2
            more = np.zeros_like(self.lane_agents)
            self.lane_agents = np.concatenate([self.lane_agents, more])
        self.agents += 1
        launch.agents.append(self.agents - 1)
        return self.agents - 1

    def lane_agent(self, w: Warp, lane: int) -> int:
        """The agent of a lane that synchronises without the rest of its warp."""
        agent = w.clocks.agent
        if not self.lane_agents[agent, lane]:
            number = self.agent(w.cta.launch)
            self.lane_agents[agent, lane] = number
        return int(self.lane_agents[agent, lane])

    def site(self, w: Warp, pc: int) -> int:
        """Number of an instruction of a warp, for reports."""
        key = (w.clocks.agent, pc)
        found = self._site_ids.get(key)
        if found is None:
            found = self._site_ids[key] = len(self.sites)
            program = w.cta.launch.program
            self.sites.append((program.line(pc), program.text(pc), w.name))
        return found

    @staticmethod
    def shadow_of(memory: Bytes) -> Shadow:
        if memory.shadow is None:
            memory.shadow = Shadow(memory.size)
        return memory.shadow

    def report(
        self,
        kind: str,
        first: int,
        first_lane: int | None,
        second: int,
        second_lane: int | None,
        note: str,
    ) -> None:
        """Reports two sites, once for each kind and pair of lines; raises if so asked."""
        a, b = self.sites[first], self.sites[second]
        lines = (a[0] if a else 0, b[0])
        if (kind, lines) in self._seen or len(self.reports) >= MAX_REPORTS:
            return
        self._seen.add((kind, lines))
        message = (
            f"{kind}: {_describe(a, first_lane)}\n  is not ordered before\n"
            f"  {_describe(b, second_lane)}\n  ({note})"
        )
        report = Report(kind, message, lines)
        self.reports.append(report)
        if self.raise_reports:
            error = EmulationError("race", message, lines[1])
            error.report = report
            raise error


def _describe(site: tuple, lane: int | None) -> str:
    if not site:
        return "an access by the host"
    line, text, name = site
    where = f"line {line} `{text}` by {name}"
    return where if lane is None else f"{where} lane {lane}"


def lane_of(who: int) -> int | None:
    """The lane of a packed access, or None when it stands for several."""
    lane = who >> 2 & SEVERAL
    return lane if lane < 32 else None

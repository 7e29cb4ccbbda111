"""Executes blocks of one warp: divergent splits, jumps, exits, located errors."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np

from .errors import EmulationError
from .instructions.barriers import complete_cluster, complete_named
from .instructions.bulk_groups import READ
from .instructions.control import EXIT
from .program import Block
from .warp import Split, Warp

if TYPE_CHECKING:
    from .machine import Machine


class Executor:
    def __init__(self, machine: Machine, random: Random, split_rate: float):
        self.machine = machine
        self.random = random
        self.split_rate = split_rate

    def step(self, w: Warp, blocks: int) -> None:
        """Runs up to `blocks` blocks of a warp, or until all its lanes wait."""
        table = w.cta.launch.program.blocks
        blocked: dict[int, str] = {}
        for _ in range(blocks):
            splits = w.splits
            if not splits:
                return
            split = splits[0] if len(splits) == 1 else self._pick(splits, blocked)
            if split is None:
                w.waiting = "; ".join(sorted(set(blocked.values())))
                return
            block = table[split.pc]
            w.at = block.pc
            try:
                reason = self._block(w, split, block)
            except EmulationError as error:
                raise located(error, w, w.at) from None
            if reason is None:
                self.machine.instructions += block.count
            elif len(w.splits) == 1:
                w.waiting = reason
                return
            else:
                blocked[id(split)] = reason
                continue
            if len(w.splits) > 1:
                blocked.clear()
                _merge(w)

    def _pick(self, splits: list[Split], blocked: dict[int, str]) -> Split | None:
        """The split furthest behind, so that lanes meet again; at times another one."""
        free = [s for s in splits if id(s) not in blocked]
        if not free:
            return None
        if self.random.random() < self.split_rate:
            return self.random.choice(free)
        return min(free, key=lambda s: s.pc)

    def _block(self, w: Warp, split: Split, block: Block) -> str | None:
        """Runs one block; returns what it waits for, or None when the split moved on."""
        if block.body is None:
            if split.whole:
                block.whole(w)
            else:
                block.masked(w, split.lanes)
            split.pc = block.next_pc
            return None
        lanes = split.lanes
        if block.guard is not None:
            predicate = w.R[block.guard]
            lanes = lanes & (~predicate if block.guard_negated else predicate)
            if not np.count_nonzero(lanes):
                split.pc = block.next_pc
                return None
        result = block.body(w, lanes)
        if result is None:
            split.pc = block.next_pc
        elif isinstance(result, str):
            return result
        elif result is EXIT:
            self._exit(w, split, lanes, block.next_pc)
        else:
            _jump(w, split, result[0], result[1], block.next_pc)
        return None

    def _exit(self, w: Warp, split: Split, lanes: np.ndarray, next_pc: int) -> None:
        w.exited = w.exited | lanes
        w.splits.remove(split)
        rest = split.lanes & ~lanes
        if np.count_nonzero(rest):
            w.splits.append(Split(next_pc, rest))
        if not w.splits:
            self._end_warp(w)

    def _end_warp(self, w: Warp) -> None:
        machine, cta = self.machine, w.cta
        if machine.strict:
            _check_warp_exit(w)
        if machine.checker is not None:
            machine.checker.end_warp(w)
        cta.live_warps -= 1
        cta.cluster.live_warps -= 1
        machine.progress += 1
        if machine.strict and not cta.live_warps:
            machine.check_cta_exit(cta)
        for barrier in cta.barriers.values():
            if barrier.arrived and barrier.implicit:
                barrier.expected -= 32
                complete_named(cta, barrier)
        barrier = cta.cluster.barrier
        if w.step_state.get("cluster") is barrier.meeting:
            barrier.arrived -= 1  # counted among the live warps until now
        complete_cluster(cta.cluster)


def _jump(w: Warp, split: Split, taken: np.ndarray, target: int, next_pc: int) -> None:
    rest = split.lanes & ~taken
    if not np.count_nonzero(rest):
        split.pc = target
        return
    w.splits.remove(split)
    w.splits += [Split(target, taken), Split(next_pc, rest)]


def _merge(w: Warp) -> None:
    """Joins the splits that have met at one instruction."""
    by_pc: dict[int, Split] = {}
    for s in w.splits:
        other = by_pc.get(s.pc)
        by_pc[s.pc] = s if other is None else Split(s.pc, s.lanes | other.lanes)
    if len(by_pc) != len(w.splits):
        w.splits = list(by_pc.values())


def _check_warp_exit(w: Warp) -> None:
    for lane, groups in w.bulk_groups.items():
        if groups.open or groups.pending(READ):
            what = f"lane {lane} exits with bulk copies that still read shared memory"
            raise EmulationError("exit", what)
    if w.wgmma is not None and w.wgmma.group.executed < w.wgmma.issued:
        raise EmulationError("exit", "exit with wgmma operations in flight")
    if w.tensor_loads:
        raise EmulationError("exit", "exit with tcgen05.ld in flight")


def located(
    error: EmulationError, w: Warp, pc: int, prefix: str = ""
) -> EmulationError:
    """The error with the PTX line and the warp that it belongs to."""
    if error.line is not None:
        return error
    program = w.cta.launch.program
    message = str(error).removeprefix(f"{error.kind}: ")
    if pc >= len(program.function.instructions):
        where = f"{prefix}end of the kernel, {w.name}"
        return EmulationError(error.kind, f"{where}: {message}")
    line = program.line(pc)
    where = f"{prefix}line {line} `{program.text(pc)}`, {w.name}"
    return EmulationError(error.kind, f"{where}: {message}", line)

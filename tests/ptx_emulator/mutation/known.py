"""What is known about the mutants of the anchors that no run notices."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ptx_emulator.anchors.cutlass import GemmAnchor

from .score import Equivalent

RECORDS = Path(__file__).with_name("anchor_mutants.json")


@dataclass(frozen=True)
class Known:
    """Equivalent mutants with their reasons, and survivors without an explanation."""

    equivalent: dict[str, Equivalent]
    unexplained: frozenset[str]


def known_mutants(anchor: GemmAnchor) -> Known:
    """The record of one anchor; empty when there is none."""
    record = json.loads(RECORDS.read_text()).get(anchor.name, {})
    equivalent = {
        name: Equivalent(group["reason"], tuple((n, t) for n, t in group["edges"]))
        for group in record.get("equivalent", [])
        for name in group["mutants"]
    }
    return Known(equivalent, frozenset(record.get("unexplained", [])))

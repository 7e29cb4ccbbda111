"""What is known about the mutants that no run notices."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from .score import Equivalent

COMPILER = "release 13.0"  # the records name lines of its PTX
ANCHORS = Path(__file__).with_name("anchor_mutants.json")


@dataclass(frozen=True)
class Known:
    """Equivalent mutants with their reasons, and survivors without an explanation."""

    equivalent: dict[str, Equivalent]
    unexplained: frozenset[str]


def known_mutants(kernel: str, records: Path = ANCHORS) -> Known:
    """The record of one kernel; empty when there is none."""
    record = json.loads(records.read_text()).get(kernel, {})
    equivalent = {
        name: Equivalent(group["reason"], tuple((n, t) for n, t in group["edges"]))
        for group in record.get("equivalent", [])
        for name in group["mutants"]
    }
    return Known(equivalent, frozenset(record.get("unexplained", [])))

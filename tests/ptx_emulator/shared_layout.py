"""Where the shared variables of a kernel lie."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .memory import SHARED_START
from .ptx import Variable

DYNAMIC_ALIGNMENT = 16


@dataclass(frozen=True)
class SharedLayout:
    """Offsets of the variables, the end of the static ones, the start of the dynamic."""

    offsets: dict[str, int]
    static_end: int
    dynamic_start: int

    @classmethod
    def of(cls, variables: Iterable[Variable]) -> SharedLayout:
        """Static variables in order of declaration, then dynamic memory, aligned."""
        offsets, at, dynamic = {}, SHARED_START, []
        for v in variables:
            if v.dynamic:
                dynamic.append(v)
                continue
            at = (at + v.align - 1) // v.align * v.align
            offsets[v.name] = at
            at += v.size_bytes
        align = max([DYNAMIC_ALIGNMENT, *(v.align for v in dynamic)])
        start = (at + align - 1) // align * align
        offsets.update({v.name: start for v in dynamic})
        return cls(offsets, at, start)

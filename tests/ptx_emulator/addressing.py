"""From the addresses of a warp's lanes to memories and offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .errors import EmulationError
from .memory import (
    CTA_MASK,
    CTA_SHIFT,
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHARED_START,
    SHARED_WINDOW,
    WINDOW_BYTES,
    Bytes,
)  # fmt: skip
from .numeric import u8

if TYPE_CHECKING:
    from .warp import Warp

UNICAST, MULTICAST = 0, 1
WINDOWS = ((SHARED_WINDOW, "shared"), (LOCAL_WINDOW, "local"), (PARAM_WINDOW, "param"))


@dataclass(slots=True)
class Part:
    """The lanes of an access that fall into one memory.

    Attributes:
      memory: the bytes.
      offsets: int64[n] byte offsets in it.
      chosen: which of the accessing lanes: a slice, or indices.
      path: UNICAST or MULTICAST; None for memory that no other thread reaches.
    """

    memory: Bytes
    offsets: np.ndarray
    chosen: slice | np.ndarray
    path: int | None


ALL_LANES = slice(None)


def resolve(
    w: Warp, space: str, address: np.ndarray, size: int, lanes: np.ndarray
) -> list[Part]:
    """Splits the naturally aligned addresses of `lanes` by memory."""
    if space == "generic":
        space, address = _generic_space(address)
        if space == "mixed":
            return _one_by_one(w, address, size, lanes)
    misaligned = (address & (size - 1)) != 0
    if np.count_nonzero(misaligned):
        bad = int(address[np.argmax(misaligned)])
        raise EmulationError("alignment", f"address {bad:#x} of a {size}-byte access")
    find = {"shared": _shared, "global": _global, "local": _local, "param": _parameters}
    return find[space](w, address, size, lanes)


def _generic_space(address: np.ndarray) -> tuple[str, np.ndarray]:
    for base, space in WINDOWS:
        inside = (address >= base) & (address < base + WINDOW_BYTES)
        count = np.count_nonzero(inside)
        if count == address.size:
            return space, address - (0 if space == "param" else base)
        if count:
            return "mixed", address
    return "global", address


def _one_by_one(w: Warp, address: np.ndarray, size: int, lanes) -> list[Part]:
    parts = []
    for n in range(address.size):
        only = slice(n, n + 1)
        for part in resolve(w, "generic", address[only], size, lanes[only]):
            parts.append(Part(part.memory, part.offsets, np.array([n]), part.path))
    return parts


def _shared(w: Warp, address: np.ndarray, size: int, lanes) -> list[Part]:
    rank = address >> CTA_SHIFT
    low, high = int(rank.min()), int(rank.max())
    parts = []
    for r in range(low, high + 1):
        chosen = ALL_LANES if low == high else np.nonzero(rank == r)[0]
        offsets = address[chosen] & CTA_MASK
        if not offsets.size:
            continue
        cta, _ = w.cta.shared_of(r << CTA_SHIFT)
        first, last = int(offsets.min()), int(offsets.max())
        if first < SHARED_START or last + size > cta.shared.size:
            cta.check_shared(first, size)
            cta.check_shared(last, size)
        if cta is not w.cta and w.machine.strict and not cta.cluster.has_met:
            what = f"{cta.name} may not have started: no cluster barrier has completed"
            raise EmulationError("cluster", what)
        if not cta.live_warps:
            what = f"shared memory of {cta.name}, which has exited"
            raise EmulationError("cluster", what)
        parts.append(Part(cta.shared, offsets, chosen, UNICAST))
    return parts


def _global(w: Warp, address: np.ndarray, size: int, lanes) -> list[Part]:
    space, rank = w.machine.space, w.cta.launch.rank
    low, high = int(address.min()), int(address.max())
    window = space.find(rank, low)
    if high + size <= window.end:
        return [_in_window(window, address, ALL_LANES)]
    parts = []
    for n in range(address.size):
        window, _ = space.contiguous(rank, int(address[n]), size)
        parts.append(_in_window(window, address[n : n + 1], np.array([n])))
    return parts


def _in_window(window, address: np.ndarray, chosen) -> Part:
    memory = window.replicas[0]
    if window.multicast:
        what = f"ordinary access through the multicast address of {memory.label}"
        raise EmulationError("multicast", what)
    return Part(memory, address - window.base, chosen, UNICAST)


def _local(w: Warp, address: np.ndarray, size: int, lanes) -> list[Part]:
    total = w.cta.launch.program.local_bytes
    if w.local is None:
        w.local = Bytes(32 * total, f"local memory of {w.name}")
    if int(address.min()) < 0 or int(address.max()) + size > total:
        what = f"local offset {int(address.max()):#x} of {total} bytes"
        raise EmulationError("bounds", what)
    return [Part(w.local, lanes * total + address, ALL_LANES, None)]


def _parameters(w: Warp, address: np.ndarray, size: int, lanes) -> list[Part]:
    offsets = address - PARAM_WINDOW
    memory = w.cta.launch.parameters
    if int(offsets.min()) < 0 or int(offsets.max()) + size > memory.size:
        what = f"parameter offset {int(offsets.max())} of {memory.size} bytes"
        raise EmulationError("bounds", what)
    return [Part(memory, offsets, ALL_LANES, None)]


def in_space(w: Warp, space: str, address: np.ndarray) -> np.ndarray:
    """Isspacep on generic addresses."""
    base = LOCAL_WINDOW if space == "local" else SHARED_WINDOW
    inside = (address >= u8(base)) & (address < u8(base + WINDOW_BYTES))
    if space == "global":
        end = SHARED_WINDOW + WINDOW_BYTES
        return ~((address >= u8(PARAM_WINDOW)) & (address < u8(end)))
    if space == "shared::cta":
        return inside & ((address - u8(base)) >> u8(CTA_SHIFT) == u8(w.cta.rank))
    return inside


def map_to_cta(address, rank, shared: bool):
    """mapa: the same offset in the shared memory of another CTA of the cluster."""
    address = np.asarray(address)
    kind = address.dtype.type
    base = kind(0 if shared else SHARED_WINDOW)
    offset = (address - base) & kind(CTA_MASK)
    return offset + (np.asarray(rank).astype(kind) << kind(CTA_SHIFT)) + base

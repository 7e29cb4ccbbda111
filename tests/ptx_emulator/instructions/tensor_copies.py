"""cp.async.bulk.tensor and cp.reduce.async.bulk.tensor: TMA copies of tiled boxes."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from ptx_emulator import mbarrier
from ptx_emulator.codegen import Emitter, inline, step
from ptx_emulator.errors import EmulationError
from ptx_emulator.memory import PARAM_WINDOW, WINDOW_BYTES, Bytes
from ptx_emulator.numeric import REDUCTION_DTYPES, i4, reduce_pair, u1
from ptx_emulator.ptx import Instruction, split_operands
from ptx_emulator.semantics import tma_box
from ptx_emulator.tensor_map import TensorMap, decode_tensor_map
from ptx_emulator.warp import Warp

from .bulk_groups import complete_bytes, post_store

CHUNK = 16
SWIZZLE_PERIOD = 1024
HINT = r"(?P<hint>\.L2::cache_hint)?"
REDUCE = r"\.(?P<op>add|min|max|and|or|xor)"


@lru_cache(maxsize=256)
def _decode(raw: bytes) -> TensorMap:
    try:
        return decode_tensor_map(raw)
    except ValueError as error:
        raise EmulationError("tensor-map", str(error)) from None


def _tensor_map(w: Warp, address: int) -> TensorMap:
    if address % 64:
        what = f"tensor map at {address:#x}, expected a multiple of 64"
        raise EmulationError("alignment", what)
    if PARAM_WINDOW <= address < PARAM_WINDOW + WINDOW_BYTES:
        memory, offset = w.cta.launch.parameters, address - PARAM_WINDOW
    else:
        space, rank = w.machine.space, w.cta.launch.rank
        window, offset = space.contiguous(rank, address, 128)
        memory = window.replicas[0]
    return _decode(memory.data[offset : offset + 128].tobytes())


@lru_cache(maxsize=1024)
def _chunks_at(box: tuple, element_bytes: int, swizzle: str, base: int) -> np.ndarray:
    return tma_box.box_shared_offsets(box, element_bytes, swizzle, base)


def _shared_chunks(cta, t: TensorMap, offset: int) -> np.ndarray:
    """[rows, chunks] shared offsets of the box whose first byte goes to `offset`."""
    phase = offset % SWIZZLE_PERIOD
    try:
        chunks = _chunks_at(t.box, t.element_bytes, t.swizzle, phase) + offset - phase
    except ValueError as error:
        raise EmulationError("tma", str(error)) from None
    cta.check_shared(int(chunks.min()), CHUNK)
    cta.check_shared(int(chunks.max()), CHUNK)
    return chunks


class Box:
    """The global side of one copy: where its rows lie, which bytes are in bounds."""

    def __init__(
        self, w: Warp, t: TensorMap, coords: tuple[int, ...], store: bool = False
    ):
        if len(coords) != t.rank:
            what = f"{len(coords)} coordinates for a tensor map of rank {t.rank}"
            raise EmulationError("tma", what)
        if t.oob_nan:
            raise EmulationError(
                "unsupported", "NaN fill of a tensor map: not measured"
            )
        try:
            offset, first, last = tma_box.box_rows(
                t.dims, t.strides_bytes, t.box, t.element_strides, coords,
                t.element_bytes, store,
            )  # fmt: skip
        except ValueError as error:
            raise EmulationError("tma", str(error)) from None
        self.map = t
        self.bytes = t.box[0] * t.element_bytes
        self.rows = offset.size
        self.live = np.nonzero(last > first)[0]
        self.memory: Bytes | None = None
        if self.live.size:
            row = self.live[0]
            self.first, self.last = (
                first[row] * t.element_bytes,
                last[row] * t.element_bytes,
            )
            self._map_rows(w, t.address + offset[self.live])

    def _map_rows(self, w: Warp, start: np.ndarray) -> None:
        low, high = int(start.min() + self.first), int(start.max() + self.last)
        space, rank = w.machine.space, w.cta.launch.rank
        window, _ = space.contiguous(rank, low, high - low)
        if window.multicast:
            what = "tensor copy through a multicast address"
            raise EmulationError("multicast", what)
        self.memory = window.replicas[0]
        self.start = start - window.base

    @property
    def nbytes(self) -> int:
        return self.rows * self.bytes

    def tell_checker(self, machine, op, write: bool, stage: int = 0) -> None:
        if op is not None and self.memory is not None:
            offsets, size = self.start + self.first, int(self.last - self.first)
            machine.checker.async_access(op, self.memory, offsets, size, write, stage)

    def _index(self) -> np.ndarray:
        return self.start[:, None] + np.arange(self.first, self.last)[None, :]

    def load(self, strict: bool) -> np.ndarray:
        """uint8[rows, bytes]; what is out of bounds is zero."""
        out = np.zeros((self.rows, self.bytes), u1)
        if self.memory is not None:
            index = self._index()
            if strict and not self.memory.valid[index].all():
                what = f"tensor copy reads bytes never written of {self.memory.label}"
                raise EmulationError("poison", what)
            out[self.live, self.first : self.last] = self.memory.data[index]
        return out

    def store(self, tile: np.ndarray, op: str | None) -> None:
        if self.memory is None:
            return
        index = self._index()
        new = np.ascontiguousarray(tile[self.live, self.first : self.last])
        if op is not None:
            kind = self.map.dtype
            dtype = REDUCTION_DTYPES[kind]
            old = np.ascontiguousarray(self.memory.data[index]).view(dtype)
            new = reduce_pair(op, kind, old, new.view(dtype)).view(u1)
        self.memory.data[index] = new
        self.memory.valid[index] = 1


def _tensor_operand(e: Emitter, i: Instruction, text: str, rank: int) -> list[str]:
    """`[map, {coordinates}]` as expressions, map first."""
    parts = split_operands(text[1:-1])
    coordinates = e.vector(parts[-1])
    if not text.startswith("[") or len(parts) != 2 or len(coordinates) != rank:
        raise i.unsupported(f"tensor operand {text}")
    return [e.source(parts[0], "u64"), *(e.source(c, "s32") for c in coordinates)]


def _coordinates(values, lane: int) -> tuple[int, ...]:
    return tuple(int(v[lane].astype(i4)) for v in values)


@step(
    r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d(?:\.cta_group::(?P<early>[12]))?"
    r"\.shared::(?:cluster|cta)\.global(?:\.tile)?\.mbarrier::complete_tx::bytes"
    rf"(?P<multicast>\.multicast::cluster)?(?:\.cta_group::(?P<group>[12]))?{HINT}"
)
def _load(e: Emitter, i: Instruction, m: re.Match):
    operands = list(i.operands)
    if m["hint"]:
        e.source(operands.pop(), "b64")
    mask = [e.source(operands.pop(), "u16")] if m["multicast"] else []
    if len(operands) != 3:
        raise i.unsupported("operands of the tensor copy")
    rank, pair = int(m["rank"]), "2" in (m["group"], m["early"])
    where = _tensor_operand(e, i, operands[1], rank)
    codes = e.compile(e.address(operands[0]), e.address(operands[2]), *where, *mask)

    def body(w: Warp, lanes: np.ndarray):
        values = codes(w)
        for lane in np.nonzero(lanes)[0].tolist():
            target, barrier, address = (int(v[lane]) for v in values[:3])
            coords = _coordinates(values[3 : 3 + rank], lane)
            box = Box(w, _tensor_map(w, address), coords)
            bits = int(values[-1][lane]) if mask else None
            for cta, signal in _destinations(w, target, barrier, bits, pair):
                flag = mbarrier.find(w.cta, signal << 24 | barrier & 0xFFFFFF)
                _issue_load(w, lane, i.pc, box, cta, target & 0xFFFFFF, flag)
        w.machine.counters["tensor load"] += 1

    return body


def _destinations(w: Warp, target: int, barrier: int, mask: int | None, pair: bool):
    """(CTA that receives, rank of the CTA whose mbarrier is signalled) of a load."""
    ctas, own = w.cta.cluster.ctas, barrier >> 24
    if mask is None:
        if not pair and own != target >> 24:
            what = "destination and mbarrier are in different CTAs"
            raise EmulationError("tma", what)
        return [(ctas[target >> 24], own)]
    if not mask or mask >> len(ctas):
        what = f"multicast mask {mask:#x} in a cluster of {len(ctas)}"
        raise EmulationError("tma", what)
    chosen = [c for c in range(len(ctas)) if mask >> c & 1]
    # With cta_group::2 the barrier's parity picks the CTA of each destination pair.
    return [(ctas[c], c & ~1 | own & 1 if pair else c) for c in chosen]


def _issue_load(w: Warp, lane: int, pc: int, box: Box, cta, offset: int, flag) -> None:
    machine = w.machine
    chunks = _shared_chunks(cta, box.map, offset)
    op = None
    if machine.checker is not None:
        op = machine.checker.issue(w, lane, flag, pc)

    def land() -> None:
        box.tell_checker(machine, op, False)
        tile = box.load(machine.strict)
        if op is not None:
            machine.checker.async_access(op, cta.shared, chunks.ravel(), CHUNK, True)
        if cta.shared.watch is not None:
            cta.shared.watch(chunks.ravel(), CHUNK)
        _scatter(cta.shared, chunks, tile)
        complete_bytes(flag, box.nbytes)

    machine.post(cta.cluster, land, pc, w)


def _scatter(shared: Bytes, chunks: np.ndarray, tile: np.ndarray) -> None:
    data, valid, good = shared.view(8, 2)
    index = chunks.ravel() >> 4
    data[index] = np.ascontiguousarray(tile).view(np.uint64).reshape(-1, 2)
    valid[index] = good


class _TensorStore:
    def __init__(self, w: Warp, cta, offset: int, box: Box, reduction: str | None):
        self.machine, self.shared = w.machine, cta.shared
        self.box, self.reduction = box, reduction
        self.chunks = _shared_chunks(cta, box.map, offset)

    def read(self, op) -> None:
        if op is not None:
            where = self.chunks.ravel()
            self.machine.checker.async_access(op, self.shared, where, CHUNK, False, 0)
        data, valid, good = self.shared.view(8, 2)
        index = self.chunks >> 4
        if self.machine.strict and not (valid[index[self.box.live]] == good).all():
            what = f"tensor store reads bytes never written of {self.shared.label}"
            raise EmulationError("poison", what)
        self.tile = data[index].reshape(self.box.rows, -1).view(u1)

    def write(self, op) -> None:
        self.box.tell_checker(self.machine, op, True, stage=1)
        self.box.store(self.tile, self.reduction)


@step(
    r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta(?:\.tile)?"
    rf"\.bulk_group{HINT}",
    rf"cp\.reduce\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta{REDUCE}"
    rf"(?:\.tile)?\.bulk_group{HINT}",
)
def _store(e: Emitter, i: Instruction, m: re.Match):
    operands = list(i.operands)
    if m["hint"]:
        e.source(operands.pop(), "b64")
    if len(operands) != 2:
        raise i.unsupported("operands of the tensor copy")
    rank, reduction = int(m["rank"]), m.groupdict().get("op")
    where = _tensor_operand(e, i, operands[0], rank)
    codes = e.compile(e.address(operands[1]), *where)

    def body(w: Warp, lanes: np.ndarray):
        values = codes(w)
        for lane in _issuers(w, lanes):
            tensor_map = _tensor_map(w, int(values[1][lane]))
            box = Box(w, tensor_map, _coordinates(values[2:], lane), store=True)
            cta, offset = w.cta.shared_of(int(values[0][lane]))
            post_store(w, lane, i.pc, _TensorStore(w, cta, offset, box, reduction))
        w.machine.counters["tensor store"] += 1

    return body


def _issuers(w: Warp, lanes: np.ndarray) -> list[int]:
    """The lane that stores; third-party epilogues issue from all, as ptxas makes it one."""
    chosen = np.nonzero(lanes)[0].tolist()
    if len(chosen) > 1 and w.machine.strict:
        what = f"tensor store issued by {len(chosen)} lanes, elect one"
        raise EmulationError("tma", what)
    return chosen[:1]


@inline(
    r"cp\.async\.bulk\.prefetch\.tensor\.(?P<rank>[1-5])d\.L2\.global(?:\.tile)?"
    r"(?:\.L2::cache_hint)?"
)
def _prefetch(e: Emitter, i: Instruction, m: re.Match) -> None:
    _tensor_operand(e, i, i.operands[0], int(m["rank"]))
    e.do("pass")

"""cp.async.bulk: tensor (TMA) and plain bulk copies and reductions, bulk groups."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from . import mbarrier
from .barrier_ops import barrier_address
from .codegen import Emitter, inline, step
from .errors import EmulationError
from .memory import PARAM_WINDOW, WINDOW_BYTES, Bytes
from .numeric import REDUCTION_DTYPES, i4, reduce_pair, u1
from .ptx import Instruction, split_operands
from .semantics import tma_box
from .tensor_map import TensorMap, decode_tensor_map
from .warp import UNICAST, Warp

CHUNK = 16
HINT = r"(?P<hint>\.L2::cache_hint)?"
REDUCE = r"\.(?P<op>add|min|max|inc|dec|and|or|xor)"


class BulkGroups:
    """The bulk groups of one thread: operations not yet committed, and committed groups in order."""

    def __init__(self, w: Warp):
        checker, launch = w.machine.checker, w.cta.launch
        self.open: list[dict] = []
        self.groups: list[list[dict]] = []
        self.committed = 0
        self.agents = (
            (checker.agent(launch), checker.agent(launch))
            if checker is not None
            else None
        )  # source read, all done

    def commit(self) -> None:
        self.groups.append(self.open)
        self.open = []
        self.committed += 1

    def pending(self, stage: int) -> int:
        """Groups, counted from the newest, back to the oldest one that has an operation before `stage`."""
        for age, group in enumerate(self.groups):
            if any(op["stage"] < stage for op in group):
                return len(self.groups) - age
        return 0


def bulk_groups(w: Warp, lane: int) -> BulkGroups:
    if lane not in w.bulk_groups:
        w.bulk_groups[lane] = BulkGroups(w)
    return w.bulk_groups[lane]


@step(r"cp\.async\.bulk\.commit_group")
def _commit(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        for lane in np.nonzero(lanes)[0]:
            bulk_groups(w, int(lane)).commit()

    return body


@step(r"cp\.async\.bulk\.wait_group(?P<read>\.read)?")
def _wait(e: Emitter, i: Instruction, m: re.Match):
    e.expect(1)
    limit, stage = int(i.operands[0], 0), 1 if m["read"] else 2

    def body(w: Warp, lanes: np.ndarray):
        for lane in np.nonzero(lanes)[0]:
            groups = bulk_groups(w, int(lane))
            if groups.pending(stage) > limit:
                return f"bulk groups of lane {lane} ({groups.pending(stage)} pending, at most {limit} allowed)"
            if w.machine.checker is not None:
                w.machine.checker.bulk_done(
                    w, int(lane), groups, groups.committed - limit, bool(m["read"])
                )
            if stage == 2:
                while groups.groups and all(
                    op["stage"] == 2 for op in groups.groups[0]
                ):
                    groups.groups.pop(0)
        return None

    return body


# Tensor maps ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _decode(raw: bytes) -> TensorMap:
    try:
        return decode_tensor_map(raw)
    except ValueError as error:
        raise EmulationError("tensor-map", str(error)) from None


def tensor_map(w: Warp, address: int) -> TensorMap:
    if address % 64:
        raise EmulationError(
            "alignment", f"tensor map at {address:#x}, expected a multiple of 64"
        )
    if PARAM_WINDOW <= address < PARAM_WINDOW + WINDOW_BYTES:
        memory, offset = w.cta.launch.parameters, address - PARAM_WINDOW
    else:
        window, offset = w.machine.space.contiguous(w.cta.launch.rank, address, 128)
        memory = window.replicas[0]
    return _decode(memory.data[offset : offset + 128].tobytes())


@lru_cache(maxsize=1024)
def _shared_chunks(
    box: tuple, element_bytes: int, swizzle: str, base: int
) -> np.ndarray:
    return tma_box.box_shared_offsets(box, element_bytes, swizzle, base)


def shared_chunks(t: TensorMap, offset: int) -> np.ndarray:
    """[rows, chunks] shared offsets of the box whose first byte goes to `offset`."""
    try:
        period = 1024
        local = _shared_chunks(t.box, t.element_bytes, t.swizzle, offset % period)
        return local + (offset - offset % period)
    except ValueError as error:
        raise EmulationError("tma", str(error)) from None


class Box:
    """The global side of one tensor copy: where its rows lie and which of their bytes are in bounds."""

    def __init__(self, w: Warp, t: TensorMap, coords: tuple[int, ...]):
        if len(coords) != t.rank:
            raise EmulationError(
                "tma", f"{len(coords)} coordinates for a tensor map of rank {t.rank}"
            )
        try:
            offset, first, last = tma_box.box_rows(
                t.dims,
                t.strides_bytes,
                t.box,
                t.element_strides,
                coords,
                t.element_bytes,
            )
        except ValueError as error:
            raise EmulationError("tma", str(error)) from None
        if t.oob_nan:
            raise EmulationError(
                "unsupported", "NaN fill of a tensor map: not measured"
            )
        self.map = t
        self.bytes = t.box[0] * t.element_bytes
        self.rows = offset.size
        self.live = np.nonzero(last > first)[0]
        self.memory: Bytes | None = None
        if not self.live.size:
            return
        self.first = int(first[self.live[0]]) * t.element_bytes
        self.last = int(last[self.live[0]]) * t.element_bytes
        start = t.address + offset[self.live]
        low, high = int(start.min()) + self.first, int(start.max()) + self.last
        window, _ = w.machine.space.contiguous(w.cta.launch.rank, low, high - low)
        if window.multicast:
            raise EmulationError("multicast", "tensor copy through a multicast address")
        self.memory = window.replicas[0]
        self.start = start - window.base + window.offset

    def index(self) -> np.ndarray:
        return self.start[:, None] + np.arange(self.first, self.last)[None, :]

    def load(self, strict: bool) -> np.ndarray:
        out = np.zeros((self.rows, self.bytes), u1)
        if self.memory is not None:
            index = self.index()
            if strict and not self.memory.valid[index].all():
                raise EmulationError(
                    "poison",
                    f"tensor copy reads bytes never written of {self.memory.label}",
                )
            out[self.live, self.first : self.last] = self.memory.data[index]
        return out

    def store(self, tile: np.ndarray, op: str | None) -> None:
        if self.memory is None:
            return
        index = self.index()
        new = tile[self.live, self.first : self.last]
        if op is not None:
            kind = self.map.dtype
            dtype = REDUCTION_DTYPES[kind]
            old = np.ascontiguousarray(self.memory.data[index]).view(dtype)
            new = reduce_pair(
                op, kind, old, np.ascontiguousarray(new).view(dtype)
            ).view(u1)
        self.memory.data[index] = new
        self.memory.valid[index] = 1

    def ranges(self) -> tuple[np.ndarray, int]:
        return self.start + self.first, self.last - self.first


def _tensor_operand(e: Emitter, i: Instruction, text: str) -> list[str]:
    """`[map, {coordinates}]` as expressions, map first."""
    parts = split_operands(text[1:-1])
    if not text.startswith("[") or len(parts) != 2 or not parts[1].startswith("{"):
        raise i.unsupported(f"tensor operand {text}")
    return [
        e.source(parts[0], "u64"),
        *(e.source(c, "s32") for c in split_operands(parts[1][1:-1])),
    ]


def _chunk_gather(
    shared: Bytes, chunks: np.ndarray, row_bytes: int, strict: bool, needed=None
) -> np.ndarray:
    data, valid, good = shared.view(8, 2)
    index = chunks >> 4
    if strict:
        flags = valid[index if needed is None else index[needed]]
        if not (flags == good).all():
            raise EmulationError(
                "poison",
                f"asynchronous copy reads bytes never written of {shared.label}",
            )
    return data[index].reshape(chunks.shape[0], -1).view(u1)[:, :row_bytes]


def _chunk_scatter(shared: Bytes, chunks: np.ndarray, tile: np.ndarray) -> None:
    data, valid, good = shared.view(8, 2)
    index = chunks.ravel() >> 4
    data[index] = np.ascontiguousarray(tile).view(np.uint64).reshape(-1, 2)
    valid[index] = good


def complete_bytes(barrier: mbarrier.Mbarrier, op, count: int) -> None:
    checker = barrier.cta.launch.machine.checker
    if checker is not None:
        checker.complete(op, barrier)
    barrier.complete(count)


# Loads to shared memory ----------------------------------------------------------------------------------------------


@step(
    r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d(?:\.cta_group::(?P<early>[12]))?"
    r"\.shared::(?P<dst>cluster|cta)\.global(?:\.tile)?"
    rf"\.mbarrier::complete_tx::bytes(?P<multicast>\.multicast::cluster)?(?:\.cta_group::(?P<group>[12]))?{HINT}"
)
def _tensor_load(e: Emitter, i: Instruction, m: re.Match):
    operands = list(i.operands)
    if m["hint"]:
        e.source(operands.pop(), "b64")
    mask = [e.source(operands.pop(), "u16")] if m["multicast"] else []
    if len(operands) != 3:
        raise i.unsupported("operands of the tensor copy")
    where = _tensor_operand(e, i, operands[1])
    if len(where) != int(m["rank"]) + 1:
        raise i.unsupported("coordinates of the tensor copy")
    codes = e.compile(e.address(operands[0]), e.address(operands[2]), *where, *mask)
    rank, pair = int(m["rank"]), "2" in (m["group"], m["early"])

    def body(w: Warp, lanes: np.ndarray):
        values = codes(w)
        for lane in np.nonzero(lanes)[0]:
            target, barrier, address = (int(v[lane]) for v in values[:3])
            coords = tuple(int(v[lane].astype(i4)) for v in values[3 : 3 + rank])
            targets = [target >> 24]
            if mask:
                targets = [c for c in range(16) if int(values[-1][lane]) >> c & 1]
                if not targets or targets[-1] >= len(w.cta.cluster.ctas):
                    raise EmulationError(
                        "tma",
                        f"multicast mask {int(values[-1][lane]):#x} in a cluster of {len(w.cta.cluster.ctas)}",
                    )
            elif not pair and barrier >> 24 != target >> 24:
                raise EmulationError(
                    "tma", "destination and mbarrier are in different CTAs"
                )
            _issue_tensor_load(
                w,
                int(lane),
                i.pc,
                target,
                barrier,
                tensor_map(w, address),
                coords,
                targets,
                bool(mask),
                pair,
            )
        w.machine.counters["tensor load"] += 1

    return body


def _issue_tensor_load(
    w, lane, pc, target, barrier, t, coords, targets, multicast, pair
) -> None:
    machine, cluster = w.machine, w.cta.cluster
    box = Box(w, t, coords)
    total = box.rows * box.bytes
    chunks = shared_chunks(t, target & 0xFFFFFF)
    for cta_rank in targets:
        # With cta_group::2 the barrier's parity picks the CTA of each destination pair.
        signal = cta_rank
        if pair:
            signal = (cta_rank & ~1 | barrier >> 24 & 1) if multicast else barrier >> 24
        cta = cluster.ctas[cta_rank]
        cta.check_shared(int(chunks.min()), CHUNK)
        cta.check_shared(int(chunks.max()), CHUNK)
        flag = mbarrier.find(w.cta, signal << 24 | barrier & 0xFFFFFF)
        op = (
            machine.checker.issue(w, lane, flag, pc)
            if machine.checker is not None
            else None
        )
        machine.post(
            cta.cluster,
            lambda cta=cta, flag=flag, op=op: _land(
                machine, box, cta, chunks, flag, op, total
            ),
            pc,
            w,
        )


def _land(machine, box: Box, cta, chunks, flag, op, total) -> None:
    if op is not None and box.memory is not None:
        machine.checker.async_access(op, box.memory, *box.ranges(), False)
    tile = box.load(machine.strict)
    if op is not None:
        machine.checker.async_access(op, cta.shared, chunks.ravel(), CHUNK, True)
    if cta.shared.watch is not None:
        cta.shared.watch(chunks.ravel(), CHUNK)
    _chunk_scatter(cta.shared, chunks, tile)
    complete_bytes(flag, op, total)


@step(
    r"cp\.async\.bulk\.shared::(?P<dst>cluster|cta)\.(?P<src>global|shared::cta)"
    rf"\.mbarrier::complete_tx::bytes(?P<multicast>\.multicast::cluster)?{HINT}"
)
def _bulk_load(e: Emitter, i: Instruction, m: re.Match):
    operands = list(i.operands)
    if m["hint"]:
        e.source(operands.pop(), "b64")
    if m["multicast"]:
        raise i.unsupported("multicast of a plain bulk copy")
    if len(operands) != 4:
        raise i.unsupported("operands of the bulk copy")
    codes = e.compile(
        e.address(operands[0]),
        e.address(operands[1]),
        e.source(operands[2], "u32"),
        e.address(operands[3]),
    )

    def body(w: Warp, lanes: np.ndarray):
        for lane in np.nonzero(lanes)[0]:
            target, source, size, barrier = (int(v[lane]) for v in codes(w))
            _check_bulk(target, source, size)
            cta, offset = w.cta.shared_of(target)
            cta.check_shared(offset, size)
            if barrier >> 24 != target >> 24:
                raise EmulationError(
                    "bulk-copy", "destination and mbarrier are in different CTAs"
                )
            memory, start = _bulk_source(w, m["src"], source, size)
            flag = mbarrier.find(w.cta, barrier)
            machine = w.machine
            op = (
                machine.checker.issue(w, int(lane), flag, i.pc)
                if machine.checker is not None
                else None
            )

            def fire(
                memory=memory,
                start=start,
                size=size,
                cta=cta,
                offset=offset,
                flag=flag,
                op=op,
            ):
                data = _bulk_read(w, memory, start, size, op)
                _bulk_write(w, cta.shared, offset, data, op)
                complete_bytes(flag, op, size)

            machine.post(cta.cluster, fire, i.pc, w)

    return body


def _check_bulk(target: int, source: int, size: int) -> None:
    if target % CHUNK or source % CHUNK or size % CHUNK or size <= 0:
        raise EmulationError(
            "alignment",
            f"bulk copy of {size} bytes from {source:#x} to {target:#x}: all must be multiples of 16",
        )


def _bulk_source(w: Warp, space: str, address: int, size: int) -> tuple[Bytes, int]:
    if space == "global":
        window, offset = w.machine.space.contiguous(w.cta.launch.rank, address, size)
        if window.multicast:
            raise EmulationError("multicast", "bulk copy through a multicast address")
        return window.replicas[0], offset + window.offset
    cta, offset = w.cta.shared_of(address)
    cta.check_shared(offset, size)
    return cta.shared, offset


def _bulk_read(w: Warp, memory: Bytes, start: int, size: int, op) -> np.ndarray:
    if op is not None:
        w.machine.checker.async_access(op, memory, np.array([start]), size, False)
    if w.machine.strict and not memory.valid[start : start + size].all():
        raise EmulationError(
            "poison", f"bulk copy reads bytes never written of {memory.label}"
        )
    return memory.data[start : start + size].copy()


def _bulk_write(w: Warp, memory: Bytes, start: int, data: np.ndarray, op) -> None:
    if op is not None:
        w.machine.checker.async_access(op, memory, np.array([start]), data.size, True)
    if memory.watch is not None:
        memory.watch(np.array([start]), data.size)
    memory.data[start : start + data.size] = data
    memory.valid[start : start + data.size] = 1


# Stores and reductions to global memory ------------------------------------------------------------------------------


@step(
    rf"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group{HINT}",
    rf"cp\.reduce\.async\.bulk\.tensor\.(?P<rank>[1-5])d\.global\.shared::cta{REDUCE}(?:\.tile)?\.bulk_group{HINT}",
)
def _tensor_store(e: Emitter, i: Instruction, m: re.Match):
    operands = list(i.operands)
    if m["hint"]:
        e.source(operands.pop(), "b64")
    if len(operands) != 2:
        raise i.unsupported("operands of the tensor copy")
    where = _tensor_operand(e, i, operands[0])
    rank, reduction = int(m["rank"]), m.groupdict().get("op")
    if len(where) != rank + 1 or reduction in ("inc", "dec"):
        raise i.unsupported("operands of the tensor copy")
    codes = e.compile(e.address(operands[1]), *where)

    def body(w: Warp, lanes: np.ndarray):
        values = codes(w)
        chosen = np.nonzero(lanes)[0]
        if chosen.size > 1:
            if w.machine.strict:
                raise EmulationError(
                    "tma", f"tensor store issued by {chosen.size} lanes, elect one"
                )
            chosen = chosen[
                :1
            ]  # ptxas makes it one UTMASTG a warp; third-party epilogues rely on that
        for lane in chosen:
            source, address = int(values[0][lane]), int(values[1][lane])
            coords = tuple(int(v[lane].astype(i4)) for v in values[2:])
            t = tensor_map(w, address)
            box = Box(w, t, coords)
            cta, offset = w.cta.shared_of(source)
            chunks = shared_chunks(t, offset)
            cta.check_shared(int(chunks.min()), CHUNK)
            cta.check_shared(int(chunks.max()), CHUNK)
            _post_store(
                w, int(lane), i.pc, _TensorStore(w, cta, chunks, box, reduction)
            )
        w.machine.counters["tensor store"] += 1

    return body


class _TensorStore:
    def __init__(self, w, cta, chunks, box, reduction):
        self.w, self.cta, self.chunks, self.box, self.reduction = (
            w,
            cta,
            chunks,
            box,
            reduction,
        )

    def read(self, op) -> None:
        machine = self.w.machine
        if op is not None:
            machine.checker.async_access(
                op, self.cta.shared, self.chunks.ravel(), CHUNK, False, stage=0
            )
        needed = self.box.live if self.box.memory is not None else np.zeros(0, int)
        self.tile = _chunk_gather(
            self.cta.shared, self.chunks, self.box.bytes, machine.strict, needed
        ).copy()

    def write(self, op) -> None:
        if op is not None and self.box.memory is not None:
            self.w.machine.checker.async_access(
                op, self.box.memory, *self.box.ranges(), True, stage=1
            )
        self.box.store(self.tile, self.reduction)


class _BulkStore:
    def __init__(self, w, source, start, target, offset, size, reduction, kind):
        self.w, self.source, self.start, self.target, self.offset = (
            w,
            source,
            start,
            target,
            offset,
        )
        self.size, self.reduction, self.kind = size, reduction, kind

    def read(self, op) -> None:
        if op is not None:
            self.w.machine.checker.async_access(
                op, self.source, np.array([self.start]), self.size, False, stage=0
            )
        self.data = _bulk_read(self.w, self.source, self.start, self.size, None)

    def write(self, op) -> None:
        if op is not None:
            self.w.machine.checker.async_access(
                op, self.target, np.array([self.offset]), self.size, True, stage=1
            )
        data = self.data
        if self.reduction is not None:
            dtype = REDUCTION_DTYPES[self.kind]
            old = self.target.data[self.offset : self.offset + self.size].view(dtype)
            data = reduce_pair(self.reduction, self.kind, old, data.view(dtype)).view(
                u1
            )
        _bulk_write(self.w, self.target, self.offset, data, None)


def _post_store(w: Warp, lane: int, pc: int, store) -> None:
    machine = w.machine
    groups = bulk_groups(w, lane)
    state = {"stage": 0}
    groups.open.append(state)
    op = (
        machine.checker.issue_bulk(w, lane, groups, pc)
        if machine.checker is not None
        else None
    )

    def write() -> None:
        store.write(op)
        state["stage"] = 2
        w.cta.cluster.wake()

    def read() -> None:
        store.read(op)
        state["stage"] = 1
        w.cta.cluster.wake()
        machine.post(w.cta.cluster, write, pc, w, late=True)

    machine.post(w.cta.cluster, read, pc, w)


@step(
    rf"cp\.async\.bulk\.global\.shared::cta\.bulk_group{HINT}",
    rf"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group{HINT}{REDUCE}(?:\.noftz)?"
    r"\.(?P<t>u32|s32|u64|s64|b32|b64|f32|f64|f16|bf16)",
)
def _bulk_store(e: Emitter, i: Instruction, m: re.Match):
    operands = list(i.operands)
    if m["hint"]:
        e.source(operands.pop(), "b64")
    groups = m.groupdict()
    if len(operands) != 3 or groups.get("op") in ("inc", "dec"):
        raise i.unsupported("operands of the bulk copy")
    codes = e.compile(
        e.address(operands[0]), e.address(operands[1]), e.source(operands[2], "u32")
    )

    def body(w: Warp, lanes: np.ndarray):
        for lane in np.nonzero(lanes)[0]:
            target, source, size = (int(v[lane]) for v in codes(w))
            _check_bulk(target, source, size)
            memory, start = _bulk_source(w, "shared::cta", source, size)
            destination, offset = _bulk_source(w, "global", target, size)
            store = _BulkStore(
                w,
                memory,
                start,
                destination,
                offset,
                size,
                groups.get("op"),
                groups.get("t"),
            )
            _post_store(w, int(lane), i.pc, store)
        w.machine.counters["bulk store"] += 1

    return body


@inline(
    r"cp\.async\.bulk\.prefetch\.tensor\.[1-5]d\.L2\.global(?:\.tile)?(?:\.L2::cache_hint)?"
)
def _prefetch_tensor(e: Emitter, i: Instruction, m: re.Match) -> None:
    _tensor_operand(e, i, i.operands[0])
    e.do("pass")

"""The product's own launches, over the fake driver, executed by the PTX emulator.

The driver table stands between: kernel, grid, cluster, shared memory, tensor maps and
parameters are what the host code passes; only the memory behind the addresses and the
PTX of the kernel come from here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import pytest
from codegen.gemm_variants import Sm90Variant
from kernel_layout import Collective, Reducer
from ptx_emulator import Buffer, Machine, encode_tensor_map
from ptx_emulator.tensor_map import DTYPES, SWIZZLES
from rank_rigs import open_rig
from test_rank_cases import integers, wanted

pytestmark = pytest.mark.requires("kernels", "nvcc")

RANKS = 2
RECORD_NBYTES = 40
TAIL = (
    "flags_offset", "result_flags_offset", "data_offset", "result_offset", "output",
    "output_pitch", "axis_index", "timeout_ns", "abort_word", "fault_record",
)  # fmt: skip


@dataclass(frozen=True)
class Captured:
    """One launch as the driver was asked for it."""

    line: dict

    @property
    def rank(self) -> int:
        return self.line["rank"]

    @property
    def params(self) -> bytes:
        return bytes.fromhex(self.line["params"])

    def field(self, name: str) -> int:
        """One of the last fields of KernelParams, all of 8 bytes."""
        values = np.frombuffer(self.params[-8 * len(TAIL) :], np.uint64)
        return int(values[TAIL.index(name)])

    def variant(self) -> Sm90Variant:
        """The kernel of this name."""
        pattern = r"jax_symm_sm90_(bf16|f16)_(kn|nk)_(\d+)x(\d+)x(\d+)_([a-z]+)_(rs|ar)"
        found = re.fullmatch(pattern, self.line["kernel"])
        element, layout, *tile, reducer, mode = found.groups()
        collectives = {"rs": Collective.REDUCE_SCATTER, "ar": Collective.ALL_REDUCE}
        return Sm90Variant(
            tuple(map(int, tile)), layout, element, Reducer[reducer.upper()],
            collectives[mode],
        )  # fmt: skip

    def tensor_map(self, operand: str) -> bytes:
        """What the host asked of cuTensorMapEncodeTiled, in the emulator's encoding."""
        asked = self.line[operand]
        (dtype,) = [n for n, (code, _) in DTYPES.items() if code == asked["type"]]
        return encode_tensor_map(
            asked["address"], asked["dims"], (asked["pitch_bytes"],), asked["box"],
            dtype=dtype, swizzle=SWIZZLES[asked["swizzle"]],
        )  # fmt: skip


class Replay:
    """An emulated machine with memory where the launches expect it."""

    def __init__(self, rig, launches):
        self.machine = Machine(RANKS, "sm_90a", resident_ctas=8)
        self.outputs: dict[int, Buffer] = {}
        pads = np.zeros(launches[0].field("data_offset"), np.uint8)
        for mapping in rig.memory:
            self.place(mapping.address, mapping.nbytes, range(RANKS)).write(pads)

    def place(self, address: int, content, ranks) -> Buffer:
        """Memory at an address, on some ranks."""
        first, *others = ranks
        buffer = self.machine.buffer(first, content, at=address)
        for rank in others:
            self.machine.space.map(rank, address, buffer.nbytes, [buffer.memory])
        return buffer

    def launch(self, captured: Captured, operands) -> None:
        """Places what the launch points at, and enqueues it."""
        rank, line = captured.rank, captured.line
        x, w, output = operands
        self.place(line["x"]["address"], np.asarray(x), [rank])
        self.place(line["w"]["address"], np.asarray(w), [rank])
        poison = np.full(output.nbytes, 0xFF, np.uint8)
        self.outputs[rank] = self.place(captured.field("output"), poison, [rank])
        self.place(captured.field("axis_index"), np.array([rank], np.int32), [rank])
        self.place(captured.field("abort_word"), np.zeros(1, np.uint32), [rank])
        record = np.zeros(RECORD_NBYTES, np.uint8)
        self.place(captured.field("fault_record"), record, [rank])
        variant = captured.variant()
        kernel = self.machine.load(variant.ptx()).kernel(variant.symbol)
        self.machine.launch(
            rank, kernel, line["grid"], line["block"],
            [captured.tensor_map("x"), captured.tensor_map("w"), captured.params],
            cluster=line["cluster"], smem_bytes=line["shared_bytes"],
        )  # fmt: skip


@pytest.mark.parametrize("w_layout", ["kn", "nk"])
@pytest.mark.parametrize(
    ("op", "reducer"), [("reduce_scatter", "push"), ("all_reduce", "pull")]
)
def test_the_emulator_runs_what_the_host_launches(
    fake_driver, fake_machine, tmp_path, monkeypatch, op, reducer, w_layout
):
    fake_machine.script(faults=[])
    log = tmp_path / "launches"
    monkeypatch.setenv("FAKE_CUDA_LAUNCHES", str(log))
    rig = open_rig("fake", RANKS, fake_driver=fake_driver, max_m=256, n=256)
    try:
        x, w = integers(3, RANKS, 149, 136, 72, w_layout=w_layout)
        call = rig.prepare(op, x, w, reducer=reducer, w_layout=w_layout)
        computed = call.start().result()
        launches = [Captured(json.loads(line)) for line in log.read_text().splitlines()]
        assert sorted(captured.rank for captured in launches) == list(range(RANKS))
        replay = Replay(rig, launches)
        for captured in launches:
            replay.launch(captured, call.buffers[captured.rank])
        replay.machine.run(1)
        emulated = [
            replay.outputs[rank].array(computed.dtype, call.buffers[rank][2].shape)
            for rank in range(RANKS)
        ]
    finally:
        rig.close()
    want = wanted(op, x, w, RANKS, w_layout=w_layout)
    np.testing.assert_array_equal(computed, want)
    if op == "reduce_scatter":
        np.testing.assert_array_equal(np.concatenate(emulated), want)
    else:
        for result in emulated:
            np.testing.assert_array_equal(result, want)

"""Small CUDA kernels through nvcc: the forms that the compiler emits, both ways of use."""

import struct
from pathlib import Path

import numpy as np
import pytest

from ptx_emulator import ADVERSARIAL, EmulationError, encode_tensor_map
from ptx_emulator.numeric import bf16_to_f32, f32_to_bf16

KERNELS = Path(__file__).with_name("kernels")
pytestmark = pytest.mark.requires("nvcc")


def operands(rng, *shape):
    return f32_to_bf16(rng.integers(-2, 3, shape).astype(np.float32))


@pytest.mark.parametrize("schedule", ADVERSARIAL)
def test_wgmma_gemm(emulated_machine, compile_ptx, schedule):
    m, n, k = 128, 256, 192
    rng = np.random.default_rng(5)
    a, b = operands(rng, m, k), operands(rng, n, k)
    machine = emulated_machine(arch="sm_90a", resident_ctas=2)
    kernel = machine.load(compile_ptx(KERNELS / "wgmma.cu", "sm_90a")).kernel()
    x, y, out = machine.buffer(0, a), machine.buffer(0, b), machine.buffer(0, 2 * m * n)
    maps = [
        encode_tensor_map(x.address, (k, m), (2 * k,), (64, 128), swizzle="128B"),
        encode_tensor_map(y.address, (k, n), (2 * k,), (64, 128), swizzle="128B"),
        encode_tensor_map(out.address, (n, m), (2 * n,), (128, 64)),
    ]
    grid = (m // 128, n // 128)
    machine.launch(0, kernel, grid, 384, [*maps, k // 64], smem_bytes=3 * 32768)
    machine.run(1, ADVERSARIAL[schedule])
    want = bf16_to_f32(a) @ bf16_to_f32(b).T
    assert (bf16_to_f32(out.array(np.uint16, (m, n))) == want).all()


@pytest.fixture
def all_reduce(emulated_machine, compile_ptx):
    def run(ranks, replace=("", ""), seed=0):
        text = compile_ptx(KERNELS / "ranks.cu", "sm_90a")
        if replace[0]:
            assert replace[0] in text
            text = text.replace(*replace)
        machine = emulated_machine(ranks, "sm_90a")
        kernel = machine.load(text).kernel()
        n = 512
        data, flags = machine.symmetric(4 * n), machine.symmetric(128)
        outs = []
        for r in range(ranks):
            flags.buffer(r).write(np.zeros(32, np.uint32))
        for epoch in (1, 2):
            for r in range(ranks):
                peers = [data.address(r, p) for p in range(ranks)] + [0] * (16 - ranks)
                words = [flags.address(r, p) for p in range(ranks)] + [0] * (16 - ranks)
                x = (np.arange(n) % 7 * 2.0**r * epoch).astype(np.float32)
                out = machine.buffer(r, 4 * n)
                outs.append((epoch, out))
                arguments = [
                    struct.pack("<32Q", *peers, *words), data.multicast_address(r),
                    machine.buffer(r, x), out, n, r, ranks, epoch,
                ]  # fmt: skip
                machine.launch(r, kernel, 1, 128, arguments)
        result = machine.run(seed, on_race="collect")
        want = np.arange(n) % 7 * (2.0**ranks - 1)
        right = all((o.array(np.float32) == want * e).all() for e, o in outs)
        return right, {r.kind for r in result.reports}

    return run


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_multicast_all_reduce(all_reduce, ranks):
    for seed in range(3):
        assert all_reduce(ranks, seed=seed) == (True, set())


@pytest.mark.parametrize(
    ("replace", "kinds"),
    [
        (("st.release.sys", "st.release.gpu"), {"race", "scope"}),
        (("ld.acquire.sys", "ld.acquire.gpu"), {"race", "scope"}),
        (("st.release.sys", "st.relaxed.sys"), {"race"}),
        (("fence.proxy.alias;", ""), {"alias"}),
        (("bar.sync", "bar.warp.sync -1; // "), {"race"}),
    ],
)
def test_a_weaker_all_reduce_is_reported(all_reduce, replace, kinds):
    found = set()
    for seed in range(3):
        try:
            found |= all_reduce(4, replace, seed)[1]
        except EmulationError as error:
            found.add("race" if error.kind == "poison" else error.kind)
    assert kinds <= found

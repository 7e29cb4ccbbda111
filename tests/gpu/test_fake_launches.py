"""What opening a workspace and launching on it asks of the driver, over the fake one."""

import argparse

import jax
import numpy as np
import one_rank
import pytest
import rank_rigs
from test_rank_cases import integers, wanted

from jax_symm import bench
from jax_symm.errors import SymmError, SymmMemoryError, SymmValueError

pytestmark = pytest.mark.requires("kernels")

MULTIPROCESSORS = 132


@pytest.fixture
def rig(fake_driver):
    opened = rank_rigs.open_rig("fake", 4, fake_driver=fake_driver, max_m=1024, n=512)
    yield opened
    opened.close()


def open_one(rig, driver, margin):
    """A workspace of one rank on the rig's memory."""
    native = rank_rigs._native.module()
    return native.open_cuda_workspace(
        native.cuda_backend(driver),
        name="one",
        nonce=1,
        timeout_ns=10**9,
        world_size=4,
        capacity_bytes=1 << 20,
        all_reduce=True,
        axis="tp",
        rank_labels=[["rank 0", "rank 1", "rank 2", "rank 3"]],
        locals=[native.CudaLocalRank(0, 0, 0, rig.memory)],
        sm_margin=margin,
    )


def test_kernels_keep_to_their_part_of_the_gpu(rig, fake_machine):
    """The margin is taken off the grid, for every shape and in whole clusters."""
    fake_machine.script(faults=[])
    for m, n, k in [(1000, 512, 64), (100, 128, 64), (1, 8, 8)]:
        x, w = integers(0, 4, m, n, k)
        rig.call("reduce_scatter", x, w)
    launches = fake_machine.report()["launches"]
    assert len(launches) == 12
    for kernel, _, grid, cluster in launches:
        assert kernel.startswith("jax_symm_sm90_bf16_kn_")
        assert kernel.endswith("_push_rs")
        assert 0 < grid <= MULTIPROCESSORS // 4
        assert grid % cluster == 0
    assert max(grid for _, _, grid, _ in launches) > MULTIPROCESSORS // 4 - 2
    assert {rank for _, rank, _, _ in launches} == {0, 1, 2, 3}


def test_ranks_choose_alike(rig, fake_machine):
    fake_machine.script(faults=[])
    for seed, m in enumerate([1000, 700, 130, 64]):
        rig.call("all_reduce", *integers(seed, 4, m, 256, 128))
    chosen = {}
    for kernel, rank, grid, _ in fake_machine.report()["launches"]:
        chosen.setdefault(rank, []).append((kernel, grid))
    assert chosen[0] == chosen[1] == chosen[2] == chosen[3]


def test_a_margin_leaves_at_least_one_multiprocessor(rig, fake_driver):
    open_one(rig, fake_driver, MULTIPROCESSORS - 1).close(10**9)
    for margin in (MULTIPROCESSORS, 4_000_000_000):
        with pytest.raises(SymmValueError, match=f"sm_margin: got {margin} of the 132"):
            open_one(rig, fake_driver, margin)


@pytest.mark.parametrize(
    ("call", "result", "kind"),
    [
        ("cuMemHostAlloc", 2, SymmMemoryError),
        ("cuDeviceGetAttribute", 999, SymmError),
        ("cuDevicePrimaryCtxRetain", 999, SymmError),
    ],
)
def test_a_failed_opening_leaves_no_name(
    rig, fake_driver, fake_machine, call, result, kind
):
    fake_machine.script(faults=[("raw", call, 1, result)])
    with pytest.raises(kind, match=call):
        open_one(rig, fake_driver, 0)
    fake_machine.script(faults=[])
    open_one(rig, fake_driver, 0).close(10**9)


def test_a_launch_that_fails_says_which(rig, fake_machine):
    x, w = integers(1, 4, 100, 64, 64)
    call = rig.prepare("all_reduce", x, w)
    fake_machine.script(faults=[("raw", "cuLaunchKernelEx", 1, 719)])
    with pytest.raises(SymmError, match=r"cuLaunchKernelEx.*719.*jax_symm_sm90"):
        rig.submit(0, call.problem, "push", call.buffers[0], call.identity)
    fake_machine.script(faults=[])
    out = call.start().result()
    np.testing.assert_array_equal(out, wanted("all_reduce", x, w, 4))


def test_a_call_that_does_not_fit(rig):
    x, w = integers(2, 4, 4096, 512, 64)
    with pytest.raises(SymmValueError, match="does not fit its workspace"):
        rig.call("all_reduce", x, w)


def test_the_benchmark_of_ranks_that_share_a_gpu(fake_driver, fake_machine):
    """Its rows and its launches; what they take is the fake driver's time."""
    fake_machine.script(faults=[])
    arguments = argparse.Namespace(w_layout="nk", rounds=1)
    case = bench.Case("small", m=64, n=64, k=64)
    rows = bench.time_shared(
        jax.devices("cpu")[0],
        2,
        case,
        arguments,
        rank_rigs._native.module().cuda_backend(fake_driver),
        driver_path=fake_driver,
    )
    assert [(row["op"], row["path"]) for row in rows] == [
        ("gemm_reduce_scatter", "peer"),
        ("gemm_reduce_scatter", "peer_pull"),
        ("gemm_all_reduce", "peer"),
        ("gemm_all_reduce", "peer_pull"),
        ("reduction", "xla"),
    ]
    kernels = {kernel for kernel, _, _, _ in fake_machine.report()["launches"]}
    ends = {"push_rs", "push_ar", "pull_rs", "pull_ar"}
    assert {"_".join(kernel.split("_")[-2:]) for kernel in kernels} == ends
    assert all("_nk_" in kernel for kernel in kernels)


def test_one_rank_without_jax(fake_driver, capsys):
    """The program that runs under compute-sanitizer."""
    assert one_rank.main(fake_driver) == 0
    assert capsys.readouterr().out.count("right") == 32

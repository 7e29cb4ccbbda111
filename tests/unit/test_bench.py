"""The rows of the benchmark: what they count and what they are compared with."""

import pytest

from jax_symm import bench

CASE = bench.Case("layer", m=1024, n=4096, k=512)
TIMES = {"ours": [90.0, 100.0, 110.0], "xla": [150.0, 150.0, 200.0]}


def test_row_counts_flops_and_bytes():
    row = bench.make_row("reduce_scatter", CASE, 4, "peer", TIMES)
    assert (row["op"], row["path"], row["R"]) == ("gemm_reduce_scatter", "peer", 4)
    assert (row["us"], row["us_spread"], row["ratio"]) == (100.0, 20.0, 1.5)
    assert row["tflops"] == pytest.approx(2 * 1024 * 4096 * 512 / 100e-6 / 1e12, 0.01)
    assert row["gbps"] == pytest.approx(0.75 * 1024 * 4096 * 2 / 100e-6 / 1e9, 0.01)
    assert row["ratio_to"] == "xla_dot_psum_scatter"


def test_all_reduce_moves_twice_as_much():
    scatter = bench.make_row("reduce_scatter", CASE, 8, "peer", TIMES)
    reduce = bench.make_row("all_reduce", CASE, 8, "peer", TIMES)
    assert reduce["gbps"] == pytest.approx(2 * scatter["gbps"], 0.01)
    assert reduce["ratio_to"] == "xla_dot_psum"


def test_one_device_times_the_product_alone():
    row = bench.make_row("reduce_scatter", CASE, 1, "peer", TIMES)
    assert (row["op"], row["ratio_to"], row["gbps"]) == ("gemm", "xla_dot", 0.0)

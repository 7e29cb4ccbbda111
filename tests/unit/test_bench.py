"""The rows of the benchmark: what they count and what they are compared with."""

import pytest

from jax_symm import bench

CASE = bench.Case("layer", m=1024, n=4096, k=512)
TIMES = {
    "peer": [90.0, 100.0, 110.0],
    "xla": [150.0, 150.0, 200.0],
    "products": [60.0, 80.0, 90.0],
}


def test_row_counts_flops_and_bytes():
    row = bench.make_row("reduce_scatter", CASE, 4, "peer", TIMES)
    assert (row["op"], row["path"], row["R"]) == ("gemm_reduce_scatter", "peer", 4)
    assert (row["us"], row["us_spread"], row["ratio"]) == (100.0, 20.0, 1.5)
    assert row["tflops"] == pytest.approx(2 * 1024 * 4096 * 512 / 100e-6 / 1e12, 0.01)
    assert row["gbps"] == pytest.approx(0.75 * 1024 * 4096 * 2 / 100e-6 / 1e9, 0.01)
    assert row["ratio_to"] == "xla_dot_psum_scatter"
    assert row["us_quartiles"] == [90.0, 110.0]
    assert (row["floor_us"], row["percent_of_floor"]) == (80.0, 80.0)
    bound = bench.make_row("reduce_scatter", CASE, 4, "peer", TIMES, bytes_us=95.0)
    assert (bound["floor_us"], bound["percent_of_floor"]) == (95.0, 95.0)


def test_all_reduce_moves_twice_as_much():
    scatter = bench.make_row("reduce_scatter", CASE, 8, "peer", TIMES)
    reduce = bench.make_row("all_reduce", CASE, 8, "peer", TIMES)
    assert reduce["gbps"] == pytest.approx(2 * scatter["gbps"], 0.01)
    assert reduce["ratio_to"] == "xla_dot_psum"


def test_one_device_times_the_product_alone():
    row = bench.make_row("reduce_scatter", CASE, 1, "peer", TIMES)
    assert (row["op"], row["ratio_to"], row["gbps"]) == ("gemm", "xla_dot", 0.0)


def test_ranks_on_one_gpu_do_the_products_of_all():
    alone = bench.make_row("all_reduce", CASE, 4, "peer", TIMES)
    shared = bench.make_row("all_reduce", CASE, 4, "peer", TIMES, shared=True)
    assert shared["tflops"] == pytest.approx(4 * alone["tflops"], 0.001)
    assert shared["ratio_to"] == "xla_gemm_plus_reduction"


def test_a_reduction_reads_all_partials_and_writes_one():
    times = {"reduction": [10.0, 12.0, 11.0], "copy": [9.0, 10.0, 11.0]}
    row = bench.reduction_row(CASE, 4, times)
    assert row["gbps"] == pytest.approx(5 * 1024 * 4096 * 2 / 11e-6 / 1e9, 0.001)
    assert (row["op"], row["ratio_to"]) == ("reduction", "copy")
    assert row["ratio"] == pytest.approx(10 / 11, 0.001)

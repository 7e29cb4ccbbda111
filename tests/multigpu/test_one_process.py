"""All ranks in one process, under settings that change when and where XLA launches.

The suite of tests/host: sub-groups, other device orders, meshes of two axes, calls back to
back with another delay of every rank before each, among XLA's own collectives.
"""

import pytest
from test_processes import names, passed
from worlds import world

SCHEDULER = "--xla_gpu_autotune_level=0 --xla_gpu_enable_latency_hiding_scheduler"
VARIANTS = {
    "plain": {},
    # The first launch of a kernel then loads code while other ranks may be waiting for it.
    "lazy_loading": {"CUDA_MODULE_LOADING": "LAZY"},
    "latency_hiding": {"XLA_FLAGS": f"{SCHEDULER}=true"},
    "no_latency_hiding": {"XLA_FLAGS": f"{SCHEDULER}=false"},
}
PLACES = [world("gpus", 1, count) for count in (2, 4, 8)]


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


@pytest.fixture(scope="module", params=PLACES)
def suite(request, variant):
    return request.param.launch("suite", "run", timeout_s=240, env=variant)


@pytest.mark.parametrize("name", names("check"))
def test_on_gpus(suite, name):
    passed(suite, name)


@pytest.fixture(scope="module", params=[world("cpu", 1, 8)])
def suite_on_cpu(request):
    return request.param.launch("suite", "run", timeout_s=240)


@pytest.mark.parametrize("name", names("check"))
def test_on_cpu(suite_on_cpu, name):
    passed(suite_on_cpu, name)

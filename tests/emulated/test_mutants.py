"""Kernels with one act of synchronisation taken away are noticed; unchanged ones are not.

A few mutants of each kind, each by one short run. `mutants.py` judges all of them.
"""

import pytest
from mutant_runs import KERNELS, Trouble
from mutants import RECORDS
from ptx_emulator.mutation import rules, score
from ptx_emulator.mutation.known import COMPILER, known_mutants

pytestmark = pytest.mark.requires("nvcc")

SUMS = 0  # the first run
COMMUNICATION = [
    "sys to gpu in ld.acquire.sys",
    "relax st.release.sys",
    "sys to gpu in st.release.sys",
]
MUTANTS = {
    "sm100_multicast_ar": [
        *COMMUNICATION,
        "drop mbarrier.try_wait",
        "half the bytes of mbarrier.arrive.expect_tx",
        "drop tcgen05.commit",
        "drop tcgen05.wait::ld",
        "swizzle of A in tcgen05.mma",
        "drop fence.proxy.alias",
        "drop barrier.cluster.wait",
    ],
    "sm90_push_ar": [
        *COMMUNICATION,
        "drop mbarrier.try_wait",
        "other parity in mbarrier.try_wait",
        "drop wgmma.commit_group",
        "B major in wgmma",
    ],
    "comm_push_rs": COMMUNICATION,
    "comm_multicast_rs": [*COMMUNICATION, "drop fence.proxy.alias"],
}


def judge(kernel, mutant, run):
    """How one run of a mutant goes wrong, or None."""
    subject, runs = KERNELS[kernel]
    return score.judge(mutant, lambda text, _: runs[run].run(subject, text, run), 1).how


def fault_run(kernel):
    """The first run in which a rank is missing."""
    _, runs = KERNELS[kernel]
    return next(i for i, run in enumerate(runs) if isinstance(run, Trouble))


@pytest.mark.parametrize("kernel", MUTANTS)
def test_the_unchanged_kernel_passes(kernel):
    subject, runs = KERNELS[kernel]
    for run in (SUMS, fault_run(kernel)):
        assert runs[run].run(subject, subject.ptx(), run) is None


@pytest.mark.parametrize(
    ("kernel", "rule"),
    [(kernel, rule) for kernel, chosen in MUTANTS.items() for rule in chosen],
)
def test_a_mutant_is_noticed(kernel, rule):
    subject, _ = KERNELS[kernel]
    mutants = rules.mutants(subject.ptx())
    first = next(m for m in mutants if m.name.startswith(rule))
    assert judge(kernel, first, SUMS), f"{first.name}, line {first.line}"


@pytest.mark.parametrize("kernel", MUTANTS)
def test_a_host_that_may_read_half_a_record_is_noticed(kernel):
    subject, _ = KERNELS[kernel]
    stores = [
        mutant
        for mutant in rules.mutants(subject.ptx())
        if mutant.name.startswith("relax st.release.sys")
    ]
    record = stores[-1]
    assert judge(kernel, record, fault_run(kernel)), f"line {record.line}"


@pytest.mark.parametrize("kernel", KERNELS)
def test_records_name_real_mutants_and_edges(kernel):
    subject, _ = KERNELS[kernel]
    ptx, known = subject.ptx(), known_mutants(kernel, RECORDS)
    if COMPILER not in ptx:
        pytest.skip(f"the records are of nvcc {COMPILER}")
    score.check_equivalents(ptx, known.equivalent)
    names = {mutant.name for mutant in rules.mutants(ptx)}
    assert names >= {*known.equivalent, *known.unexplained}

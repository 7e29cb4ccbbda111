"""Generic against asynchronous accesses, and the life of a release."""

import numpy as np
import pytest

from ptx_emulator import Machine

from .ptx_text import module, once, spin, wait
from .test_checker import RANKS, SEEDS, handshake, outcome, two_ranks
from .test_matrix import run_tcgen05

TILE = ".shared .align 128 .b8 tile[128]; .shared .align 8 .b64 full;"
INIT = "mbarrier.init.shared::cta.b64 [%r2], 1;\nfence.mbarrier_init.release.cluster;\n"
LOAD = (
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n"
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%data], 128, "
    "[%r2];\n"
)


@pytest.mark.parametrize("store", ["st.global.u32", "st.relaxed.gpu.global.u32"])
@pytest.mark.parametrize(
    ("fence", "kinds"),
    [
        ("fence.proxy.async;", set()),
        ("fence.proxy.async.global;", set()),
        ("fence.proxy.async.shared::cta;", {"proxy"}),
        ("fence.acq_rel.gpu;", {"proxy"}),
    ],
)
def test_a_copy_of_what_the_kernel_stored_needs_the_fence_of_its_space(
    store, fence, kinds
):
    text = module(
        f"""mov.u32 %r1, tile; mov.u32 %r2, full;
        {once(0, f"{store} [%data], 7;{fence}{INIT}{LOAD}{wait('%r2', '0')}")}""",
        "data",
        shared=TILE,
    )

    def build(machine, kernel):
        data = machine.buffer(0, np.zeros(32, np.uint32))
        machine.launch(0, kernel, 1, 1, [data])

    assert outcome(build, text) == kinds


def test_a_proxy_fence_before_the_store_is_on_no_path():
    steps = f"fence.proxy.async;st.global.u32 [%data], 7;{INIT}{LOAD}"
    text = module(
        f"""mov.u32 %r1, tile; mov.u32 %r2, full;
        {once(0, steps + wait("%r2", "0"))}""",
        "data",
        shared=TILE,
    )

    def build(machine, kernel):
        data = machine.buffer(0, np.zeros(32, np.uint32))
        machine.launch(0, kernel, 1, 1, [data])

    assert outcome(build, text) == {"proxy"}


@pytest.mark.parametrize(
    ("wait_group", "kinds"),
    [(".read 0", set()), (" 0", set()), (".read 1", {"race"})],
)
def test_a_source_may_be_overwritten_once_it_has_been_read(wait_group, kinds):
    text = module(
        f"""mov.u32 %r1, tile;
        shl.b32 %r3, %lane, 2;
        add.u32 %r3, %r3, %r1;
        st.shared.u32 [%r3], 1;
        fence.proxy.async.shared::cta;
        bar.warp.sync -1;
        setp.ne.u32 %p1, %lane, 0;
        @%p1 bra MEET;
        cp.async.bulk.global.shared::cta.bulk_group [%data], [%r1], 128;
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group{wait_group};
        MEET:
        bar.warp.sync -1;
        st.shared.u32 [%r3], 2;
        @%p1 bra DONE;
        cp.async.bulk.wait_group 0;
        DONE:""",
        "data",
        shared=TILE,
    )

    def build(machine, kernel):
        machine.launch(0, kernel, 1, 32, [machine.buffer(0, 128)])

    assert outcome(build, text) == kinds


ACQUIRE = "ld.acquire.sys.global.u32 %r1, [%flag];"


@pytest.mark.parametrize(
    ("then", "wanted", "kinds"),
    [
        ("red.relaxed.sys.global.add.u32 [%flag], 1;", "2", set()),
        ("atom.relaxed.sys.global.exch.b32 %r9, [%flag], 2;", "2", set()),
        ("st.relaxed.sys.global.u32 [%flag], 2;", "2", {"race"}),
    ],
)
def test_a_release_lives_on_in_updates_but_not_in_stores(then, wanted, kinds):
    text = module(
        RANKS.format(
            produce="st.global.u32 [%data], 5;\n"
            f"st.release.sys.global.u32 [%flag], 1;\n{then}",
            consume=spin(ACQUIRE, "%r1", wanted)
            + "ld.global.u32 %r2, [%data];\nst.global.u32 [%out], %r2;",
        ),
        "data flag out rank:u32",
    )
    assert outcome(two_ranks, text, ranks=2) == kinds


@pytest.mark.parametrize(
    ("release", "acquire", "kinds"),
    [
        # A fence on the wrong side of its access.
        (
            "st.relaxed.sys.global.u32 [%flag], 1;\nfence.acq_rel.sys;",
            (ACQUIRE, ""),
            {"race"},
        ),
        (
            "st.release.sys.global.u32 [%flag], 1;",
            ("fence.acq_rel.sys;\nld.relaxed.sys.global.u32 %r1, [%flag];", ""),
            {"race"},
        ),
        # Halves of fences.
        (
            "fence.release.sys;\nst.relaxed.sys.global.u32 [%flag], 1;",
            ("ld.relaxed.sys.global.u32 %r1, [%flag];", "fence.acquire.sys;\n"),
            set(),
        ),
        (
            "fence.acquire.sys;\nst.relaxed.sys.global.u32 [%flag], 1;",
            (ACQUIRE, ""),
            {"race"},
        ),
        # A fence between ranks has to be .sys, whatever the accesses are.
        (
            "st.release.sys.global.u32 [%flag], 1;",
            ("ld.relaxed.sys.global.u32 %r1, [%flag];", "fence.acq_rel.gpu;\n"),
            {"race"},
        ),
        # Nothing ends the effect of the store but another one.
        (
            "st.global.u32 [%data], 5;\nst.release.sys.global.u32 [%flag], 1;\n"
            "st.global.u32 [%data+4], 6;",
            (ACQUIRE, "ld.global.u32 %r3, [%data+4];\n"),
            {"race"},
        ),
    ],
)
def test_which_side_of_a_fence_an_access_is_on(release, acquire, kinds):
    assert outcome(two_ranks, handshake(release, acquire), ranks=2) == kinds


@pytest.mark.parametrize(("before", "kinds"), [(True, set()), (False, {"tcgen05"})])
def test_the_accumulator_is_handed_back_with_a_fence_before(before, kinds):
    """The issuer overwrites what the other warps have read, after a barrier."""
    again = """
        bar.sync 0;
        tcgen05.fence::after_thread_sync;
        setp.ne.u32 %p1, %tid, 0;
        @%p1 bra OVER;
        tcgen05.mma.cta_group::1.kind::f16 [%r1], %a, %b, %word, %p2;
        tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r152];
        OVER:
        {
        AGAIN:
        mbarrier.try_wait.parity.shared::cta.b64 %p29, [%r152], 1;
        @!%p29 bra AGAIN;
        }
        tcgen05.fence::after_thread_sync;
        setp.ne.u32 %p1, %warp, 0;
        tcgen05.fence::before_thread_sync;
        bar.sync 0;
        @%p1 bra DONE;
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 64;
        bra DONE;"""
    if before:
        again = "tcgen05.fence::before_thread_sync;" + again
    seen = set()
    for seed in SEEDS:
        _, _, result = run_tcgen05(64, seed=seed, on_race="collect", hand_back=again)
        seen |= {r.kind for r in result.reports}
    assert seen == kinds


@pytest.mark.parametrize(
    ("fence", "kinds"), [("fence.proxy.async.shared::cta;", set()), ("", {"proxy"})]
)
def test_operands_stored_by_threads_need_the_proxy_fence(fence, kinds):
    touch = once(5, f"ld.shared.u32 %r9, [%r150];st.shared.u32 [%r150], %r9;{fence}")
    seen = set()
    for seed in SEEDS:
        _, _, result = run_tcgen05(
            64, seed=seed, on_race="collect", touch=touch + "bar.sync 0;"
        )
        seen |= {r.kind for r in result.reports}
    assert seen == kinds


def test_a_machine_without_a_checker_reports_nothing():
    text = handshake("st.global.u32 [%flag], 1;", (ACQUIRE, ""))
    machine = Machine(arch="sm_90a", ranks=2, check=False)
    two_ranks(machine, machine.load(text).kernel())
    assert machine.run().reports == ()

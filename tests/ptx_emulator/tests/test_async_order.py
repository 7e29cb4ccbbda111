"""What asynchronous operations, barriers and strong accesses do not order."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine

from .machines import data_and_flags
from .ptx_text import module, once, spin, wait
from .test_checker import outcome

COPY = (
    "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%in], 128, "
    "[%r2];\n"
)
EXPECT = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;\n"
NOTE = "st.shared.u32 [%r3], 7;\n"


def side_note(order):
    """Thread 0 writes a note, arrives and copies, in some order; thread 32 waits and reads."""
    return module(
        f"""mov.u32 %r1, slot; mov.u32 %r2, full; mov.u32 %r3, note;
        {once(0, "mbarrier.init.shared::cta.b64 [%r2], 1;fence.mbarrier_init.release.cluster;")}
        bar.sync 0;
        {once(0, "".join(order))}
        {once(32, wait("%r2", "0") + "ld.shared.u32 %r4, [%r1];ld.shared.u32 %r5, [%r3];")}
        """,
        "in",
        shared=".shared .align 128 .b8 slot[128]; .shared .align 8 .b64 full;"
        ".shared .align 4 .b32 note;",
    )


@pytest.mark.parametrize(
    ("order", "kinds"),
    [
        ((NOTE, EXPECT, COPY), set()),
        # The complete-tx of a copy orders nothing but the copy.
        ((EXPECT, NOTE, COPY), {"race"}),
        ((EXPECT, COPY, NOTE), {"race"}),
    ],
)
def test_the_end_of_a_copy_says_nothing_of_its_issuer(order, kinds):
    def build(machine, kernel):
        source = machine.buffer(0, np.arange(32, dtype=np.uint32))
        machine.launch(0, kernel, 1, 64, [source])

    seen = set()
    for seed in range(8):
        machine = Machine(arch="sm_90a", strict=False)
        build(machine, machine.load(side_note(order)).kernel())
        seen |= {r.kind for r in machine.run(seed, on_race="collect").reports}
    assert seen == kinds


def test_a_late_waiter_gets_what_its_own_barrier_published():
    """Warp 1 leaves barrier 1 when warps 0 and 2 have used it once more.

    Between the two uses warp 0 writes a word: warp 1 has not been told of it.
    """
    text = module(
        f"""mov.u32 %r1, word;
        {once(0, "st.shared.u32 [%r1], 1;")}
        bar.sync 1, 96;
        setp.eq.u32 %p1, %warp, 1;
        @%p1 bra LATE;
        {once(0, "st.shared.u32 [%r1], 2;")}
        bar.sync 1, 64;
        bra DONE;
        LATE:
        ld.shared.u32 %r2, [%r1];
        DONE:""",
        "out",
        shared=".shared .align 4 .b32 word;",
    )
    for seed in range(40):  # in a few of which warp 1 is that late
        machine = Machine(arch="sm_90a")
        kernel = machine.load(text).kernel()
        machine.launch(0, kernel, 1, 96, [machine.buffer(0, 4)])
        result = machine.run(seed, on_race="collect")
        assert {r.kind for r in result.reports} == {"race"}


@pytest.mark.parametrize(
    ("load", "kinds"),
    [("ld.acquire.gpu.global.u64 %rd2", set()), ("ld.acquire.gpu.global.u32 %r2", {"race"})],
)  # fmt: skip
def test_strong_accesses_of_different_sizes_race(load, kinds):
    text = module(
        f"""setp.ne.u32 %p1, %ctaid.x, 0;
        @%p1 bra READER;
        mov.u64 %rd1, 1;
        st.release.gpu.global.u64 [%flag], %rd1;
        bra DONE;
        READER:
        {load}, [%flag];
        DONE:""",
        "flag",
    )

    def build(machine, kernel):
        flag = machine.buffer(0, np.zeros(1, np.uint64))
        machine.launch(0, kernel, 2, 1, [flag])

    assert outcome(build, text) == kinds


@pytest.mark.parametrize("met", [False, True])
def test_a_peer_cta_may_not_have_started(met):
    meet = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
    text = module(
        f"""mov.u32 %r1, word;
        {meet if met else ""}
        mov.u32 %r2, %cluster_ctarank;
        xor.b32 %r2, %r2, 1;
        mapa.shared::cluster.u32 %r3, %r1, %r2;
        {once(0, "st.shared::cluster.u32 [%r3], 7;")}
        {meet}
        ld.shared.u32 %r4, [%r1];""",
        "out",
        shared=".shared .align 4 .b32 word;",
    )
    machine = Machine(arch="sm_90a")
    out = machine.buffer(0, 4)
    machine.launch(0, machine.load(text).kernel(), 2, 32, [out], cluster=2)
    if met:
        assert machine.run().reports == ()
        return
    with pytest.raises(EmulationError, match="may not have started"):
        machine.run()


def test_a_flag_may_be_raised_through_multicast_and_polled_through_unicast():
    """As NVIDIA's kernels do; the data themselves take one path here."""
    text = module(
        f"""st.global.u32 [%mine], 3;
        multimem.red.release.sys.global.add.u32 [%flags], 1;
        {spin("ld.acquire.sys.global.u32 %r1, [%flag];", "%r1", "2")}
        ld.global.u32 %r2, [%peer];""",
        "mine peer flags flag",
    )

    def build(machine, kernel):
        data, flags = data_and_flags(machine)
        for rank in range(2):
            machine.launch(
                rank, kernel, 1, 1,
                [data.buffer(rank), data.address(rank, 1 - rank),
                 flags.multicast_address(rank), flags.buffer(rank)],
            )  # fmt: skip

    assert outcome(build, text, ranks=2) == set()

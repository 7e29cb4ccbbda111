"""The checker sees lanes, not warps: what one lane publishes says nothing of the others."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine

from .ptx_text import module, once, spin, wait
from .test_checker import SHARED_WORD, one_cta, outcome

BAR = ".shared .align 8 .b64 bar;"
SYNC = "bar.warp.sync -1;"


def setting(threads=64):
    """The words of the CTA hold 1, and its mbarrier expects one arrival."""
    return f"""mov.u32 %r1, word; mov.u32 %r2, bar;
        {once(0, "mbarrier.init.shared::cta.b64 [%r2], 1;")}
        shl.b32 %r3, %lane, 2;
        add.u32 %r3, %r3, %r1;
        setp.ne.u32 %p1, %warp, 0;
        @!%p1 st.shared.u32 [%r3], 1;
        bar.sync 0;"""


def read_then_release(sync, lane):
    """All lanes of warp 0 read one word, lane `lane` arrives; warp 1 overwrites it."""
    return module(
        f"""{setting()}
        @%p1 bra WRITER;
        ld.shared.u32 %r4, [%r1];
        {sync}
        {once(lane, "mbarrier.arrive.shared::cta.b64 _, [%r2];")}
        bra DONE;
        WRITER:
        {once(32, wait("%r2", "0") + "st.shared.u32 [%r1], 2;")}
        DONE:""",
        "out",
        shared=SHARED_WORD + BAR,
    )


@pytest.mark.parametrize("lane", [0, 17, 31])
@pytest.mark.parametrize(("sync", "kinds"), [(SYNC, set()), ("", {"race"})])
def test_a_broadcast_read_is_one_of_every_lane(sync, kinds, lane):
    assert outcome(one_cta(64), read_then_release(sync, lane)) == kinds


@pytest.mark.parametrize("lane", [0, 31])
@pytest.mark.parametrize(("sync", "kinds"), [(SYNC, set()), ("", {"warp"})])
def test_a_lane_may_not_overwrite_what_the_others_have_read(sync, kinds, lane):
    text = module(
        f"""{setting()}
        ld.shared.u32 %r4, [%r1];
        {sync}
        {once(lane, "st.shared.u32 [%r1], 2;")}""",
        "out",
        shared=SHARED_WORD + BAR,
    )
    assert outcome(one_cta(32), text) == kinds


@pytest.mark.parametrize(
    ("sync", "exchanged", "kinds"),
    [(SYNC, 1, set()), ("", 1, {"warp"}), ("", 0, set())],
)
def test_lanes_may_not_exchange_words_after_another_warp_has_read_them(
    sync, exchanged, kinds
):
    """Warp 1 reads first, so that warp 0 is the second reader of every word."""
    text = module(
        f"""{setting()}
        @%p1 ld.shared.u32 %r4, [%r3];
        bar.sync 0;
        @%p1 bra DONE;
        ld.shared.u32 %r4, [%r3];
        {sync}
        xor.b32 %r3, %r3, {4 * exchanged};
        st.shared.u32 [%r3], %r4;
        DONE:""",
        "out",
        shared=SHARED_WORD + BAR,
    )
    assert outcome(one_cta(64), text) == kinds


@pytest.mark.parametrize(("count", "kinds"), [(2, set()), (1, {"race"})])
def test_each_reading_lane_has_to_be_waited_for(count, kinds):
    """Warp 2 reads, then lanes 1 and 2 of warp 0 do, in turn; only the second arrives."""
    arrive = "mbarrier.arrive.shared::cta.b64 _, [%r2];"
    text = module(
        f"""{setting()}
        setp.eq.u32 %p2, %warp, 1;
        @%p2 bra WRITER;
        @%p1 ld.shared.u32 %r4, [%r1];
        @%p1 bar.arrive 1, 64;
        @%p1 bra DONE;
        {once(1, f"ld.shared.u32 %r4, [%r1];{arrive if count == 2 else ''}")}
        {once(2, f"ld.shared.u32 %r4, [%r1];{arrive}")}
        bra DONE;
        WRITER:
        bar.sync 1, 64;
        {once(32, wait("%r2", "0") + "st.shared.u32 [%r1], 2;")}
        DONE:""",
        "out",
        shared=SHARED_WORD + BAR,
    ).replace("[%r2], 1;", f"[%r2], {count};")
    assert outcome(one_cta(96), text) == kinds


@pytest.mark.parametrize(("sync", "kinds"), [(SYNC, set()), ("", {"race"})])
def test_a_release_fence_covers_the_lane_that_runs_it(sync, kinds):
    """All lanes write and fence; lane 0 of CTA 0 raises the flag."""
    text = module(
        f"""mul.wide.u32 %rd1, %lane, 4;
        add.u64 %rd1, %rd1, %data;
        setp.ne.u32 %p1, %ctaid.x, 0;
        @%p1 bra READER;
        st.global.u32 [%rd1], 5;
        {sync}
        fence.acq_rel.gpu;
        {once(0, "st.relaxed.gpu.global.u32 [%flag], 1;")}
        bra DONE;
        READER:
        {once(0, spin("ld.relaxed.gpu.global.u32 %r1, [%flag];", "%r1", "1"))}
        fence.acq_rel.gpu;
        bar.warp.sync -1;
        ld.global.u32 %r2, [%rd1];
        DONE:""",
        "data flag",
    )

    def build(machine, kernel):
        data = machine.buffer(0, np.zeros(32, np.uint32))
        flag = machine.buffer(0, np.zeros(1, np.uint32))
        machine.launch(0, kernel, 2, 32, [data, flag])

    assert outcome(build, text) == kinds


@pytest.mark.parametrize(("sync", "kinds"), [(SYNC, set()), ("", {"race"})])
def test_the_end_of_a_lane_publishes_nothing(sync, kinds):
    """Lanes 1 to 31 store and leave; lane 0 arrives for warp 1 to read."""
    text = module(
        f"""{setting()}
        @%p1 bra READER;
        st.shared.u32 [%r3], 2;
        {sync}
        setp.ne.u32 %p2, %lane, 0;
        @%p2 exit;
        mbarrier.arrive.shared::cta.b64 _, [%r2];
        bra DONE;
        READER:
        {wait("%r2", "0")}
        ld.shared.u32 %r4, [%r3];
        DONE:""",
        "out",
        shared=SHARED_WORD + BAR,
    )
    assert outcome(one_cta(64), text) == kinds


@pytest.mark.parametrize("opcode", ["st.shared.u32", "st.global.u32"])
def test_lanes_of_one_store_may_not_disagree(opcode):
    text = module(
        f"mov.u64 %rd1, %out;\nmov.u32 %r1, word;\n{opcode} "
        f"[{'%r1' if 'shared' in opcode else '%rd1'}], %lane;",
        "out",
        shared=SHARED_WORD,
    )
    machine = Machine(arch="sm_90a")
    one_cta(32)(machine, machine.load(text).kernel())
    with pytest.raises(EmulationError, match="different values to one place") as caught:
        machine.run()
    assert caught.value.kind == "race"
    alike = text.replace(", %lane;", ", %warp;")
    one_cta(32)(machine, machine.load(alike).kernel())
    machine.streams[0].pop(0)
    assert machine.run().reports == ()

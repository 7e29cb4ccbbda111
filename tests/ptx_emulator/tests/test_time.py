"""Virtual time, deadlines, and what a finished run leaves behind."""

import gc
import weakref

import numpy as np
import pytest

from ptx_emulator import Machine, Schedule

from .ptx_text import module

MINUTE_NS = 60_000_000_000

# Each CTA waits for the flag until its deadline; one that gives up raises the flag.
GIVE_UP = module(
    """mov.u64 %rd1, %globaltimer;
    mad.wide.u32 %rd3, %ctaid.x, 4, %limits;
    ld.global.u32 %r3, [%rd3];
    mul.wide.u32 %rd2, %r3, 1000000;
    add.u64 %rd2, %rd2, %rd1;
    mov.u32 %r2, 0;
    AGAIN:
    ld.relaxed.gpu.global.u32 %r1, [%flag];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    nanosleep.u32 100;
    mov.u64 %rd4, %globaltimer;
    setp.lt.u64 %p2, %rd4, %rd2;
    @%p2 bra AGAIN;
    mov.u32 %r2, 1;
    atom.relaxed.gpu.global.exch.b32 %r4, [%flag], 1;
    DONE:
    mad.wide.u32 %rd5, %ctaid.x, 4, %out;
    st.global.u32 [%rd5], %r2;
    sub.u64 %rd6, %rd4, %rd1;
    mad.wide.u32 %rd5, %ctaid.x, 8, %waited;
    st.global.u64 [%rd5], %rd6;""",
    "flag limits out waited",
)


def give_up(limits_ms, seed, schedule=None):
    """Who gave up, and how long each CTA waited, in nanoseconds."""
    machine = Machine(arch="sm_90a")
    count = len(limits_ms)
    out, waited = machine.buffer(0, 4 * count), machine.buffer(0, 8 * count)
    flag = machine.buffer(0, np.zeros(1, np.uint32))
    limits = machine.buffer(0, np.array(limits_ms, np.uint32))
    kernel = machine.load(GIVE_UP).kernel()
    machine.launch(0, kernel, count, 1, [flag, limits, out, waited])
    machine.run(seed, schedule)
    return out.array(np.uint32).tolist(), waited.array(np.uint64)


@pytest.mark.parametrize("limits_ms", [[600_000, 601_000], [700_000, 30_000, 30_001]])
@pytest.mark.parametrize("seed", range(6))
def test_the_first_deadline_passes_first(limits_ms, seed):
    """Time stops there, so that what the first waiter does saves the others."""
    gave_up, waited = give_up(limits_ms, seed)
    first = int(np.argmin(limits_ms))
    assert gave_up == [int(n == first) for n in range(len(limits_ms))]
    limit_ns = min(limits_ms) * 1e6
    assert limit_ns <= waited[first] < 1.0001 * limit_ns


def test_deadlines_pass_one_by_one_for_a_starved_warp_too():
    gave_up, _ = give_up([600_000, 900_000], 1, Schedule(async_rate=0.02))
    assert gave_up == [1, 0]


def test_the_clocks_of_two_ranks_do_not_agree():
    text = module("mov.u64 %rd1, %globaltimer;\nst.global.u64 [%out], %rd1;", "out")
    machine = Machine(ranks=2, arch="sm_90a")
    outs = [machine.buffer(rank, 8) for rank in range(2)]
    for rank in range(2):
        machine.launch(rank, machine.load(text).kernel(), 1, 1, [outs[rank]])
    machine.run()
    times = [int(out.array(np.uint64)[0]) for out in outs]
    assert abs(times[0] - times[1]) > 1_000_000_000


def test_a_run_leaves_nothing_to_the_garbage_collector():
    """Else machines of many megabytes pile up in a test worker."""
    text = module(
        """mov.u32 %r1, bar;
        setp.ne.u32 %p1, %tid, 0;
        @%p1 bra DONE;
        mbarrier.init.shared::cta.b64 [%r1], 1;
        DONE:
        st.global.u32 [%out], 1;""",
        "out",
        shared=".shared .align 8 .b64 bar;",
    )
    gc.collect()
    gc.disable()
    try:
        machine = Machine(arch="sm_90a")
        out = machine.buffer(0, 4)
        machine.launch(0, machine.load(text).kernel(), 3, 64, [out])
        machine.run(on_race="collect")
        memory, gone = weakref.ref(out.memory), weakref.ref(machine)
        del machine, out
        assert memory() is None
        assert gone() is None
    finally:
        gc.enable()

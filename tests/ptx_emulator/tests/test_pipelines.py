"""Copies and their readers, by full and empty mbarriers, as the checker sees them."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine

from .ptx_text import module, once, wait
from .test_checker import SEEDS, outcome


def tma_round(
    full_wait, empty_arrive, init_fence="fence.mbarrier_init.release.cluster;"
):
    """Warp 0 copies 2 x 128 bytes into one slot; warp 1 reads each."""
    return module(
        f"""mov.u32 %r1, slot; mov.u32 %r2, full; mov.u32 %r3, empty;
        {
            once(
                0,
                f'''mbarrier.init.shared::cta.b64 [%r2], 1;
        mbarrier.init.shared::cta.b64 [%r3], 32;
        {init_fence}''',
            )
        }
        bar.sync 0;
        mov.u32 %r5, 0;
        setp.eq.u32 %p1, %warp, 1;
        @%p1 bra READER;
        setp.ne.u32 %p2, %tid, 0;
        @%p2 bra DONE;
        LOOP:
        xor.b32 %r6, %r5, 1;
        {wait("%r3", "%r6")}
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%in], 128, [%r2];
        add.u32 %r5, %r5, 1;
        setp.lt.u32 %p3, %r5, 2;
        @%p3 bra LOOP;
        bra DONE;
        READER:
        {wait("%r2", "%r5") if full_wait else ""}
        shl.b32 %r7, %lane, 2;
        add.u32 %r7, %r7, %r1;
        ld.shared.u32 %r8, [%r7];
        {empty_arrive}
        add.u32 %r5, %r5, 1;
        setp.lt.u32 %p3, %r5, 2;
        @%p3 bra READER;
        DONE:""",
        "in",
        shared=".shared .align 128 .b8 slot[128]; .shared .align 8 .b64 full;"
        ".shared .align 8 .b64 empty;",
    )


def tma_build(machine, kernel):
    machine.launch(
        0, kernel, 1, 64, [machine.buffer(0, np.arange(32, dtype=np.uint32))]
    )


ARRIVE = "fence.proxy.async.shared::cta;\nmbarrier.arrive.shared::cta.b64 _, [%r3];"


def test_copies_are_ordered_by_full_and_empty_barriers():
    assert outcome(tma_build, tma_round(True, ARRIVE)) == set()


def test_a_copy_over_bytes_read_by_loads_needs_the_proxy_fence_of_the_reader():
    unfenced = ARRIVE.removeprefix("fence.proxy.async.shared::cta;\n")
    assert outcome(tma_build, tma_round(True, unfenced)) == {"proxy"}


def test_a_relaxed_arrive_releases_nothing():
    relaxed = ARRIVE.replace("arrive.", "arrive.relaxed.cta.")
    assert outcome(tma_build, tma_round(True, relaxed)) == {"race"}


def test_mbarrier_init_must_be_fenced_for_the_asynchronous_proxy():
    assert outcome(tma_build, tma_round(True, ARRIVE, init_fence="")) == {"mbarrier"}


def test_reading_a_copy_before_its_barrier_is_poison_or_a_race():
    kinds = set()
    for seed in SEEDS:
        machine = Machine(arch="sm_90a")
        tma_build(machine, machine.load(tma_round(False, ARRIVE)).kernel())
        with pytest.raises(EmulationError) as caught:
            machine.run(seed)
        kinds.add(caught.value.kind)
    assert kinds <= {"poison", "race", "exit"}

"""Strict rules of tensor memory and of register pools, each broken in turn."""

import pytest

from ptx_emulator import EmulationError, Machine

from .ptx_text import module, once, wait

WORD = ".shared .align 4 .b32 word;"
ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], {};\n"
FREE = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, {};\n"
ADDRESS = "bar.warp.sync -1;\nld.shared.u32 %r2, [%r1];\n"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r3}, [%r2];\n"
STORE = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r2], {%r3};\n"
WAIT_LD = "tcgen05.wait::ld.sync.aligned;\n"
WAIT_ST = "tcgen05.wait::st.sync.aligned;\n"
RELINQUISH = "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"


def run(code, threads=32, arch="sm_100f", **options):
    text = module("mov.u32 %r1, word;\n" + code, shared=WORD, target=arch, **options)
    machine = Machine(arch=arch)
    machine.launch(0, machine.load(text).kernel(), 1, threads, [])
    return machine.run()


def kind_of(code, threads=32, **options):
    with pytest.raises(EmulationError) as caught:
        run(code, threads, **options)
    return caught.value.kind


def test_the_rules_kept():
    body = STORE + WAIT_ST + LOAD + WAIT_LD
    run(ALLOC.format(64) + RELINQUISH + ADDRESS + body + FREE.format(64))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ALLOC.format(32) + ADDRESS + LOAD + WAIT_LD + FREE.format(32), "poison"),
        (
            ALLOC.format(32)
            + ADDRESS
            + "add.u32 %r2, %r2, 32;\n"
            + LOAD
            + WAIT_LD
            + "sub.u32 %r2, %r2, 32;\n"
            + FREE.format(32),
            "tensor-memory",
        ),
        (ALLOC.format(32) + ADDRESS, "tensor-memory"),  # leaked
        (ALLOC.format(32) + ADDRESS + FREE.format(64), "tensor-memory"),
        (RELINQUISH + ALLOC.format(32), "tensor-memory"),
        # Later allocations may not be larger.
        (
            ALLOC.format(32) + ADDRESS + FREE.format(32) + ALLOC.format(64),
            "tensor-memory",
        ),
        (ALLOC.format("%lane"), "tensor-memory"),
        ("setp.eq.u32 %p1, %lane, 3;\n@%p1 exit;\n" + ALLOC.format(32), "convergence"),
        (ALLOC.format(32) + ADDRESS + STORE + WAIT_ST + LOAD, "exit"),
        (
            ALLOC.format(32)
            + ADDRESS
            + "tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;\n"
            + "tcgen05.dealloc.cta_group::2.sync.aligned.b32 %r2, 32;\n",
            "tensor-memory",
        ),
    ],
)
def test_a_rule_broken(code, kind):
    assert kind_of(code) == kind


@pytest.mark.parametrize(
    ("write", "overwrite", "kind"),
    [
        (STORE + WAIT_ST, LOAD + WAIT_LD + STORE + WAIT_ST, None),
        (STORE, LOAD + WAIT_LD, "race"),  # no wait::st before the load
        (STORE + WAIT_ST, LOAD + STORE + WAIT_ST + WAIT_LD, "race"),
    ],
)
def test_tensor_memory_accesses_of_a_warp_are_ordered_by_their_waits(
    write, overwrite, kind
):
    code = (
        ALLOC.format(32)
        + ADDRESS
        + "mov.u32 %r3, 1;\n"
        + write
        + overwrite
        + FREE.format(32)
    )
    code = code.replace("{%r3}, [%r2]", "{%r4}, [%r2]")  # loads have their own register
    if kind is None:
        run(code)
    else:
        assert kind_of(code) == kind


CHANGE = "setmaxnreg.dec.sync.aligned.u32 40;\n"


def run_block(code):
    """Two warpgroups."""
    machine = Machine(arch="sm_90a")
    machine.launch(0, machine.load(module(code, threads=256)).kernel(), 1, 256, [])
    machine.run()


def test_the_warps_of_a_warpgroup_change_registers_together():
    run_block(f"setp.ge.u32 %p1, %warp, 4;\n@%p1 bra DONE;\n{CHANGE}DONE:")


@pytest.mark.parametrize("warp", [0, 3, 6])
def test_one_warp_may_not_change_its_registers_alone(warp):
    with pytest.raises(EmulationError, match="differ in setmaxnreg") as caught:
        run_block(once(warp, CHANGE, of="%warp"))
    assert caught.value.kind == "registers"


def test_a_matrix_operand_that_was_never_written():
    a = 1 << 46 | 128 >> 4 << 16 | 256 >> 4 << 32 | 0x400 >> 4
    shape = 1 << 4 | 1 << 7 | 1 << 10 | 32 >> 3 << 17 | 128 >> 4 << 24
    mma = "tcgen05.mma.cta_group::1.kind::f16 [%r2], %rd1, %rd1, %r5, %p2;"
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%rd2];"
    text = module(
        f"""mov.u32 %r1, word; mov.u32 %r6, done; mov.u64 %rd2, done;
        cvta.shared.u64 %rd2, %rd2;
        setp.eq.u32 %p2, 0, 1;
        mov.u64 %rd1, {a};
        mov.u32 %r5, {shape};
        {once(0, "mbarrier.init.shared::cta.b64 [%r6], 1;fence.mbarrier_init.release.cluster;")}
        {ALLOC.format(32)}{ADDRESS}
        {once(0, mma + commit)}
        {wait("%r6", "0")}
        {FREE.format(32)}""",
        shared=".shared .align 1024 .b8 tile[8192]; .shared .align 8 .b64 done;" + WORD,
        target="sm_100f",
    )
    machine = Machine(arch="sm_100f")
    machine.launch(0, machine.load(text).kernel(), 1, 32, [])
    with pytest.raises(EmulationError, match="matrix operand reads bytes") as caught:
        machine.run()
    assert caught.value.kind == "poison"

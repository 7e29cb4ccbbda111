"""wgmma and tcgen05 on operands placed by the descriptor tables, and their ordering rules."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine
from ptx_emulator.numeric import f32_to_bf16
from ptx_emulator.semantics import descriptors, fragments

from .ptx_text import module, once, wait

K = 16
IMAGE = 32768
START = 1024  # shared offset of the operand image: static variables start there


def image(a, b, a_desc, b_desc, a_mn, b_mn, decode):
    """Shared bytes that hold both operands where their descriptors say."""
    raw = np.zeros(IMAGE // 2, np.uint16)
    for matrix, desc, mn in ((a, a_desc, a_mn), (b, b_desc, b_mn)):
        where = descriptors.operand_addresses(decode(desc), *matrix.shape, 2, mn)
        raw[(where - START) // 2] = f32_to_bf16(matrix)
    return raw


def integers(rng, *shape):
    return rng.integers(-4, 5, shape).astype(np.float32)


LOAD_IMAGE = f"""mov.u32 %r150, image; mov.u32 %r151, full;
{
    once(
        0,
        f'''mbarrier.init.shared::cta.b64 [%r151], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r151], {IMAGE};
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r150], [%in], {IMAGE}, [%r151];''',
    )
}
bar.sync 0;
{wait("%r151", "0")}
"""
SHARED = f".shared .align 1024 .b8 image[{IMAGE}]; .shared .align 8 .b64 full;"


def wgmma_text(
    n, a_mn, b_mn, fence="wgmma.fence.sync.aligned;", last_wait="0", read=""
):
    d = ", ".join(f"%f{k}" for k in range(n // 2))
    zero = "\n".join(f"mov.f32 %f{k}, 0f3F800000;" for k in range(n // 2))
    store = "\n".join(f"st.global.f32 [%rd2+{4 * k}], %f{k};" for k in range(n // 2))
    return module(
        f"""{LOAD_IMAGE}
        {zero}
        {fence}
        wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{d}}}, %a, %b, 1, 1, 1, {a_mn}, {b_mn};
        wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{d}}}, %a, %b, 1, -1, 1, {a_mn}, {b_mn};
        wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{d}}}, %a, %b, 1, 1, 1, {a_mn}, {b_mn};
        wgmma.commit_group.sync.aligned;
        {read}
        wgmma.wait_group.sync.aligned {last_wait};
        mad.wide.u32 %rd2, %tid, {2 * n}, %out;
        {store}""",
        "in out a b",
        shared=SHARED,
    )


def run_wgmma(n, a_desc, b_desc, a_mn=0, b_mn=0, seed=0, **options):
    rng = np.random.default_rng(seed)
    a, b = integers(rng, 64, K), integers(rng, n, K)
    machine = Machine(arch="sm_90a")
    decode = descriptors.decode_wgmma_descriptor
    source = machine.buffer(0, image(a, b, a_desc, b_desc, a_mn, b_mn, decode))
    out = machine.buffer(0, 128 * n // 2 * 4)
    kernel = machine.load(wgmma_text(n, a_mn, b_mn, **options)).kernel()
    machine.launch(0, kernel, 1, 128, [source, out, a_desc, b_desc])
    machine.run(seed)
    row, column = fragments.wgmma_accumulator(n)
    got = np.zeros((64, n), np.float32)
    got[row, column] = out.array(np.float32, (128, n // 2))
    return got, 1 + a @ b.T


def wgmma_descriptor(address, leading, stride, swizzle):
    mode = {"none": 0, "128B": 1, "64B": 2, "32B": 3}[swizzle]
    return address >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | mode << 62


@pytest.mark.parametrize(
    ("n", "swizzle"), [(8, "128B"), (64, "64B"), (128, "32B"), (24, "none")]
)
def test_wgmma_k_major(n, swizzle):
    span = {"128B": 128, "64B": 64, "32B": 32, "none": 128}[swizzle]
    a = wgmma_descriptor(START, 128, 8 * span if swizzle != "none" else 256, swizzle)
    b = wgmma_descriptor(
        START + 16384, 128, 8 * span if swizzle != "none" else 256, swizzle
    )
    got, want = run_wgmma(n, a, b)
    assert (got == want).all()


def test_wgmma_mn_major():
    a = wgmma_descriptor(START, 1024, 1024, "128B")
    b = wgmma_descriptor(START + 16384, 2048, 1024, "128B")
    got, want = run_wgmma(128, a, b, 1, 1)
    assert (got == want).all()


DESCRIPTORS = (
    wgmma_descriptor(START, 16, 1024, "128B"),
    wgmma_descriptor(START + 16384, 16, 1024, "128B"),
)


def test_wgmma_needs_its_fence():
    with pytest.raises(EmulationError, match=r"no wgmma\.fence"):
        run_wgmma(8, *DESCRIPTORS, fence="")


def test_a_register_in_flight_may_not_be_read():
    with pytest.raises(EmulationError) as caught:
        run_wgmma(8, *DESCRIPTORS, last_wait="1")
    assert caught.value.kind == "register-hazard"
    with pytest.raises(EmulationError) as caught:
        run_wgmma(8, *DESCRIPTORS, read="add.f32 %f9, %f0, %f1;")
    assert caught.value.kind == "register-hazard"


def test_moves_of_registers_in_flight_are_renaming():
    got, want = run_wgmma(
        8, *DESCRIPTORS, read="mov.f32 %f100, %f0;\nmov.f32 %f0, %f100;"
    )
    assert (got == want).all()


def test_warps_of_a_warpgroup_must_agree():
    text = wgmma_text(8, 0, 0).replace(
        "wgmma.fence",
        "setp.eq.u32 %p1, %warp, 2;\n@%p1 add.u64 %a, %a, 2;\nwgmma.fence",
        1,
    )
    machine = Machine(arch="sm_90a")
    source = machine.buffer(0, np.zeros(IMAGE // 2, np.uint16))
    machine.launch(
        0,
        machine.load(text).kernel(),
        1,
        128,
        [source, machine.buffer(0, 4096), *DESCRIPTORS],
    )
    with pytest.raises(EmulationError, match="different operations"):
        machine.run()


# tcgen05 -------------------------------------------------------------------------------


def tcgen05_text(columns, group=1, **changes):
    """Warp 0 allocates and issues; four warps read their lanes of D."""
    parts = {
        "init_fence": "fence.mbarrier_init.release.cluster;",
        "before": "tcgen05.fence::before_thread_sync;",
        "after": "tcgen05.fence::after_thread_sync;",
        "after_commit": "tcgen05.fence::after_thread_sync;",
        "wait_done": wait("%r152", "0"),
        "wait_ld": "tcgen05.wait::ld.sync.aligned;",
        "quarter": "shl.b32 %r3, %warp, 21;",
        "dealloc": f"tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, {columns};",
        "issuer": "%tid",
        "touch": "",
        "hand_back": "",
        **changes,
    }
    r = ", ".join(f"%r{k + 10}" for k in range(8))
    store = "\n".join(f"st.global.u32 [%rd2+{4 * k}], %r{k + 10};" for k in range(8))
    return module(
        f"""mov.u32 %r152, done; mov.u32 %r153, address;
        {
            once(
                0,
                f'''mbarrier.init.shared::cta.b64 [%r152], 1;
        {parts["init_fence"]}''',
            )
        }
        setp.ne.u32 %p1, %warp, 0;
        @%p1 bra ALLOCATED;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r153], {columns};
        tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
        ALLOCATED:
        {parts["before"]}
        {LOAD_IMAGE}
        {parts["touch"]}
        {parts["after"]}
        ld.shared.u32 %r1, [%r153];
        setp.eq.u32 %p2, 0, 1;
        setp.eq.u32 %p3, 0, 0;
        {
            once(
                0,
                '''tcgen05.mma.cta_group::1.kind::f16 [%r1], %a, %b, %word, %p2;
        tcgen05.mma.cta_group::1.kind::f16 [%r1], %a, %b, %word, %p3;
        tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r152];''',
                of=parts["issuer"],
            )
        }
        {parts["wait_done"]}
        {parts["after_commit"]}
        {parts["quarter"]}
        mov.u32 %r4, 0;
        LOOP:
        add.u32 %r5, %r1, %r3;
        add.u32 %r5, %r5, %r4;
        tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{r}}}, [%r5];
        {parts["wait_ld"]}
        mad.lo.u32 %r6, %tid, %n, %r4;
        mad.wide.u32 %rd2, %r6, 4, %out;
        {store}
        add.u32 %r4, %r4, 8;
        setp.lt.u32 %p4, %r4, %n;
        @%p4 bra LOOP;
        {parts["hand_back"]}
        {parts["before"]}
        bar.sync 0;
        @%p1 bra DONE;
        {parts["dealloc"]}
        DONE:""",
        "in out a b word:u32 n:u32",
        shared=SHARED + ".shared .align 8 .b64 done; .shared .align 4 .b32 address;",
        target="sm_100f",
    )


def tcgen05_descriptor(address, leading, stride, swizzle):
    mode = {"none": 0, "128B": 2, "64B": 4, "32B": 6}[swizzle]
    return (
        address >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | 1 << 46 | mode << 61
    )


def instruction(m, n, a_mn=0, b_mn=0):
    return (
        1 << 4
        | 1 << 7
        | 1 << 10
        | a_mn << 15
        | b_mn << 16
        | n >> 3 << 17
        | m >> 4 << 24
    )


def run_tcgen05(
    n=64, a=None, b=None, a_mn=0, b_mn=0, seed=0, on_race="raise", **changes
):
    rng = np.random.default_rng(seed)
    x, y = integers(rng, 128, K), integers(rng, n, K)
    a_desc = a or tcgen05_descriptor(START, 16, 1024, "128B")
    b_desc = b or tcgen05_descriptor(START + 16384, 16, 1024, "128B")
    machine = Machine(arch="sm_100f")
    decode = descriptors.decode_tcgen05_descriptor
    source = machine.buffer(0, image(x, y, a_desc, b_desc, a_mn, b_mn, decode))
    out = machine.buffer(0, 128 * n * 4)
    kernel = machine.load(tcgen05_text(max(32, n), **changes)).kernel()
    word = instruction(128, n, a_mn, b_mn)
    machine.launch(0, kernel, 1, 128, [source, out, a_desc, b_desc, word, n])
    result = machine.run(seed, on_race=on_race)
    return out.array(np.float32, (128, n)), 2 * (x @ y.T), result


@pytest.mark.parametrize("swizzle", ["128B", "64B", "32B", "none"])
def test_tcgen05_k_major(swizzle):
    span = {"128B": 128, "64B": 64, "32B": 32, "none": 32}[swizzle]
    a = tcgen05_descriptor(START, 128, 8 * span, swizzle)
    b = tcgen05_descriptor(START + 16384, 128, 8 * span, swizzle)
    for seed in range(3):
        got, want, _ = run_tcgen05(64, a, b, seed=seed)
        assert (got == want).all()


def test_tcgen05_mn_major():
    a = tcgen05_descriptor(START, 2048, 1024, "128B")
    b = tcgen05_descriptor(START + 16384, 2048, 1024, "128B")
    got, want, _ = run_tcgen05(128, a, b, 1, 1)
    assert (got == want).all()


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"wait_ld": ""}, "register-hazard"),
        ({"quarter": "mov.u32 %r3, 0;"}, "tensor-memory"),
        ({"dealloc": ""}, "tensor-memory"),
        (
            {"dealloc": "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, 32;"},
            "tensor-memory",
        ),
        ({"issuer": "%warp"}, "tensor-core"),
        ({"after_commit": ""}, "race"),
        ({"after": ""}, None),
    ],
)
def test_tcgen05_rules(changes, kind):
    if kind is None:
        run_tcgen05(**changes)
        return
    with pytest.raises(EmulationError) as caught:
        run_tcgen05(**changes)
    assert caught.value.kind == kind


def test_the_missing_tcgen05_fence_is_named():
    _, _, result = run_tcgen05(after_commit="", on_race="collect")
    assert {r.kind for r in result.reports} == {"tcgen05"}


def test_reading_the_accumulator_before_the_commit():
    kinds = set()
    for seed in range(6):
        try:
            _, _, result = run_tcgen05(wait_done="", seed=seed, on_race="collect")
            kinds |= {r.kind for r in result.reports}
        except EmulationError as error:
            kinds.add(error.kind)
    assert kinds <= {"poison", "race", "exit", "tensor-memory"}
    assert kinds


@pytest.mark.parametrize(
    ("columns", "kind"), [(48, "tensor-memory"), (16, "tensor-memory")]
)
def test_allocation_sizes(columns, kind):
    text = module(
        f"mov.u32 %r1, word;\ntcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], {columns};",
        shared=".shared .align 4 .b32 word;",
        target="sm_100f",
    )
    machine = Machine(arch="sm_100f")
    machine.launch(0, machine.load(text).kernel(), 1, 32, [])
    with pytest.raises(EmulationError) as caught:
        machine.run()
    assert caught.value.kind == kind


def test_allocation_waits_for_columns():
    """Two warps want all 512 columns, one after the other."""
    text = module(
        """mov.u32 %r1, word;
        mad.lo.u32 %r1, %warp, 4, %r1;
        tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 512;
        ld.shared.u32 %r2, [%r1];
        tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 512;""",
        shared=".shared .align 4 .b32 word[2];",
        target="sm_100f",
    )
    machine = Machine(arch="sm_100f")
    machine.launch(0, machine.load(text).kernel(), 1, 64, [])
    result = machine.run(on_race="collect")
    assert {r.kind for r in result.reports} <= {"warp"}


@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_and_ldmatrix_are_inverse(transposed):
    trans = ".trans" if transposed else ""
    text = module(
        f"""mov.u32 %r1, tile;
        mad.lo.u32 %r2, %lane, 16, %r1;
        add.u32 %r3, %lane, 100; add.u32 %r4, %lane, 200; add.u32 %r5, %lane, 300; add.u32 %r6, %lane, 400;
        stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r2], {{%r3, %r4, %r5, %r6}};
        bar.warp.sync -1;
        ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r7, %r8, %r9, %r10}}, [%r2];
        ld.shared.u16 %h1, [%r1+2];
        mad.wide.u32 %rd1, %lane, 16, %out;
        st.global.v4.u32 [%rd1], {{%r7, %r8, %r9, %r10}};
        st.global.u16 [%second], %h1;""".replace(
            "st.global.u16", "setp.eq.u32 %p1, %lane, 0;\n@%p1 st.global.u16"
        ),
        "out second",
        shared=".shared .align 128 .b8 tile[512];",
    )
    machine = Machine(arch="sm_90a")
    out, second = machine.buffer(0, 512), machine.buffer(0, 2)
    machine.launch(0, machine.load(text).kernel(), 1, 32, [out, second])
    machine.run()
    want = np.arange(32)[:, None] + np.array([100, 200, 300, 400])
    assert (out.array(np.uint32, (32, 4)) == want).all()
    # Element (0, 1): the high half of lane 0, or transposed the low half of lane 4.
    assert second.array(np.uint16)[0] == (104 if transposed else 0)

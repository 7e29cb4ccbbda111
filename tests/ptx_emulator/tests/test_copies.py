"""Tensor and bulk copies: contents, bounds, bytes counted, groups, late writes."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine, Schedule, encode_tensor_map
from ptx_emulator.semantics.tma_box import box_shared_offsets

from .ptx_text import module, once, wait

SHARED = ".shared .align 8 .b64 full;"
INIT = """mov.u32 %r1, tile; mov.u32 %r2, full;
mbarrier.init.shared::cta.b64 [%r2], 1;
fence.mbarrier_init.release.cluster;
"""
LOAD = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
    "[%r1], [%map, {%x, %y}], [%r2];\n"
)
DUMP = """
cvt.u32.u64 %r10, %bytes;
mov.u32 %r11, 0;
COPY:
add.u32 %r12, %r1, %r11;
cvt.u64.u32 %rd5, %r11;
add.u64 %rd5, %rd5, %out;
ld.shared.u32 %r13, [%r12];
st.global.u32 [%rd5], %r13;
add.u32 %r11, %r11, 4;
setp.lt.u32 %p5, %r11, %r10;
@%p5 bra COPY;
"""


def load_box(source, box, coords, swizzle="none", *, lenient=False, expect=None):
    """Loads one box of a 2-D array; returns the shared bytes as the thread reads them."""
    span = {"32B": 32, "64B": 64, "128B": 128}.get(swizzle, box[0] * source.itemsize)
    size = box[1] * span
    text = module(
        INIT
        + f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {expect or box[0] * box[1] * source.itemsize};\n"
        + LOAD
        + wait("%r2", "0")
        + DUMP,
        "map x:u32 y:u32 bytes out",
        shared=f"{SHARED} .shared .align 1024 .b8 tile[{size}];",
    )
    machine = Machine(arch="sm_90a", strict=not lenient)
    data = machine.buffer(0, source)
    tensor_map = machine.buffer(
        0,
        np.frombuffer(
            encode_tensor_map(
                data.address, source.shape[::-1], (source.strides[0],), box,
                dtype={2: "u16", 4: "u32"}[source.itemsize], swizzle=swizzle,
            ),
            np.uint8,
        ),
    )  # fmt: skip
    out = machine.buffer(0, size)
    kernel = machine.load(text).kernel()
    machine.launch(0, kernel, 1, 1, [tensor_map, coords[0], coords[1], size, out])
    machine.run()
    return out


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_a_box_arrives_swizzled(swizzle):
    inner = {"none": 32, "32B": 8, "64B": 16, "128B": 32}[swizzle]
    source = np.arange(64 * 64, dtype=np.uint32).reshape(64, 64)
    got = load_box(source, (inner, 16), (inner, 3), swizzle).array(np.uint8)
    chunks = box_shared_offsets((inner, 16), 4, swizzle, 1024) - 1024
    rows = got.reshape(-1, 16)[chunks // 16].reshape(16, -1).view(np.uint32)
    assert (rows == source[3:19, inner : 2 * inner]).all()


@pytest.mark.parametrize(
    "coords", [(-8, 0), (56, 0), (0, -3), (0, 14), (64, 0), (56, 14)]
)
def test_out_of_bounds_is_zero(coords):
    source = np.arange(1, 16 * 64 + 1, dtype=np.uint16).reshape(16, 64)
    got = load_box(source, (16, 8), coords).array(np.uint16, (8, 16))
    want = np.zeros((8, 16), np.uint16)
    for r in range(8):
        for c in range(16):
            y, x = coords[1] + r, coords[0] + c
            if 0 <= y < 16 and 0 <= x < 64:
                want[r, c] = source[y, x]
    assert (got == want).all()


@pytest.mark.parametrize("expect", [255, 257, 512])
def test_a_wrong_byte_count_never_completes(expect):
    source = np.zeros((8, 16), np.uint16)
    with pytest.raises(EmulationError) as caught:
        load_box(source, (16, 8), (0, 0), expect=expect)
    assert caught.value.kind == "no-progress"
    assert "bytes pending" in str(caught.value)


def test_an_unaligned_inner_coordinate():
    with pytest.raises(EmulationError, match="innermost coordinate"):
        load_box(np.zeros((8, 64), np.uint16), (16, 8), (3, 0))


STORE = """
mov.u32 %r1, tile;
mov.u32 %r11, 0;
FILL:
add.u32 %r12, %r1, %r11;
st.shared.u32 [%r12], %r11;
add.u32 %r11, %r11, 4;
setp.lt.u32 %p5, %r11, 256;
@%p5 bra FILL;
fence.proxy.async.shared::cta;
{}
cp.async.bulk.commit_group;
{}
"""


def store(instruction, wait_group, content, schedule=None, seed=0):
    text = module(
        STORE.format(instruction, wait_group),
        "map x:u32 y:u32 out",
        shared=".shared .align 128 .b8 tile[256];",
    )
    machine = Machine(arch="sm_90a")
    out = machine.buffer(0, content)
    raw = encode_tensor_map(out.address, (10, 6), (48,), (8, 4), dtype="u32")
    tensor_map = machine.buffer(0, np.frombuffer(raw, np.uint8))
    kernel = machine.load(text).kernel()
    machine.launch(0, kernel, 1, 1, [tensor_map, 4, 3, out])
    machine.run(seed, schedule)
    return out


TENSOR_STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {%x, %y}], [%r1];"


def test_a_store_clips_at_the_bounds():
    """By chunks of 16 bytes: of a row of ten words it may write twelve."""
    before = np.full((6, 12), 7, np.uint32)
    after = store(TENSOR_STORE, "cp.async.bulk.wait_group 0;", before).array(
        np.uint32, (6, 12)
    )
    want = before.copy()
    tile = np.arange(0, 128, 4, dtype=np.uint32).reshape(4, 8)
    want[3:6, 4:12] = tile[:3]
    assert (after == want).all()


@pytest.mark.parametrize("coords", [(-4, 0), (0, -1)])
def test_a_store_may_not_begin_before_the_tensor(coords):
    first, second = coords
    instruction = TENSOR_STORE.replace("%x, %y", f"{first}, {second}")
    with pytest.raises(EmulationError, match="hardware faults") as caught:
        store(instruction, "cp.async.bulk.wait_group 0;", np.zeros((6, 12), np.uint32))
    assert caught.value.kind == "tma"


def test_a_reduction_adds():
    before = np.full((6, 12), 7, np.uint32)
    add = TENSOR_STORE.replace(
        "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor"
    ).replace("::cta.tile", "::cta.add.tile")
    after = store(add, "cp.async.bulk.wait_group 0;", before).array(np.uint32, (6, 12))
    tile = np.arange(0, 128, 4, dtype=np.uint32).reshape(4, 8)
    assert (after[3:6, 4:10] == 7 + tile[:3, :6]).all()
    assert (after[:3] == 7).all()


def test_exit_before_the_source_was_read():
    """A CTA may not leave while a copy still reads its shared memory."""
    errors = set()
    for seed in range(6):
        try:
            store(
                TENSOR_STORE,
                "",
                np.zeros((6, 12), np.uint32),
                Schedule(async_rate=0),
                seed,
            )
        except EmulationError as error:
            errors.add(error.kind)
    assert errors == {"exit"}


def test_writes_may_come_late_but_do_come():
    late = Schedule(late_write_rate=1.0)
    read = "cp.async.bulk.wait_group.read 0;"
    before = np.full((6, 12), 7, np.uint32)
    after = store(TENSOR_STORE, read, before, late).array(np.uint32, (6, 12))
    assert after[3, 5] == 4


def test_plain_bulk_reduction_and_copy_to_a_peer_cta():
    text = module(
        f"""mov.u32 %r1, tile; mov.u32 %r2, full; mov.u32 %r3, %cluster_ctarank;
        {
            once(
                0,
                '''mbarrier.init.shared::cta.b64 [%r2], 1;
        fence.mbarrier_init.release.cluster;''',
            )
        }
        mad.lo.u32 %r4, %lane, 4, %r1;
        mad.lo.u32 %r5, %r3, 100, %lane;
        st.shared.u32 [%r4], %r5;
        fence.proxy.async.shared::cta;
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        xor.b32 %r6, %r3, 1;
        add.u32 %r9, %r1, 128;
        mapa.shared::cluster.u32 %r7, %r9, %r6;
        mapa.shared::cluster.u32 %r8, %r2, %r6;
        {
            once(
                0,
                '''mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 128;
        cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r7], [%r1], 128, [%r8];
        cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%out], [%r1], 128;
        cp.async.bulk.commit_group;''',
            )
        }
        {wait("%r2", "0")}
        mad.lo.u32 %r4, %lane, 4, %r9;
        ld.shared.u32 %r5, [%r4];
        mad.lo.u32 %r10, %r3, 32, %lane;
        mad.wide.u32 %rd1, %r10, 4, %copy;
        st.global.u32 [%rd1], %r5;
        {once(0, "cp.async.bulk.wait_group 0;")}
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;""",
        "out copy",
        shared=f"{SHARED} .shared .align 128 .b8 tile[256];",
    )
    for seed in range(4):
        machine = Machine(arch="sm_90a")
        out, copy = machine.buffer(0, np.ones(32, np.uint32)), machine.buffer(0, 256)
        machine.launch(0, machine.load(text).kernel(), 2, 32, [out, copy], cluster=2)
        result = machine.run(seed, on_race="collect")
        lanes = np.arange(32)
        assert copy.array(np.uint32).tolist() == [*(lanes + 100), *lanes]
        assert out.array(np.uint32).tolist() == (1 + 2 * lanes + 100).tolist()
        # Two bulk reductions to one place are atomic in hardware, which the checker does not assume.
        assert {r.kind for r in result.reports} <= {"race"}


def test_multicast_load_reaches_each_cta_of_the_mask():
    text = module(
        f"""mov.u32 %r1, tile; mov.u32 %r2, full; mov.u32 %r3, %cluster_ctarank;
        {
            once(
                0,
                '''mbarrier.init.shared::cta.b64 [%r2], 1;
        fence.mbarrier_init.release.cluster;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 64;''',
            )
        }
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        setp.eq.u32 %p1, %r3, 1;
        setp.eq.and.u32 %p1, %lane, 0, %p1;
        mov.u16 %h1, 3;
        @%p1 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%map, {{0}}], [%r2], %h1;
        {wait("%r2", "0")}
        mad.lo.u32 %r4, %lane, 4, %r1;
        setp.lt.u32 %p2, %lane, 16;
        @%p2 ld.shared.u32 %r5, [%r4];
        mad.lo.u32 %r6, %r3, 16, %lane;
        mad.wide.u32 %rd1, %r6, 4, %out;
        @%p2 st.global.u32 [%rd1], %r5;
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;""",
        "map out",
        shared=f"{SHARED} .shared .align 128 .b8 tile[64];",
    )
    machine = Machine(arch="sm_90a")
    data, out = (
        machine.buffer(0, np.arange(16, dtype=np.uint32)),
        machine.buffer(0, 128),
    )
    raw = encode_tensor_map(data.address, (16,), (), (16,), dtype="u32")
    tensor_map = machine.buffer(0, np.frombuffer(raw, np.uint8))
    machine.launch(0, machine.load(text).kernel(), 2, 32, [tensor_map, out], cluster=2)
    machine.run(1)
    assert out.array(np.uint32).tolist() == [*range(16)] * 2


def test_a_copy_to_a_cta_that_has_left():
    """CTA 1 sends to CTA 0, which does not wait for it."""
    text = module(
        f"""mov.u32 %r1, tile; mov.u32 %r2, full; mov.u32 %r3, %cluster_ctarank;
        {
            once(
                0,
                '''mbarrier.init.shared::cta.b64 [%r2], 1;
        fence.mbarrier_init.release.cluster;''',
            )
        }
        mad.lo.u32 %r4, %lane, 4, %r1;
        st.shared.u32 [%r4], %lane;
        fence.proxy.async.shared::cta;
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        setp.eq.u32 %p1, %r3, 0;
        @%p1 exit;
        mapa.shared::cluster.u32 %r7, %r1, 0;
        mapa.shared::cluster.u32 %r8, %r2, 0;
        {
            once(
                0,
                '''cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes
        [%r7], [%r1], 128, [%r8];''',
            )
        }""",
        shared=f"{SHARED} .shared .align 128 .b8 tile[128];",
    )
    for seed in range(4):
        machine = Machine(arch="sm_90a")
        machine.launch(0, machine.load(text).kernel(), 2, 32, [], cluster=2)
        with pytest.raises(EmulationError) as caught:
            machine.run(seed)
        assert caught.value.kind in ("cluster", "exit")


class TestTensorMap:
    @pytest.mark.parametrize(
        ("changes", "what"),
        [
            ({"address": 8}, "multiple of 16"), ({"strides_bytes": (40,)}, "stride"),
            ({"box": (3, 4)}, "inner box"), ({"box": (257, 4)}, "box size"),
            ({"swizzle": "64B", "box": (64, 4)}, "swizzle span"), ({"dims": (0, 4)}, "size"),
            ({"dtype": "u9"}, "dtype"), ({"strides_bytes": ()}, "strides"),
        ],
    )  # fmt: skip
    def test_refused_arguments(self, changes, what):
        arguments = {
            "address": 1 << 20, "dims": (64, 8), "strides_bytes": (128,), "box": (8, 4),
            "dtype": "bf16", **changes,
        }  # fmt: skip
        with pytest.raises(ValueError, match=what):
            encode_tensor_map(**arguments)

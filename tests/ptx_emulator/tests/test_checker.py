"""Each rule of the ordering checker: a program that keeps it, and the same one broken."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine

from .ptx_text import module, once, spin

SEEDS = range(4)


def outcome(build, text, **options):
    """The checker's kinds over some schedules: the empty set means no report."""
    kinds = set()
    for seed in SEEDS:
        machine = Machine(arch="sm_90a", **options)
        build(machine, machine.load(text).kernel())
        kinds |= {r.kind for r in machine.run(seed, on_race="collect").reports}
    return kinds


def one_cta(threads=64, **options):
    def build(machine, kernel):
        out = machine.buffer(0, 4 * threads)
        machine.launch(0, kernel, 1, threads, [out], **options)

    return build


SHARED_WORD = ".shared .align 4 .b32 word[64];"


def exchange(sync):
    """Thread 0 writes a word that the others read."""
    return module(
        f"""{once(0, "st.global.u32 [%word], 7;")}
        {sync}
        ld.global.u32 %r2, [%word];""",
        "word",
    )


@pytest.mark.parametrize(
    ("sync", "threads", "kinds"),
    [
        ("bar.sync 0;", 64, set()),
        ("bar.warp.sync -1;", 32, set()),
        ("", 32, {"warp"}),
        ("fence.acq_rel.gpu;", 32, {"warp"}),
        ("bar.warp.sync -1;", 64, {"race"}),
    ],
)
def test_threads_of_a_cta_need_a_barrier_or_a_warp_sync(sync, threads, kinds):
    def build(machine, kernel):
        word = machine.buffer(0, np.zeros(1, np.uint32))
        machine.launch(0, kernel, 1, threads, [word])

    assert outcome(build, exchange(sync)) == kinds


RANKS = """
cvta.to.global.u64 %rd9, %data;
setp.ne.u32 %p1, %rank, 0;
@%p1 bra CONSUMER;
{produce}
bra DONE;
CONSUMER:
{consume}
DONE:
"""


def two_ranks(machine, kernel, data=None, flag=None):
    data = machine.symmetric(64)
    flag = machine.buffer(1, np.zeros(16, np.uint32))
    flag_at_0 = machine.space.reserve(64)
    machine.space.map(0, flag_at_0, 64, [flag.memory])
    data.buffer(0).write(np.zeros(16, np.uint32))
    out = machine.buffer(1, 4)
    machine.launch(0, kernel, 1, 1, [data.address(0, 1), flag_at_0, out, 0])
    machine.launch(1, kernel, 1, 1, [data.address(1, 1), flag, out, 1])


def handshake(release, acquire):
    return module(
        RANKS.format(
            produce=f"st.global.u32 [%data], 5;\n{release}",
            consume=spin(acquire[0], "%r1", "1")
            + acquire[1]
            + "ld.global.u32 %r2, [%data];\nst.global.u32 [%out], %r2;",
        ),
        "data flag out rank:u32",
    )


RELEASE = "st.release.{}.global.u32 [%flag], 1;"
ACQUIRE = ("ld.acquire.{}.global.u32 %r1, [%flag];", "")


@pytest.mark.parametrize(
    ("release", "acquire", "kinds"),
    [
        (RELEASE.format("sys"), (ACQUIRE[0].format("sys"), ""), set()),
        (
            "fence.acq_rel.sys;\nst.relaxed.sys.global.u32 [%flag], 1;",
            ("ld.relaxed.sys.global.u32 %r1, [%flag];", "fence.acq_rel.sys;\n"),
            set(),
        ),
        (
            "red.release.sys.global.add.u32 [%flag], 1;",
            (ACQUIRE[0].format("sys"), ""),
            set(),
        ),
        (RELEASE.format("gpu"), (ACQUIRE[0].format("sys"), ""), {"race", "scope"}),
        (RELEASE.format("sys"), (ACQUIRE[0].format("gpu"), ""), {"race", "scope"}),
        (
            "st.relaxed.sys.global.u32 [%flag], 1;",
            (ACQUIRE[0].format("sys"), ""),
            {"race"},
        ),
        (
            RELEASE.format("sys"),
            ("ld.relaxed.sys.global.u32 %r1, [%flag];", ""),
            {"race"},
        ),
        (
            "fence.acq_rel.gpu;\nst.relaxed.sys.global.u32 [%flag], 1;",
            (ACQUIRE[0].format("sys"), ""),
            {"race"},
        ),
        ("st.global.u32 [%flag], 1;", (ACQUIRE[0].format("sys"), ""), {"race"}),
    ],
)
def test_ranks_synchronise_by_sys_release_and_acquire(release, acquire, kinds):
    assert outcome(two_ranks, handshake(release, acquire), ranks=2) == kinds


def test_an_intermediate_thread_carries_the_order_on():
    """Rank 0 -> rank 1 thread 0 -> (barrier) -> rank 1 thread 32."""
    text = module(
        RANKS.format(
            produce="st.global.u32 [%data], 5;\nst.release.sys.global.u32 [%flag], 1;",
            consume=once(0, spin(ACQUIRE[0].format("sys"), "%r1", "1"))
            + "bar.sync 0;\n"
            + once(32, "ld.global.u32 %r2, [%data];\nst.global.u32 [%out], %r2;"),
        ),
        "data flag out rank:u32",
    )

    def build(machine, kernel):
        two_ranks_threads(machine, kernel, (1, 64))

    assert outcome(build, text, ranks=2) == set()
    broken = text.replace("bar.sync 0;", "")
    assert outcome(build, broken, ranks=2) == {"race"}


def two_ranks_threads(machine, kernel, threads):
    data = machine.symmetric(64)
    for rank in range(2):
        data.buffer(rank).write(np.zeros(16, np.uint32))
    flag = machine.buffer(1, np.zeros(16, np.uint32))
    flag_at_0 = machine.space.reserve(64)
    machine.space.map(0, flag_at_0, 64, [flag.memory])
    out = machine.buffer(1, 4)
    machine.launch(0, kernel, 1, threads[0], [data.address(0, 1), flag_at_0, out, 0])
    machine.launch(1, kernel, 1, threads[1], [data.address(1, 1), flag, out, 1])


def bulk_store(fence, read=""):
    """Thread 0 stores a staged tile and flags it; another CTA reads the tile."""
    return module(
        f"""setp.ne.u32 %p1, %ctaid.x, 0;
        @%p1 bra READER;
        mov.u32 %r1, tile;
        shl.b32 %r2, %tid, 2;
        add.u32 %r2, %r2, %r1;
        st.shared.u32 [%r2], %tid;
        {fence}
        bar.sync 0;
        setp.ne.u32 %p2, %tid, 0;
        @%p2 bra DONE;
        cp.async.bulk.global.shared::cta.bulk_group [%out], [%r1], 128;
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group{read} 0;
        st.release.gpu.global.u32 [%flag], 1;
        bra DONE;
        READER:
        {once(0, spin("ld.acquire.gpu.global.u32 %r3, [%flag];", "%r3", "1"))}
        bar.sync 0;
        mul.wide.u32 %rd1, %tid, 4;
        add.u64 %rd1, %rd1, %out;
        ld.global.u32 %r4, [%rd1];
        DONE:""",
        "out flag",
        shared=".shared .align 128 .b8 tile[128];",
    )


def bulk_build(machine, kernel):
    out = machine.buffer(0, np.zeros(32, np.uint32))
    flag = machine.buffer(0, np.zeros(1, np.uint32))
    machine.launch(0, kernel, 2, 32, [out, flag])


FENCE = "fence.proxy.async.shared::cta;"


@pytest.mark.parametrize(
    ("fence", "read", "kinds"),
    [
        (FENCE, "", set()),
        ("fence.proxy.async;", "", set()),
        ("", "", {"proxy"}),
        ("fence.proxy.async.global;", "", {"proxy"}),
        (FENCE, ".read", {"race"}),
    ],
)
def test_bulk_store_needs_the_proxy_fence_and_the_full_wait(fence, read, kinds):
    assert outcome(bulk_build, bulk_store(fence, read)) == kinds


def test_write_after_read_across_launches_and_ranks():
    """Rank 0 reads rank 1's buffer; rank 1's next launch overwrites it."""
    read = module(
        """ld.global.u32 %r1, [%data];
        setp.eq.u32 %p1, %signal, 0;
        @%p1 bra DONE;
        st.release.sys.global.u32 [%done], 1;
        DONE:""",
        "data done signal:u32",
    )
    nothing = module("", "")
    write = module(
        f"""setp.eq.u32 %p1, %signal, 0;
        @%p1 bra GO;
        {spin("ld.acquire.sys.global.u32 %r1, [%done];", "%r1", "1")}
        GO:
        st.global.u32 [%data], 9;""",
        "data done signal:u32",
    )
    for signal, kinds in ((1, set()), (0, {"race"})):
        found = set()
        for seed in range(8):
            machine = Machine(ranks=2, arch="sm_90a")
            data, done = machine.symmetric(64), machine.symmetric(64)
            for rank in range(2):
                data.buffer(rank).write(np.ones(16, np.uint32))
                done.buffer(rank).write(np.zeros(16, np.uint32))
            machine.launch(
                0, machine.load(read).kernel(), 1, 1,
                [data.address(0, 1), done.address(0, 1), signal],
            )  # fmt: skip
            machine.launch(1, machine.load(nothing).kernel(), 1, 1, [])
            machine.launch(
                1, machine.load(write).kernel(), 1, 1,
                [data.address(1, 1), done.address(1, 1), signal],
            )  # fmt: skip
            found |= {r.kind for r in machine.run(seed, on_race="collect").reports}
        assert found == kinds


def test_every_reader_since_the_last_write_counts():
    """Two warps read; the writer waits for one of them only."""

    def text(threads_waited):
        return module(
            f"""mov.u32 %r1, word;
            {once(0, "st.shared.u32 [%r1], 1;")}
            bar.sync 0;
            setp.eq.u32 %p1, %warp, 0;
            @%p1 bra WRITER;
            ld.shared.u32 %r2, [%r1];
            setp.eq.u32 %p2, %warp, {9 if threads_waited == 64 else 2};
            @%p2 bra DONE;
            bar.arrive 1, {threads_waited + 32};
            bra DONE;
            WRITER:
            bar.sync 1, {threads_waited + 32};
            {once(0, "st.shared.u32 [%r1], 2;")}
            DONE:""",
            "out",
            shared=SHARED_WORD,
        )  # fmt: skip

    for store in ("st.shared.u32", "st.relaxed.cta.shared.u32"):
        for waited, kinds in ((64, set()), (32, {"race"})):
            stored = text(waited).replace("st.shared.u32 [%r1], 2", f"{store} [%r1], 2")
            for seed in range(6):  # whichever warp reads first
                machine = Machine(arch="sm_90a")
                one_cta(96)(machine, machine.load(stored).kernel())
                reports = machine.run(seed, on_race="collect").reports
                assert {r.kind for r in reports} == kinds


def test_the_report_names_both_accesses():
    machine = Machine(arch="sm_90a")
    word = machine.buffer(0, np.zeros(1, np.uint32))
    machine.launch(0, machine.load(exchange("")).kernel(), 1, 32, [word])
    with pytest.raises(EmulationError) as caught:
        machine.run()
    text = str(caught.value)
    assert caught.value.kind == "race"
    for part in (
        "st.global.u32",
        "ld.global.u32",
        "rank 0",
        "CTA (0, 0, 0)",
        "warp 0",
        "lane",
    ):
        assert part in text
    assert len(caught.value.report.lines) == 2


def test_weak_polling_is_a_race():
    text = handshake(
        RELEASE.format("sys"),
        ("ld.volatile.global.u32 %r1, [%flag];", "fence.acq_rel.sys;\n"),
    )
    assert outcome(two_ranks, text, ranks=2) == set()
    weak = text.replace("ld.volatile.global", "ld.global")
    assert "race" in outcome(two_ranks, weak, ranks=2)

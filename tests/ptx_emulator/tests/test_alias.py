"""Unicast against multicast accesses: an alias fence anywhere on the path."""

import numpy as np
import pytest

from ptx_emulator import Machine

from .machines import data_and_flags
from .ptx_text import module, once, spin
from .test_checker import RANKS, outcome


def multicast(before, after=""):
    return module(
        f"""mul.wide.u32 %rd1, %rank, 0;
        st.global.u32 [%mine], 3;
        {before}
        red.release.sys.global.add.u32 [%flag0], 1;
        red.release.sys.global.add.u32 [%flag1], 1;
        {spin("ld.acquire.sys.global.u32 %r1, [%flag];", "%r1", "2")}
        {after}
        multimem.ld_reduce.relaxed.sys.global.add.u32 %r2, [%multi];
        st.global.u32 [%out], %r2;""",
        "mine flag0 flag1 flag multi out rank:u32",
    )


def multicast_build(machine, kernel):
    data, flags = data_and_flags(machine)
    for rank in range(2):
        machine.launch(
            rank, kernel, 1, 1,
            [data.buffer(rank), flags.address(rank, 0), flags.address(rank, 1),
             flags.address(rank, rank), data.multicast_address(rank),
             machine.buffer(rank, 4), rank],
        )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        ("fence.proxy.alias;", "", set()),
        ("", "fence.proxy.alias;", set()),
        ("", "", {"alias"}),
        ("fence.acq_rel.sys;", "fence.acq_rel.sys;", {"alias"}),
    ],
)
def test_multicast_after_unicast_needs_an_alias_fence_on_the_path(before, after, kinds):
    assert outcome(multicast_build, multicast(before, after), ranks=2) == kinds


def broadcast(fence, load):
    """Rank 0 stores through the multicast window, rank 1 reads its own replica."""
    return module(
        RANKS.format(
            produce="multimem.st.relaxed.sys.global.u32 [%data], 5;\n"
            "st.release.sys.global.u32 [%flag], 1;",
            consume=spin("ld.acquire.sys.global.u32 %r1, [%flag];", "%r1", "1")
            + f"{fence}\n{load} %r2, [%data];\nst.global.u32 [%out], %r2;",
        ),
        "data flag out rank:u32",
    )


@pytest.mark.parametrize("load", ["ld.global.u32", "ld.relaxed.sys.global.u32"])
@pytest.mark.parametrize(
    ("fence", "kinds"), [("fence.proxy.alias;", set()), ("", {"alias"})]
)
def test_unicast_after_multicast_needs_it_as_well(load, fence, kinds):
    def build(machine, kernel):
        data = machine.symmetric(64)
        flag, out = machine.symmetric(64), machine.buffer(1, 4)
        flag.buffer(1).write(np.zeros(16, np.uint32))
        first = [data.multicast_address(0), flag.address(0, 1), out, 0]
        machine.launch(0, kernel, 1, 1, first)
        machine.launch(1, kernel, 1, 1, [data.buffer(1), flag.buffer(1), out, 1])

    assert outcome(build, broadcast(fence, load), ranks=2) == kinds


def test_a_strong_unicast_store_before_a_multicast_read():
    stores = ("st.global.u32 [%mine], 3;", "st.relaxed.sys.global.u32 [%mine], 3;")
    for before, kinds in (("fence.proxy.alias;", set()), ("", {"alias"})):
        text = multicast(before).replace(*stores)
        assert outcome(multicast_build, text, ranks=2) == kinds


def test_a_kernel_boundary_is_an_alias_fence():
    write = module("st.global.u32 [%mine], 3;", "mine")
    reduce = module(
        "multimem.ld_reduce.relaxed.sys.global.add.u32 %r2, [%multi];", "multi"
    )
    machine = Machine(arch="sm_90a")
    data = machine.symmetric(64)
    machine.launch(0, machine.load(write).kernel(), 1, 1, [data.buffer(0)])
    machine.launch(0, machine.load(reduce).kernel(), 1, 1, [data.multicast_address(0)])
    assert machine.run(on_race="collect").reports == ()


def test_a_fence_before_the_store_or_after_the_read_is_on_no_path():
    fence, store = "fence.proxy.alias;", "st.global.u32 [%mine], 3;"
    before = multicast("").replace(store, f"{fence}\n{store}")
    after = multicast("").replace(
        "st.global.u32 [%out]", f"{fence}\nst.global.u32 [%out]"
    )
    for text in (before, after):
        assert outcome(multicast_build, text, ranks=2) == {"alias"}


def test_a_thread_between_them_may_run_the_fence():
    """Rank 0 stores and signals; rank 1's thread 0 acquires and fences; thread 32 reduces."""

    def text(fence):
        return module(
            f"""setp.ne.u32 %p1, %rank, 0;
            @%p1 bra SECOND;
            {once(0, "st.global.u32 [%mine], 3;st.release.sys.global.u32 [%peer], 1;")}
            bra DONE;
            SECOND:
            {once(0, spin("ld.acquire.sys.global.u32 %r1, [%flag];", "%r1", "1") + fence)}
            bar.sync 0;
            {once(32, "multimem.ld_reduce.relaxed.sys.global.add.u32 %r2, [%multi];")}
            DONE:""",
            "mine peer flag multi rank:u32",
        )

    def build(machine, kernel):
        data, flags = data_and_flags(machine)
        data.buffer(1).write(np.zeros(16, np.uint32))
        for rank in range(2):
            arguments = [
                data.buffer(rank), flags.address(rank, 1 - rank), flags.buffer(rank),
                data.multicast_address(rank), rank,
            ]  # fmt: skip
            machine.launch(rank, kernel, 1, 64, arguments)

    assert outcome(build, text("fence.proxy.alias;"), ranks=2) == set()
    assert outcome(build, text(""), ranks=2) == {"alias"}

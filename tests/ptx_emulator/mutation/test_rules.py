"""The rules on small PTX texts."""

from __future__ import annotations

import pytest

from ptx_emulator.mutation import rules

WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}"


def edits(ptx):
    return {m.name: m.replacement for m in rules.mutants(ptx)}


def test_every_occurrence_is_mutated_once():
    ptx = "bar.sync 0;\n@%p1 bar.sync 1, 64;\n// bar.sync 2;\n"
    found = rules.mutants(ptx)
    assert [(m.name, m.line) for m in found] == [
        ("drop bar.sync #0", 1),
        ("drop bar.sync #1", 2),
    ]
    assert found[1].text == "bar.sync 0;\n\n// bar.sync 2;\n"


def test_one_kernel_of_several():
    ptx = ".entry a(){\nbar.sync 0;\n}\n.entry b(){\nbar.sync 1;\n}\n"
    (mutant,) = rules.mutants(ptx, "b")
    assert (mutant.name, mutant.line) == ("drop bar.sync #0", 5)
    assert len(rules.mutants(ptx)) == 2
    with pytest.raises(ValueError, match="'c'"):
        rules.mutants(ptx, "c")


def test_lines_do_not_move():
    ptx = "mbarrier.arrive.shared::cta.b64 _,\n  [%r1];\nret;\n"
    (mutant,) = rules.mutants(ptx)
    assert mutant.text.splitlines()[2] == "ret;"


def test_a_wait_becomes_true_and_its_parity_turns():
    wait = "mbarrier.try_wait.parity.shared::cta.b64"
    got = edits(f"@%p2 {wait} P1, [%r1], %r2;")
    assert got["drop mbarrier.try_wait.parity #0"] == "@%p2 setp.eq.u32 P1, 0, 0;"
    assert got["other parity in mbarrier.try_wait.parity #0"] == (
        "{ .reg .b32 %mutant; @%p2 xor.b32 %mutant, %r2, 1; "
        f"@%p2 {wait} P1, [%r1], %mutant; }}"
    )


def test_group_waits_weaken():
    got = edits("cp.async.bulk.wait_group 0;")
    assert got == {
        "drop cp.async.bulk.wait_group #0": "",
        "one more group in cp.async.bulk.wait_group #0": "cp.async.bulk.wait_group 1;",
        "only read in cp.async.bulk.wait_group #0": "cp.async.bulk.wait_group.read 0;",
    }


def test_arrivals():
    arrive = "mbarrier.arrive.expect_tx.shared::cta.b64"
    got = edits(f"{arrive} _, [%r1], 64;\n{arrive} %rd1, [%r1], 64;")
    assert got["drop mbarrier.arrive.expect_tx #0"] == ""
    assert got["drop mbarrier.arrive.expect_tx #1"] == "mov.b64 %rd1, 0;"
    for rule, shift in (("half", "shr"), ("twice", "shl")):
        name = f"{rule} the bytes of mbarrier.arrive.expect_tx #0"
        assert f"{shift}.b32 %mutant, 64, 1;" in got[name]


@pytest.mark.parametrize(
    ("ptx", "expected"),
    [
        (
            "st.release.sys.global.u32 [%rd1], %r1;",
            {"", "st.release.gpu.global.u32 [%rd1], %r1;",
             "st.relaxed.sys.global.u32 [%rd1], %r1;"},
        ),
        (
            "ld.acquire.gpu.global.u32 %r1, [%rd1];",
            {"ld.acquire.cta.global.u32 %r1, [%rd1];",
             "ld.relaxed.gpu.global.u32 %r1, [%rd1];"},
        ),
        ("fence.acq_rel.sys;", {"", "fence.acq_rel.gpu ;"}),
        (
            "barrier.cluster.arrive.release.aligned;",
            {"", "barrier.cluster.arrive.relaxed.aligned ;"},
        ),
        ("fence.proxy.alias;", {""}),
        ("ld.relaxed.sys.global.u32 %r1, [%rd1];", set()),
        (
            "atom.acq_rel.gpu.global.add.u32 %r1, [%rd1], 1;",
            {"atom.acq_rel.cta.global.add.u32 %r1, [%rd1], 1;",
             "atom.relaxed.gpu.global.add.u32 %r1, [%rd1], 1;"},
        ),
        ("add.s32 %r1, %r2, %r3;", set()),
    ],
)  # fmt: skip
def test_fences_and_scopes(ptx, expected):
    assert set(edits(ptx).values()) == expected


def test_constants_of_tcgen05():
    mma = "tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, {%r3, %r3}, p;"
    got = edits(mma)
    assert len(got) == 2 * 4 + 7
    swizzle = got["swizzle of B in tcgen05.mma #0"]
    assert f"xor.b64 %mutant, %rd2, {1 << 62};" in swizzle
    version = got["version of B in tcgen05.mma #0"]
    assert "[%r1], %rd1, %mutant, %r2, {%r3, %r3}, p;" in version


def test_constants_of_wgmma():
    got = edits(f"{WGMMA}, %rd1, %rd2, p, 1, 1, 0, 1;")
    assert got["A major in wgmma #0"].endswith("p, 1, 1, 1, 1;")
    assert got["B major in wgmma #0"].endswith("p, 1, 1, 0, 0;")
    assert len(got) == 8


def test_registers_of_a_have_no_descriptor():
    got = edits(f"{WGMMA}, {{%r1, %r2, %r3, %r4}}, %rd2, p, 1, 1, 0;")
    fields = ("address of B", "stride of B", "swizzle of B", "B major")
    assert set(got) == {f"{field} in wgmma #0" for field in fields}

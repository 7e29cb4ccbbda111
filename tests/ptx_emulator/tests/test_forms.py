"""Which instructions are known, and how PTX text is read."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine
from ptx_emulator.codegen import FORMS
from ptx_emulator.ptx import parse

from .machines import run_with
from .ptx_text import module


class TestForms:
    @pytest.mark.parametrize(
        "code",
        [
            "add.rz.f32 %f1, %f2, %f3;",
            "fma.rn.bf16x2 %r1, %r2, %r3, %r4;",
            "ld.global.nc.u32 %r1, [%rd1];",
            "ld.acquire.sys.global.nc.u32 %r1, [%rd1];",
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
            "tcgen05.cp.cta_group::1.128x256b [%r1], %rd1;",
            "tcgen05.mma.cta_group::1.kind::f8f6f4 [%r1], %rd1, %rd2, %r2, %p1;",
            "cp.async.bulk.tensor.2d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
            " [%r1], [%rd1, {%r2, %r3}], [%r4];",
            "mbarrier.try_wait.parity.acquire.gpu.shared::cta.b64 %p1, [%r1], 0;",
            "fence.proxy.tensormap::generic.release.gpu;",
            "add.f32.ftz %f1, %f2, %f3;",
            "ld.global.v3.u32 {%r1, %r2, %r3}, [%rd1];",
            "ld.global.v8.f32 {%f1, %f2, %f3, %f4}, [%rd1];",
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f2};",
            "wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;",
            "atom.global.add.b32 %r1, [%rd1], %r2;",
            "setmaxnreg.inc.sync.aligned.u32 41;",
            "multimem.ld_reduce.global.add.acc::f32.v4.f32 {%f1,%f2,%f3,%f4}, [%rd1];",
            "mov.u32 %r1, %nosuch;",
            "bra nowhere;",
            "add.s32 %r1, %r2;",
            "cvt.f32.u32 %f1, %r1;",
        ],
    )
    def test_unknown_forms_name_their_line(self, code):
        machine = Machine(arch="sm_90a")
        text = module(code)
        with pytest.raises(EmulationError) as caught:
            machine.load(text).kernel()
        assert caught.value.kind == "unsupported"
        line = 1 + text[: text.index(code)].count("\n")
        assert f"line {line}:" in str(caught.value)
        assert caught.value.line == line

    def test_every_unknown_form_is_listed(self):
        text = module("foo.u32 %r1, %r2;\nbar.baz 1;\nadd.u32 %r1, %r2, %r3;")
        with pytest.raises(EmulationError, match="2 instructions"):
            Machine(arch="sm_90a").load(text).kernel()

    @pytest.mark.parametrize(
        "opcode",
        [
            "ld.global.u32", "st.release.sys.global.u32", "add.f32", "mov.b32",
            "fence.proxy.async.shared::cta", "bar.sync", "cvt.rn.bf16x2.f32",
            "mbarrier.try_wait.parity.shared::cta.b64", "tcgen05.wait::ld.sync.aligned",
            "cp.async.bulk.commit_group", "setp.ne.s32", "selp.b32", "min.s32", "neg.f32",
            "cvt.s32.s8", "cvta.to.global.u64", "prefetch.tensormap", "elect.sync",
        ],
    )  # fmt: skip
    def test_a_spelling_has_one_meaning(self, opcode):
        assert sum(bool(p.fullmatch(opcode)) for p, _, _ in FORMS) == 1


class TestParser:
    def test_lines_survive_comments(self):
        text = "// a\n/* b\nc */\n" + module(
            "\n\n/* d\n */ add.u32 %r1, %r2, %r3; // e"
        )
        function = parse(text).functions["k"].load()
        add = next(i for i in function.instructions if i.opcode == "add.u32")
        assert text.splitlines()[add.line - 1].strip().startswith("*/ add.u32")

    def test_labels_are_local_to_their_block(self):
        body = "{\nbra L;\nL:\n}\n{\nbra L;\nL:\nadd.u32 %r1, %r1, 1;\n}"
        code = parse(module(body)).functions["k"].load().instructions
        jumps = [i.scope.label(i.operands[0]) for i in code if i.opcode == "bra"]
        assert jumps[0] != jumps[1]

    def test_parameters_are_aligned(self):
        text = module("").replace(
            "k()",
            "k(.param .u32 a, .param .u64 b, .param .align 64 .b8 c[72], .param .u8 d)",
        )
        function = parse(text).functions["k"]
        assert {p.name: p.offset for p in function.parameters.values()} == {
            "a": 0, "b": 8, "c": 64, "d": 136,
        }  # fmt: skip
        assert function.parameter_bytes == 137

    def test_initialised_globals(self):
        text = module(
            "mov.u64 %rd1, table;\nld.global.u32 %r1, [%rd1+4];\nst.global.u32 [%out], %r1;",
            "out",
            globals_=".global .align 4 .u32 table[3] = {1, 0x22, 3};",
        )
        (out,) = run_with(text, 4, threads=1)
        assert out.array(np.uint32)[0] == 0x22

"""Memory spaces, windows between ranks, and atomics."""

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine

from .machines import error_of, run_with
from .ptx_text import module


class TestMemory:
    def test_reading_poison(self):
        machine = Machine(arch="sm_90a")
        buffer = machine.buffer(0, 64)
        buffer.write(np.zeros(15, np.uint32))
        kernel = machine.load(module("ld.global.u32 %r1, [%in+60];", "in")).kernel()
        machine.launch(0, kernel, 1, 1, [buffer])
        error = error_of(machine)
        assert error.kind == "poison"
        assert "ld.global.u32" in str(error)

    def test_partly_written_output_is_poison(self):
        machine = Machine(arch="sm_90a")
        out = machine.buffer(0, 64)
        kernel = machine.load(module("st.global.u32 [%out], 1;", "out")).kernel()
        machine.launch(0, kernel, 1, 1, [out])
        machine.run()
        with pytest.raises(EmulationError, match="60 bytes"):
            out.array(np.uint32)

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            ("ld.global.u32 %r1, [%in+64];", "bounds"),
            ("ld.global.u32 %r1, [%in+-4];", "bounds"),
            ("ld.global.u32 %r1, [%in+2];", "alignment"),
            ("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+8];", "alignment"),
            ("ld.shared.u32 %r1, [16];", "bounds"),
            ("mov.u32 %r1, word;\nst.shared.u32 [%r1+4], 1;", "bounds"),
            ("mov.u32 %r1, word;\nld.shared.u32 %r2, [%r1];", "poison"),
            ("trap;", "trap"),
            (
                "mov.u32 %r1, word;\nadd.u32 %r1, %r1, 0x1000000;\nst.shared.u32 [%r1], 1;",
                "bounds",
            ),
        ],
    )
    def test_bad_accesses(self, code, kind):
        text = module(code, "in", shared=".shared .align 4 .b32 word;")
        machine = Machine(arch="sm_90a")
        kernel = machine.load(text).kernel()
        machine.launch(0, kernel, 1, 1, [machine.buffer(0, np.zeros(16, np.uint32))])
        error = error_of(machine)
        assert error.kind == kind
        assert error.line is not None

    def test_generic_addresses(self):
        text = module(
            """mov.u64 %rd1, word;
            cvta.shared.u64 %rd1, %rd1;
            st.u32 [%rd1], 77;
            cvta.to.shared.u64 %rd2, %rd1;
            cvt.u32.u64 %r3, %rd2;
            ld.shared.u32 %r1, [%r3];
            st.u32 [%out], %r1;""",
            "out",
            shared=".shared .align 4 .b32 word;",
        )
        (out,) = run_with(text, 4, threads=1)
        assert out.array(np.uint32)[0] == 77

    def test_local_memory_is_per_thread(self):
        text = module(
            """.local .align 8 .b8 depot[16];
            mov.u64 %rd1, depot;
            cvta.local.u64 %rd2, %rd1;
            st.local.u32 [%rd1+4], %tid;
            ld.u32 %r1, [%rd2+4];
            mad.wide.u32 %rd3, %tid, 4, %out;
            st.global.u32 [%rd3], %r1;""",
            "out",
        )
        (out,) = run_with(text, 256, threads=64)
        assert out.array(np.uint32).tolist() == list(range(64))

    def test_byte_and_vector_widths(self):
        text = module(
            """ld.global.s8 %r1, [%in+1];
            ld.global.v2.b64 {%rd1, %rd2}, [%in+16];
            ld.global.b128 %q1, [%in+16];
            mov.b128 {%rd3, %rd4}, %q1;
            sub.u64 %rd5, %rd4, %rd2;
            st.global.v2.u32 [%out], {%r1, %r1};
            st.global.b64 [%out+8], %rd5;""",
            "in out",
        )
        _, out = run_with(text, np.arange(250, 282).astype(np.uint8), 16, threads=1)
        assert out.array(np.uint32).tolist() == [0xFFFFFFFB, 0xFFFFFFFB, 0, 0]

    def test_wide_vectors(self):
        text = module(
            """ld.global.v8.b32 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, [%in];
            st.global.v4.b64 [%out], {%rd1,%rd1,%rd1,%rd1};""",
            "in out",
            target="sm_100f",
        ).replace("ld.global.v8", "mov.u64 %rd1, 9;\nld.global.v8", 1)
        _, out = run_with(
            text, np.arange(8, dtype=np.uint32), 32, threads=1, arch="sm_100f"
        )
        assert out.array(np.uint64).tolist() == [9] * 4


class TestWindows:
    TEXT = module("ld.global.u32 %r1, [%in];\nst.global.u32 [%out], %r1;", "in out")

    def launch(self, rank, address):
        machine = Machine(ranks=2, arch="sm_90a")
        data = machine.symmetric(64)
        for r in range(2):
            data.buffer(r).write(np.full(16, 10 + r, np.uint32))
        out = machine.buffer(rank, 4)
        kernel = machine.load(self.TEXT).kernel()
        machine.launch(rank, kernel, 1, 1, [address(data), out])
        machine.run()
        return out.array(np.uint32)[0]

    def test_a_peer_window_reaches_the_peer(self):
        assert self.launch(0, lambda d: d.address(0, 1)) == 11
        assert self.launch(1, lambda d: d.address(1, 1)) == 11

    def test_the_address_of_another_rank_is_not_mapped(self):
        with pytest.raises(EmulationError, match="mapped for rank 0 only"):
            self.launch(1, lambda d: d.address(0, 1))

    def test_ordinary_load_through_the_multicast_window(self):
        with pytest.raises(EmulationError, match="multicast") as caught:
            self.launch(0, lambda d: d.multicast_address(0))
        assert caught.value.kind == "multicast"

    def test_multimem_on_a_unicast_address(self):
        machine = Machine(ranks=2, arch="sm_90a")
        data = machine.symmetric(64)
        text = module("multimem.st.relaxed.sys.global.u32 [%in], 1;", "in")
        machine.launch(0, machine.load(text).kernel(), 1, 1, [data.address(0, 0)])
        assert error_of(machine).kind == "multicast"

    def test_multimem_acts_on_every_rank(self):
        machine = Machine(ranks=3, arch="sm_90a")
        data = machine.symmetric(64)
        for r in range(3):
            data.buffer(r).write(np.full(16, 1 << r, np.uint32))
        text = module(
            """multimem.red.relaxed.sys.global.add.u32 [%in], 100;
            multimem.st.relaxed.sys.global.v4.f32 [%in+16], {%f1, %f1, %f1, %f1};
            multimem.ld_reduce.relaxed.sys.global.add.u32 %r1, [%in+8];
            multimem.ld_reduce.relaxed.sys.global.max.u32 %r2, [%in+8];
            st.global.v2.u32 [%out], {%r1, %r2};""".replace(
                "multimem.st", "mov.f32 %f1, 0f40000000;\nmultimem.st", 1
            ),
            "in out",
        )
        out = machine.buffer(0, 8)
        kernel = machine.load(text).kernel()
        machine.launch(0, kernel, 1, 1, [data.multicast_address(0), out])
        machine.run()
        assert out.array(np.uint32).tolist() == [7, 4]
        for r in range(3):
            assert data.buffer(r).array(np.uint32, 1)[0] == 100 + (1 << r)
            assert data.buffer(r).array(np.float32)[4:8].tolist() == [2.0] * 4

    def test_ld_reduce_with_wide_accumulation_rounds_once(self):
        machine = Machine(ranks=3, arch="sm_90a")
        data = machine.symmetric(16)
        # 256 + 1 + 1 in bf16: one step at a time loses both ones.
        for r, value in enumerate((0x4380, 0x3F80, 0x3F80)):
            data.buffer(r).write(np.full(8, value, np.uint16))
        text = module(
            """multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2
                 {%r1, %r2, %r3, %r4}, [%in];
            multimem.ld_reduce.relaxed.sys.global.add.v4.bf16x2 {%r5, %r6, %r7, %r8}, [%in];
            st.global.v2.u32 [%out], {%r1, %r5};""",
            "in out",
        )
        out = machine.buffer(0, 8)
        kernel = machine.load(text).kernel()
        machine.launch(0, kernel, 1, 1, [data.multicast_address(0), out])
        machine.run()
        assert out.array(np.uint16).tolist() == [0x4381, 0x4381, 0x4380, 0x4380]

    def test_host_memory_is_at_one_address_on_every_rank(self):
        machine = Machine(ranks=2, arch="sm_90a")
        record = machine.host_buffer(np.zeros(2, np.uint32))
        text = module("red.relaxed.sys.global.add.u32 [%out], 5;", "out")
        for r in range(2):
            machine.launch(r, machine.load(text).kernel(), 1, 32, [record])
        machine.run()
        assert record.array(np.uint32)[0] == 2 * 32 * 5


class TestAtomics:
    def test_each_operation(self):
        operations = {
            "add.u32": 12, "min.s32": -3, "max.s32": 9, "and.b32": 9 & 3, "or.b32": 9 | 3,
            "xor.b32": 9 ^ 3, "exch.b32": 3, "inc.u32": 0, "dec.u32": 3,
        }  # fmt: skip
        values = {"min.s32": -3}
        for operation, want in operations.items():
            text = module(
                f"atom.relaxed.gpu.global.{operation} %r1, [%io], {values.get(operation, 3)};\n"
                "st.global.u32 [%out], %r1;",
                "io out",
            )
            io, out = run_with(text, np.array([9], np.uint32), 4, threads=1)
            assert io.array(np.int32)[0] == want, operation
            assert out.array(np.uint32)[0] == 9

    def test_compare_and_swap_elects_one(self):
        text = module(
            "add.u32 %r3, %lane, 1;\natom.relaxed.gpu.global.cas.b32 %r1, [%io], 0, %r3;\n"
            "setp.eq.u32 %p1, %r1, 0;\n@%p1 red.relaxed.gpu.global.add.u32 [%io+4], 1;",
            "io",
        )
        (io,) = run_with(text, np.zeros(2, np.uint32))
        assert io.array(np.uint32)[1] == 1
        assert 1 <= io.array(np.uint32)[0] <= 32

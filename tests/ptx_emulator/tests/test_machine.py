"""Memory spaces, strict errors, warp collectives, launches, time and progress."""

import struct

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine, Schedule
from ptx_emulator.codegen import FORMS
from ptx_emulator.ptx import parse

from .ptx_text import module, once, spin, wait


def machine_for(text, threads=32, *, ranks=1, grid=1, arguments=(), **options):
    machine = Machine(ranks=ranks, arch="sm_90a", **options)
    kernel = machine.load(text).kernel()
    for rank in range(ranks):
        machine.launch(rank, kernel, grid, threads, list(arguments))
    return machine


def error_of(machine, seed=0, schedule=None):
    with pytest.raises(EmulationError) as caught:
        machine.run(seed, schedule)
    return caught.value


def run_with(text, *buffers, threads=32, seed=0, grid=1, arch="sm_90a", **launch):
    """Runs `k` with the buffers' contents; returns the machine's buffers."""
    machine = Machine(arch=arch)
    made = [machine.buffer(0, b) for b in buffers]
    kernel = machine.load(text).kernel()
    machine.launch(0, kernel, grid, threads, made, **launch)
    machine.run(seed)
    return made


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


class TestWarp:
    def test_divergence_reconverges(self):
        text = module(
            """and.b32 %r1, %tid, 1;
            setp.eq.u32 %p1, %r1, 0;
            mov.u32 %r2, 10;
            @%p1 bra EVEN;
            add.u32 %r2, %r2, 1;
            bra JOIN;
            EVEN:
            add.u32 %r2, %r2, 2;
            JOIN:
            bar.warp.sync -1;
            vote.sync.ballot.b32 %r3, %p1, -1;
            mad.wide.u32 %rd1, %tid, 8, %out;
            st.global.v2.u32 [%rd1], {%r2, %r3};""",
            "out",
        )
        (out,) = run_with(text, 256)
        values = out.array(np.uint32, (32, 2))
        assert values[:, 0].tolist() == [12, 11] * 16
        assert set(values[:, 1]) == {0x55555555}

    @pytest.mark.parametrize(
        ("mode", "clamp", "source"),
        [
            ("idx", 31, lambda k: 5), ("up", 0, lambda k: k - 3 if k >= 3 else k),
            ("down", 31, lambda k: k + 3 if k < 29 else k), ("bfly", 31, lambda k: k ^ 3),
        ],
    )  # fmt: skip
    def test_shuffles(self, mode, clamp, source):
        amount = 5 if mode == "idx" else 3
        text = module(
            f"shfl.sync.{mode}.b32 %r1, %lane, {amount}, {clamp}, -1;\n"
            "mad.wide.u32 %rd1, %tid, 4, %out;\nst.global.u32 [%rd1], %r1;",
            "out",
        )
        (out,) = run_with(text, 128)
        assert out.array(np.uint32).tolist() == [source(k) for k in range(32)]

    def test_election_is_stable_and_arbitrary(self):
        text = module(
            """elect.sync %r1|%p1, -1;
            elect.sync %r2|%p2, -1;
            selp.u32 %r3, 1, 0, %p1;
            @%p1 st.global.v2.u32 [%out], {%r1, %r2};""",
            "out",
        )
        leaders = set()
        for seed in range(12):
            (out,) = run_with(text, 8, seed=seed)
            first, second = out.array(np.uint32).tolist()
            assert first == second
            leaders.add(first)
        assert len(leaders) > 1

    def test_votes(self):
        text = module(
            """setp.lt.u32 %p1, %lane, 4;
            vote.sync.any.pred %p2, %p1, -1;
            vote.sync.all.pred %p3, %p1, -1;
            redux.sync.add.u32 %r4, %lane, -1;
            selp.u32 %r1, 1, 0, %p2;
            selp.u32 %r2, 2, 0, %p3;
            or.b32 %r1, %r1, %r2;
            st.global.v2.u32 [%out], {%r1, %r4};""",
            "out",
        ).replace("st.global.v2", "setp.eq.u32 %p4, %lane, 0;\n@%p4 st.global.v2")
        (out,) = run_with(text, 8)
        assert out.array(np.uint32).tolist() == [1, 496]

    def test_a_lane_outside_its_mask(self):
        assert error_of(machine_for(module("bar.warp.sync 1;"))).kind == "convergence"


class TestBarriers:
    def test_named_barrier_with_arrive(self):
        text = module(
            f"""setp.ne.u32 %p1, %warp, 0;
            @%p1 bra OTHER;
            {once(0, "st.global.u32 [%out], 3;")}
            bar.arrive 2, 64;
            bra DONE;
            OTHER:
            bar.sync 2, 64;
            ld.global.u32 %r1, [%out];
            {once(32, "st.global.u32 [%out+4], %r1;")}
            DONE:""",
            "out",
        )
        for seed in range(5):
            (out,) = run_with(text, 8, threads=64, seed=seed)
            assert out.array(np.uint32).tolist() == [3, 3]

    def test_reduction(self):
        text = module(
            "setp.lt.u32 %p1, %tid, 5;\nbarrier.red.popc.u32 %r1, 0, %p1;\n"
            "mad.wide.u32 %rd1, %tid, 4, %out;\nst.global.u32 [%rd1], %r1;",
            "out",
        )
        (out,) = run_with(text, 256, threads=64)
        assert set(out.array(np.uint32)) == {5}

    def test_reduction_meets_a_plain_barrier(self):
        text = module(
            "setp.eq.u32 %p1, %warp, 0;\n@%p1 bar.sync 0;\n"
            "@!%p1 barrier.red.popc.u32 %r1, 0, %p1;"
        )
        assert error_of(machine_for(text, 64)).kind == "barrier"

    def test_different_counts(self):
        text = module(
            "setp.eq.u32 %p1, %warp, 0;\n@%p1 bar.sync 1, 64;\n@!%p1 bar.sync 1, 96;"
        )
        assert error_of(machine_for(text, 64)).kind in ("barrier", "no-progress")

    def test_exited_warps_leave_the_barrier(self):
        text = module("setp.eq.u32 %p1, %warp, 0;\n@%p1 exit;\nbar.sync 0;")
        machine_for(text, 96).run()

    def test_cluster_barrier_and_distributed_shared_memory(self):
        text = module(
            """mov.u32 %r1, word;
            mov.u32 %r2, %cluster_ctarank;
            st.shared.u32 [%r1], %r2;
            barrier.cluster.arrive.release.aligned;
            barrier.cluster.wait.acquire.aligned;
            xor.b32 %r3, %r2, 1;
            mapa.shared::cluster.u32 %r4, %r1, %r3;
            ld.shared::cluster.u32 %r5, [%r4];
            mad.wide.u32 %rd1, %ctaid.x, 4, %out;
            st.global.u32 [%rd1], %r5;
            barrier.cluster.arrive.release.aligned;
            barrier.cluster.wait.acquire.aligned;""",
            "out",
            shared=".shared .align 4 .b32 word;",
        )
        (out,) = run_with(text, 16, threads=1, grid=4, cluster=2)
        assert out.array(np.uint32).tolist() == [1, 0, 1, 0]

    def test_peer_that_has_left(self):
        text = module(
            """mov.u32 %r1, word;
            st.shared.u32 [%r1], 1;
            barrier.cluster.arrive.release.aligned;
            barrier.cluster.wait.acquire.aligned;
            mov.u32 %r2, %cluster_ctarank;
            setp.eq.u32 %p1, %r2, 0;
            @%p1 exit;
            mov.u32 %r6, 0;
            LOOP: add.u32 %r6, %r6, 1;
            setp.lt.u32 %p2, %r6, 400;
            @%p2 bra LOOP;
            mapa.shared::cluster.u32 %r4, %r1, 0;
            ld.shared::cluster.u32 %r5, [%r4];""",
            shared=".shared .align 4 .b32 word;",
        )
        machine = Machine(arch="sm_90a")
        machine.launch(0, machine.load(text).kernel(), 2, 1, [], cluster=2)
        assert error_of(machine).kind == "cluster"

    def test_a_warp_that_arrives_and_leaves_counts_once(self):
        """Warp 0 of each CTA arrives and ends; the others still meet."""
        text = module(
            f"""mov.u32 %r2, %cluster_ctarank;
            mad.lo.u32 %r3, %r2, 3, %warp;
            mad.wide.u32 %rd1, %r3, 4, %io;
            {once(0, "st.global.u32 [%rd1], 7;", of="%lane")}
            barrier.cluster.arrive.release.aligned;
            setp.eq.u32 %p1, %warp, 0;
            @%p1 exit;
            barrier.cluster.wait.acquire.aligned;
            ld.global.u32 %r4, [%io];
            ld.global.u32 %r5, [%io+12];
            ld.global.u32 %r6, [%io+16];
            mul.lo.u32 %r4, %r4, %r5;
            mul.lo.u32 %r4, %r4, %r6;
            add.u32 %r3, %r3, 6;
            mad.wide.u32 %rd1, %r3, 4, %io;
            {once(0, "st.global.u32 [%rd1], %r4;", of="%lane")}""",
            "io",
        )
        for seed in range(6):
            content = np.zeros(12, np.uint32)
            (io,) = run_with(text, content, threads=96, grid=2, cluster=2, seed=seed)
            got = io.array(np.uint32)
            assert got[[7, 8, 10, 11]].tolist() == [343] * 4

    def test_cluster_launch_control_takes_over_what_has_not_started(self):
        """Each CTA counts its own index, then those of the clusters that it cancels."""
        text = module(
            f"""mov.u32 %r1, bar; mov.u32 %r2, response;
            mbarrier.init.shared::cta.b64 [%r1], 1;
            fence.mbarrier_init.release.cluster;
            mov.u32 %r3, %ctaid.x;
            mov.u32 %r4, 0;
            WORK:
            mad.wide.u32 %rd1, %r3, 4, %io;
            red.relaxed.gpu.global.add.u32 [%rd1], 1;
            fence.proxy.async.shared::cta;
            mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], 16;
            clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r2], [%r1];
            {wait("%r1", "%r4")}
            xor.b32 %r4, %r4, 1;
            ld.shared.b128 %q1, [%r2];
            clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;
            @!%p1 bra DONE;
            clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r3, %q1;
            bra WORK;
            DONE:""",
            "io",
            shared=".shared .align 8 .b64 bar; .shared .align 16 .b8 response[16];",
            target="sm_100f",
        )
        machine = Machine(arch="sm_100f", resident_ctas=2)
        io = machine.buffer(0, np.zeros(9, np.uint32))
        machine.launch(0, machine.load(text).kernel(), 9, 1, [io])
        machine.run(3)
        assert io.array(np.uint32).tolist() == [1] * 9


MBARRIER = ".shared .align 8 .b64 bar;"


class TestMbarrier:
    def error(self, code, threads=1):
        text = module(f"mov.u32 %r1, bar;\n{code}", shared=MBARRIER)
        return error_of(machine_for(text, threads))

    def test_over_arrival(self):
        init = "mbarrier.init.shared::cta.b64 [%r1], 1;\n"
        expect = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 16;\n"
        arrive = "mbarrier.arrive.shared::cta.b64 _, [%r1];\n"
        assert self.error(init + expect + arrive * 2).kind == "mbarrier"

    @pytest.mark.parametrize(
        "code",
        [
            "mbarrier.arrive.shared::cta.b64 _, [%r1];",
            "mbarrier.init.shared::cta.b64 [%r1], 0;",
            "mbarrier.init.shared::cta.b64 [%r1], 1;\nmbarrier.init.shared::cta.b64 [%r1], 1;",
            "mbarrier.init.shared::cta.b64 [%r1], 1;\nst.shared.u32 [%r1+4], 0;",
            "mbarrier.init.shared::cta.b64 [%r1], 1;\nmbarrier.inval.shared::cta.b64 [%r1];\n"
            "mbarrier.arrive.shared::cta.b64 _, [%r1];",
        ],
    )
    def test_misuse(self, code):
        assert self.error(code).kind == "mbarrier"

    def test_a_missing_arrival_is_no_progress(self):
        error = self.error(
            "mbarrier.init.shared::cta.b64 [%r1], 2;\n" + wait("%r1", "0")
        )
        assert error.kind == "no-progress"
        assert "2 of 2 arrivals" in str(error)
        assert "mbarrier.try_wait" in str(error)

    def test_tokens(self):
        text = module(
            """mov.u32 %r1, bar;
            mbarrier.init.shared::cta.b64 [%r1], 2;
            mbarrier.arrive.shared::cta.b64 %rd1, [%r1];
            mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %rd1;
            mbarrier.arrive.shared::cta.b64 %rd2, [%r1];
            mbarrier.test_wait.shared::cta.b64 %p2, [%r1], %rd1;
            selp.u32 %r2, 1, 0, %p1;
            selp.u32 %r3, 1, 0, %p2;
            st.global.v2.u32 [%out], {%r2, %r3};""",
            "out",
            shared=MBARRIER,
        )
        (out,) = run_with(text, 8, threads=1)
        assert out.array(np.uint32).tolist() == [0, 1]


class TestRegisters:
    def test_the_pool_is_shared_by_a_cta(self):
        text = module(
            """setp.lt.u32 %p1, %warp, 4;
            @%p1 bra SMALL;
            setmaxnreg.inc.sync.aligned.u32 232;
            bra DONE;
            SMALL:
            setmaxnreg.dec.sync.aligned.u32 24;
            DONE:""",
            threads=384,
        )
        machine_for(text, 384).run()

    def test_more_than_the_pool(self):
        text = module("setmaxnreg.inc.sync.aligned.u32 232;", threads=384)
        error = error_of(machine_for(text, 384))
        assert error.kind == "no-progress"
        assert "free registers" in str(error)

    def test_wrong_direction(self):
        text = module("setmaxnreg.dec.sync.aligned.u32 232;", threads=384)
        assert error_of(machine_for(text, 384)).kind == "registers"


class TestProgress:
    def test_time_jumps_to_a_deadline(self):
        """A wait of ten minutes that nothing ends but the clock."""
        text = module(
            """mov.u64 %rd1, %globaltimer;
            add.u64 %rd2, %rd1, 600000000000;
            AGAIN:
            ld.acquire.sys.global.u32 %r1, [%flag];
            setp.ne.u32 %p1, %r1, 0;
            @%p1 bra DONE;
            mov.u64 %rd3, %globaltimer;
            setp.lt.u64 %p2, %rd3, %rd2;
            nanosleep.u32 100;
            @%p2 bra AGAIN;
            sub.u64 %rd4, %rd3, %rd1;
            st.global.u64 [%out], %rd4;
            DONE:""",
            "flag out",
        )
        _, out = run_with(text, np.zeros(1, np.uint32), 8, threads=1)
        waited = int(out.array(np.uint64)[0])
        assert 600e9 <= waited < 800e9

    def test_a_spin_without_a_clock_is_reported(self):
        text = module(
            spin("ld.acquire.sys.global.u32 %r1, [%flag];", "%r1", "1"), "flag"
        )
        machine = Machine(ranks=2, arch="sm_90a")
        kernel = machine.load(text).kernel()
        for r in range(2):
            machine.launch(
                r, kernel, 1, 64, [machine.buffer(r, np.zeros(1, np.uint32))]
            )
        error = error_of(machine)
        assert error.kind == "no-progress"
        for who in ("rank 0", "rank 1", "warp 1", "spinning"):
            assert who in str(error)
        assert "setp.ne.u32" in str(error) or "ld.acquire" in str(error)

    def test_a_long_loop_is_progress(self):
        text = module(
            """mov.u32 %r1, 0;
            LOOP:
            add.u32 %r1, %r1, 1;
            setp.lt.u32 %p1, %r1, 3000;
            @%p1 bra LOOP;
            st.global.u32 [%out], %r1;""",
            "out",
        )
        (out,) = run_with(text, 4, threads=1)
        assert out.array(np.uint32)[0] == 3000

    def test_an_absent_rank(self):
        text = module("st.global.u32 [%out], 1;", "out")
        machine = Machine(ranks=2, arch="sm_90a")
        outs = [machine.buffer(r, np.zeros(1, np.uint32)) for r in range(2)]
        for r in range(2):
            machine.launch(r, machine.load(text).kernel(), 1, 1, [outs[r]])
        machine.run(0, Schedule(absent_ranks=(1,)))
        assert [o.array(np.uint32)[0] for o in outs] == [1, 0]
        machine.run(0)
        assert outs[1].array(np.uint32)[0] == 1

    @pytest.mark.parametrize(
        "schedule",
        [
            Schedule(start_round={0: 500}), Schedule(pause={1: (2, 400)}),
            Schedule(slow_rank=0), Schedule(starved_warp=0), Schedule(split_rate=0.5),
        ],
    )  # fmt: skip
    def test_late_and_slow_ranks_still_meet(self, schedule):
        text = module(
            "st.release.sys.global.u32 [%peer], 1;\n"
            + spin("ld.acquire.sys.global.u32 %r1, [%mine];", "%r1", "1"),
            "peer mine",
        )
        machine = Machine(ranks=2, arch="sm_90a")
        flags = machine.symmetric(64)
        for r in range(2):
            flags.buffer(r).write(np.zeros(16, np.uint32))
        for r in range(2):
            arguments = [flags.address(r, 1 - r), flags.buffer(r)]
            machine.launch(r, machine.load(text).kernel(), 1, 1, arguments)
        machine.run(3, schedule)

    def test_a_seed_repeats(self):
        text = module(
            "atom.relaxed.gpu.global.add.u32 %r1, [%io], 1;\n"
            "mad.wide.u32 %rd1, %ctaid.x, 4, %io;\nst.global.u32 [%rd1+4], %r1;",
            "io",
        )
        orders = [
            tuple(run_with(text, np.zeros(9, np.uint32), threads=1, grid=8, seed=s)[0].array(np.uint32))
            for s in (1, 1, 2, 3, 4)
        ]  # fmt: skip
        assert orders[0] == orders[1]
        assert len(set(orders)) > 1


class TestLaunch:
    def test_stream_order_and_residency(self):
        text = module(
            "atom.relaxed.gpu.global.add.u32 %r1, [%io], 1;\n"
            "setp.ge.u32 %p1, %r1, %low;\n@!%p1 trap;",
            "io low:u32",
        )
        machine = Machine(arch="sm_90a", resident_ctas=1)
        io = machine.buffer(0, np.zeros(1, np.uint32))
        kernel = machine.load(text).kernel()
        machine.launch(0, kernel, 5, 1, [io, 0])
        machine.launch(0, kernel, 5, 1, [io, 5])
        machine.run()
        assert io.array(np.uint32)[0] == 10

    def test_arguments(self):
        text = module("st.global.v2.u32 [%out], {%a, %b};", "a:u32 out b:u32")
        machine = Machine(arch="sm_90a")
        out = machine.buffer(0, 8)
        kernel = machine.load(text).kernel("k")
        machine.launch(0, kernel, 1, 1, [np.uint32(3), out, -1])
        machine.run()
        assert out.array(np.uint32).tolist() == [3, 0xFFFFFFFF]
        machine.launch(0, kernel, 1, 1, struct.pack("<I4xQI", 4, out.address, 5))
        machine.run()
        assert out.array(np.uint32).tolist() == [4, 5]
        with pytest.raises(ValueError, match="2 arguments"):
            machine.launch(0, kernel, 1, 1, [1, out])
        with pytest.raises(ValueError, match="expected 20"):
            machine.launch(0, kernel, 1, 1, b"1234")

    @pytest.mark.parametrize(
        "options",
        [{"grid": 3, "cluster": 2}, {"block": 2048}, {"smem_bytes": 1 << 20}],
    )
    def test_bad_launches(self, options):
        machine = Machine(arch="sm_90a")
        kernel = machine.load(module("", threads=1024)).kernel()
        arguments = {"grid": 1, "block": 32, "args": [], **options}
        with pytest.raises(ValueError, match="grid|block|shared"):
            machine.launch(0, kernel, **arguments)

    def test_wrong_target(self):
        with pytest.raises(ValueError, match="sm_90a"):
            Machine(arch="sm_100f").load(module(""))

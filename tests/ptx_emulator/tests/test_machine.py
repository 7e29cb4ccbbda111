"""mbarriers, register pools, progress and launches."""

import struct

import numpy as np
import pytest

from ptx_emulator import Machine, Schedule

from .machines import error_of, machine_for, run_with
from .ptx_text import module, spin, wait

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

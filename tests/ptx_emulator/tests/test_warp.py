"""Divergence, warp collectives, named and cluster barriers."""

import numpy as np
import pytest

from ptx_emulator import Machine

from .machines import error_of, machine_for, run_with
from .ptx_text import module, once, wait


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

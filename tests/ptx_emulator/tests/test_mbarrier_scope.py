"""Scopes of mbarrier operations between the CTAs of a cluster, as the checker sees them."""

import numpy as np
import pytest

from .ptx_text import module, once
from .test_checker import outcome

INIT = """mbarrier.init.shared::cta.b64 [%r1], 1;
fence.mbarrier_init.release.cluster;"""


def hand_over(release, acquire, reader):
    """Thread 0 of CTA 0 stores a word of CTA `reader` and arrives at its mbarrier."""
    return module(
        f"""mov.u32 %r1, full; mov.u32 %r2, word;
        mov.u32 %r10, %cluster_ctarank;
        {once(0, INIT)}
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;
        setp.ne.u32 %p1, %r10, 0;
        setp.ne.u32 %p2, %tid, 0;
        or.pred %p1, %p1, %p2;
        @%p1 bra READ;
        mapa.shared::cluster.u32 %r3, %r2, {reader};
        mapa.shared::cluster.u32 %r4, %r1, {reader};
        st.shared::cluster.u32 [%r3], 7;
        mbarrier.arrive{release}.shared::cluster.b64 _, [%r4];
        READ:
        setp.ne.u32 %p1, %r10, {reader};
        setp.ne.u32 %p2, %tid, 32;
        or.pred %p1, %p1, %p2;
        @%p1 bra DONE;
        AGAIN:
        mbarrier.try_wait.parity{acquire}.shared::cta.b64 %p3, [%r1], 0;
        @!%p3 bra AGAIN;
        ld.shared.u32 %r5, [%r2];
        st.global.u32 [%out], %r5;
        DONE:
        bar.sync 0;
        barrier.cluster.arrive.release.aligned;
        barrier.cluster.wait.acquire.aligned;""",
        "out",
        shared=".shared .align 8 .b64 full; .shared .align 4 .b32 word;",
    )


@pytest.mark.parametrize(
    ("release", "acquire", "reader", "kinds"),
    [
        (".release.cluster", ".acquire.cluster", 1, set()),
        (".release.cta", ".acquire.cluster", 1, {"race"}),
        (".release.cluster", ".acquire.cta", 1, {"race"}),
        (".relaxed.cluster", ".acquire.cluster", 1, {"race"}),
        (".release.cluster", ".relaxed.cluster", 1, {"race"}),
        # As NVIDIA's kernels write it.
        ("", "", 1, set()),
        ("", ".acquire.cta", 1, set()),
        (".release.cta", ".acquire.cta", 0, set()),
        (".release.cluster", ".acquire.cta", 0, set()),
    ],
)
def test_cluster_scope_reaches_another_cta(release, acquire, reader, kinds):
    def build(machine, kernel):
        out = machine.buffer(0, np.zeros(1, np.uint32))
        machine.launch(0, kernel, 2, 64, [out], cluster=2)

    assert outcome(build, hand_over(release, acquire, reader)) == kinds

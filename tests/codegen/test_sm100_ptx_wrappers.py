"""Each PTX wrapper that only SM100 has compiles alone, to the instruction it names."""

import pytest
from codegen.toolchain import compile_cubin, compile_ptx, sass

_ALLOCATED = "__shared__ uint32_t base;"

# name: (header, body of a kernel (uint64_t* data), PTX, SASS mnemonic or None)
_WRAPPERS = {
    **{
        f"alloc_{group}": (
            "tcgen05.cuh",
            f"{_ALLOCATED} TcgenAlloc<{group}>(&base, 512); TcgenRelinquish<{group}>();"
            f" __syncthreads(); TcgenDealloc<{group}>(base, 512);",
            f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32",
            "UTCATOMSWS.2CTA.FIND_AND_SET" if group == 2 else "UTCATOMSWS.FIND_AND_SET",
        )
        for group in (1, 2)
    },
    **{
        f"mma_{group}": (
            "tcgen05.cuh",
            f"TcgenMmaF16<{group}>(data[0], data[1], data[2], data[3], data[4]);",
            f"tcgen05.mma.cta_group::{group}.kind::f16",
            "UTCHMMA.2CTA" if group == 2 else "UTCHMMA ",
        )
        for group in (1, 2)
    },
    "commit_1": (
        "tcgen05.cuh",
        "__shared__ uint64_t barrier; TcgenCommit<1>(&barrier);",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64",
        "UTCBAR ",
    ),
    "commit_2": (
        "tcgen05.cuh",
        "__shared__ uint64_t barrier; TcgenCommit<2>(&barrier);",
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
        ".multicast::cluster.b64",
        "UTCBAR.2CTA.MULTICAST",
    ),
    "load": (
        "tcgen05.cuh",
        "float v[64]; TcgenLoad64(data[0], v); TcgenWaitLoad(v);"
        " for (int i = 0; i < 64; ++i) data[i] = v[i];",
        "tcgen05.ld.sync.aligned.32x32b.x64.b32",
        "LDTM.x64",
    ),
    "fences": (
        "tcgen05.cuh",
        "TcgenFenceBeforeSync(); TcgenFenceAfterSync();",
        "tcgen05.fence::before_thread_sync",
        None,
    ),
    "tma_pair": (
        "tma_pair.cuh",
        "__shared__ uint64_t barrier; __shared__ alignas(128) char tile[1024];"
        " TmaLoadPair2d(tile, reinterpret_cast<const CUtensorMap*>(data), &barrier, 0, 0);",
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile"
        ".mbarrier::complete_tx::bytes.cta_group::2",
        "UTMALDG.2D.2CTA",
    ),
    "store_wide": (
        "store_wide.cuh",
        "uint32_t v[8]; for (int i = 0; i < 8; ++i) v[i] = data[i];"
        " StoreWideNoAllocate(data + 64, v);",
        "st.global.L1::no_allocate.v8.b32",
        "STG.E.NA.ENL2.256",
    ),
    "elect": (
        "elect.cuh",
        "if (ElectOne()) data[0] = 1;",
        "elect.sync",
        "ELECT",
    ),
}


@pytest.mark.parametrize("name", _WRAPPERS)
def test_wrapper(name):
    header, body, ptx, mnemonic = _WRAPPERS[name]
    source = (
        f'#include "kernels/ptx/{header}"\n'
        "using namespace jax_symm::ptx;\n"
        f'extern "C" __global__ void k(uint64_t* data) {{ {body} }}\n'
    )
    assert ptx in compile_ptx(source, "sm_100f")
    if mnemonic is not None:
        instructions = sass(compile_cubin(source, "sm_100f"))["k"]
        assert any(mnemonic in line + " " for line in instructions), instructions

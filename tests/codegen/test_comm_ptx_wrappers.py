"""Each PTX wrapper of the communication half compiles alone, to what it names.

The SASS is what ptxas 13.0 makes of it: a membar of system scope before whatever
releases to other devices, an invalidation of L1 after whatever acquires.
"""

import re

import pytest
from codegen.toolchain import FFI, compile_cubin, compile_ptx, sass

# name: (header, body of a kernel (uint64_t* data), PTX, SASS mnemonics in order)
_WRAPPERS = {
    "LoadRelaxedGpu": (
        "memory.cuh",
        "data[1] = LoadRelaxedGpu(data);",
        "ld.relaxed.gpu.global.u64",
        ["LDG.E.64.STRONG.GPU"],
    ),
    "LoadRelaxedSys": (
        "memory.cuh",
        "data[1] = LoadRelaxedSys(data);",
        "ld.relaxed.sys.global.u64",
        ["LDG.E.64.STRONG.SYS"],
    ),
    "LoadRelaxedSys, 32 bits": (
        "memory.cuh",
        "data[1] = LoadRelaxedSys(reinterpret_cast<uint32_t*>(data));",
        "ld.relaxed.sys.global.u32",
        ["LDG.E.STRONG.SYS"],
    ),
    "LoadAcquireSys": (
        "memory.cuh",
        "data[1] = LoadAcquireSys(data);",
        "ld.acquire.sys.global.u64",
        ["LDG.E.64.STRONG.SYS", "CCTL.IVALL"],
    ),
    "StoreRelaxedSys": (
        "memory.cuh",
        "StoreRelaxedSys(data, 1);",
        "st.relaxed.sys.global.u64",
        ["STG.E.64.STRONG.SYS"],
    ),
    "StoreRelaxedGpu": (
        "memory.cuh",
        "StoreRelaxedGpu(reinterpret_cast<uint32_t*>(data), 1);",
        "st.relaxed.gpu.global.u32",
        ["STG.E.STRONG.GPU"],
    ),
    "StoreReleaseSys": (
        "memory.cuh",
        "StoreReleaseSys(data, 1);",
        "st.release.sys.global.u64",
        ["MEMBAR.ALL.SYS", "STG.E.64.STRONG.SYS"],
    ),
    "AtomicAddRelaxedGpu": (
        "memory.cuh",
        "data[1] = AtomicAddRelaxedGpu(reinterpret_cast<uint32_t*>(data), data[2]);",
        "atom.relaxed.gpu.global.add.u32",
        ["ATOMG.E.ADD.STRONG.GPU"],
    ),
    "AtomicAddAcqRelGpu": (
        "memory.cuh",
        "data[1] = AtomicAddAcqRelGpu(reinterpret_cast<uint32_t*>(data), data[2]);",
        "atom.acq_rel.gpu.global.add.u32",
        ["MEMBAR.ALL.GPU", "ATOMG.E.ADD.STRONG.GPU", "CCTL.IVALL"],
    ),
    "ExchangeRelaxedGpu": (
        "memory.cuh",
        "data[1] = ExchangeRelaxedGpu(reinterpret_cast<uint32_t*>(data), 1);",
        "atom.relaxed.gpu.global.exch.b32",
        ["ATOMG.E.EXCH.STRONG.GPU"],
    ),
    "CompareAndSwapRelaxedSys": (
        "memory.cuh",
        "data[1] = CompareAndSwapRelaxedSys(data, 0, 1);",
        "atom.relaxed.sys.global.cas.b64",
        ["ATOMG.E.CAS.64.STRONG.SYS"],
    ),
    "LoadVector": (
        "memory.cuh",
        "StoreVector(data + 8, LoadVector(data));",
        "ld.global.L1::no_allocate.v4.b32",
        ["LDG.E.128.NA|LDG.E.NA.128"],
    ),
    "StoreVector": (
        "memory.cuh",
        "StoreVector(data, Vector{{1, 2, 3, 4}});",
        "st.global.v4.b32",
        ["STG.E.128"],
    ),
    "FenceProxyAlias": (
        "fence.cuh",
        "data[0] = 1; FenceProxyAlias(); data[1] = 2;",
        "fence.proxy.alias",
        ["MEMBAR.SC"],
    ),
    "MultimemLoadReduce": (
        "multimem.cuh",
        "jax_symm::MulticastAddress at{data[0]};"
        "data[1] = MultimemLoadReduce<__nv_bfloat16>(at).words[3];",
        "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2",
        [r"LDGMC.*(F32ADD|HPADD).*BF16.*SYS|LDGMC.*BF16.*(F32ADD|HPADD).*SYS"],
    ),
    "MultimemLoadReduce, f16": (
        "multimem.cuh",
        "jax_symm::MulticastAddress at{data[0]};"
        "data[1] = MultimemLoadReduce<__half>(at).words[3];",
        "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2",
        [r"LDGMC.*SYS"],
    ),
    "MultimemStore": (
        "multimem.cuh",
        "MultimemStore(jax_symm::MulticastAddress{data[0]}, Vector{{1, 2, 3, 4}});",
        "multimem.st.relaxed.sys.global.v4.f32",
        ["STG.E.128.STRONG.SYS"],
    ),
    "BarrierSync": (
        "barrier.cuh",
        "BarrierSync(data[0], 128);",
        "bar.sync",
        ["BAR.SYNC"],
    ),
    "BarrierAnd": (
        "barrier.cuh",
        "data[1] = BarrierAnd(3, 128, data[0] != 0);",
        "bar.red.and.pred",
        ["BAR.RED.AND"],
    ),
    "GlobalTimerNs": (
        "time.cuh",
        "data[0] = GlobalTimerNs();",
        "%globaltimer",
        ["GLOBALTIMER"],
    ),
    "NanoSleep": (
        "time.cuh",
        "NanoSleep(32); data[0] = 1;",
        "nanosleep.u32",
        ["NANOSLEEP"],
    ),
}


@pytest.mark.parametrize("target", ["sm_90a", "sm_100f"])
@pytest.mark.parametrize("name", _WRAPPERS)
def test_wrapper(name, target):
    header, body, ptx, mnemonics = _WRAPPERS[name]
    source = (
        f'#include <cstdint>\n#include "kernels/ptx/{header}"\n'
        "using namespace jax_symm::ptx;\n"
        f'extern "C" __global__ void k(uint64_t* data) {{ {body} }}\n'
    )
    assert ptx in compile_ptx(source, target)
    instructions = iter(sass(compile_cubin(source, target))["k"])
    for mnemonic in mnemonics:
        found = any(re.search(mnemonic, line) for line in instructions)
        assert found, (mnemonic, sass(compile_cubin(source, target))["k"])


@pytest.mark.parametrize(
    "header", sorted({header for header, *_ in _WRAPPERS.values()})
)
def test_every_wrapper_has_its_test_and_names_its_instruction(header):
    text = (FFI / "kernels" / "ptx" / header).read_text()
    wrappers = set(re.findall(r"__device__ __forceinline__ \w+ (\w+)", text))
    tested = {
        name.split(",")[0] for name, case in _WRAPPERS.items() if case[0] == header
    }
    assert wrappers == tested
    for _, _, ptx, _ in (case for case in _WRAPPERS.values() if case[0] == header):
        assert ptx.split(".")[0] in text

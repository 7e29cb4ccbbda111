"""What ptxas makes of the SM100 kernels: the intended instructions, no spills."""

import itertools
import re

import pytest
from codegen.toolchain import compile_cubin, compile_ptx, resources, sass

MAX_REGISTERS = 65536 // 320 // 8 * 8
SHAPES = [(128, 1), (128, 2), (256, 2)]
OPERANDS = {
    "bf16_kn": ("__nv_bfloat16", "kKN"),
    "f16_nk": ("__half", "kNK"),
}
REDUCERS = ["push", "pull", "multicast"]
COLLECTIVES = {"rs": "kReduceScatter", "ar": "kAllReduce"}
KERNELS = list(itertools.product(REDUCERS, SHAPES, OPERANDS, COLLECTIVES))


def symbol(shape, operands, reducer, collective):
    tile_n, cluster = shape
    return f"jax_symm_sm100_{operands}_128x{tile_n}x{cluster}_{reducer}_{collective}"


def unit(reducer):
    """A translation unit with every shape and collective of one reducer."""
    lines = ['#include "kernels/gemm_comm/sm100_export.cuh"']
    for shape, operands, collective in itertools.product(SHAPES, OPERANDS, COLLECTIVES):
        element, weights = operands.split("_")
        cpp_element, cpp_weights = OPERANDS[operands]
        arguments = [
            element,
            cpp_element,
            weights,
            cpp_weights,
            "128",
            *map(str, shape),
        ]
        arguments += [reducer, f"{reducer.capitalize()}Reducer"]
        arguments += [collective, COLLECTIVES[collective]]
        lines.append(f"JAX_SYMM_SM100_KERNEL({', '.join(arguments)})")
    return "\n".join(lines) + "\n"


@pytest.fixture(params=KERNELS, ids=lambda k: symbol(k[1], k[2], k[0], k[3]))
def kernel(request):
    """(reducer, cluster, SASS, resources) of one kernel."""
    reducer, shape, operands, collective = request.param
    cubin = compile_cubin(unit(reducer), "sm_100f")
    name = symbol(shape, operands, reducer, collective)
    return reducer, shape[1], sass(cubin)[name], resources(cubin)[name]


def of(instructions, mnemonic):
    """The instructions of a kernel that begin so, predicates aside."""
    opcodes = (re.sub(r"^@!?U?P\w+\s+", "", line).split()[0] for line in instructions)
    return [opcode for opcode in opcodes if opcode.startswith(mnemonic)]


def test_fits_the_multiprocessor(kernel):
    _, _, instructions, used = kernel
    assert used.registers <= MAX_REGISTERS
    assert used.stack_bytes == 0
    assert used.spill_bytes == 0
    assert not of(instructions, "LDL")
    assert not of(instructions, "STL")


def test_one_thread_drives_the_tensor_core(kernel):
    _, cluster, instructions, _ = kernel
    pair = ".2CTA" if cluster == 2 else ""
    # One stage is four instructions of k = 16.
    assert of(instructions, "UTCHMMA") == [f"UTCHMMA{pair}"] * 4
    commits = of(instructions, "UTCBAR")
    assert commits == [f"UTCBAR{pair}.MULTICAST" if pair else "UTCBAR"] * 2
    assert set(of(instructions, "UTMALDG")) == {f"UTMALDG.2D{pair}"}
    # Where ptxas does not know that one thread is active, it loops over the lanes.
    assert not of(instructions, "R2UR.BROADCAST")


def test_epilogue_reads_and_stores_wide(kernel):
    _, _, instructions, _ = kernel
    assert set(of(instructions, "LDTM")) == {"LDTM.x64"}
    assert of(instructions, "STG.E.NA.ENL2.256")


def test_only_multicast_reduces_in_the_switch(kernel):
    reducer, _, instructions, _ = kernel
    reductions = of(instructions, "LDGMC")
    assert bool(reductions) == (reducer == "multicast")
    for opcode in reductions:
        # HPADD: 16-bit operands added with f32 precision.
        assert re.fullmatch(r"LDGMC\.E\.HPADD\.B?F16x8\.RN\.STRONG\.SYS", opcode)


def test_publication_has_system_scope(kernel):
    _, _, instructions, _ = kernel
    assert of(instructions, "MEMBAR.ALL.SYS")
    assert of(instructions, "STG.E.64.STRONG.SYS")


@pytest.mark.parametrize("reducer", REDUCERS)
def test_ptx(reducer):
    text = compile_ptx(unit(reducer), "sm_100f")
    assert "st.release.sys.global.u64" in text
    assert "st.release.gpu" not in text
    for line in re.findall(r"multimem\.ld_reduce\S+", text):
        assert ".acc::f32" in line
        assert ".relaxed.sys." in line
    # All shared memory is dynamic, so that stages begin at multiples of 1024 bytes.
    assert not re.findall(r"^\s*\.shared", text, re.MULTILINE)

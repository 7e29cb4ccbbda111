"""What ptxas makes of the SM90 kernels: the intended instructions, no spills, no stack."""

import itertools
import re

import pytest
from codegen.toolchain import compile_cubin, compile_ptx, resources, sass

SHAPES = [(128, 256, 4, 2), (128, 256, 4, 1), (128, 128, 6, 2), (64, 128, 7, 1)]
# Every layout and element type, and every shape, if not every pair of them.
OPERANDS = {
    (128, 256, 4, 2): "bf16, __nv_bfloat16, kn, kKN",
    (128, 256, 4, 1): "f16, __half, nk, kNK",
    (128, 128, 6, 2): "bf16, __nv_bfloat16, nk, kNK",
    (64, 128, 7, 1): "f16, __half, kn, kKN",
}
REDUCERS = ["push", "pull", "multicast"]
COLLECTIVES = ["rs", "ar"]
ENTRY_REGISTERS = 65536 // 384 // 8 * 8


def unit(shape):
    """A translation unit with every reducer and collective of one shape."""
    numbers = ", ".join(map(str, shape))
    return (
        '#include "kernels/gemm_comm/sm90_kernel.cuh"\n'
        f"JAX_SYMM_SM90_KERNELS({OPERANDS[shape]}, {numbers})\n"
    )


@pytest.fixture(
    params=itertools.product(SHAPES, REDUCERS, COLLECTIVES),
    ids=lambda p: f"{'x'.join(map(str, p[0]))}-{p[1]}-{p[2]}",
)
def kernel(request):
    """(shape, reducer, collective, SASS, resources) of one kernel."""
    shape, reducer, collective = request.param
    cubin = compile_cubin(unit(shape), "sm_90a")
    element, _, layout, _ = OPERANDS[shape].split(", ")
    tile_m, tile_n, _, cluster = shape
    name = (
        f"jax_symm_sm90_{element}_{layout}_{tile_m}x{tile_n}x{cluster}"
        f"_{reducer}_{collective}"
    )
    return shape, reducer, collective, sass(cubin)[name], resources(cubin)[name]


def of(instructions, mnemonic):
    """The instructions of a kernel that begin so, predicates aside."""
    opcodes = (re.sub(r"^@!?U?P\w+\s+", "", line).split()[0] for line in instructions)
    return [opcode for opcode in opcodes if opcode.startswith(mnemonic)]


def test_fits_the_multiprocessor(kernel):
    *_, instructions, used = kernel
    assert used.registers <= ENTRY_REGISTERS
    assert used.stack_bytes == 0
    assert used.spill_bytes == 0
    assert not of(instructions, "LDL")
    assert not of(instructions, "STL")
    # ptxas ignores setmaxnreg where it does not understand the roles.
    assert of(instructions, "USETMAXREG")


def test_tensor_cores_run_from_shared_memory(kernel):
    (tile_m, tile_n, _, cluster), *_, instructions, _ = kernel
    warpgroup_n = tile_n * tile_m // 128
    products = of(instructions, "HGMMA")
    assert len(products) == 4  # one stage is four instructions of k = 16
    assert all(f"HGMMA.64x{warpgroup_n}x16.F32" in opcode for opcode in products)
    assert not of(instructions, "HMMA")
    loads = of(instructions, "UTMALDG")
    assert any("MULTICAST" in opcode for opcode in loads) == (cluster == 2)


def test_epilogue_stages_matrices_and_stores_wide(kernel):
    *_, instructions, _ = kernel
    assert set(of(instructions, "STSM")) == {"STSM.16.M88.4"}
    assert of(instructions, "LDS.128")
    assert of(instructions, "STG.E.128")


def test_math_loop_has_no_fence(kernel):
    """Between the products of a stage and the hand-back of the last there is no membar."""
    *_, instructions, _ = kernel
    first = next(i for i, line in enumerate(instructions) if "HGMMA" in line)
    last = max(i for i, line in enumerate(instructions) if "HGMMA" in line)
    end = next(i for i in range(last, len(instructions)) if "SYNCS" in instructions[i])
    assert not of(instructions[first:end], "MEMBAR")
    assert not of(instructions[first:end], "CCTL")


def test_only_multicast_reduces_in_the_switch(kernel):
    _, reducer, _, instructions, _ = kernel
    reductions = of(instructions, "LDGMC")
    assert bool(reductions) == (reducer == "multicast")
    for opcode in reductions:
        assert "F32ADD" in opcode
        assert opcode.endswith("STRONG.SYS")


def test_publication_has_system_scope(kernel):
    *_, instructions, _ = kernel
    assert of(instructions, "MEMBAR.ALL.SYS")
    assert of(instructions, "STG.E.64.STRONG.SYS")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ptx(shape):
    text = compile_ptx(unit(shape), "sm_90a")
    assert "st.release.sys.global.u64" in text
    assert "st.release.gpu" not in text
    for line in re.findall(r"multimem\.ld_reduce\S+", text):
        assert ".acc::f32" in line
        assert ".relaxed.sys." in line
    # Rows leave by ordinary stores; a bulk store would need its full wait before the flag.
    assert "bulk_group" not in text
    # All shared memory is dynamic, so that stages begin at multiples of 1024 bytes.
    assert not re.findall(r"^\s*\.shared", text, re.MULTILINE)


def test_what_ptxas_said_outlives_the_ptx_of_the_same_unit():
    source = unit((64, 128, 7, 1))
    cubin = compile_cubin(source, "sm_90a")
    compile_ptx(source, "sm_90a")
    assert resources.__wrapped__(cubin)  # read again, as a second run would

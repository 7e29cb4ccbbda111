"""What ptxas makes of the SM100 kernels: the intended instructions, no spills.

Half of the kernels: every shape, reducer and collective with two of the four operands,
so that each operand meets each of them. `JAX_SYMM_TEST_FULL=1` looks at all 72.
"""

import itertools
import os
import re

import pytest
from codegen.gemm_variants import Sm100Variant, translation_unit
from codegen.toolchain import compile_cubin, compile_ptx, resources, sass
from kernel_layout import Collective, Reducer

FULL = os.environ.get("JAX_SYMM_TEST_FULL") == "1"
MAX_REGISTERS = 65536 // 320 // 8 * 8
SHAPES = [(128, 128, 1), (128, 128, 2), (128, 256, 2)]
OPERANDS = [("kn", "bf16"), ("nk", "f16"), ("nk", "bf16"), ("kn", "f16")]


def variants(reducer):
    """Kernels of one reducer, for one translation unit."""
    found = []
    for (s, shape), collective in itertools.product(enumerate(SHAPES), Collective):
        first = (s + reducer + collective) % 2 * 2
        operands = OPERANDS if FULL else OPERANDS[first : first + 2]
        found += [Sm100Variant(shape, *o, reducer, collective) for o in operands]
    return found


KERNELS = [variant for reducer in Reducer for variant in variants(reducer)]


def unit(reducer):
    """The translation unit that holds them."""
    return translation_unit(variants(reducer))


@pytest.fixture(params=KERNELS, ids=lambda variant: variant.symbol)
def kernel(request):
    """(variant, SASS, resources) of one kernel."""
    variant = request.param
    cubin = compile_cubin(unit(variant.reducer), "sm_100f")
    return variant, sass(cubin)[variant.symbol], resources(cubin)[variant.symbol]


def test_each_operand_meets_each_shape_reducer_and_collective():
    assert len(KERNELS) == len(set(KERNELS)) == (72 if FULL else 36)
    for name in ("tile", "reducer", "collective"):
        pairs = {(getattr(v, name), v.layout, v.element) for v in KERNELS}
        assert len(pairs) == len(OPERANDS) * len({getattr(v, name) for v in KERNELS})


def of(instructions, mnemonic):
    """The instructions of a kernel that begin so, predicates aside."""
    opcodes = (re.sub(r"^@!?U?P\w+\s+", "", line).split()[0] for line in instructions)
    return [opcode for opcode in opcodes if opcode.startswith(mnemonic)]


def test_fits_the_multiprocessor(kernel):
    _, instructions, used = kernel
    assert used.registers <= MAX_REGISTERS
    assert used.stack_bytes == 0
    assert used.spill_bytes == 0
    assert not of(instructions, "LDL")
    assert not of(instructions, "STL")


def test_one_thread_drives_the_tensor_core(kernel):
    variant, instructions, _ = kernel
    pair = ".2CTA" if variant.cluster == 2 else ""
    # One stage is four instructions of k = 16.
    assert of(instructions, "UTCHMMA") == [f"UTCHMMA{pair}"] * 4
    commits = of(instructions, "UTCBAR")
    assert commits == [f"UTCBAR{pair}.MULTICAST" if pair else "UTCBAR"] * 2
    assert set(of(instructions, "UTMALDG")) == {f"UTMALDG.2D{pair}"}
    # Where ptxas does not know that one thread is active, it loops over the lanes.
    assert not of(instructions, "R2UR.BROADCAST")


def test_epilogue_reads_and_stores_wide(kernel):
    _, instructions, _ = kernel
    assert set(of(instructions, "LDTM")) == {"LDTM.x64"}
    assert of(instructions, "STG.E.NA.ENL2.256")


def test_only_multicast_reduces_in_the_switch(kernel):
    variant, instructions, _ = kernel
    reductions = of(instructions, "LDGMC")
    assert bool(reductions) == (variant.reducer == Reducer.MULTICAST)
    for opcode in reductions:
        # HPADD: 16-bit operands added with f32 precision.
        assert re.fullmatch(r"LDGMC\.E\.HPADD\.B?F16x8\.RN\.STRONG\.SYS", opcode)


def test_publication_has_system_scope(kernel):
    _, instructions, _ = kernel
    assert of(instructions, "MEMBAR.ALL.SYS")
    assert of(instructions, "STG.E.64.STRONG.SYS")


@pytest.mark.parametrize("reducer", Reducer, ids=lambda r: r.name.lower())
def test_ptx(reducer):
    text = compile_ptx(unit(reducer), "sm_100f")
    assert "st.release.sys.global.u64" in text
    assert "st.release.gpu" not in text
    for line in re.findall(r"multimem\.ld_reduce\S+", text):
        assert ".acc::f32" in line
        assert ".relaxed.sys." in line
    # All shared memory is dynamic, so that stages begin at multiples of 1024 bytes.
    assert not re.findall(r"^\s*\.shared", text, re.MULTILINE)

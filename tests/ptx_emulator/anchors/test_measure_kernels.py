"""The kernels that measured an H200, executed here: each must find what the hardware did.

`test_hardware_tables.py` asks the mappings alone; this asks the instructions around them.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine, encode_tensor_map

from .hardware import IMAGE_BYTES, POISON, slots, whole_image
from .test_hardware_tables import MEASURED, TABLES

pytestmark = pytest.mark.requires("nvcc")

SHARED_BYTES = IMAGE_BYTES + 1024
WGMMA_SLOTS = 24576
BARRIER_OPS = ("arrive", "arrive_expect_tx", "expect_tx", "complete_tx", "arrive_drop")


@pytest.fixture
def machine(compile_ptx):
    source, polls = MEASURED.with_name("measure.cu"), "HARDWARE_TABLES_POLLS=2000"
    ptx = compile_ptx(source, "sm_90a", f"-DJAX_SYMM_{polls}")
    made = Machine(arch="sm_90a")
    made.kernel_named = functools.partial(_kernel, made.load(ptx))
    return made


def _kernel(loaded, name: str):
    """By its name in C++; template arguments as they are mangled."""
    (found,) = [k for k in loaded.kernels if re.search(rf"\d{name}(?![a-z])", k)]
    return loaded.kernel(found)


def cases(section):
    return [pytest.param(c, id=c.get("name", str(n))) for n, c in enumerate(TABLES[section])]  # fmt: skip


def tensor(machine, case, values):
    """A tensor of 16-bit values in rows of the case's pitch, and its map."""
    dims, size = case["dims"], case["element_bytes"]
    pitch = case["pitch"] * size
    strides = [pitch * int(np.prod(dims[1:i])) for i in range(1, len(dims))]
    count = pitch * int(np.prod(dims[1:])) // 2
    buffer = machine.buffer(0, values(count).astype(np.uint16))
    encoded = encode_tensor_map(
        buffer.address, dims, strides, case["box"], dtype=case["dtype"],
        swizzle=case["swizzle"],
    )  # fmt: skip
    return buffer, encoded


def coordinates(case):
    return np.array([*case["coords"], 0, 0, 0, 0][:5], np.int32)


def counting(count):
    return np.arange(1, count + 1)


def poison(count):
    return np.full(count, POISON * 257)


def run(machine, case):
    """Runs; whether the hardware could."""
    if not case.get("fault"):
        machine.run(1)
        return True
    with pytest.raises(EmulationError) as caught:
        machine.run(1)
    assert caught.value.kind == "tma"
    return False


@pytest.mark.parametrize("case", cases("tma_load"))
def test_load(machine, case):
    _, encoded = tensor(machine, case, counting)
    image, facts = machine.buffer(0, IMAGE_BYTES), machine.buffer(0, 8)
    box_bytes = int(np.prod(case["box"])) * case["element_bytes"]
    arguments = [
        encoded, coordinates(case), len(case["dims"]), case["offset"], box_bytes, image,
        facts,
    ]  # fmt: skip
    kernel = machine.kernel_named("TmaLoadKernel")
    machine.launch(0, kernel, 1, 128, arguments, smem_bytes=SHARED_BYTES)
    if run(machine, case):
        assert facts.array(np.uint32)[0] == case["completed_with_box_bytes"]
        np.testing.assert_array_equal(
            image.array(np.uint16), whole_image(case["image"])
        )


@pytest.mark.parametrize("case", cases("tma_store"))
def test_store(machine, case):
    target, encoded = tensor(machine, case, poison)
    arguments = [encoded, coordinates(case), len(case["dims"]), case["offset"]]
    kernel = machine.kernel_named("TmaStoreKernel")
    machine.launch(0, kernel, 1, 128, arguments, smem_bytes=SHARED_BYTES)
    if run(machine, case):
        np.testing.assert_array_equal(target.array(np.uint16), slots(case["global"]))


@pytest.mark.parametrize("case", cases("tma_multicast"))
def test_multicast(machine, case):
    _, encoded = tensor(machine, case, counting)
    images, facts = machine.buffer(0, 2 * IMAGE_BYTES), machine.buffer(0, 48)
    box_bytes = int(np.prod(case["box"])) * case["element_bytes"]
    arguments = [
        encoded, coordinates(case), case["issuer"], case["mask"], box_bytes, images, facts,
    ]  # fmt: skip
    kernel = machine.kernel_named("MulticastKernel")
    machine.launch(0, kernel, 2, 128, arguments, smem_bytes=SHARED_BYTES)
    machine.run(1)
    seen = facts.array(np.uint32, (2, 6))  # the fields of PairFacts
    assert seen[:, 0].tolist() == [0, 1]
    assert seen[:, 1].tolist() == case["own_address"]
    assert seen[:, 2:4].ravel().tolist() == case["mapped_address"]
    assert seen[:, 4].tolist() == case["marker"]
    assert seen[:, 5].tolist() == case["completed_with_box_bytes"]
    want = [whole_image(case[f"image{rank}"]) for rank in range(2)]
    np.testing.assert_array_equal(images.array(np.uint16), np.concatenate(want))


@pytest.mark.parametrize("case", cases("mbarrier"))
def test_mbarrier(machine, case):
    operations = [BARRIER_OPS.index(op) for op in case["ops"].split()]
    steps = np.array([operations, case["arguments"]], np.uint32).T
    seen = machine.buffer(0, 4 * (len(steps) + 1))
    buffer = machine.buffer(0, np.ascontiguousarray(steps))
    kernel = machine.kernel_named("BarrierKernel")
    machine.launch(0, kernel, 1, 1, [case["count"], buffer, len(steps), seen])
    machine.run(1)
    bits = seen.array(np.uint32)
    assert (bits & 1).tolist() == case["parity0"]
    assert (bits >> 1).tolist() == case["parity1"]


@pytest.mark.parametrize("case", cases("stmatrix"))
def test_stmatrix(machine, case):
    out = machine.buffer(0, 512)
    kernel = machine.kernel_named(f"StmatrixKernelILb{int(case['transpose'])}")
    machine.launch(0, kernel, 1, 32, [case["matrices"], out])
    machine.run(1)
    np.testing.assert_array_equal(out.array(np.uint16), slots(case["rows"]))


def bf16(values):
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def indexed_image(identity_rows, shift):
    """Slots of their own index, one byte of it, then an identity: as in wgmma.cuh."""
    image = np.zeros(WGMMA_SLOTS + 1024, np.uint16)
    image[:WGMMA_SLOTS] = bf16(np.arange(WGMMA_SLOTS) >> shift & 255)
    k = np.arange(min(16, identity_rows))
    image[WGMMA_SLOTS + k // 8 * 192 + k % 8 * 9] = bf16(1)
    return image


def descriptor(bits, offset):
    """The kernel's OperandDescriptor."""
    return np.array([bits, offset], np.uint64).tobytes()


@pytest.mark.parametrize("case", cases("wgmma_operand"))
def test_wgmma_operand(machine, case):
    is_a, n, threads = case["operand"] == "a", case["n"], case["threads"]
    flags = (int(is_a and case["mn_major"]), int(not is_a and case["mn_major"]))
    kernel = machine.kernel_named(f"WgmmaKernelILi{n}ELi{flags[0]}ELi{flags[1]}")
    offset = (case["descriptor"] & 0x3FFF) * 16 - case["image_base"]
    tested = descriptor(case["descriptor"] & ~0x3FFF, offset)
    identity = descriptor(128 >> 4 << 16 | 256 >> 4 << 32, case["identity_offset"])
    found = np.zeros(threads * n // 2, np.int64)
    for shift in (0, 8):
        image = machine.buffer(0, indexed_image(16 if is_a else 64, shift))
        result = machine.buffer(0, 128 * n // 2 * 4)
        operands = [tested, identity] if is_a else [identity, tested]
        arguments = [image, *operands, result, machine.buffer(0, 4)]
        machine.launch(0, kernel, 1, 128, arguments, smem_bytes=image.nbytes + 1024)
        machine.run(1)
        values = result.array(np.float32)[: found.size].astype(np.int64)
        found += values << shift
    np.testing.assert_array_equal(found, slots(case["slots"]))

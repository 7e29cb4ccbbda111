"""Replays the cases that a GPU measured (tests/gpu/hardware_tables) in the semantics.

Each function takes one case of a section of the measured JSON, predicts what the
hardware wrote from the inputs alone, and returns (predicted, measured) arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ptx_emulator.addressing import map_to_cta
from ptx_emulator.memory import CTA_SHIFT
from ptx_emulator.semantics import descriptors, fragments, tma_box
from ptx_emulator.semantics.barrier_phase import BarrierPhase

Case = dict[str, Any]
Arrays = tuple[np.ndarray, np.ndarray]
POISON = 0xEE
IMAGE_BYTES = 16384
NO_VALUE = -1


def slots(text: str) -> np.ndarray:
    """16-bit values of a hexadecimal string of the measured JSON."""
    return np.array([int(text[i : i + 4], 16) for i in range(0, len(text), 4)])


def _indexed(size_bytes: int) -> np.ndarray:
    return np.arange(1, size_bytes // 2 + 1, dtype=np.uint16).view(np.uint8)


def _box(
    case: Case, image_base: int, store: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image chunks of the box, and tensor byte and in-bounds flag of its bytes."""
    size, dims = case["element_bytes"], case["dims"]
    pitch = case["pitch"] * size
    strides = [pitch * int(np.prod(dims[1:i])) for i in range(1, len(dims))]
    chunks = tma_box.box_shared_offsets(
        case["box"], size, case["swizzle"], image_base + case["offset"]
    )
    offset, first, last = tma_box.box_rows(
        dims, strides, case["box"], [1] * len(dims), case["coords"], size, store
    )
    byte = np.arange(case["box"][0] * size)[None, :]
    inside = (byte >= first[:, None] * size) & (byte < last[:, None] * size)
    return (chunks - image_base) // 16, offset[:, None] + byte, inside


def _tensor_bytes(case: Case) -> int:
    dims = case["dims"]
    return case["pitch"] * case["element_bytes"] * int(np.prod(dims[1:]))


def _loaded(case: Case, image_base: int) -> np.ndarray:
    """The 16-bit slots of the shared image after the load."""
    chunks, source, inside = _box(case, image_base)
    tensor = _indexed(_tensor_bytes(case))
    rows = np.zeros(inside.shape, np.uint8)
    rows[inside] = tensor[source[inside]]
    image = np.full(IMAGE_BYTES, POISON, np.uint8)
    image.reshape(-1, 16)[chunks] = rows.reshape(*chunks.shape, 16)
    return image.view(np.uint16).astype(np.int64)


def whole_image(text: str) -> np.ndarray:
    """The slots of an image whose poisoned end the table leaves out."""
    image = np.full(IMAGE_BYTES // 2, POISON * 257, np.int64)
    values = slots(text)
    image[: len(values)] = values
    return image


def tma_load(case: Case) -> Arrays:
    return _loaded(case, case["image_base"]), whole_image(case["image"])


def tma_multicast(case: Case) -> Arrays:
    """Each CTA of the mask gets the box and its own barrier's bytes; mapa sets the CTA."""
    ranks, barrier = range(2), case["own_address"][0]
    chosen = [case["mask"] >> rank & 1 for rank in ranks]
    nothing = np.full(IMAGE_BYTES // 2, POISON * 257, np.int64)
    images = [_loaded(case, 0) if c else nothing for c in chosen]
    own = [rank << CTA_SHIFT | barrier for rank in ranks]
    mapped = [
        int(map_to_cta(np.uint32(own[rank]), to, True))
        for rank in ranks
        for to in ranks
    ]
    keys = ("own_address", "mapped_address", "completed_with_box_bytes")
    measured = [whole_image(case[f"image{rank}"]) for rank in ranks]
    return (
        np.concatenate([own, mapped, chosen, *images]),
        np.concatenate([*(case[key] for key in keys), *measured]),
    )


def tma_store(case: Case) -> Arrays:
    chunks, target, inside = _box(case, 0, store=True)
    rows = _indexed(IMAGE_BYTES).reshape(-1, 16)[chunks].reshape(inside.shape)
    tensor = np.full(_tensor_bytes(case), POISON, np.uint8)
    tensor[target[inside]] = rows[inside]
    return tensor.view(np.uint16).astype(np.int64), slots(case["global"])


def mbarrier(case: Case) -> Arrays:
    """Both parity tests after init and after every step."""
    barrier = BarrierPhase(case["count"])
    steps = {
        "arrive": barrier.arrive,
        "arrive_expect_tx": lambda size: barrier.arrive(1, expect=size),
        "expect_tx": barrier.expect,
        "complete_tx": barrier.complete,
        "arrive_drop": lambda count: barrier.arrive(count, drop=True),
    }
    seen = [(barrier.test_parity(0), barrier.test_parity(1))]
    for name, argument in zip(case["ops"].split(), case["arguments"], strict=True):
        steps[name](argument)
        seen.append((barrier.test_parity(0), barrier.test_parity(1)))
    measured = np.array([case["parity0"], case["parity1"]]).T
    return np.array(seen, np.int64), measured


def stmatrix(case: Case) -> Arrays:
    row, column = fragments.matrix_8x8()
    if case["transpose"]:
        row, column = column, row
    rows = np.zeros((32, 8), np.int64)
    lane, half = np.arange(32)[:, None], np.arange(2)[None, :]
    for matrix in range(case["matrices"]):
        rows[matrix * 8 + row, column] = lane * 8 + matrix * 2 + half + 1
    return rows.ravel(), slots(case["rows"])


def wgmma_accumulator(case: Case) -> Arrays:
    row, column = fragments.wgmma_accumulator(case["n"])
    return (row * 256 + column).ravel(), slots(case["row_times_256_plus_column"])


def wgmma_a_registers(case: Case) -> Arrays:
    row, column = fragments.wgmma_a_registers()
    held = np.zeros((64, 16), np.int64)
    held[row, column] = np.arange(128 * 8).reshape(row.shape)
    row, column = fragments.wgmma_accumulator(case["n"])
    return held[row, column].ravel(), slots(case["thread_times_8_plus_half"])


def wgmma_operand(case: Case) -> Arrays:
    """The other operand is an identity, so D holds the slots that the operand read."""
    is_a, n = case["operand"] == "a", case["n"]
    desc = descriptors.decode_wgmma_descriptor(case["descriptor"])
    addresses = descriptors.operand_addresses(
        desc, 64 if is_a else n, 16, 2, case["mn_major"]
    )
    read = (addresses - case["image_base"]) // 2
    d = np.full((64, n), NO_VALUE, np.int64)
    if is_a:
        d[:, :16] = read
    else:
        d[:16] = read.T
    row, column = fragments.wgmma_accumulator(n)
    predicted = d[row, column][: case["threads"]].ravel()
    return predicted, slots(case["slots"])


SECTIONS = {
    "tma_load": tma_load,
    "tma_store": tma_store,
    "tma_multicast": tma_multicast,
    "mbarrier": mbarrier,
    "stmatrix": stmatrix,
    "wgmma_accumulator": wgmma_accumulator,
    "wgmma_a_registers": wgmma_a_registers,
    "wgmma_operand": wgmma_operand,
}

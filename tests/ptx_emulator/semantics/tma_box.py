"""Where the elements of a tiled TMA box lie in shared memory and in the tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .swizzle import CHUNK_BYTES, SPAN_BYTES, check_mode, swizzle

SHARED_ALIGNMENT_BYTES = 128
MAX_BOX = 256
MAX_RANK = 5


def box_shared_offsets(
    box: Sequence[int], element_bytes: int, mode: str, base: int
) -> np.ndarray:
    """Shared address of every 16-byte chunk of a box: i64[rows, inner_bytes // 16].

    Rows come in box order, dimension 1 fastest. A swizzled row occupies a whole span,
    also where the box is narrower (measured); the bytes between stay as they were.
    """
    check_mode(mode)
    _check_box(box)
    inner_bytes = box[0] * element_bytes
    if inner_bytes % CHUNK_BYTES:
        raise ValueError(
            f"inner box: got {inner_bytes} bytes, expected a multiple of {CHUNK_BYTES}"
        )
    pitch_bytes = SPAN_BYTES.get(mode, inner_bytes)
    if inner_bytes > pitch_bytes:
        raise ValueError(
            f"inner box: got {inner_bytes} bytes, expected at most the {mode} swizzle "
            f"span of {pitch_bytes}"
        )
    if base % SHARED_ALIGNMENT_BYTES:
        raise ValueError(
            f"shared address of a box: got {base:#x}, expected a multiple of "
            f"{SHARED_ALIGNMENT_BYTES}"
        )
    rows = np.arange(int(np.prod(box[1:], dtype=np.int64)))[:, None]
    chunks = np.arange(0, inner_bytes, CHUNK_BYTES)[None, :]
    return swizzle(base + rows * pitch_bytes + chunks, mode)


def box_rows(
    dims: Sequence[int],
    strides_bytes: Sequence[int],
    box: Sequence[int],
    element_strides: Sequence[int],
    coords: Sequence[int],
    element_bytes: int,
    store: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per box row: tensor byte offset of its element 0, and its elements in bounds.

    The elements inside the tensor are [first, last); first >= last means none. A store
    writes whole chunks of 16 bytes: where the tensor ends within one, `last` is past its
    end (measured).

    Raises:
      ValueError: arguments that the hardware does not take (measured): an innermost
        coordinate between multiples of 16 bytes, a store that begins before the tensor.
    """
    _check_box(box)
    if any(stride != 1 for stride in element_strides):
        raise ValueError(
            f"element strides: got {tuple(element_strides)}, expected ones"
        )
    if coords[0] * element_bytes % CHUNK_BYTES:
        raise ValueError(
            f"innermost coordinate: got {coords[0]}, expected a multiple of "
            f"{CHUNK_BYTES // element_bytes} (16 bytes; the hardware faults)"
        )
    if store and min(coords) < 0:
        raise ValueError(
            f"coordinates of a store: got {tuple(coords)}, expected none below 0 (the "
            "hardware faults)"
        )
    rows = np.arange(int(np.prod(box[1:], dtype=np.int64)))
    offsets = np.full(rows.shape, coords[0] * element_bytes, np.int64)
    inside = np.ones(rows.shape, bool)
    for size, extent, stride, start in zip(
        dims[1:], box[1:], strides_bytes, coords[1:], strict=True
    ):
        position = rows % extent + start
        rows = rows // extent
        offsets += position * stride
        inside &= (position >= 0) & (position < size)
    first = max(0, -coords[0])
    last = min(box[0], dims[0] - coords[0])
    if store:
        step = CHUNK_BYTES // element_bytes
        last = -(-last // step) * step
    return offsets, np.full(inside.shape, first), np.where(inside, last, first)


def _check_box(box: Sequence[int]) -> None:
    if not 1 <= len(box) <= MAX_RANK:
        raise ValueError(f"box rank: got {len(box)}, expected 1 to {MAX_RANK}")
    if any(not 1 <= extent <= MAX_BOX for extent in box):
        raise ValueError(f"box: got {tuple(box)}, expected extents of 1 to {MAX_BOX}")

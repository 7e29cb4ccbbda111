"""Matrix operands in shared memory: descriptor to f32 values, with every check."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ptx_emulator.errors import EmulationError
from ptx_emulator.numeric import TO_F32
from ptx_emulator.semantics import descriptors

ELEMENT_BYTES = 2
CHUNK = 16


@lru_cache(maxsize=4096)
def _decode(descriptor: int, architecture: str) -> descriptors.SharedDescriptor:
    if architecture == "sm_90a":
        return descriptors.decode_wgmma_descriptor(descriptor)
    return descriptors.decode_tcgen05_descriptor(descriptor)


@lru_cache(maxsize=256)
def _addresses(descriptor: int, architecture: str, rows: int, k: int, mn_major: bool):
    """[rows, k] element addresses, and the 16-byte chunks that they touch."""
    try:
        decoded = _decode(descriptor, architecture)
        addresses = descriptors.operand_addresses(
            decoded, rows, k, ELEMENT_BYTES, mn_major
        )
    except ValueError as error:
        raise EmulationError("descriptor", str(error)) from None
    return addresses, np.unique(addresses & ~np.int64(CHUNK - 1))


def read_operand(
    machine, cta, op, descriptor: int, rows: int, k: int, mn_major: bool, kind: str
) -> np.ndarray:
    """f32[rows, k] of an operand in the CTA's shared memory, for the operation `op`."""
    architecture = machine.architecture
    addresses, chunks = _addresses(descriptor, architecture, rows, k, mn_major)
    cta.check_shared(int(chunks[0]), CHUNK)
    cta.check_shared(int(chunks[-1]), CHUNK)
    if op is not None:
        machine.checker.async_access(op, cta.shared, chunks, CHUNK, False)
    data, valid, good = cta.shared.view(ELEMENT_BYTES, 1)
    index = addresses >> 1
    if machine.strict and not (valid[index, 0] == good).all():
        what = f"matrix operand reads bytes never written of {cta.shared.label}"
        raise EmulationError("poison", what)
    return TO_F32[kind](data[index, 0])

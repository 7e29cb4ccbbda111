"""A functional emulator of the PTX that our kernels use, for several ranks, with an ordering checker."""

from .errors import EmulationError, Report
from .machine import Buffer, Kernel, Machine, RunResult, SymmetricBuffer
from .schedule import ADVERSARIAL, Schedule
from .tensor_map import TensorMap, decode_tensor_map, encode_tensor_map

__all__ = [
    "ADVERSARIAL",
    "Buffer",
    "EmulationError",
    "Kernel",
    "Machine",
    "Report",
    "RunResult",
    "Schedule",
    "SymmetricBuffer",
    "TensorMap",
    "decode_tensor_map",
    "encode_tensor_map",
]

"""A functional emulator of the PTX that our kernels use, for several ranks, with an ordering checker."""

from .buffers import Buffer, SymmetricBuffer
from .errors import EmulationError, Report
from .loading import Kernel, LoadedModule
from .machine import Machine, RunResult
from .schedule import ADVERSARIAL, Schedule
from .tensor_map import TensorMap, decode_tensor_map, encode_tensor_map

__all__ = [
    "ADVERSARIAL",
    "Buffer",
    "EmulationError",
    "Kernel",
    "LoadedModule",
    "Machine",
    "Report",
    "RunResult",
    "Schedule",
    "SymmetricBuffer",
    "TensorMap",
    "decode_tensor_map",
    "encode_tensor_map",
]

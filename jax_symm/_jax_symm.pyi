"""Native half of jax_symm."""

from collections.abc import Sequence
import enum
from typing import Any


class HandleType(enum.Enum):
    """How an allocation is handed to a peer."""

    POSIX_FD = 0

    FABRIC = 1

    NONE = 2

class Allocation:
    """Physical memory of one device."""

    def release(self) -> None:
        """Drops this reference. Idempotent."""

    @property
    def nbytes(self) -> int: ...

    def export_fd(self) -> int:
        """
        A descriptor (close-on-exec) for a peer on this host; the caller closes it.
        """

    def export_fabric(self) -> bytes:
        """A handle for a peer in the same NVLink domain."""

class Mapping:
    """An allocation at an address of this process."""

    def release(self) -> None:
        """Drops this reference. Idempotent."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

class DeviceFacts:
    """What a device can do, by its attributes."""

    @property
    def uuid(self) -> str: ...

    @property
    def posix_fd(self) -> bool: ...

    @property
    def fabric(self) -> bool: ...

    @property
    def multicast(self) -> bool: ...

class MemoryBackend:
    """The verbs of symmetric memory."""

    @property
    def name(self) -> str: ...

    def granularity(self, device: int) -> int: ...

    def facts(self, device: int) -> DeviceFacts: ...

    def can_access(self, device: int, peer: int) -> bool: ...

    def create(self, device: int, nbytes: int, handle_type: HandleType) -> Allocation: ...

    def import_fd(self, device: int, fd: int, nbytes: int) -> Allocation: ...

    def import_fabric(self, device: int, handle: bytes, nbytes: int) -> Allocation: ...

    def map(self, allocation: Allocation, devices: Sequence[int]) -> Mapping: ...

    def zero(self, device: int, mapping: Mapping, offset: int, nbytes: int) -> None: ...

    def synchronize(self, device: int) -> None: ...

def host_backend() -> MemoryBackend:
    """Symmetric memory for CPU devices."""

def array_view(mapping: Mapping, offset: int, shape: Sequence[int], dtype: str, device_type: str, ordinal: int) -> Any:
    """A DLPack view of mapped memory; it keeps the mapping alive."""

class MulticastObject:
    """What devices multicast through."""

    def release(self) -> None:
        """Drops this reference. Idempotent."""

    @property
    def nbytes(self) -> int: ...

    def export_fd(self) -> int:
        """
        A descriptor (close-on-exec) for a peer on this host; the caller closes it.
        """

    def export_fabric(self) -> bytes:
        """A handle for a peer in the same NVLink domain."""

    def add_device(self, device: int) -> None:
        """Joins a device of this process. Does not wait."""

class MulticastBinding:
    """Memory bound to a multicast object."""

    def release(self) -> None:
        """Drops this reference. Idempotent."""

class MulticastMapping:
    """A multicast object, mapped whole."""

    def release(self) -> None:
        """Drops this reference. Idempotent."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

class CudaBackend(MemoryBackend):
    """Symmetric memory for GPUs."""

    def multicast_granularity(self, num_devices: int) -> int: ...

    def create_multicast(self, num_devices: int, nbytes: int, handle_type: HandleType) -> MulticastObject: ...

    def import_multicast_fd(self, fd: int, nbytes: int) -> MulticastObject: ...

    def import_multicast_fabric(self, handle: bytes, nbytes: int) -> MulticastObject: ...

    def bind_multicast(self, object: MulticastObject, offset: int, allocation: Allocation, deadline_s: float) -> MulticastBinding: ...

    def map_multicast(self, object: MulticastObject, devices: Sequence[int], deadline_s: float) -> MulticastMapping: ...

    def memory_info(self, device: int) -> tuple[int, int]:
        """Free and total bytes of a GPU."""

    def probe_fabric(self, device: int) -> None:
        """Raises unless fabric handles really work on a GPU."""

    def copy_to_device(self, device: int, address: int, data: bytes) -> None: ...

    def copy_to_host(self, device: int, address: int, nbytes: int) -> bytes: ...

def cuda_backend(library_path: str = '', forbid_multicast: bool = False) -> CudaBackend:
    """
    Loads the CUDA driver. With `forbid_multicast`, its multicast calls abort.
    """

def quarantine(why: str, mappings: Sequence[Mapping], allocations: Sequence[Allocation], bindings: Sequence[MulticastBinding]) -> None:
    """
    Keeps memory until the process ends, and counts it: a kernel may still use it.
    """

def abandoned_count() -> int:
    """Views of GPU memory that finalisers left."""

def release_abandoned() -> None:
    """Frees what finalisers left. The devices must be idle."""

def ledger() -> dict[str, int]:
    """Driver objects that this process holds, by kind."""

class LocalRank:
    """A rank of this process."""

    def __init__(self, device_ordinal: int, group: int, rank: int, mappings: Sequence[Mapping]) -> None: ...

class NativeWorkspace:
    """An open workspace on host memory."""

    def close(self, deadline_ns: int) -> None:
        """Waits up to deadline_ns for calls in flight, then lets go. Idempotent."""

    def check(self) -> None:
        """Raises the first fault, if there was one."""

    def abort(self, group: int, rank: int, message: str) -> None:
        """Fails the workspace: a rank's process is gone."""

    def calls(self) -> list[tuple[str, int, int, int]]:
        """(path, group, rank, count) for each rank of this process."""

    @property
    def generation(self) -> int: ...

    @property
    def closed(self) -> bool: ...

def open_workspace(name: str, nonce: int, timeout_ns: int, world_size: int, capacity_bytes: int, all_reduce: bool, axis: str, rank_labels: Sequence[Sequence[str]], locals: Sequence[LocalRank]) -> NativeWorkspace:
    """
    Starts the threads of a workspace and makes its name known to programs.
    """

def host_workspace_nbytes(world_size: int, capacity_bytes: int, all_reduce: bool) -> int:
    """Bytes of symmetric memory that a workspace needs per rank."""

def ffi_targets() -> dict:
    """Capsules of the custom calls on CPU, by target name."""

def restart_instances(workspace: str, call_site: int) -> None:
    """
    Tells that a call with this tag is lowered again, hence for another executable.
    """

def ffi_types() -> dict:
    """Capsules of their state types; register these first."""

class CudaLocalRank:
    """A rank of this process, on a GPU."""

    def __init__(self, device_ordinal: int, group: int, rank: int, mappings: Sequence[Mapping], multicast_address: int = 0) -> None: ...

class GemmProblem:
    """One fused call: shapes and types."""

    def __init__(self, op: str, dtype: str, out_dtype: str, w_layout: str, ranks: int, batch: int, rows: int, shard_rows: int, n: int, k: int) -> None: ...

class NativeCudaWorkspace:
    """An open workspace on GPUs."""

    def close(self, deadline_ns: int) -> None:
        """Waits up to deadline_ns for calls in flight, then lets go. Idempotent."""

    def check(self) -> None:
        """Raises the first fault, if there was one."""

    def abort(self, group: int, rank: int, message: str) -> None:
        """Fails the workspace: a rank's process is gone."""

    def calls(self) -> list[tuple[str, int, int, int]]:
        """(path, group, rank, count) for each rank of this process."""

    @property
    def generation(self) -> int: ...

    @property
    def closed(self) -> bool: ...

    def submit(self, device_ordinal: int, problem: GemmProblem, reducer: str, x: int, w: int, output: int, axis_index: int, call: int, stream: int) -> None:
        """
        Enqueues one call on a stream, without XLA: for tests and benchmarks whose ranks share a GPU. Buffers are device addresses; axis_index is that of an int32.
        """

def open_cuda_workspace(backend: CudaBackend, name: str, nonce: int, timeout_ns: int, world_size: int, capacity_bytes: int, all_reduce: bool, axis: str, rank_labels: Sequence[Sequence[str]], locals: Sequence[CudaLocalRank], sm_margin: int = 0) -> NativeCudaWorkspace:
    """Loads the kernels and makes the workspace's name known to programs."""

def cuda_workspace_nbytes(world_size: int, capacity_bytes: int, all_reduce: bool) -> int:
    """Bytes of symmetric memory that a workspace needs per rank."""

def plan_cuda_call(architecture: str, op: str, dtype: str, out_dtype: str, w_layout: str, ranks: int, batch: int, rows: int, shard_rows: int, n: int, k: int, multicast: bool, capacity_bytes: int, multiprocessors: int, path: str = 'auto') -> dict:
    """
    Whether a fused kernel can and should run a call, which one, and why. From its arguments alone.
    """

def cuda_kernel_architectures() -> list[str]:
    """
    Architectures that this build holds kernels for; empty without kernels.
    """

def cuda_ffi_targets() -> dict:
    """Capsules of the custom calls on GPUs."""

def cuda_ffi_types() -> dict:
    """Capsules of their state types; register these first."""

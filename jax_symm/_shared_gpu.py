"""Ranks that share one GPU, for tests and benchmarks on a machine that has but one.

Each rank has a workspace, a stream and an equal part of the multiprocessors, for
kernels that wait for each other must all be resident. Nothing goes through XLA: a call
is enqueued on a stream, on buffers that the caller keeps alive until `synchronize`.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jax_symm import _native
from jax_symm.ops._rules import Problem, WeightLayout, capacity_bytes

_MULTIPROCESSORS = 16  # CUdevice_attribute
_NON_BLOCKING = 1  # CUstream_flags
_numbers = itertools.count()


class SharedGpu:
    """R ranks of one group on a device of this process.

    Attributes:
      world_size: The ranks.
      device: Where their buffers are.
      workspaces: The native workspace of each rank.
    """

    def __init__(
        self,
        ranks: int,
        device: Any,
        backend: Any,
        *,
        max_m: int,
        n: int,
        timeout_s: float = 10.0,
        driver_path: str = "libcuda.so.1",
    ):
        """Makes the memory and opens the workspaces.

        Args:
          ranks: How many.
          device: The JAX device, GPU 0 of this process.
          backend: Memory of GPUs; one without multicast on hosts that others share.
          max_m: Rows of the largest product.
          n: Its columns; the capacity is that of float32.
          timeout_s: Longest time that a call waits for a rank, in seconds.
          driver_path: The CUDA driver.

        Raises:
          SymmError: Memory, the driver or the kernels are missing.
        """
        native = _native.module()
        self.world_size = ranks
        self.device = device
        self._timeout_ns = int(timeout_s * 1e9)
        self._driver = _Driver(driver_path)
        capacity = capacity_bytes(ranks, max_m, n, np.dtype(np.float32))
        self.memory = _allocate(backend, ranks, capacity)
        everything = self._driver.multiprocessors
        number = next(_numbers)
        self.workspaces = [
            native.open_cuda_workspace(
                backend,
                name=f"shared-{number}-{rank}",
                nonce=number,
                timeout_ns=self._timeout_ns,
                world_size=ranks,
                capacity_bytes=capacity,
                all_reduce=True,
                axis="tp",
                rank_labels=[[f"rank {r}" for r in range(ranks)]],
                locals=[native.CudaLocalRank(0, 0, rank, self.memory)],
                sm_margin=everything - everything // ranks,
            )
            for rank in range(ranks)
        ]
        self._streams = [self._driver.stream() for _ in range(ranks)]
        self._indices = [self.put(np.int32(rank)) for rank in range(ranks)]

    def put(self, array: Any) -> jax.Array:
        """An array in the memory of the GPU."""
        placed: jax.Array = jax.block_until_ready(jax.device_put(array, self.device))
        return placed

    def submit(
        self,
        rank: int,
        problem: Any,
        reducer: str,
        buffers: Sequence[jax.Array],
        identity: int,
        stream: int | None = None,
    ) -> None:
        """Enqueues one call of one rank.

        Args:
          rank: The rank.
          problem: As `native_problem` gives it.
          reducer: "push" or "pull".
          buffers: x, w and the result, which is written in place.
          identity: 24 bits that tell this call from others, the same on every rank.
          stream: A stream from `new_stream`; None for the rank's own.
        """
        x, w, output = (array.unsafe_buffer_pointer() for array in buffers)
        self.workspaces[rank].submit(
            device_ordinal=0,
            problem=problem,
            reducer=reducer,
            x=x,
            w=w,
            output=output,
            axis_index=self._indices[rank].unsafe_buffer_pointer(),
            call=identity,
            stream=self._streams[rank] if stream is None else stream,
        )

    def new_stream(self) -> int:
        """One more stream, which `synchronize` waits for too."""
        self._streams.append(self._driver.stream())
        return self._streams[-1]

    def synchronize(self) -> None:
        """Waits for every call."""
        for stream in self._streams:
            self._driver.synchronize(stream)

    def close(self) -> None:
        """Waits for every call and lets go of everything."""
        self.synchronize()
        for workspace in self.workspaces:
            workspace.close(self._timeout_ns)
        for mapping in self.memory:
            mapping.release()
        for stream in self._streams:
            self._driver.destroy(stream)

    def __enter__(self) -> SharedGpu:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def native_problem(problem: Problem, w_layout: WeightLayout) -> Any:
    """A call as the native module takes it."""
    return _native.module().GemmProblem(**problem.native_arguments(w_layout))


def _allocate(backend: Any, ranks: int, capacity: int) -> list[Any]:
    """Zeroed memory of every rank, mapped."""
    native = _native.module()
    unit = backend.granularity(0)
    nbytes = -(-native.cuda_workspace_nbytes(ranks, capacity, True) // unit) * unit
    mappings = [
        backend.map(backend.create(0, nbytes, native.HandleType.NONE), [0])
        for _ in range(ranks)
    ]
    for mapping in mappings:
        backend.zero(0, mapping, 0, nbytes)
    backend.synchronize(0)
    return mappings


class _Driver:
    """What streams need of the CUDA driver."""

    def __init__(self, path: str):
        self._library = ctypes.CDLL(path)
        self._context, count = ctypes.c_void_p(), ctypes.c_int()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), 0)
        self._call("cuDeviceGetAttribute", ctypes.byref(count), _MULTIPROCESSORS, 0)
        self.multiprocessors = count.value

    def _call(self, name: str, *arguments: Any) -> None:
        self._library.cuCtxSetCurrent(self._context)
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name} answered {result}")

    def stream(self) -> int:
        made = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
        return int(made.value or 0)

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def destroy(self, stream: int) -> None:
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

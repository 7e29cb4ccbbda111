"""A group of one rank without JAX's GPU client, for tools that make everything slow.

A wide result goes through the rank's workspace, so the communication half runs too.
Prints what it checked; exits with 1 when a bit is wrong.
"""

import pathlib
import sys

import ml_dtypes
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from jax_symm import _native
from jax_symm._shared_gpu import native_problem
from jax_symm.ops import _rules

CAPACITY_BYTES = 1 << 20
SHAPES = [(200, 136, 72), (64, 128, 64)]


class Memory:
    """Buffers on GPU 0."""

    def __init__(self, backend):
        self._backend = backend
        self._native = _native.module()
        self._held = []

    def make(self, nbytes):
        unit = self._backend.granularity(0)
        nbytes = -(-nbytes // unit) * unit
        allocation = self._backend.create(0, nbytes, self._native.HandleType.NONE)
        mapping = self._backend.map(allocation, [0])
        self._held += [mapping, allocation]
        self._backend.zero(0, mapping, 0, nbytes)
        return mapping

    def put(self, array):
        mapping = self.make(max(array.nbytes, 4))
        self._backend.copy_to_device(0, mapping.address, array.tobytes())
        return mapping.address

    def get(self, address, shape, dtype):
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data = self._backend.copy_to_host(0, address, nbytes)
        return np.frombuffer(data, dtype).reshape(shape)

    def release(self):
        for one in self._held:
            one.release()


def main(driver_path=""):
    native = _native.module()
    backend = native.cuda_backend(driver_path, forbid_multicast=True)
    memory = Memory(backend)
    nbytes = native.cuda_workspace_nbytes(1, CAPACITY_BYTES, True)
    workspace = native.open_cuda_workspace(
        backend,
        name="one-rank",
        nonce=1,
        timeout_ns=60 * 10**9,
        world_size=1,
        capacity_bytes=CAPACITY_BYTES,
        all_reduce=True,
        axis="tp",
        rank_labels=[["rank 0"]],
        locals=[native.CudaLocalRank(0, 0, 0, [memory.make(nbytes)])],
    )
    index = memory.put(np.int32(0))
    wrong = 0
    for shape in SHAPES:
        for op in _rules.OPS:
            for dtype in (ml_dtypes.bfloat16, np.float16):
                for w_layout in ("kn", "nk"):
                    for out in (dtype, np.float32):
                        call = (op, shape, np.dtype(dtype), w_layout, np.dtype(out))
                        right = check(backend, memory, workspace, index, *call)
                        wrong += not right
                        print(*call, "right" if right else "WRONG")
    workspace.check()
    workspace.close(10**9)
    memory.release()
    return int(wrong > 0)


def check(backend, memory, workspace, index, op, shape, dtype, w_layout, out_dtype):
    m, n, k = shape
    rng = np.random.default_rng(0)
    x = rng.integers(-2, 3, (m, k)).astype(dtype)
    w = rng.integers(-2, 3, (k, n)).astype(dtype)
    placed = np.ascontiguousarray(w if w_layout == "kn" else w.T)
    problem = _rules.make_problem(
        op, x, placed, 1, w_layout=w_layout, preferred_element_type=out_dtype
    )
    poison = np.full((m, n), np.nan, out_dtype)
    output = memory.put(poison)
    for reducer in ("push", "pull"):
        workspace.submit(
            device_ordinal=0,
            problem=native_problem(problem, w_layout),
            reducer=reducer,
            x=memory.put(x),
            w=memory.put(placed),
            output=output,
            axis_index=index,
            call=1,
            stream=0,
        )
    backend.synchronize(0)
    wanted = x.astype(np.float32) @ w.astype(np.float32)
    # Sums of so few small integers are exact in every one of the types.
    return bool((memory.get(output, (m, n), out_dtype) == wanted).all())


if __name__ == "__main__":
    sys.exit(main())

"""Ranks for a test to run on: CPU devices, GPUs, or several ranks that share one GPU.

Every rig takes global operands, x `[*batch, m, R * k]` and w, and gives the global result.
`prepare` makes a call ready, `start` launches it, `result` waits; a call may be started
again. `late[r]` is how many seconds rank r comes late.

| rig | ranks are | through | path |
|---|---|---|---|
| cpu | CPU devices | jit of shard_map | host |
| gpus | GPUs | jit of shard_map | peer, peer_pull |
| shared | streams of one GPU, each with its part of the multiprocessors | the native module | push, pull |
| fake | the same, over the fake driver, which computes what a launch says | as shared | push, pull |
"""

import random
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm import _backends, _native
from jax_symm._shared_gpu import SharedGpu, native_problem
from jax_symm.ops import _rules

ON_GPU = ("shared", "gpus")
_NEEDS = {
    "cpu": lambda ranks: [],
    "fake": lambda ranks: [pytest.mark.requires("kernels")],
    "shared": lambda ranks: [pytest.mark.requires("gpu")],
    "gpus": lambda ranks: [pytest.mark.multigpu(ranks)],
}


class JitRanks:
    """One device a rank, in one process."""

    def __init__(self, ranks, devices, paths, *, max_m, n, timeout_s=60.0):
        self.world_size = ranks
        self.reducers = paths
        self.path = paths[0]
        self.mesh = Mesh(
            np.asarray(devices[:ranks], dtype=object),
            ("tp",),
            axis_types=(AxisType.Auto,),
        )
        self.workspace = jax_symm.Workspace(
            self.mesh,
            "tp",
            max_m=max_m,
            n=n,
            dtype=jnp.float32,
            multicast="never",
            timeout_s=timeout_s,
        )

    def put(self, array, spec):
        return jax.device_put(array, NamedSharding(self.mesh, spec))

    def prepare(self, op, x, w, *, reducer=None, late=None, **options):
        return JitCall(self, op, x, w, reducer or self.path, late, options)

    def call(self, *args, **options):
        return self.prepare(*args, **options).start().result()

    def check(self):
        self.workspace.check()

    def calls(self):
        """How many calls the ranks have begun on the path of the rig."""
        return sum(self.workspace.calls().get(self.path, {}).values())

    def close(self):
        self.workspace.close()


class JitCall:
    def __init__(self, rig, op, x, w, path, late, options):
        call = getattr(jax_symm, f"gemm_{op}")
        kn = options.get("w_layout", "kn") == "kn"
        specs = (
            P(*[None] * (x.ndim - 1), "tp"),
            P("tp", None) if kn else P(None, "tp"),
        )
        out = [None] * x.ndim
        if op == "reduce_scatter":
            out[options.get("scatter_dimension", -2)] = "tp"

        def body(x, w):
            if late is not None:
                x = x + _wait(late).astype(x.dtype)
            return call(x, w, "tp", workspace=rig.workspace, path=path, **options)

        self._function = jax.jit(
            jax.shard_map(body, mesh=rig.mesh, in_specs=specs, out_specs=P(*out))
        )
        self._operands = [rig.put(a, s) for a, s in zip((x, w), specs, strict=True)]

    def start(self):
        self._result = self._function(*self._operands)
        return self

    def result(self):
        """The global result; an all-reduce's is the same on all ranks, bit for bit."""
        shards = [np.asarray(s.data) for s in self._result.addressable_shards]
        if self._result.is_fully_replicated:
            for shard in shards[1:]:
                _assert_same_bits(shard, shards[0])
        return np.asarray(self._result)


def _wait(late):
    """Zero, late by `late[r]` seconds on rank r."""

    def wait(rank):
        time.sleep(late[rank])
        return np.float32(0)

    rank = jax.lax.axis_index("tp")
    return jax.pure_callback(wait, jax.ShapeDtypeStruct((), np.float32), rank)


class SharedRanks(SharedGpu):
    """R ranks on one GPU, or on what the fake driver says is one."""

    reducers = ("push", "pull")

    def prepare(self, op, x, w, *, reducer="push", late=None, **options):
        return SharedCall(self, op, x, w, reducer, late, options)

    def call(self, *args, **options):
        return self.prepare(*args, **options).start().result()

    def check(self):
        for workspace in self.workspaces:
            workspace.check()

    def calls(self):
        return sum(
            count
            for workspace in self.workspaces
            for path, _, _, count in workspace.calls()
            if path == "peer"
        )


class SharedCall:
    def __init__(self, rig, op, x, w, reducer, late, options):
        self._rig = rig
        self._reducer = reducer
        self._late = late or [0.0] * rig.world_size
        kn = options.get("w_layout", "kn") == "kn"
        xs = np.split(x, rig.world_size, -1)
        ws = np.split(w, rig.world_size, 0 if kn else 1)
        self._shape = _rules.make_problem(op, xs[0], ws[0], rig.world_size, **options)
        self.problem = native_problem(self._shape, options.get("w_layout", "kn"))
        self.identity = zlib.crc32(repr((self._shape, reducer)).encode()) & 0xFFFFFF
        self.buffers = [
            (rig.put(x), rig.put(w), self._poisoned())
            for x, w in zip(xs, ws, strict=True)
        ]

    def _poisoned(self):
        shape, dtype = self._shape.out_shape, self._shape.out_dtype
        return self._rig.put(np.full(shape, np.nan, dtype))

    def start(self):
        order = random.sample(range(self._rig.world_size), self._rig.world_size)
        for rank in order:
            time.sleep(self._late[rank])
            self._rig.submit(
                rank, self.problem, self._reducer, self.buffers[rank], self.identity
            )
        return self

    def result(self):
        self._rig.synchronize()
        outputs = [_fetch(output) for _, _, output in self.buffers]
        if self._shape.op == "reduce_scatter":
            return np.concatenate(outputs, self._shape.dimension)
        for output in outputs[1:]:
            _assert_same_bits(output, outputs[0])
        return outputs[0]


def _fetch(array):
    """What is in the memory of an array now: JAX may remember what it read before."""
    return np.array(jnp.copy(array))


def _assert_same_bits(a, b):
    np.testing.assert_array_equal(
        np.ascontiguousarray(a).view(np.uint8).ravel(),
        np.ascontiguousarray(b).view(np.uint8).ravel(),
    )


def rigs(*sizes, kinds=tuple(_NEEDS)):
    """The parameter `rig` of a test, (kind, ranks), marked with what each needs."""
    return pytest.mark.parametrize(
        "rig",
        [
            pytest.param((kind, ranks), id=f"{kind}{ranks}", marks=_NEEDS[kind](ranks))
            for ranks in sizes
            for kind in kinds
        ],
    )


def open_rig(kind, ranks, *, fake_driver=None, **options):
    """A group of `ranks` ranks of one kind; see the table above."""
    if kind == "cpu":
        return JitRanks(ranks, jax.devices("cpu"), ("host",), **options)
    if kind == "gpus":
        return JitRanks(ranks, jax.devices("gpu"), ("peer", "peer_pull"), **options)
    if kind == "fake":
        backend = _native.module().cuda_backend(fake_driver)
        device = jax.devices("cpu")[0]
        return SharedRanks(ranks, device, backend, driver_path=fake_driver, **options)
    backend = _backends.backend("gpu")
    return SharedRanks(ranks, jax.devices("gpu")[0], backend, **options)

"""Jobs whose environment or start differs between processes."""

import os
import pickle
import time

import jax
import jax.extend
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import oracle
from jax.experimental import serialize_executable
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm

PATH, DTYPE = oracle.fused_path(), oracle.fused_dtype()
SIZES = {
    "max_m": 16,
    "n": 8,
    "dtype": jnp.float32,
    "timeout_s": 60,
    "sm_margin": oracle.sm_margin(),
}


def mesh_of_all():
    return Mesh(np.asarray(jax.devices()), ("tp",), axis_types=(AxisType.Auto,))


def put(array, mesh, spec):
    array = np.asarray(array)
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])


def program(mesh, workspace):
    """A program, its operands, and a check of its result."""
    x, w = oracle.rank_bits(mesh.devices.size, 16, 8, DTYPE, k_local=8)
    specs = (P(None, "tp"), P("tp", None))
    body = lambda x, w: jax_symm.gemm_all_reduce(
        x, w, "tp", workspace=workspace, path=PATH
    )
    f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P()))

    def check(y):
        np.testing.assert_array_equal(
            np.asarray(y.addressable_shards[0].data), 2.0**mesh.devices.size - 1
        )

    return f, (put(x, mesh, specs[0]), put(w, mesh, specs[1])), check


def call(mesh, workspace):
    f, args, check = program(mesh, workspace)
    check(f(*args))
    return f.lower(*args).as_text()


def works(note, _):
    mesh = mesh_of_all()
    with jax_symm.Workspace(mesh, "tp", **SIZES) as workspace:
        call(mesh, workspace)
        note("no_multicast", workspace.spec.no_multicast)


def compiles_again(note, max_m):
    """Two programs of one text, each compiled, with JAX's compilation cache on."""
    written = []
    jax.monitoring.register_event_listener(
        lambda name, **_: written.append(name) if name.endswith("misses") else None
    )
    mesh = mesh_of_all()
    with jax_symm.Workspace(mesh, "tp", **{**SIZES, "max_m": max_m}) as workspace:
        call(mesh, workspace)
        text = call(mesh, workspace)
    note("written", len(written))
    note("text", text)


def loads_what_it_serialised(note, _):
    """Every process its own executable, and the compiled one again between the loads."""
    mesh = mesh_of_all()
    with jax_symm.Workspace(mesh, "tp", **SIZES) as workspace:
        f, args, check = program(mesh, workspace)
        compiled = f.lower(*args).compile()
        stored = pickle.dumps(serialize_executable.serialize(compiled))
        for _ in range(2):
            check(compiled(*args))
            loaded = serialize_executable.deserialize_and_load(
                *pickle.loads(stored), execution_devices=list(mesh.devices.flat)
            )
            check(loaded(*args))


def refused(note, _):
    """Notes the error of setting up."""
    try:
        jax_symm.Workspace(mesh_of_all(), "tp", **SIZES)
    except Exception as error:
        note("error", [type(error).__name__, str(error)])


def late_start(note, _):
    if jax.process_index() == 1:
        time.sleep(5)
    works(note, None)


def two_lives(note, port):
    """JAX's distributed runtime is shut down and initialised again."""
    works(note, None)
    count, index = jax.process_count(), jax.process_index()
    jax.distributed.shutdown()
    jax.clear_caches()
    jax.extend.backend.clear_backends()
    jax.distributed.initialize(f"localhost:{port}", count, index)
    works(note, None)


def two_axes_in_another_order(note, _):
    """C32: the processes set up different groups first; nobody hangs."""
    mesh = Mesh(
        np.asarray(jax.devices()).reshape(2, 2),
        ("a", "b"),
        axis_types=(AxisType.Auto,) * 2,
    )
    axes = ["a", "b"] if jax.process_index() == 0 else ["b", "a"]
    for axis in axes:
        try:
            jax_symm.Workspace(mesh, axis, **SIZES)
        except Exception as error:
            note(axis, [type(error).__name__, str(error)])


def leaves_without_closing(note, _):
    """The interpreter ends with an open workspace and a launch just made."""
    mesh = mesh_of_all()
    workspace = jax_symm.Workspace(mesh, "tp", **SIZES)
    for _ in range(3):
        call(mesh, workspace)
    note("pid", os.getpid())

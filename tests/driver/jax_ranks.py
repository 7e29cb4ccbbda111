"""Programs of the ranks in test_jax.py: CPU devices, CUDA memory on the fake driver."""

import functools
import gc
import os
import pathlib
import sys
import time
from multiprocessing.connection import Client

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import jax_symm
from jax_symm import _backends, _native, _setup, memory
from jax_symm.errors import SymmError, SymmTimeoutError, SymmUnavailableError

NATIVE = _native.module()
_backends.install("cpu", NATIVE.cuda_backend(os.environ["FAKE_CUDA_LIBRARY"]))


def machine(name, **arguments):
    """Asks the fake machine."""
    with Client(os.environ["FAKE_CUDA_SERVER"] + ".control", "AF_UNIX") as control:
        control.send((name, arguments))
        return control.recv()


def mesh_of(devices):
    return Mesh(np.asarray(devices), ("tp",), axis_types=(AxisType.Auto,))


def put(array, mesh, spec):
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])


def product(mesh, workspace, op="all_reduce"):
    """Rank r contributes 2^r at every output."""
    ranks = mesh.devices.size
    x = put(
        np.eye(ranks, dtype=np.float32).repeat(ranks, 0)[:ranks] * 0 + 1,
        mesh,
        P(None, "tp"),
    )
    w = put(
        np.tile(2.0 ** np.arange(ranks)[:, None], (1, 16)).astype(np.float32),
        mesh,
        P("tp", None),
    )
    call = {
        "all_reduce": jax_symm.gemm_all_reduce,
        "reduce_scatter": jax_symm.gemm_reduce_scatter,
    }[op]
    out = P() if op == "all_reduce" else P("tp", None)

    @jax.jit
    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(P(None, "tp"), P("tp", None)), out_specs=out
    )
    def run(x, w):
        return call(x, w, "tp", workspace=workspace, path="host")

    return run(x, w)


def check_product(mesh, workspace, op="all_reduce"):
    y = product(mesh, workspace, op)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(
            np.asarray(shard.data), 2.0**mesh.devices.size - 1
        )


def workspace(mesh, **options):
    options = {"max_m": 64, "n": 16, "dtype": jnp.float32, "timeout_s": 60, **options}
    return jax_symm.Workspace(mesh, "tp", **options)


def outcome(mesh, **options):
    """What came of a workspace: [kind, text], and that it is usable if it is there."""
    try:
        ws = workspace(mesh, **options)
    except SymmError as error:
        return [type(error).__name__, str(error)]
    check_product(mesh, ws)
    (why,) = ws.spec.no_multicast
    ws.close()
    return ["peers" if why else "multicast", why or ""]


def errors(note, faults):
    """One process: each fault under auto and require, then what is left."""
    mesh = mesh_of(jax.devices())
    seen = []
    for call, nth, result in faults:
        for policy in ("auto", "require"):
            _backends.books().forget()
            machine("script", faults=[("p0", call, nth, result)])
            seen.append([call, policy, *outcome(mesh, multicast=policy)])
            machine("script", faults=[])
            seen[-1].append(machine("counts"))
    note("seen", seen)
    _backends.books().forget()
    note("clean", outcome(mesh, multicast="require"))


def errors_together(note, faults):
    """Several processes: the same, scripted by process 0 between the rendezvous."""
    mesh = mesh_of(jax.devices())
    seen = []
    for tag, call, nth, result in faults:
        for policy in ("auto", "require"):
            _backends.books().forget()
            if jax.process_index() == 0:
                machine("script", faults=[(tag, call, nth, result)])
            jax_symm.agree(True, mesh=mesh, axis_name="tp")
            seen.append([call, policy, *outcome(mesh, multicast=policy)])
            jax_symm.agree(True, mesh=mesh, axis_name="tp")
            seen[-1].append(machine("counts"))
            jax_symm.agree(True, mesh=mesh, axis_name="tp")
    if jax.process_index() == 0:
        machine("script", faults=[])
    jax_symm.agree(True, mesh=mesh, axis_name="tp")
    note("seen", seen)
    _backends.books().forget()
    note("clean", outcome(mesh, multicast="require"))


def lose_a_rank(note, fault):
    """A rank dies or is stuck in a driver call; the others say so and go on alone."""
    mesh = mesh_of(jax.devices())
    note("before", outcome(mesh))
    buffer = jax_symm.empty((4,), np.float32, mesh=mesh, axis_name="tp")
    if jax.process_index() == 0:
        machine("script", faults=[fault])
    jax_symm.agree(True, mesh=mesh, axis_name="tp")
    start = time.monotonic()
    note("after", outcome(mesh))
    note("seconds", time.monotonic() - start)
    buffer.close()
    note("ledger", NATIVE.ledger())
    alone = mesh_of(jax.local_devices())
    note("alone", outcome(alone))
    # The job has lost a member: leave without jax's own last barrier.
    os._exit(0)


def stuck_bind(note, _):
    """Bind never returns on one rank: peers all the same, and nothing of it is freed."""
    _setup._MULTICAST_DEADLINE_S = 0.5
    mesh = mesh_of(jax.devices())
    machine("script", faults=[("p0", "cuMulticastBindMem", 2, "hang")])
    ws = workspace(mesh)
    check_product(mesh, ws)
    note("why", ws.spec.no_multicast[0])
    note("ledger", NATIVE.ledger())
    ws.close()
    note("again", outcome(mesh))
    os._exit(0)


def life(note, _):
    """Policy, sharing, tables, views, steady state and close, in one process."""
    jax.config.update("jax_enable_x64", True)
    mesh = mesh_of(jax.devices())
    _policy(note, mesh)
    _meshes()
    _tables(mesh)
    _steady_state(mesh)
    _views(mesh)
    _failed_close(mesh)
    _failed_device(mesh)
    note("left", machine("counts"))


def _policy(note, mesh):
    machine("script", faults=[])
    ws = workspace(mesh, ops=("reduce_scatter",))
    check_product(mesh, ws, "reduce_scatter")
    ws.close()
    buffer = jax_symm.empty((8,), np.float32, mesh=mesh, axis_name="tp")
    handle = jax_symm.peer_rendezvous(buffer)
    assert handle.at(jax.devices()[0]).multicast_ptr is None
    called = {name for _, name in machine("report")["trace"]}
    note("multicast_calls", sorted(c for c in called if c.startswith("cuMulticast")))
    handle = jax_symm.multicast_rendezvous(buffer, "a test")
    assert handle.why_no_multicast is None
    pointers = {handle.at(d).multicast_ptr for d in jax.devices()}
    assert len(pointers) == 1
    assert pointers != {None}
    ws = workspace(mesh)
    assert ws.spec.no_multicast == (None,)
    assert jax_symm.multicast_objects_in_use() == 1
    check_product(mesh, ws)
    again = jax_symm.multicast_rendezvous(buffer, "a test")
    assert {again.at(d).multicast_ptr for d in jax.devices()} == pointers
    ws.close()
    buffer.close()
    assert jax_symm.multicast_objects_in_use() == 0


def _meshes():
    """C32: one object a set of devices, decided alike for all, within the budget."""
    grid = Mesh(
        np.asarray(jax.devices()).reshape(2, 2),
        ("a", "b"),
        axis_types=(AxisType.Auto,) * 2,
    )

    def open_(axes, rows):
        buffer = jax_symm.empty((rows, 1024), np.float32, mesh=grid, axis_name=axes)
        return buffer, jax_symm.multicast_rendezvous(buffer, "a test").why_no_multicast

    opened = [open_(axes, rows) for axes, rows in (("b", 1), ("a", 1), ("b", 2048))]
    assert [why for _, why in opened] == [None] * 3
    assert jax_symm.multicast_objects_in_use() == 4
    buffer, why = open_(("a", "b"), 1)
    assert "JAX_SYMM_MULTICAST_BUDGET" in why
    for one in (*(b for b, _ in opened), buffer):
        one.close()
    assert jax_symm.multicast_objects_in_use() == 0


def _tables(mesh):
    """A kernel that follows the tables finds every rank's part and its zeroed pad."""
    with jax_symm.empty((4,), np.float32, mesh=mesh, axis_name="tp") as buffer:
        handle = jax_symm.peer_rendezvous(buffer)
        table, pads = (
            np.asarray(handle.pointer_table()),
            np.asarray(handle.signal_pad_table()),
        )
        ranks = mesh.devices.size
        assert table.shape == pads.shape == (ranks, ranks, 2)
        for row, device in enumerate(mesh.devices):
            wide = table[row].astype(np.uint64)
            addresses = tuple((wide[:, 1] << np.uint64(32) | wide[:, 0]).tolist())
            assert addresses == handle.at(device).buffer_ptrs
        wide = pads[0].astype(np.uint64)
        backend = _backends.backend("cpu")
        for address in (wide[:, 1] << np.uint64(32) | wide[:, 0]).tolist():
            pad = backend.copy_to_host(0, address, memory.SIGNAL_PAD_BYTES)
            assert pad == bytes(memory.SIGNAL_PAD_BYTES)


def _steady_state(mesh):
    """C22: no driver call while programs run, and constants stay what they are."""
    ws = workspace(mesh)
    ones = jnp.ones((), jnp.float64)

    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(P(None, "tp"), P("tp", None)),
        out_specs=P("tp", None),
    )
    def steps(x, w):
        def step(carry, _):
            y = jax_symm.gemm_reduce_scatter(x, w, "tp", workspace=ws, path="host")
            return carry + y * ones, ones

        first = jax_symm.gemm_reduce_scatter(x, w, "tp", workspace=ws, path="host")
        last, constants = lax.scan(step, first.astype(jnp.float64), None, length=4)
        return last * constants.mean()

    ranks = mesh.devices.size
    x = put(np.ones((ranks, ranks), np.float32), mesh, P(None, "tp"))
    w = put(np.ones((ranks, 16), np.float32), mesh, P("tp", None))
    steps(x, w).block_until_ready()
    machine("script", faults=[])
    y = steps(x, w)
    np.testing.assert_array_equal(np.asarray(y), 5.0 * ranks)
    assert machine("report")["trace"] == []
    ws.close()


def _views(mesh):
    """A view shows what peers wrote, without a copy, and outlives close()."""
    buffer = jax_symm.empty((4,), np.float32, mesh=mesh, axis_name="tp")
    handle = jax_symm.peer_rendezvous(buffer)
    device = jax.devices()[1]
    pointer = handle.at(device).buffer_ptrs[1]
    data = np.arange(4, dtype=np.float32)
    _backends.backend("cpu").copy_to_device(0, pointer, data.tobytes())
    view = handle.array(device)
    assert view.unsafe_buffer_pointer() == pointer
    buffer.close()
    np.testing.assert_array_equal(np.asarray(view), data)
    assert machine("counts")["mappings"] == 1


def _failed_close(mesh):
    """Launches had to be failed: multicast is kept, and freed by the next set-up."""
    ws = workspace(mesh)
    native = ws._native

    class Stuck:
        def close(self, deadline_ns):
            raise SymmTimeoutError("launches had to be failed")

    ws._native = Stuck()
    with pytest.raises(SymmTimeoutError):
        ws.close()
    assert ws.closed
    assert jax_symm.multicast_objects_in_use() == 1
    native.close(0)
    workspace(mesh, multicast="never").close()
    assert jax_symm.multicast_objects_in_use() == 0


def _failed_device(mesh):
    """What a dropped owner left cannot be freed: an error, and it is not forgotten."""
    ws = workspace(mesh)
    del ws
    gc.collect()
    machine("script", faults=[("p0", "cuCtxSynchronize", 1, 700)])
    with pytest.raises(SymmUnavailableError, match="process 0 cannot wait for its dev"):
        workspace(mesh)
    machine("script", faults=[])
    assert jax_symm.multicast_objects_in_use() == 1
    workspace(mesh, multicast="never").close()
    assert jax_symm.multicast_objects_in_use() == 0

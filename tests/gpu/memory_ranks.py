"""Programs of the ranks in test_gpu_memory.py: JAX on a GPU that processes share."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

import jax_symm
from jax_symm import _backends, _native

NATIVE = _native.module()
_backends.forbid_multicast()
BACKEND = _backends.backend("gpu")


def mesh_of(devices):
    return Mesh(np.asarray(devices), ("tp",), axis_types=(AxisType.Auto,))


def views(note, _):
    """An array over symmetric memory is the memory, and keeps it."""
    device = jax.devices()[0]
    buffer = jax_symm.empty((1024,), np.float32, mesh=mesh_of([device]), axis_name="tp")
    handle = jax_symm.peer_rendezvous(buffer)
    (pointer,) = handle.at(device).buffer_ptrs
    data = np.arange(1024, dtype=np.float32)
    BACKEND.copy_to_device(0, pointer, data.tobytes())
    view = handle.array(device)
    assert view.unsafe_buffer_pointer() == pointer
    assert view.devices() == {device}
    np.testing.assert_array_equal(np.asarray(jnp.cumsum(view)), np.cumsum(data))
    table = np.asarray(handle.pointer_table()).astype(np.uint64)
    assert int(table[0, 0, 1] << np.uint64(32) | table[0, 0, 0]) == pointer
    buffer.close()
    np.testing.assert_array_equal(np.asarray(view * 2), data * 2)
    assert NATIVE.ledger()["mappings"] == 1
    del view
    gc.collect()
    # A finaliser unmaps nothing of a GPU; the next set-up does.
    assert NATIVE.abandoned_count() == 1
    jax_symm.empty((4,), np.float32, mesh=mesh_of([device]), axis_name="tp").close()
    note("ledger", NATIVE.ledger())


def together(note, _):
    """Two processes on one GPU agree, share memory, and see each other's bytes."""
    mesh = mesh_of(jax.devices())
    rank = jax.process_index()
    votes = [
        jax_symm.agree(True, mesh=mesh, axis_name="tp"),
        jax_symm.agree(rank == 0, mesh=mesh, axis_name="tp"),
    ]
    note("votes", votes)
    buffer = jax_symm.empty((16,), np.float32, mesh=mesh, axis_name="tp")
    handle = jax_symm.multicast_rendezvous(buffer, "a test")
    note("why", handle.why_no_multicast)
    device = jax.local_devices()[0]
    pointers = handle.at(device).buffer_ptrs
    for pointer in pointers:
        mine = np.float32(rank + 1).tobytes()
        BACKEND.copy_to_device(0, pointer + 4 * rank, mine)
    jax_symm.agree(True, mesh=mesh, axis_name="tp")
    note("seen", np.asarray(handle.array(device))[:2].tolist())
    jax_symm.agree(True, mesh=mesh, axis_name="tp")
    buffer.close()

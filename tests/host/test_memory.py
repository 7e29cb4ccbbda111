"""Raw symmetric memory in one process, and votes."""

import gc
import itertools

import jax
import numpy as np
import pytest

import jax_symm
from jax_symm.errors import (
    SymmStateError,
    SymmTypeError,
    SymmValueError,
)


@pytest.fixture
def buffer(mesh8):
    with jax_symm.empty((4, 3), np.float32, mesh=mesh8, axis_name="tp") as made:
        yield made


def test_views_are_of_the_memory(buffer, cpus):
    memory = jax_symm.peer_rendezvous(buffer)
    assert memory.world_size == 8
    for rank in (0, 3, 7):
        access = memory.at(cpus[rank])
        assert access.rank == rank
        assert access.multicast_ptr is None
        view = memory.array(cpus[rank])
        assert view.shape == (4, 3)
        assert view.devices() == {cpus[rank]}
        assert view.unsafe_buffer_pointer() == access.buffer_ptrs[rank]
    assert memory.why_no_multicast


def test_parts_do_not_overlap(buffer, cpus):
    memory = jax_symm.peer_rendezvous(buffer)
    pointers = sorted(memory.at(cpus[0]).buffer_ptrs)
    assert all(b - a >= buffer.nbytes for a, b in itertools.pairwise(pointers))


def test_tables_hold_the_addresses(buffer, cpus):
    memory = jax_symm.peer_rendezvous(buffer)
    pointers = memory.at(cpus[0]).buffer_ptrs
    table = np.asarray(memory.pointer_table()).astype(np.uint64)
    assert table.shape == (8, 8, 2)
    for entry in table:
        assert tuple(int(low | high << 32) for low, high in entry) == pointers
    pads = np.asarray(memory.signal_pad_table()).astype(np.uint64)
    for low, high in pads[0]:
        assert int(low | high << 32) % 128 == 0


def test_pads_are_zero(buffer, cpus):
    import ctypes

    memory = jax_symm.peer_rendezvous(buffer)
    for low, high in np.asarray(memory.signal_pad_table())[0].astype(np.uint64):
        pad = ctypes.string_at(int(low | high << 32), 16384)
        assert not any(pad)


def test_tables_on_a_mesh_of_two_axes(mesh_of):
    mesh = mesh_of(dp=2, tp=4)
    with jax_symm.empty((2,), np.int32, mesh=mesh, axis_name="tp") as buffer:
        memory = jax_symm.multicast_rendezvous(buffer, "a test")
        table = memory.pointer_table()
        assert table.shape == (2, 4, 4, 2)
        assert memory.at(mesh.devices[1, 2]).rank == 2


def test_a_view_outlives_the_buffer(mesh8, cpus):
    buffer = jax_symm.empty((1000,), np.int32, mesh=mesh8, axis_name="tp")
    view = jax_symm.peer_rendezvous(buffer).array(cpus[2])
    buffer.close()
    del buffer
    gc.collect()
    assert np.asarray(view).shape == (1000,)


def test_closed(mesh8, cpus):
    buffer = jax_symm.empty((4,), np.int32, mesh=mesh8, axis_name="tp")
    memory = jax_symm.peer_rendezvous(buffer)
    buffer.close()
    buffer.close()
    with pytest.raises(SymmStateError, match="closed"):
        memory.at(cpus[0])
    with pytest.raises(SymmStateError, match="closed"):
        jax_symm.peer_rendezvous(buffer)


def test_wrong_arguments(mesh8, mesh_of, buffer, cpus):
    with pytest.raises(SymmValueError, match=r"shape: got \(-1,\)"):
        jax_symm.empty((-1,), np.int32, mesh=mesh8, axis_name="tp")
    with pytest.raises(SymmValueError, match="shape: got 5, expected integers"):
        jax_symm.empty(5, np.int32, mesh=mesh8, axis_name="tp")
    with pytest.raises(SymmValueError, match=f"got {2**62 * 4} bytes, expected at"):
        jax_symm.empty((2**62,), np.int32, mesh=mesh8, axis_name="tp")
    for dtype in (object, "nothing", 3):
        with pytest.raises(SymmTypeError, match="dtype: got .*expected numbers"):
            jax_symm.empty((1,), dtype, mesh=mesh8, axis_name="tp")
    with pytest.raises(SymmTypeError, match="expected what empty made"):
        jax_symm.peer_rendezvous(np.ones(3))
    half = mesh_of(tp=4)
    with jax_symm.empty((1,), np.int32, mesh=half, axis_name="tp") as small:
        memory = jax_symm.peer_rendezvous(small)
        with pytest.raises(SymmValueError, match="not in the mesh"):
            memory.at(cpus[7])


def test_no_elements(mesh8, cpus):
    with jax_symm.empty((0, 4), np.int32, mesh=mesh8, axis_name="tp") as buffer:
        assert jax_symm.peer_rendezvous(buffer).array(cpus[0]).shape == (0, 4)


def test_agree(mesh8, mesh_of, cpus):
    assert jax_symm.agree(True, mesh=mesh8, axis_name="tp")
    assert not jax_symm.agree(False, mesh=mesh8, axis_name="tp")
    assert not jax_symm.agree(lambda d: d != cpus[5], mesh=mesh8, axis_name="tp")
    with jax.set_mesh(mesh_of(dp=2, tp=4)):
        assert jax_symm.agree(lambda d: True, axis_name=("dp", "tp"))


def test_agree_raises_what_a_rank_raised(mesh8, cpus):
    def probe(device):
        if device == cpus[3]:
            raise KeyError("no such thing")
        return True

    with pytest.raises(SymmValueError, match=r"rank 3 .* raised KeyError"):
        jax_symm.agree(probe, mesh=mesh8, axis_name="tp")


def test_not_under_a_trace(mesh8):
    def f(x):
        jax_symm.agree(True, mesh=mesh8, axis_name="tp")
        return x

    with pytest.raises(SymmStateError, match="agree: called while JAX is tracing"):
        jax.jit(f)(1.0)

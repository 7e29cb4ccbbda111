"""Groups are pure: stand-ins for devices and meshes suffice."""

import dataclasses

import numpy as np
import pytest

from jax_symm.errors import SymmValueError
from jax_symm.group import MeshGroups, Place, axis_tuple


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    process_index: int = 0
    platform: str = "cpu"


@dataclasses.dataclass
class Mesh:
    devices: np.ndarray
    axis_names: tuple


def make_mesh(sizes, names, *, per_process=100, order=None):
    ids = np.arange(int(np.prod(sizes))) if order is None else np.asarray(order)
    devices = np.array([Device(int(i), int(i) // per_process) for i in ids], object)
    return Mesh(devices.reshape(sizes), names)


def ids(groups):
    return groups.device_ids()


def test_one_axis():
    groups = MeshGroups.of(make_mesh((4,), ("tp",)), "tp")
    assert ids(groups) == ((0, 1, 2, 3),)
    assert groups.world_size == 4


def test_groups_are_numbered_over_the_other_axes():
    mesh = make_mesh((2, 3), ("dp", "tp"))
    assert ids(MeshGroups.of(mesh, "tp")) == ((0, 1, 2), (3, 4, 5))
    assert ids(MeshGroups.of(mesh, "dp")) == ((0, 3), (1, 4), (2, 5))


def test_tuple_order_numbers_the_ranks_as_axis_index_does():
    mesh = make_mesh((2, 3), ("dp", "tp"))
    assert ids(MeshGroups.of(mesh, ("dp", "tp"))) == ((0, 1, 2, 3, 4, 5),)
    assert ids(MeshGroups.of(mesh, ("tp", "dp"))) == ((0, 3, 1, 4, 2, 5),)


def test_middle_axis():
    mesh = make_mesh((2, 2, 2), ("a", "b", "c"))
    assert ids(MeshGroups.of(mesh, "b")) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_no_axis_makes_every_device_a_group_of_its_own():
    """C20: the empty tuple is a world of one."""
    groups = MeshGroups.of(make_mesh((3,), ("tp",)), ())
    assert ids(groups) == ((0,), (1,), (2,))


def test_permuted_devices():
    groups = MeshGroups.of(make_mesh((4,), ("tp",), order=[2, 0, 3, 1]), "tp")
    assert ids(groups) == ((2, 0, 3, 1),)
    assert groups.find(Device(0)) == Place(0, 1)


def test_processes_and_local_places():
    groups = MeshGroups.of(make_mesh((2, 4), ("dp", "tp"), per_process=2), "tp")
    assert groups.processes == (0, 1, 2, 3)
    assert [place for place, _ in groups.local(1)] == [Place(0, 2), Place(0, 3)]
    assert groups.local(7) == ()


def test_labels_name_rank_process_and_device():
    groups = MeshGroups.of(make_mesh((4,), ("tp",), per_process=2), "tp")
    assert groups.label(0, 3) == "rank 3 (process 1, cpu:3)"
    assert groups.labels()[0][0] == "rank 0 (process 0, cpu:0)"


def test_unknown_axis():
    with pytest.raises(
        SymmValueError, match=r"got 'nope', but the mesh has axes \('tp'"
    ):
        MeshGroups.of(make_mesh((2,), ("tp",)), "nope")


def test_axis_named_twice():
    """C20."""
    with pytest.raises(SymmValueError, match="at most once"):
        axis_tuple(("tp", "tp"))


def test_foreign_device():
    groups = MeshGroups.of(make_mesh((2,), ("tp",)), "tp")
    with pytest.raises(SymmValueError, match="not in the mesh"):
        groups.find(Device(9))

"""One process, eight CPU devices: meshes and workspaces for the tests."""

import jax
import numpy as np
import oracle
import pytest
from jax.sharding import AxisType, Mesh

import jax_symm


@pytest.fixture(scope="session")
def cpus():
    return jax.devices("cpu")


@pytest.fixture(scope="session")
def mesh8(cpus):
    return Mesh(np.asarray(cpus[:8]), ("tp",), axis_types=(AxisType.Auto,))


@pytest.fixture
def open_workspace():
    """Opens workspaces and closes them when the test ends."""
    opened = []

    def open_(mesh, axis="tp", **options):
        options.setdefault("timeout_s", 60)
        opened.append(jax_symm.Workspace(mesh, axis, **options))
        return opened[-1]

    yield open_
    for workspace in opened:
        workspace.close()


@pytest.fixture
def mesh_of(cpus):
    """A mesh of the first devices, named axis -> size."""

    def make(axis_type=AxisType.Auto, devices=None, **sizes):
        count = int(np.prod(list(sizes.values())))
        chosen = np.asarray(devices or cpus[:count]).reshape(tuple(sizes.values()))
        return Mesh(chosen, tuple(sizes), axis_types=(axis_type,) * len(sizes))

    return make


@pytest.fixture
def run_host(open_workspace):
    """Runs one operation on the host path and asserts that it ran there."""

    def run(op, x, w, mesh, axis="tp", *, workspace=None, check_vma=True, **options):
        if workspace is None:
            workspace = open_workspace(
                mesh, axis, **oracle.capacity(op, x, w, **options)
            )
        before = oracle.host_calls(workspace)
        y = oracle.run(
            op, x, w, mesh, axis, workspace, check_vma=check_vma, path="host", **options
        )
        ran = oracle.host_calls(workspace) - before
        assert ran == sum(map(len, workspace.spec.device_ids)) or 0 in y.shape
        return y

    return run

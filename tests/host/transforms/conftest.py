import pytest
from _programs import mesh_of

import jax_symm


@pytest.fixture(scope="module")
def mesh():
    return mesh_of()


@pytest.fixture(scope="module")
def workspace(mesh):
    with jax_symm.Workspace(mesh, "tp", max_m=256, n=64, dtype="float32") as opened:
        yield opened

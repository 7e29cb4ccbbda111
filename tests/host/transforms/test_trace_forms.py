"""jit, eager, nested jit, and the replication types that out_specs are checked against."""

import jax
import numpy as np
import pytest
from _programs import (
    AR_SPEC,
    DEFINITION,
    OPS,
    OURS,
    OUT_SPEC,
    RS_SPEC,
    host_calls,
    integers,
    operands,
    sharded,
)

import jax_symm


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("form", ["eager", "jit", "nested jit"])
def test_equals_the_definition(op, check_vma, form, mesh, workspace):
    x, w = operands()

    def body(x, w):
        call = lambda x, w: OURS[op](x, w, "tp", workspace=workspace, path="host")
        return jax.jit(call)(x, w) if form == "nested jit" else call(x, w)

    options = {"out_specs": OUT_SPEC[op], "check_vma": check_vma}
    ours = sharded(body, mesh, **options)
    expected = sharded(lambda x, w: DEFINITION[op](x, w, "tp"), mesh, **options)
    before = host_calls(workspace)
    y = ours(x, w) if form == "eager" else jax.jit(ours)(x, w)
    np.testing.assert_array_equal(y, jax.jit(expected)(x, w))
    np.testing.assert_array_equal(y, np.asarray(x) @ np.asarray(w))
    assert host_calls(workspace) == before + mesh.size


def test_reduce_scatter_is_varying(mesh, workspace):
    body = lambda x, w: jax_symm.gemm_reduce_scatter(x, w, "tp", workspace=workspace)
    with pytest.raises(ValueError, match="varying|replicat"):
        jax.jit(sharded(body, mesh, out_specs=AR_SPEC))(*operands())


def test_all_reduce_is_invariant(mesh, workspace):
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace)
    y = jax.jit(sharded(body, mesh, out_specs=AR_SPEC))(*operands())
    assert y.shape == (16, 24)


@pytest.mark.parametrize("op", OPS)
def test_three_calls_of_one_inner_jit(op, mesh, workspace):
    x, w = operands()
    inner = jax.jit(lambda x, w: OURS[op](x, w, "tp", workspace=workspace, path="host"))
    ours = sharded(
        lambda x, w: inner(x, w) + inner(2 * x, w) + inner(x, 3 * w),
        mesh,
        out_specs=OUT_SPEC[op],
    )
    np.testing.assert_array_equal(
        jax.jit(ours)(x, w), 6 * np.asarray(x) @ np.asarray(w)
    )


def test_rows_not_divisible_by_world_size(mesh, workspace):
    """The global result has R * ceil(m/R) rows, the padding rows zero."""
    x, w = integers(2, (10, 32)), integers(3, (32, 24))
    body = lambda x, w: jax_symm.gemm_reduce_scatter(
        x, w, "tp", workspace=workspace, path="host"
    )
    y = np.asarray(jax.jit(sharded(body, mesh, out_specs=RS_SPEC))(x, w))
    assert y.shape == (12, 24)
    np.testing.assert_array_equal(y[:10], np.asarray(x) @ np.asarray(w))
    np.testing.assert_array_equal(y[10:], 0)


def test_outside_shard_map_names_the_axis_and_shard_map(workspace):
    """Case C18: an op on a sharded array without shard_map must not gather silently."""
    x, w = operands()
    with pytest.raises(NameError, match=r"tp.*shard_map"):
        jax.jit(
            lambda x, w: jax_symm.gemm_reduce_scatter(x, w, "tp", workspace=workspace)
        )(x, w)

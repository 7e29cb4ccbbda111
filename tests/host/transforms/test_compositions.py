"""Transformations on top of one another, and the less common ones, around our ops."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _programs import (
    AR_SPEC,
    DEFINITION,
    OPS,
    OURS,
    OUT_SPEC,
    W_SPEC,
    X_SPEC,
    compiled_text,
    host_calls,
    integers,
    mesh_of,
    operands,
    sharded,
)
from jax.experimental import checkify
from jax.experimental.layout import Format, Layout
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm import reference


def product():
    x, w = operands()
    return np.asarray(x) @ np.asarray(w)


def ours(op, workspace):
    return lambda x, w: OURS[op](x, w, "tp", workspace=workspace, path="host")


def definition(op):
    return lambda x, w: DEFINITION[op](x, w, "tp")


@pytest.mark.parametrize("check_vma", [True, False])
def test_grad_of_vmap_of_scan_of_remat_over_two_axes(check_vma):
    """A stack of layers, weights scanned, examples batched, ranks along a tuple of axes."""
    axes = ("dp", "tp")
    mesh = mesh_of((2, 4), axes)
    x, ws = integers(0, (3, 16, 32)), integers(1, (3, 32, 32))

    def value_and_grads(scatter):
        def layer(carry, w):
            full = jax.lax.all_gather(carry, axes, axis=0, tiled=True)
            width = full.shape[1] // 8
            start = jax.lax.axis_index(axes) * width
            mine = jax.lax.dynamic_slice_in_dim(full, start, width, 1)
            return jnp.sign(scatter(mine, w, axes)) * 2 - carry, None

        def body(x, ws):
            layers = jax.checkpoint(layer)
            return jax.vmap(lambda x: jax.lax.scan(layers, x, ws)[0])(x)

        specs = (P(None, axes, None), P(None, axes, None))
        function = sharded(body, mesh, specs, specs[0], check_vma=check_vma)
        loss = lambda x, w: jnp.sum(function(x, w) ** 2)
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(x, ws)

    with jax_symm.Workspace(mesh, axes, max_m=64, n=32, dtype="float32") as workspace:
        scatter = functools.partial(
            jax_symm.gemm_reduce_scatter, workspace=workspace, path="host"
        )
        got = jax.block_until_ready(value_and_grads(scatter))
        assert host_calls(workspace) > 0
    wanted = value_and_grads(reference.gemm_reduce_scatter)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


@pytest.mark.parametrize("check_vma", [True, False])
def test_jvp_of_vmap_of_scan(check_vma, mesh, workspace):
    x, w = integers(0, (3, 8, 16)), integers(1, (16, 16))

    def derivative(call):
        def layer(carry, w):
            y = call(carry, w)
            start = jax.lax.axis_index("tp") * 4
            return jax.lax.dynamic_slice_in_dim(y, start, 4, 1), y.sum()

        def body(x, w):
            def one(x, w):
                return jax.lax.scan(lambda c, _: layer(c, w), x, None, 2)[0]

            return jax.vmap(one, (0, None))(x, w)

        batched = P(None, None, "tp")
        f = sharded(body, mesh, (batched, W_SPEC), batched, check_vma=check_vma)
        return jax.jit(lambda x, w: jax.jvp(f, (x, w), (2 * x, w.T)))(x, w)

    got = derivative(ours("gemm_all_reduce", workspace))
    wanted = derivative(definition("gemm_all_reduce"))
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def branch(call, n, x, w):
    y = jax.lax.cond(n > 1, lambda: call(x, w), lambda: call(2 * x, w))
    return jax.lax.pcast(y, "tp", to="varying")


def loop(call, n, x, w):
    def again(carry):
        i, x = carry
        start = jax.lax.axis_index("tp") * 4
        mine = jax.lax.dynamic_slice_in_dim(call(x, w), start, 4, 1)
        return i + 1, jnp.sign(mine)

    return jax.lax.while_loop(lambda carry: carry[0] < n, again, (0, x))[1]


@pytest.mark.parametrize("program", [branch, loop])
def test_predicates_that_vmap_batches(program, mesh, workspace):
    """Every rank runs every branch, and a loop until its last entry ends."""
    ns, x, w = jnp.array([1, 3, 2]), integers(0, (3, 8, 16)), integers(1, (16, 16))

    def results(call):
        each = functools.partial(program, call)
        body = lambda ns, x, w: jax.vmap(each, (0, 0, None))(ns, x, w)
        batched = P(None, None, "tp")
        return jax.jit(sharded(body, mesh, (P(), batched, W_SPEC), batched))(ns, x, w)

    np.testing.assert_array_equal(
        results(ours("gemm_all_reduce", workspace)),
        results(definition("gemm_all_reduce")),
    )


@pytest.mark.parametrize("op", OPS)
def test_lax_map_in_batches(op, mesh, workspace):
    """`batch_size` makes a scan over vmaps, with a remainder of its own."""
    x, w = integers(0, (5, 16, 32)), integers(1, (32, 24))

    def value_and_grads(call):
        body = lambda x, w: jax.lax.map(lambda x: call(x, w), x, batch_size=2)
        specs = (P(None, None, "tp"), W_SPEC)
        f = sharded(body, mesh, specs, P(None, *OUT_SPEC[op]))
        loss = lambda x, w: jnp.sum(f(x, w) ** 2)
        return jax.jit(jax.value_and_grad(loss, (0, 1)))(x, w)

    got = value_and_grads(ours(op, workspace))
    jax.tree.map(np.testing.assert_array_equal, got, value_and_grads(definition(op)))


def test_custom_jvp_around_ours(mesh, workspace):
    scatter = ours("gemm_reduce_scatter", workspace)

    @jax.custom_jvp
    def call(x, w):
        return scatter(x, w)

    @call.defjvp
    def _(primals, tangents):
        (x, w), (dx, dw) = primals, tangents
        return scatter(x, w), 2 * scatter(dx, w) + scatter(x, dw)

    function = sharded(lambda x, w: call(x, w), mesh)
    x, w = operands()
    dx, dw = jax.jit(jax.grad(lambda *a: jnp.sum(function(*a)), (0, 1)))(x, w)
    ones = np.ones((16, 24), np.float32)
    np.testing.assert_array_equal(dx, 2 * ones @ np.asarray(w).T)
    np.testing.assert_array_equal(dw, np.asarray(x).T @ ones)


@pytest.mark.parametrize("op", OPS)
def test_custom_rules_of_batching(op, mesh, workspace):
    x, w = operands()
    function = sharded(ours(op, workspace), mesh, out_specs=OUT_SPEC[op])
    call = jax.custom_batching.sequential_vmap(lambda x: function(x, w))
    y = jax.vmap(call)(jnp.stack([x, 2 * x]))
    np.testing.assert_array_equal(y, np.stack([product(), 2 * product()]))


@pytest.mark.parametrize("op", OPS)
def test_effects_beside_ours(op, mesh, workspace):
    """A print and a callback in the body and in a rematerialised loop around the call."""
    seen = []

    def body(x, w):
        jax.debug.callback(lambda v: seen.append(float(v)), x.sum())

        def again(carry, _):
            y = ours(op, workspace)(x, w)
            jax.debug.callback(lambda v: seen.append(float(v)), y.sum())
            return carry + y.sum(), None

        start = jax.lax.pcast(jnp.float32(0), "tp", to="varying")
        if op == "gemm_all_reduce":
            start = jnp.float32(0)
        return jax.lax.scan(jax.checkpoint(again), start, None, 3)[0][None]

    out = P() if op == "gemm_all_reduce" else P("tp")
    function = sharded(body, mesh, out_specs=out)
    x, w = operands()
    total = np.sum(jax.jit(function)(x, w))
    jax.effects_barrier()
    assert total == 3 * product().sum()
    assert len(seen) == 4 * mesh.size
    jax.jit(jax.grad(lambda x: jnp.sum(function(x, w))))(x)


@pytest.mark.parametrize("checks", ["user_checks", "nan_checks"])
def test_checkify(checks, mesh, workspace):
    """A check inside the body; a NaN is seen in what lax makes of our result."""

    def body(x, w):
        y = ours("gemm_all_reduce", workspace)(x, w)
        checkify.check(jnp.all(jnp.isfinite(y)), "not finite")
        return 2 * y

    function = sharded(body, mesh, out_specs=AR_SPEC)
    checked = jax.jit(checkify.checkify(function, errors=getattr(checkify, checks)))
    x, w = operands()
    error, y = checked(x, w)
    assert error.get() is None
    np.testing.assert_array_equal(y, 2 * product())
    error, _ = checked(x.at[3, 5].set(jnp.nan), w)
    text = (
        "not finite" if checks == "user_checks" else "nan generated by primitive: mul"
    )
    assert text in error.get()


@pytest.mark.parametrize("op", OPS)
def test_modes_of_jax(op, mesh, workspace):
    """disable_jit, NaN, leak and type checks, strict promotion, x64: ours runs in each."""
    x, w = operands()
    out = OUT_SPEC[op]
    function = lambda *a: sharded(ours(op, workspace), mesh, out_specs=out)(*a)
    for mode in (
        jax.disable_jit(),
        jax.debug_nans(True),
        jax.checking_leaks(),
        jax.numpy_dtype_promotion("strict"),
        jax.enable_x64(True),
        jax.enable_checks(True),
    ):
        with mode:
            before = host_calls(workspace)
            np.testing.assert_array_equal(jax.jit(function)(x, w), product())
            assert host_calls(workspace) == before + mesh.size
            loss = lambda x: jnp.sum(function(x, w) ** 2)
            gradient = jax.block_until_ready(jax.jit(jax.grad(loss))(x))
            assert gradient.dtype == jnp.float32


@pytest.mark.parametrize("op", [*OPS, "all_gather_gemm"])
def test_matmul_precision_of_the_caller(op, mesh):
    """`default_matmul_precision` counts where the op is called, forward and backward."""
    x, w = operands()

    def precisions(module, precision):
        def body(x, w):
            with jax.default_matmul_precision(precision):
                return getattr(module, op)(x, w, "tp")

        if op == "all_gather_gemm":
            f = sharded(body, mesh, (P("tp", None), P(None, "tp")), P(None, "tp"))
        else:
            f = sharded(body, mesh, out_specs=OUT_SPEC[op])
        grads = jax.value_and_grad(lambda x, w: jnp.sum(f(x, w) ** 2), (0, 1))
        text = jax.jit(grads).lower(x, w).as_text()
        dots = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
        return sorted(line.split("precision = [")[1].split("]")[0] for line in dots)

    for precision, wanted in (("highest", "HIGHEST"), (None, "DEFAULT")):
        got = precisions(jax_symm, precision)
        assert got == precisions(reference, precision) == 3 * [f"{wanted}, {wanted}"]


@pytest.mark.parametrize("op", OPS)
def test_shapes_alone(op, mesh, workspace):
    """eval_shape of values and gradients runs nothing."""
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((10, 32), (32, 24))]
    function = sharded(
        lambda x, w: OURS[op](
            x, w, "tp", workspace=workspace, preferred_element_type=jnp.float32
        ),
        mesh,
        out_specs=OUT_SPEC[op],
    )
    before = host_calls(workspace)
    y = jax.eval_shape(function, *shapes)
    assert y.shape == ((12, 24) if op == "gemm_reduce_scatter" else (10, 24))
    assert y.dtype == jnp.float32
    loss = lambda x, w: jnp.sum(function(x, w))
    gradients = jax.eval_shape(jax.grad(loss, (0, 1)), *shapes)
    assert [(g.shape, g.dtype) for g in gradients] == [
        (s.shape, s.dtype) for s in shapes
    ]
    assert host_calls(workspace) == before


def test_pmap_and_smap(mesh, workspace):
    """Both are shard_map in today's JAX, so their axis is a mesh axis."""
    x, w = operands()
    body = ours("gemm_all_reduce", workspace)
    columns = jnp.stack(jnp.split(x, 4, axis=1))
    y = jax.pmap(body, axis_name="tp", devices=jax.devices()[:4])(
        columns, w.reshape(4, 8, 24)
    )
    np.testing.assert_array_equal(y, np.stack([product()] * 4))
    with jax.set_mesh(mesh):
        f = jax.smap(body, in_axes=(1, 0), out_axes=None, axis_name="tp")
        np.testing.assert_array_equal(jax.jit(f)(x, w), product())


@pytest.mark.parametrize("op", OPS)
def test_abstract_mesh_and_given_layouts(op, mesh, workspace):
    """Lowered without devices; called with operands that lie column-major in memory."""
    x, w = operands()
    function = jax.jit(
        sharded(ours(op, workspace), mesh.abstract_mesh, out_specs=OUT_SPEC[op])
    )

    def shape_of(a, spec):
        sharding = jax.NamedSharding(mesh.abstract_mesh, spec)
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)

    traced = function.trace(shape_of(x, X_SPEC), shape_of(w, W_SPEC))
    assert f"@jax_symm.{op}.v1" in traced.lower(lowering_platforms=("cpu",)).as_text()

    def column_major(a, spec):
        form = Format(Layout((1, 0)), jax.NamedSharding(mesh, spec))
        return jax.device_put(a, form)

    y = function(column_major(x, X_SPEC), column_major(w, W_SPEC))
    np.testing.assert_array_equal(y, product())


def test_named_call(mesh, workspace):
    named = jax.named_call(ours("gemm_all_reduce", workspace), name="attention_out")
    text = compiled_text(
        sharded(lambda x, w: named(x, w), mesh, out_specs=AR_SPEC), *operands()
    )
    assert "attention_out" in text


def test_operands_that_are_not_jax_arrays(mesh, workspace):
    x, w = (np.asarray(a) for a in operands())
    f = sharded(ours("gemm_all_reduce", workspace), mesh, out_specs=AR_SPEC)
    np.testing.assert_array_equal(f(x, w), product())
    captured = sharded(
        lambda x: ours("gemm_all_reduce", workspace)(x, w[:8]),
        mesh,
        in_specs=X_SPEC,
        out_specs=AR_SPEC,
    )
    tiled = np.concatenate([w[:8]] * 4)
    np.testing.assert_array_equal(jax.jit(captured)(x), x @ tiled)

"""Every error text that docs/sharp_bits.md quotes is the text that appears."""

import contextlib
import functools
import pathlib
import pickle
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm

DOC = pathlib.Path(__file__).parents[2] / "docs" / "sharp_bits.md"
X, W = jnp.ones((8, 16)), jnp.ones((16, 24))


def mesh(axis_type=AxisType.Auto, order=(0, 1, 2, 3), shape=(4,), names=("tp",)):
    devices = np.array([jax.devices()[i] for i in order]).reshape(shape)
    return Mesh(devices, names, axis_types=(axis_type,) * len(names))


def workspace(**options):
    facts = {"max_m": 8, "n": 24, "dtype": "float32", "name": "tp-0", **options}
    return jax_symm.Workspace(mesh(), "tp", **facts)


def call(x=X, w=W, axis="tp", mesh=None, **options):
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, axis, **options)
    specs = (P(None, "tp"), P("tp", None))
    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P(None, None))
    )(x, w)


def outside_shard_map():
    jax.jit(lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp"))(X, W)


def explicit_axis_left():
    both = mesh(AxisType.Explicit, range(8), (2, 4), ("dp", "tp"))
    x = jax.device_put(X, NamedSharding(both, P("dp", "tp")))
    w = jax.device_put(W, NamedSharding(both, P("tp", None)))
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp")
    with jax.set_mesh(both):
        jax.jit(jax.shard_map(body, out_specs=P(None, None), axis_names={"tp"}))(x, w)


def vmap_takes_the_name():
    body = lambda x, w: jax.vmap(
        lambda x: jax_symm.gemm_all_reduce(x, w, "tp"), axis_name="tp"
    )(x)
    specs = (P(None, None, "tp"), P("tp", None))
    jax.jit(jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P()))(X[None], W)


def weak_type():
    body = lambda w: jax_symm.gemm_all_reduce(jnp.full((8, 4), 1.0), w, "tp")
    jax.shard_map(body, mesh=mesh(), in_specs=P("tp", None), out_specs=P())(W)


def symbolic_size():
    shape = (*export.symbolic_shape("rows"), 16)
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp")
    specs = (P(None, "tp"), P("tp", None))
    function = jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P())
    export.export(jax.jit(function))(jax.ShapeDtypeStruct(shape, jnp.float32), W)


def pickled():
    with workspace() as ws:
        pickle.dumps(ws)


def mixed_dtypes():
    call(X.astype(jnp.bfloat16), mesh=mesh())


def too_small_at_trace():
    with workspace(max_m=4) as ws:
        call(mesh=mesh(), workspace=ws)


def compiled(ws):
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=ws)
    specs = (P(None, "tp"), P("tp", None))
    function = jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P(None, None))
    return jax.jit(function).lower(X, W).compile()


def closed_at_run():
    with workspace() as ws:
        program = compiled(ws)
    jax.block_until_ready(program(X, W))


def too_small_at_run():
    with workspace() as ws:
        program = compiled(ws)
    with workspace(max_m=4):
        jax.block_until_ready(program(X, W))


def other_device_order():
    with workspace() as ws:
        jax.block_until_ready(call(mesh=mesh(order=(1, 0, 2, 3)), workspace=ws))


def name_already_open():
    with workspace(), workspace():
        pass


def under_a_trace():
    jax.jit(lambda: workspace().nbytes)()


def divergent_branch():
    def body(x, w):
        here = jax.lax.axis_index("tp") != 2
        reduce = lambda: jax_symm.gemm_reduce_scatter(x, w, "tp", workspace=ws)
        return jax.lax.cond(here, reduce, lambda: jnp.zeros((2, 24)))

    with workspace(timeout_s=2) as ws:
        specs = (P(None, "tp"), P("tp", None))
        program = jax.shard_map(
            body, mesh=mesh(), in_specs=specs, out_specs=P("tp"), check_vma=False
        )
        jax.block_until_ready(jax.jit(program)(X, W))


def no_workspace_for_a_path():
    call(mesh=mesh(), path="host")


RAISERS = [
    outside_shard_map,
    vmap_takes_the_name,
    explicit_axis_left,
    weak_type,
    symbolic_size,
    pickled,
    mixed_dtypes,
    too_small_at_trace,
    closed_at_run,
    too_small_at_run,
    other_device_order,
    name_already_open,
    under_a_trace,
    divergent_branch,
    no_workspace_for_a_path,
]


def plain(text):
    """On one line, without what differs from run to run."""
    text = " ".join(re.sub(r"^> ", "", text, flags=re.M).split())
    text = re.sub(r"\[launch -?\d+, call site \d+#\d+\] ", "", text)
    return re.sub(r"rank \d \(process 0, cpu:\d\) has index \d", "a rank", text)


@pytest.mark.parametrize("raiser", RAISERS, ids=lambda f: f.__name__)
def test_text_is_quoted(raiser):
    with pytest.raises(Exception, match=".") as caught:
        raiser()
    assert plain(str(caught.value)) in plain(DOC.read_text())


def export_of(taken):
    """An export of a program that closes over the workspace, or takes it."""
    body = lambda ws, x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=ws)
    specs = (P(), P(None, "tp"), P("tp", None))
    function = jax.shard_map(body, mesh=mesh(), in_specs=specs, out_specs=P())
    with workspace() as ws:
        if not taken:
            return export.export(jax.jit(functools.partial(function, ws)))(X, W)
        checks = jax_symm.export_safety_checks()
        return export.export(jax.jit(function), disabled_checks=checks)(ws, X, W)


@pytest.mark.parametrize(
    ("raiser", "begin"),
    [
        (lambda: export_of(taken=False), "Cannot serialize code"),
        (lambda: export_of(taken=True).serialize(), "Cannot serialize PyTreeDef"),
    ],
)
def test_text_of_jax_is_quoted_as_it_begins(raiser, begin):
    with pytest.raises(ValueError, match=begin) as caught:
        raiser()
    quote = begin + plain(DOC.read_text()).split(begin)[1].split(". ")[0]
    assert quote.rstrip(".") in plain(str(caught.value))


def test_auto_axes_warn():
    both = mesh(order=range(8), shape=(2, 4), names=("dp", "tp"))
    body = lambda x, w: jax_symm.gemm_all_reduce(x, w, "tp", workspace=ws)
    specs = (P(None, "tp"), P("tp", None))
    with contextlib.ExitStack() as stack:
        ws = stack.enter_context(
            jax_symm.Workspace(both, "tp", max_m=8, n=24, dtype="float32")
        )
        function = jax.shard_map(
            body, mesh=both, in_specs=specs, out_specs=P(), axis_names={"tp"}
        )
        jax_symm.ops._surroundings._warn_once.cache_clear()
        with pytest.warns(UserWarning, match="dp") as caught:
            jax.jit(function)(X, W)
    assert plain(str(caught[0].message)) in plain(DOC.read_text())

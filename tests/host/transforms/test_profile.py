"""Case C27: a user recognises our call in a trace and in compiled HLO."""

import gzip
import json
import re

import jax
import jax.numpy as jnp
import pytest
from _programs import OPS, OURS, OUT_SPEC, compiled_text, integers, sharded

import jax_symm


def scoped(op, mesh, workspace):
    def body(x, w):
        with jax.named_scope("attn_out"):
            return OURS[op](x, w, "tp", workspace=workspace, path="host")

    return sharded(body, mesh, out_specs=OUT_SPEC[op])


def our_calls(text, op):
    """Instruction name and op_name of each of our custom calls in compiled HLO."""
    lines = [line for line in text.splitlines() if f'"jax_symm.{op}.v1"' in line]
    return [
        re.search(r'%([\w.]+) = .*op_name="([^"]+)"', line).groups() for line in lines
    ]


@pytest.mark.parametrize("op", OPS)
def test_names_in_the_hlo(op, mesh, workspace):
    """The instruction has the op's name, its metadata the scopes around the call."""
    x, w = integers(0, (16, 32)), integers(1, (32, 24))
    function = scoped(op, mesh, workspace)
    ((instruction, scopes),) = our_calls(compiled_text(function, x, w), op)
    assert instruction.startswith(op)
    assert f"/attn_out/{op}/" in scopes


def test_names_in_a_gradient(mesh, workspace):
    """The backward call of all_gather_gemm is found under the scope of the forward one."""
    x, w = integers(0, (16, 8)), integers(1, (8, 16))
    rows, columns = jax.P("tp", None), jax.P(None, "tp")

    def body(x, w):
        with jax.named_scope("gate"):
            return jax_symm.all_gather_gemm(x, w, "tp", workspace=workspace)

    function = sharded(body, mesh, (rows, columns), columns)
    text = compiled_text(jax.grad(lambda x: jnp.sum(function(x, w) ** 2)), x)
    ((_, scopes),) = our_calls(text, "gemm_reduce_scatter")
    assert re.search(r"transpose\(.*gate.*all_gather_gemm", scopes), scopes


@pytest.mark.parametrize("op", OPS)
def test_events_in_a_trace(op, tmp_path, mesh, workspace):
    """Each device has an event of our call's own, apart from that of its product."""
    x, w = integers(0, (64, 32)), integers(1, (32, 24))
    function = jax.jit(scoped(op, mesh, workspace))
    jax.block_until_ready(function(x, w))
    with jax.profiler.trace(tmp_path, create_perfetto_trace=True):
        jax.block_until_ready(function(x, w))
    trace = next(tmp_path.rglob("perfetto_trace.json.gz"))
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    of_devices = [e for e in events if "hlo_op" in e.get("args", {})]
    ours = [e for e in of_devices if e["name"].startswith(op)]
    assert len({e["args"]["device_ordinal"] for e in ours}) == mesh.size, events
    ((instruction, _),) = our_calls(function.lower(x, w).compile().as_text(), op)
    assert {e["args"]["hlo_op"] for e in ours} == {instruction}
    others = {e["name"] for e in of_devices} - {instruction}
    assert others, "the product has events of its own"

"""Case C27: a user recognises our call in a trace and in compiled HLO."""

import gzip
import json
import re

import jax
from _programs import AR_SPEC, compiled_text, integers, sharded

import jax_symm


def body_with_scope(workspace):
    def body(x, w):
        with jax.named_scope("attn_out"):
            return jax_symm.gemm_all_reduce(
                x, w, "tp", workspace=workspace, path="host"
            )

    return body


def test_scope_and_target_in_the_hlo(mesh, workspace):
    x, w = integers(0, (16, 32)), integers(1, (32, 24))
    text = compiled_text(
        sharded(body_with_scope(workspace), mesh, out_specs=AR_SPEC), x, w
    )
    assert re.search(
        r'custom_call_target="jax_symm\.gemm_all_reduce\.v1".*attn_out', text
    )
    assert re.search(r'op_name="[^"]*attn_out[^"]*gemm_all_reduce', text)


def test_event_in_a_trace(tmp_path, mesh, workspace):
    x, w = integers(0, (64, 32)), integers(1, (32, 24))
    function = jax.jit(sharded(body_with_scope(workspace), mesh, out_specs=AR_SPEC))
    jax.block_until_ready(function(x, w))
    with jax.profiler.trace(tmp_path, create_perfetto_trace=True):
        jax.block_until_ready(function(x, w))
    trace = next(tmp_path.rglob("perfetto_trace.json.gz"))
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {event.get("name", "") for event in events}
    assert any("gemm_all_reduce" in name for name in names), sorted(names)[:50]

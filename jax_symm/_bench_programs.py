"""What the benchmark times: programs over several sets of inputs, and their clock.

The sets are together more than a cache holds, and each call waits for the one before.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_symm._shared_gpu import SharedGpu, native_problem
from jax_symm.ops._rules import Op, make_problem
from jax_symm.ops.gemm import gemm_all_reduce, gemm_reduce_scatter
from jax_symm.ops.reference import local_product
from jax_symm.workspace import Workspace

_CACHE_BYTES = 150e6
_CALLS = 8  # of a program, so that its dispatch does not count
_REPEATS = 3

Times = dict[str, list[float]]


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape: `m` rows by `n` columns, `k` per rank, and where it comes from."""

    name: str
    m: int
    n: int
    k: int


@dataclasses.dataclass(frozen=True)
class Program:
    """Something to time: `launch` begins all its calls, `wait` waits for the last."""

    launch: Callable[[], Any]
    wait: Callable[[Any], Any] = jax.block_until_ready


def count_of_sets(case: Case, ranks: int = 1) -> int:
    """Sets of inputs that are together larger than a cache; calls take them in turn."""
    per_set = 2 * ranks * (case.m * case.k + case.k * case.n + case.m * case.n)
    return next(n for n in (2, 4, 8) if n * per_set > _CACHE_BYTES or n == _CALLS)


def _take_turns(drawn: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The operands of every call of a program."""
    calls = list(drawn) * (_CALLS // len(drawn))
    return [x for x, _ in calls], [w for _, w in calls]


def _draw(
    key: jax.Array, m: int, k: int, n: int, w_layout: str
) -> tuple[jax.Array, jax.Array]:
    """Operands whose product has entries of about 1."""
    left, right = jax.random.split(key)
    w_shape = (k, n) if w_layout == "kn" else (n, k)
    x = jax.random.normal(left, (m, k), jnp.bfloat16)
    return x, jax.random.normal(right, w_shape, jnp.bfloat16) * k**-0.5


def make_inputs(
    mesh: Mesh, case: Case, w_layout: str
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Operands, call by call, sharded over k."""
    x_sharding = NamedSharding(mesh, P(None, "tp"))
    w_sharding = NamedSharding(mesh, _w_spec(w_layout))
    k = case.k * mesh.size
    draw = functools.partial(_draw, m=case.m, k=k, n=case.n, w_layout=w_layout)
    make = jax.jit(draw, out_shardings=(x_sharding, w_sharding))
    return _take_turns([make(jax.random.key(i)) for i in range(count_of_sets(case))])


def _w_spec(w_layout: str) -> P:
    return P("tp", None) if w_layout == "kn" else P(None, "tp")


def inputs_of_ranks(
    device: Any, ranks: int, case: Case, w_layout: str
) -> tuple[list[tuple[jax.Array, ...]], list[tuple[jax.Array, ...]]]:
    """Operands of every rank, call by call."""
    draw = jax.jit(
        functools.partial(_draw, m=case.m, k=case.k, n=case.n, w_layout=w_layout)
    )
    with jax.default_device(device):
        drawn = [
            [draw(jax.random.key(ranks * one + rank)) for rank in range(ranks)]
            for one in range(count_of_sets(case, ranks))
        ]
    return _take_turns([tuple(zip(*one, strict=True)) for one in drawn])


def one_after_the_other(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` on every set of inputs, each not before the last has ended."""

    def chain(*sets: Sequence[Any]) -> list[Any]:
        outputs: list[Any] = []
        for inputs in zip(*sets, strict=True):
            if outputs:
                inputs, outputs[-1] = lax.optimization_barrier((inputs, outputs[-1]))
            outputs.append(call(*inputs))
        return outputs

    return chain


def compile_program(
    mesh: Mesh, op: Op, w_layout: Any, workspace: Workspace | None, path: Any
) -> Callable[..., Any]:
    """All sets of inputs, one call after the other; "products" sums nothing."""
    alone = path == "products" or (mesh.size == 1 and workspace is None)
    scatter = op == "reduce_scatter"

    def call(x: jax.Array, w: jax.Array) -> jax.Array:
        if alone:
            return local_product(x, w, w_layout, x.dtype)
        fused = gemm_reduce_scatter if scatter else gemm_all_reduce
        return fused(x, w, "tp", workspace=workspace, w_layout=w_layout, path=path)

    return jax.jit(
        jax.shard_map(
            one_after_the_other(call),
            mesh=mesh,
            in_specs=(P(None, "tp"), _w_spec(w_layout)),
            out_specs=P("tp", None) if alone or scatter else P(),
            check_vma=False,  # a barrier loses what does not vary, before jax 0.11
        )
    )


def unfused_programs(
    xs: Any, ws: Any, ranks: int, case: Case, w_layout: Any, *, results: int = 1
) -> dict[str, Program]:
    """XLA's products of all ranks with and without a reduction, and its parts alone.

    Where every rank wants the sum, `results` is how many copies of it are written.
    """

    def products(xs: Any, ws: Any) -> list[jax.Array]:
        pairs = zip(xs, ws, strict=True)
        return [local_product(x, w, w_layout, x.dtype) for x, w in pairs]

    def reduction(partials: Sequence[jax.Array]) -> jax.Array:
        total = sum(partial.astype(jnp.float32) for partial in partials)
        return jnp.asarray(total).astype(partials[0].dtype)

    def products_and_reduction(xs: Any, ws: Any) -> jax.Array:
        total = reduction(lax.optimization_barrier(products(xs, ws)))
        if results == 1:
            return total
        # Else XLA would add up the partials again for each copy.
        return jnp.broadcast_to(
            lax.optimization_barrier(total), (results, *total.shape)
        )

    # A copy that reads and writes as many bytes as the reduction does.
    size = case.m * case.n * (ranks + 1) // 2
    partials = jax.jit(one_after_the_other(products))(xs, ws)
    flat = [jnp.zeros((size,), xs[0][0].dtype) for _ in xs]

    def compiled(call: Callable[..., Any], *operands: Any) -> Program:
        return Program(functools.partial(jax.jit(one_after_the_other(call)), *operands))

    return {
        "xla": compiled(products_and_reduction, xs, ws),
        "products": compiled(products, xs, ws),
        "reduction": compiled(reduction, partials),
        "copy": compiled(lax.neg, flat),
    }


def fused_program(
    shared: SharedGpu,
    op: Op,
    case: Case,
    xs: Any,
    ws: Any,
    w_layout: Any,
    reducer: str,
) -> Program:
    """All ranks' calls, on their streams."""
    ranks = shared.world_size
    shape = make_problem(op, xs[0][0], ws[0][0], ranks, w_layout=w_layout)
    problem = native_problem(shape, w_layout)
    outputs = [shared.put(np.zeros(shape.out_shape, shape.dtype)) for _ in range(ranks)]
    identity = hash((op, reducer, case.m, case.n, case.k)) & 0xFFFFFF

    def launch() -> None:
        for x_of, w_of in zip(xs, ws, strict=True):
            for rank in range(ranks):
                buffers = (x_of[rank], w_of[rank], outputs[rank])
                shared.submit(rank, problem, reducer, buffers, identity)

    return Program(launch, lambda _: shared.synchronize())


def interleave(programs: dict[str, Program], rounds: int, calls: int) -> Times:
    """Microseconds per call of each program, round by round."""
    for program in programs.values():
        program.wait(program.launch())
    times: Times = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            program.wait(program.launch())  # hides the dispatch of the next
            begin = time.perf_counter()
            for _ in range(_REPEATS):
                launched = program.launch()
            program.wait(launched)
            elapsed = time.perf_counter() - begin
            times[name].append(1e6 * elapsed / (_REPEATS * calls))
    return times

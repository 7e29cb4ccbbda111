"""What ranks must do right together; each check runs in one launch.

On CPU devices or GPUs, in one process or several. Every process runs every check in the
same order and notes how it ended.
"""

import concurrent.futures
import ctypes
import functools
import os
import struct
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm import _backends
from jax_symm.errors import SymmValueError

CHECKS = []
RANKS = jax.device_count()
PATH, DTYPE = oracle.fused_path(), oracle.fused_dtype()
ON_GPU = PATH == "peer"
OPTIONS = {"dtype": jnp.float32, "timeout_s": 60, "sm_margin": oracle.sm_margin()}


def check(function):
    CHECKS.append(function)
    return function


def check_between_processes(function):
    """Of what one process alone cannot do wrong."""
    if jax.process_count() > 1:
        CHECKS.append(function)
    return function


def run(note, _):
    for function in CHECKS:
        start = time.monotonic()
        try:
            function()
            outcome = "ok"
        except Exception:
            outcome = traceback.format_exc()
        note(function.__name__, [outcome, time.monotonic() - start])


def refusal(call):
    """The text of the SymmValueError that `call` raises."""
    with pytest.raises(SymmValueError) as raised:
        call()
    return str(raised.value)


def mesh_of(**sizes):
    devices = np.asarray(jax.devices()).reshape(tuple(sizes.values()))
    return Mesh(devices, tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def put(array, mesh, spec):
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])


def assert_shards(y, wanted):
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(
            np.asarray(shard.data, np.float64), wanted[shard.index]
        )


def integers(seed, *shape):
    rng = np.random.default_rng(seed)
    return rng.integers(-1, 2, shape).astype(DTYPE)


def product(x, w):
    return np.asarray(x, np.float64) @ np.asarray(w, np.float64)


def inner(ranks=RANKS):
    """k, of which every rank has what every path takes."""
    return 8 * ranks


@functools.cache
def shared():
    """The mesh of all devices and a workspace on it, for most checks."""
    mesh = mesh_of(tp=RANKS)
    return mesh, jax_symm.Workspace(
        mesh, "tp", max_m=256, n=64, name="shared", **OPTIONS
    )


def compiled(op, mesh, axis, workspace, **options):
    call = getattr(jax_symm, f"gemm_{op}")
    return jax.jit(
        jax.shard_map(
            lambda x, w: call(x, w, axis, workspace=workspace, path=PATH, **options),
            mesh=mesh,
            in_specs=(P(None, axis), P(axis, None)),
            out_specs=P(axis) if op == "reduce_scatter" else P(),
        )
    )


def compare(op, mesh, axis, workspace, m, n, seed=0):
    k = inner(workspace.spec.world_size)
    x, w = integers(seed, m, k), integers(seed + 1, k, n)
    f = compiled(op, mesh, axis, workspace)
    y = f(put(x, mesh, P(None, axis)), put(w, mesh, P(axis, None)))
    assert_shards(y, oracle.expected(op, x, w, workspace.spec.world_size))


@check
def both_operations_in_all_dtypes():
    mesh, workspace = shared()
    dtypes = (jnp.bfloat16, jnp.float16, jnp.float32)[: 2 if ON_GPU else 3]
    before = oracle.fused_calls(workspace)
    for dtype in dtypes:
        for op in ("reduce_scatter", "all_reduce"):
            x = integers(1, 13, inner()).astype(dtype)
            w = integers(2, inner(), 24).astype(dtype)
            f = compiled(op, mesh, "tp", workspace)
            y = f(put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None)))
            assert_shards(y, oracle.expected(op, x, w, RANKS))
            y.block_until_ready()
    local = jax.local_device_count()
    assert oracle.fused_calls(workspace) == before + 2 * len(dtypes) * local


@check
def rank_bits_name_a_missing_rank():
    mesh, workspace = shared()
    x, w = map(np.asarray, oracle.rank_bits(RANKS, 24, 40, DTYPE, k_local=8))
    f = compiled("all_reduce", mesh, "tp", workspace)
    for _ in range(20):
        y = f(put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None)))
        assert_shards(y, np.full((24, 40), 2.0**RANKS - 1))


@check
def changing_m_back_to_back():
    """C01."""
    mesh, workspace = shared()
    for i, m in enumerate([256, 16, 4, 128, 4, 256, 12, 1, 7]):
        compare("reduce_scatter", mesh, "tp", workspace, m, 16, seed=i)
        compare("all_reduce", mesh, "tp", workspace, m, 16, seed=i)


def two_bodies(workspace):
    rs = functools.partial(
        jax_symm.gemm_reduce_scatter, axis_name="tp", workspace=workspace, path=PATH
    )
    ar = functools.partial(
        jax_symm.gemm_all_reduce, axis_name="tp", workspace=workspace, path=PATH
    )
    return rs, ar


@check
def independent_operations_in_one_program():
    """C16, C21: matched by call, not by the order in which ranks arrive."""
    mesh, workspace = shared()
    rs, ar = two_bodies(workspace)

    def body(x, w):
        a, b = rs(x, w), rs(x + 1, w)
        c, d = ar(x, w), ar(x, w + 1)
        e = jnp.tanh(x) @ w
        return a + b, c - d, lax.psum(e, "tp")

    f = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None)),
            out_specs=(P("tp"), P(), P()),
        )
    )
    x, w = integers(3, 24, inner()), integers(4, inner(), 16)
    args = put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None))
    for _ in range(25):
        first, second, _ = f(*args)
        assert_shards(first, product(x + x + 1, w))
        assert_shards(second, product(x, w) - product(x, w + 1))


@check
def an_inner_jit_called_twice():
    mesh, workspace = shared()
    rs, _ = two_bodies(workspace)
    again = jax.jit(rs)

    def body(x, w):
        return again(x, w) + 2 * again(x + 1, w) + rs(x, w)

    f = jax.jit(
        jax.shard_map(
            body, mesh=mesh, in_specs=(P(None, "tp"), P("tp", None)), out_specs=P("tp")
        )
    )
    x, w = integers(5, 16, inner()), integers(6, inner(), 16)
    args = put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None))
    for _ in range(10):
        assert_shards(f(*args), product(x + 2 * (x + 1) + x, w))


@check_between_processes
def two_threads_compile_at_once():
    """C16: programs with calls of equal shapes, in another order on each process."""
    mesh, workspace = shared()
    _, ar = two_bodies(workspace)
    x, w = integers(5, 16, inner()), integers(6, inner(), 16)
    args = put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None))

    def multiples(count):
        def body(x, w):
            return jnp.stack([ar(x * (i + 1), w) for i in range(count)])

        body.__name__ = f"multiples_{count}"
        specs = (P(None, "tp"), P("tp", None))
        f = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P()))
        return f.lower(*args).compile()

    counts = [3, 4] if jax.process_index() % 2 else [4, 3]
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            programs = dict(zip(counts, pool.map(multiples, counts), strict=True))
        for count in sorted(counts):
            wanted = np.stack([(i + 1) * product(x, w) for i in range(count)])
            assert_shards(programs[count](*args), wanted)


@check
def a_scan_unrolled_by_two():
    mesh, workspace = shared()
    _, ar = two_bodies(workspace)

    def body(x, ws):
        def step(total, w):
            return total + ar(x, w), None

        return lax.scan(step, jnp.zeros((16, 8), x.dtype), ws, unroll=2)[0]

    f = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(None, "tp"), P(None, "tp", None)),
            out_specs=P(),
        )
    )
    x, ws = integers(7, 16, inner()), integers(8, 5, inner(), 8)
    y = f(put(x, mesh, P(None, "tp")), put(ws, mesh, P(None, "tp", None)))
    assert_shards(y, product(x, ws.astype(np.float64).sum(0)))


@check
def mixed_with_collectives_of_xla():
    mesh, workspace = shared()
    rs, ar = two_bodies(workspace)

    def body(x, w):
        a = lax.all_gather(rs(x, w), "tp", axis=0, tiled=True)
        b = lax.psum(x @ w, "tp")
        c = ar(x, w)
        d = lax.all_gather(lax.psum(x + 1, "tp"), "tp", axis=1, tiled=True)
        return lax.pmax(a, "tp") + b + c, lax.pmax(jnp.sum(d), "tp")

    f = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None)),
            out_specs=(P(), P()),
        )
    )
    x, w = integers(9, 16, inner()), integers(10, inner(), 16)
    args = put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None))
    for _ in range(10):
        assert_shards(f(*args)[0], 3 * product(x, w))


@check
def two_hundred_launches_in_flight():
    mesh, workspace = shared()
    x, w = integers(11, 16, inner()), integers(12, inner(), 16)
    args = put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None))
    rs = compiled("reduce_scatter", mesh, "tp", workspace)
    ar = compiled("all_reduce", mesh, "tp", workspace)
    launched = [f(*args) for _ in range(100) for f in (rs, ar)]
    for y in launched:
        assert_shards(y, product(x, w))


@check_between_processes
def a_program_compiled_once_more_on_one_process_only():
    """Call sites are told apart within a launch, whatever else a process compiled."""
    mesh, workspace = shared()
    x, w = integers(13, 16, inner()), integers(14, inner(), 16)
    args = put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None))
    call = compiled("reduce_scatter", mesh, "tp", workspace)
    f = jax.jit(lambda x, w: call(x, w) + call(x + 1, w))
    if jax.process_index() == 1:
        assert f.lower(*args).compile().cost_analysis()
        jax.clear_caches()
    assert_shards(f(*args), product(x + x + 1, w))
    assert_shards(f(*args), product(x + x + 1, w))


@check
def groups_along_every_axis():
    """C32: set up one after the other, decided by values equal on all processes."""
    mesh = mesh_of(dp=2, tp=RANKS // 2)
    for axis in ("tp", "dp", ("dp", "tp"), ("tp", "dp"), "tp"):
        with jax_symm.Workspace(mesh, axis, max_m=32, n=8, **OPTIONS) as workspace:
            compare("reduce_scatter", mesh, axis, workspace, 10, 8)
            compare("all_reduce", mesh, axis, workspace, 10, 8)


@check
def permuted_devices():
    order = np.random.default_rng(0).permutation(RANKS)
    devices = np.asarray(jax.devices())[order]
    mesh = Mesh(devices, ("tp",), axis_types=(AxisType.Auto,))
    with jax_symm.Workspace(mesh, "tp", max_m=32, n=8, **OPTIONS) as workspace:
        compare("reduce_scatter", mesh, "tp", workspace, 10, 8)
        compare("all_reduce", mesh, "tp", workspace, 10, 8)


@check
def workspaces_of_each_process_alone():
    """Sub-meshes of one process: no other process takes part."""
    mesh = Mesh(np.asarray(jax.local_devices()), ("tp",), axis_types=(AxisType.Auto,))
    world_size = mesh.devices.size
    for _ in range(1 + jax.process_index()):
        with jax_symm.Workspace(
            mesh, "tp", max_m=32, n=8, name="mine", **OPTIONS
        ) as workspace:
            x, w = (
                integers(15, 8, inner(world_size)),
                integers(16, inner(world_size), 8),
            )
            y = oracle.run("all_reduce", x, w, mesh, "tp", workspace, path=PATH)
            np.testing.assert_array_equal(y, product(x, w))


def delay(iterations):
    """Zero, after as many steps on the device."""
    step = lambda _, v: jnp.sin(v)
    return 0 * lax.fori_loop(0, iterations, step, jnp.float32(1))


@check
def back_to_back_with_random_delays():
    """Every rank waits another while before each call: inside a program, and between."""
    inside, runs, longest = (100, 100, 20) if ON_GPU else (20, 4, 200)
    if oracle.takes_turns():
        runs = 1
    mesh, workspace = shared()
    rs, ar = two_bodies(workspace)

    def body(x, w, wanted, seed):
        rank = lax.axis_index("tp")
        keys = jax.random.fold_in(jax.random.key(seed), rank)
        waits = jax.random.randint(keys, (inside,), 0, longest)
        mine = lax.dynamic_slice_in_dim(wanted, rank * rs_rows, rs_rows)

        def step(i, worst):
            late = x + delay(waits[i]).astype(x.dtype)
            sign = (1 - 2 * (i % 2)).astype(x.dtype)
            a, b = ar(late * sign, w), rs(late, w)
            off = jnp.max(jnp.abs(a * sign - wanted)), jnp.max(jnp.abs(b - mine))
            return jnp.maximum(worst, jnp.maximum(*off).astype(jnp.float32))

        start = lax.pcast(jnp.float32(0), ("tp",), to="varying")
        return lax.fori_loop(0, inside // 2, step, start)[None]

    m, n = 16 * RANKS, 16
    rs_rows = 16
    x, w = integers(21, m, inner()), integers(22, inner(), n)
    f = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None), P(), P()),
            out_specs=P("tp"),
        )
    )
    wanted = put(product(x, w).astype(DTYPE), mesh, P())
    args = put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None)), wanted
    for run in range(runs):
        assert_shards(f(*args, run), np.zeros(RANKS))


@check
def derivatives():
    mesh, workspace = shared()
    rs, _ = two_bodies(workspace)

    def loss(x, w):
        f = jax.shard_map(
            rs, mesh=mesh, in_specs=(P(None, "tp"), P("tp", None)), out_specs=P("tp")
        )
        return jnp.sum(f(x, w) ** 2)

    x, w = integers(17, 16, inner()), integers(18, inner(), 8)
    args = put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None))
    gx, gw = jax.jit(jax.grad(loss, (0, 1)))(*args)
    y = product(x, w)
    assert_shards(gx, 2 * y @ np.float64(w).T)
    assert_shards(gw, 2 * np.float64(x).T @ y)


@check
def a_hundred_set_ups_leave_no_descriptor():
    """C36: counted after the first, which makes the connections."""
    mesh, _ = shared()

    def once():
        jax_symm.Workspace(mesh, "tp", max_m=8, n=8, **OPTIONS).close()

    once()
    assert jax_symm.agree(True, mesh=mesh, axis_name="tp")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(25):
        once()
    assert jax_symm.agree(True, mesh=mesh, axis_name="tp")
    assert len(os.listdir("/proc/self/fd")) <= before


@check
def set_up_and_call_at_once():
    """C13: the first call right after set-up, while one process is late."""
    mesh, _ = shared()
    for i in range(5):
        if jax.process_index() == i % 2:
            time.sleep(0.2)
        with jax_symm.Workspace(mesh, "tp", max_m=16, n=8, **OPTIONS) as workspace:
            compare("reduce_scatter", mesh, "tp", workspace, 16, 8, seed=i)


@check_between_processes
def different_arguments_are_one_error_everywhere():
    """C17, C32: every process raises the same text, which holds both values."""
    mesh, _ = shared()
    texts = [
        refusal(lambda options=options: jax_symm.Workspace(mesh, "tp", **options))
        for options in (
            {"max_m": 8 + jax.process_index(), "n": 8},
            {"max_m": 8, "n": 8, "name": f"ws-{jax.process_index() % 2}"},
            {"max_m": 8, "n": 8, "timeout_s": 5.0 + jax.process_index()},
            {"max_m": 8, "n": 8, "sm_margin": jax.process_index()},
        )
    ]
    assert "max_m is 8 in process 0 but 9 in process 1" in texts[0]
    assert "name is 'ws-0' in process 0 but 'ws-1' in process 1" in texts[1]
    assert "sm_margin is 0 in process 0 but 1 in process 1" in texts[3]
    compare("all_reduce", *shared_axis(), 8, 8)


def shared_axis():
    mesh, workspace = shared()
    return mesh, "tp", workspace


@check_between_processes
def a_bad_argument_on_one_process_is_an_error_on_all():
    mesh, _ = shared()
    bad = jax.process_index() == 1
    text = refusal(lambda: jax_symm.Workspace(mesh, "tp", max_m=-1 if bad else 8, n=8))
    assert "max_m: got -1, expected an integer >= 0" in text


@check_between_processes
def votes():
    mesh, _ = shared()
    rank = jax.process_index()
    assert jax_symm.agree(True, mesh=mesh, axis_name="tp")
    assert not jax_symm.agree(rank != 1, mesh=mesh, axis_name="tp")
    last = jax.devices()[-1]
    assert not jax_symm.agree(lambda d: d != last, mesh=mesh, axis_name="tp")
    grid = mesh_of(dp=2, tp=RANKS // 2)
    mine = {d for d in grid.devices[0]}
    verdict = jax_symm.agree(lambda d: d in mine, mesh=grid, axis_name="tp")
    assert verdict == all(d in mine for d in jax.local_devices())

    def fails(device):
        if device == last:
            raise KeyError("broken probe")
        return True

    text = refusal(lambda: jax_symm.agree(fails, mesh=mesh, axis_name="tp"))
    assert f"rank {RANKS - 1} (process" in text
    assert "KeyError('broken probe')" in text


@check
def raw_buffers():
    """Every rank writes its part; after a rendezvous all parts are seen."""
    mesh, _ = shared()
    with jax_symm.empty((3, 5), np.float32, mesh=mesh, axis_name="tp") as buffer:
        memory = jax_symm.peer_rendezvous(buffer)
        assert memory.world_size == RANKS
        for device in jax.local_devices():
            access = memory.at(device)
            view = np.asarray(memory.array(device))
            assert view.shape == (3, 5)
            poke(device, access.buffer_ptrs[access.rank], access.rank)
        jax_symm.peer_rendezvous(buffer)
        for device in jax.local_devices():
            pointers = memory.at(device).buffer_ptrs
            assert [peek(device, p) for p in pointers] == list(range(RANKS))
        for table in (memory.pointer_table(), memory.signal_pad_table()):
            assert table.shape == (RANKS, RANKS, 2)
        assert memory.why_no_multicast
    assert not memory_is_open(memory)


def memory_is_open(memory):
    try:
        memory.at(jax.local_devices()[0])
    except RuntimeError:
        return False
    return True


def poke(device, address, value):
    if ON_GPU:
        data = struct.pack("i", value)
        backend = _backends.backend("gpu")
        backend.copy_to_device(device.local_hardware_id, address, data)
    else:
        ctypes.c_int.from_address(address).value = value


def peek(device, address):
    if not ON_GPU:
        return ctypes.c_int.from_address(address).value
    backend = _backends.backend("gpu")
    data = backend.copy_to_host(device.local_hardware_id, address, 4)
    return struct.unpack("i", data)[0]


@check
def large_results_against_numpy():
    """C37: the oracle is numpy; psum_scatter under gloo was wrong at 4 MiB."""
    mesh, _ = shared()
    with jax_symm.Workspace(mesh, "tp", max_m=2048, n=1024, **OPTIONS) as workspace:
        compare("reduce_scatter", mesh, "tp", workspace, 2048, 1024)


@check
def a_forked_child_harms_nobody():
    """C37: the child's exit frees nothing of the parent, nor ends its connections."""
    import gc
    import warnings

    mesh, workspace = shared()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        gc.collect()
        os._exit(0)
    os.waitpid(pid, 0)
    compare("reduce_scatter", mesh, "tp", workspace, 16, 8)


@check
def closing_is_local_and_idempotent():
    mesh, workspace = shared()
    workspace.close()
    workspace.close()
    assert workspace.closed
    assert jax_symm.agree(True, mesh=mesh, axis_name="tp")

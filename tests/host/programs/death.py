"""What survivors see when a process dies, stays away, or makes another call.

Process 1 is the victim or the culprit; the others note the error they saw, how long it
took, and whether a workspace works afterwards. On CPU devices a call itself fails; on GPUs
its result is NaN, and `check` tells why.
"""

import os
import pathlib
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import oracle
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_symm
from jax_symm._jax_compat import coordination_client

PATH, DTYPE = oracle.fused_path(), oracle.fused_dtype()
TIMEOUT_S = float(os.environ["JAX_SYMM_INIT_TIMEOUT_S"])
SIZES = {
    "max_m": 18,
    "n": 8,
    "dtype": jnp.float32,
    "sm_margin": oracle.sm_margin(),
}


def mesh_of_all():
    return Mesh(np.asarray(jax.devices()), ("tp",), axis_types=(AxisType.Auto,))


def culprit():
    return jax.process_index() == 1


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def put(array, mesh, spec):
    array = np.asarray(array)
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])


def operands(mesh, m=18):
    x, w = oracle.rank_bits(mesh.devices.size, m, 8, DTYPE, k_local=8)
    return put(x, mesh, P(None, "tp")), put(w, mesh, P("tp", None))


def wait(workspace, *results):
    """Waits for the results of calls and raises what went wrong in them."""
    for y in results:
        y.block_until_ready()
    workspace.check()


def program(mesh, workspace, op="all_reduce", m=18):
    """One of our calls, compiled: what is timed later is the wait alone."""
    call = getattr(jax_symm, f"gemm_{op}")
    f = jax.jit(
        jax.shard_map(
            lambda x, w: call(x, w, "tp", workspace=workspace, path=PATH),
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None)),
            out_specs=P() if op == "all_reduce" else P("tp"),
        )
    )
    return f.lower(*operands(mesh, m)).compile()


def dying_program(mesh, body, out_specs):
    """A compiled (x, w, dies): when told to, the victim dies while all others wait.

    One of its devices comes late, so its other devices have come by then.
    """
    slow = jax.local_devices()[0] if culprit() else None

    def stall(rank, dies):
        if dies and slow is not None and mesh.devices[rank] == slow:
            time.sleep(1.0)
            die()
        return np.float32(0)

    def stalled(x, w, dies):
        rank = jax.lax.axis_index("tp")
        zero = jax.ShapeDtypeStruct((), np.float32)
        late = jax.pure_callback(stall, zero, rank, dies)
        return body(x + late.astype(x.dtype), w)

    f = jax.jit(
        jax.shard_map(
            stalled,
            mesh=mesh,
            in_specs=(P(None, "tp"), P("tp", None), P()),
            out_specs=out_specs,
            check_vma=False,
        )
    )
    lives, dies = (put(np.bool_(flag), mesh, P()) for flag in (False, True))
    x, w = operands(mesh)
    compiled = f.lower(x, w, lives).compile()
    return lambda die=False: compiled(x, w, dies if die else lives)


def open_workspace(mesh, name=None):
    return jax_symm.Workspace(mesh, "tp", name=name, timeout_s=TIMEOUT_S, **SIZES)


def warm(mesh, workspace):
    f, args = program(mesh, workspace), operands(mesh)
    for _ in range(3):
        f(*args).block_until_ready()


def memory_files():
    """The files of our symmetric memory that this process maps, by inode."""
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[4] for line in maps if "memfd:jax_symm" in line})


def observe(note, action, name=""):
    """Notes what `action` raised, and after how many seconds."""
    start = time.monotonic()
    try:
        action()
        note(f"{name}error", None)
    except Exception as error:
        note(f"{name}error", [type(error).__name__, str(error)])
    note(f"{name}seconds", time.monotonic() - start)


def work_alone(note):
    mesh = Mesh(np.asarray(jax.local_devices()), ("tp",), axis_types=(AxisType.Auto,))
    with jax_symm.Workspace(mesh, "tp", name="alone", timeout_s=60, **SIZES) as alone:
        x, w = oracle.rank_bits(mesh.devices.size, 16, 8, DTYPE, k_local=8)
        y = oracle.run("all_reduce", x, w, mesh, "tp", alone, path=PATH)
        note("alone", bool((y == 2**mesh.devices.size - 1).all()))


def survive(note, action):
    """Observes `action`, works on alone, and leaves."""
    observe(note, action)
    work_alone(note)
    leave()


def leave():
    """Leaves without JAX's own shutdown, which would wait for the dead.

    Process 0 leaves last: with it ends the service.
    """
    client = coordination_client()
    if jax.process_index() == 0:
        for process in range(2, jax.process_count()):
            wait_for_end(client.blocking_key_value_get(f"test/left/{process}", 20000))
    else:
        client.key_value_set(f"test/left/{jax.process_index()}", str(os.getpid()))
    os._exit(0)


def wait_for_end(pid):
    stat = pathlib.Path("/proc", pid, "stat")
    while stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        time.sleep(0.05)


def before_any_meeting(note, _):
    """No connection was ever made: the barrier's deadline ends the wait."""
    mesh = mesh_of_all()
    if culprit():
        die()
    survive(note, lambda: open_workspace(mesh))


def before_workspace(note, _):
    """The processes have met before: the end of the connection ends the wait."""
    mesh = mesh_of_all()
    open_workspace(mesh).close()
    if culprit():
        die()
    survive(note, lambda: open_workspace(mesh))


def between_calls(note, _):
    mesh = mesh_of_all()
    workspace = open_workspace(mesh)
    f, args = program(mesh, workspace), operands(mesh)
    warm(mesh, workspace)
    f(*args).block_until_ready()
    note("memory", memory_files())
    if culprit():
        die()
    survive(note, lambda: wait(workspace, f(*args)))


def inside_a_call(note, _):
    mesh = mesh_of_all()
    workspace = open_workspace(mesh)
    warm(mesh, workspace)
    note("memory", memory_files())

    def call(x, w):
        return jax_symm.gemm_all_reduce(x, w, "tp", workspace=workspace, path=PATH)

    run = dying_program(mesh, call, P())
    survive(note, lambda: wait(workspace, run(die=True)))


def inside_a_collective_of_xla(note, name):
    """What becomes of XLA's call is XLA's matter; our workspace knows meanwhile."""
    mesh = mesh_of_all()
    workspace = open_workspace(mesh)
    warm(mesh, workspace)
    note("memory", memory_files())
    collective = {
        "psum": lambda x, w: jax.lax.psum(x @ w, "tp"),
        "psum_scatter": lambda x, w: jax.lax.psum_scatter(x @ w, "tp", tiled=True),
    }[name]
    run = dying_program(mesh, collective, P() if name == "psum" else P("tp"))
    run().block_until_ready()  # connects the processes, for which XLA waits 30 s
    seen = {}
    waiting = threading.Thread(
        target=lambda: observe(
            seen.__setitem__, lambda: run(die=True).block_until_ready()
        ),
        daemon=True,
    )
    waiting.start()
    observe(note, lambda: until_it_raises(workspace.check))
    observe(note, workspace.close, "close.")
    note("memory_after_close", memory_files())
    waiting.join()
    note("collective", seen["error"])
    leave()


def until_it_raises(action):
    while True:
        action()
        time.sleep(0.05)


def alive_but_wrong(note, _):
    """Process 1 lives but is late, skips a call, makes another, swaps two."""
    mesh = mesh_of_all()
    args = operands(mesh)
    for scenario in (
        comes_too_late,
        skips_a_call,
        makes_another_call,
        makes_a_smaller_call,
        swaps_two_calls,
    ):
        name = scenario.__name__
        scenario(lambda key, value, name=name: note(f"{name}.{key}", value), mesh, args)
        with open_workspace(mesh, f"after-{name}") as workspace:
            y = program(mesh, workspace)(*args)
            data = np.asarray(y.addressable_shards[0].data)
            right = (data == 2**mesh.devices.size - 1).all()
            note(f"{name}.again", bool(right))


def comes_too_late(note, mesh, args):
    """The late one hears the same error as the others."""
    if culprit():
        time.sleep(TIMEOUT_S + 1)
    observe(note, lambda: open_workspace(mesh))


def skips_a_call(note, mesh, args):
    workspace = open_workspace(mesh, "skips")
    f = program(mesh, workspace)
    if culprit():
        time.sleep(TIMEOUT_S + 1)
    else:
        observe(note, lambda: wait(workspace, f(*args)))
    workspace.close()


def makes_another_call(note, mesh, args):
    workspace = open_workspace(mesh, "another")
    f = program(mesh, workspace, "reduce_scatter" if culprit() else "all_reduce")
    observe(note, lambda: wait(workspace, f(*args)))
    workspace.close()


def makes_a_smaller_call(note, mesh, args):
    workspace = open_workspace(mesh, "smaller")
    m = 17 if culprit() else 18
    f, args = program(mesh, workspace, m=m), operands(mesh, m)
    observe(note, lambda: wait(workspace, f(*args)))
    workspace.close()


def swaps_two_calls(note, mesh, args):
    """Opposite order on the two sides is an error or right, never a mix."""
    workspace = open_workspace(mesh, "swaps")
    calls = [program(mesh, workspace), program(mesh, workspace, "reduce_scatter")]

    def run():
        for y in [f(*args) for f in (calls if culprit() else reversed(calls))]:
            data = np.asarray(y.addressable_shards[0].data, np.float32)
            right = (data == 2**mesh.devices.size - 1) | np.isnan(data)
            note("mixed", not right.all())
        workspace.check()

    observe(note, run)
    workspace.close()


def leaves_after_closing(note, _):
    """A clean exit is no death: the others' workspace has no fault."""
    mesh = mesh_of_all()
    workspace = open_workspace(mesh)
    warm(mesh, workspace)
    workspace.check()
    if culprit():
        workspace.close()
        os._exit(0)
    time.sleep(1.0)
    survive(note, workspace.check)


def first_process_dies(note, _):
    """Documented: JAX ends every process then. Nothing of ours may stay behind."""
    mesh = mesh_of_all()
    workspace = open_workspace(mesh)
    warm(mesh, workspace)
    note("memory", memory_files())
    if jax.process_index() == 0:
        time.sleep(0.5)
        die()
    time.sleep(60)

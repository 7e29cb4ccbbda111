"""Workspace: the symmetric memory that the operations of one mesh axis go through."""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jax_symm import _native
from jax_symm._links import Deadline
from jax_symm._setup import Conversation, abandon, allocate, converse, let_go
from jax_symm._workspace_native import (
    drain,
    leave,
    leave_behind,
    nothing,
    on_lost,
    open_native,
)
from jax_symm._workspace_request import (
    WorkspaceRequest,
    capability_of,
    check_devices,
    default_timeout_s,
    free_name,
    memory_bytes,
    open_names,
    why_spared,
)
from jax_symm.agreement import concrete_mesh, settle
from jax_symm.errors import (
    SymmError,
    SymmStateError,
    SymmTypeError,
    SymmValueError,
)
from jax_symm.group import AxisName, MeshGroups, Place
from jax_symm.ops._rules import (
    OPS,
    Op,
    WorkspaceSpec,
    capacity_bytes,
)

_current: Any = jax.make_user_context(())


@jax.tree_util.register_static
class Workspace:
    """Symmetric memory and flags for the operations along one mesh axis.

    Create it once, outside jit, and pass it to the operations, or set it with
    `use_workspace`. It is a static pytree node: an argument of `jax.jit`, `jax.grad` or
    `jax.lax.scan`, or a field of a module; without leaves and never in a checkpoint.
    Two workspaces are equal when name, mesh, axis, capacity and what the ranks agreed
    on are, so one that is closed and opened again needs no recompilation.

    Dropping the last reference closes it without waiting for launches that have not
    begun: `close` waits. What it held of GPUs is then freed by the next set-up.

    A compiled program finds the workspace by its name when it runs: it may be compiled,
    exported or loaded before the workspace exists.

    Attributes:
      name: Its name, the same on every process.
      spec: The facts that compiled code may depend on.
    """

    def __init__(
        self,
        mesh: Any = None,
        axis_name: AxisName | None = None,
        *,
        max_m: int,
        n: int,
        dtype: Any = ml_dtypes.bfloat16,
        ops: Sequence[Op] = OPS,
        multicast: str = "auto",
        name: str | None = None,
        timeout_s: float | None = None,
        sm_margin: int = 0,
    ):
        """Makes the memory on every rank, maps every peer's, and opens it.

        Args:
          mesh: The mesh; None for that of `jax.set_mesh`.
          axis_name: Axis of the mesh, or tuple of axes, along which the groups lie.
          max_m: Rows of the largest product, all batch dimensions multiplied.
          n: Its columns. `max_m`, `n` and `dtype` are a capacity in bytes: a call fits
            whose padded `batch * m * n` is not larger, in any supported dtype. On GPUs
            an all-reduce of 16-bit operands with a float32 result takes 1.5 times that.
          dtype: bfloat16, float16 or float32.
          ops: The operations that it is for: "reduce_scatter", "all_reduce".
          multicast: "auto"; "never"; or "require" to raise where there is none.
          name: A name not open yet; None for `<axis>-<k>`, the first that is free.
          timeout_s: Longest time that a call waits for a peer, in seconds; None for 600
            on CUDA and 30 on CPU devices.
          sm_margin: Multiprocessors of each GPU that the kernels leave free, for work
            to run beside them; fewer than the GPU has. No effect on CPU devices.

        Raises:
          SymmValueError: An argument is wrong, or differs between processes.
          SymmStateError: The name is open, or JAX is tracing.
          SymmMemoryError: Memory ran out on a rank.
          SymmUnavailableError: "require" without multicast, or no common memory.
          SymmTimeoutError: A process did not come before the deadline,
            `JAX_SYMM_INIT_TIMEOUT_S`; the text names its ranks.
          SymmPeerLostError: A process is gone.

        Collective: yes, over every process of the mesh, outside jit. On an error every
        process raises it and none keeps anything.
        """
        if axis_name is None:
            raise SymmValueError("Workspace: axis_name: got None, expected a mesh axis")
        mesh = concrete_mesh(mesh)
        groups = MeshGroups.of(mesh, axis_name)
        if timeout_s is None:
            timeout_s = default_timeout_s(groups.platform)
        request = WorkspaceRequest(
            max_m, n, dtype, ops, multicast, name, timeout_s, sm_margin
        )
        failure = request.wrong() or check_devices(groups)
        ops = request.sorted_ops()
        purpose = f"Workspace({name!r})" if name else "Workspace"
        own = {"open": sorted(open_names)}
        talk = converse(groups, purpose, request.alike(), own, failure)
        self.name = name or free_name(groups, talk.agreed)
        capacity = capacity_bytes(
            groups.world_size, int(max_m), int(n), np.dtype(dtype)
        )
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self.nbytes = memory_bytes(groups, capacity, ops)
        spared = why_spared(ops, multicast, talk.agreed)
        wish = "never" if spared else multicast
        memory, self._multicast = allocate(talk, self.nbytes, [(0, self.nbytes)], wish)
        several_on_cpu = groups.platform == "cpu" and len(groups.processes) > 1
        self.spec = WorkspaceSpec(
            name=self.name,
            axes=groups.axes,
            device_ids=groups.device_ids(),
            platform=groups.platform,
            capability=capability_of(groups.devices[0][0]),
            capacity_bytes=capacity,
            ops=ops,
            no_multicast=tuple(
                spared or self._multicast[group].reason or None
                for group in range(len(groups.devices))
            ),
            sm_margin=int(sm_margin),
            job=talk.agreed.nonce if several_on_cpu else None,
        )
        try:
            self._open(talk, memory)
        except BaseException:
            for outcome in self._multicast.values():
                outcome.release()
            raise

    def _open(self, talk: Conversation, memory: dict[int, Any]) -> None:
        opened: Any = None
        failure: Exception | None = None
        try:
            _native.register_ffi_targets()
            opened = open_native(
                self.spec, self._timeout_s, talk, memory, self._multicast
            )
        # The others must hear of it, so it goes through the vote.
        except Exception as error:
            failure = error
        for held in memory.values():
            held.release()
        try:
            settle(talk.ballot, talk.groups, "open", failure)
        except SymmError:
            if opened is not None:
                opened.close(0)
            raise
        self._adopt(opened, talk)

    def _adopt(self, opened: Any, talk: Conversation) -> None:
        self._native = opened
        self._groups = talk.groups
        self._local_devices = [d for _, d in talk.groups.local(jax.process_index())]
        open_names.add(self.name)
        links = talk.exchange.links
        key = f"{self.name}/{talk.agreed.nonce}"
        stop: Callable[[], None] = nothing
        if links is not None:
            watcher = functools.partial(on_lost, opened, talk.groups, links, key)
            links.watch(watcher)
            stop = functools.partial(leave, links, watcher, key)
            for process in links.lost(talk.exchange.processes):
                watcher(process)
        outcomes = list(self._multicast.values())
        self._finalizer = weakref.finalize(
            self,
            leave_behind,
            opened,
            functools.partial(abandon, self.spec.platform, outcomes),
            self.name,
            stop,
            self._pid,
        )
        self._stop_watching = stop

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._finalizer.alive

    def check(self) -> None:
        """Raises the first fault of a call of this workspace, if there was one.

        Raises:
          SymmTimeoutError: A rank did not come in time; the text names it.
          SymmPeerLostError: The process of a rank is gone.
          SymmStateError: The workspace is closed, or ranks made different calls.

        Collective: no.
        """
        if self.closed:
            raise SymmStateError(f"workspace {self.name!r} is closed")
        self._native.check()

    def calls(self) -> dict[str, dict[Place, int]]:
        """How many calls each rank of this process has begun on each path.

        Returns:
          Path -> (group, rank) -> count, for example `{"host": {(0, 3): 12}}`.

        Collective: no.
        """
        counts: dict[str, dict[Place, int]] = {}
        for path, group, rank, count in self._native.calls():
            counts.setdefault(path, {})[Place(group, rank)] = count
        return counts

    def close(self) -> None:
        """Waits for this process's launches and lets the memory go. Idempotent.

        The memory is unmapped when its last user is gone. Launches that do not end
        within the time-out are failed.

        Raises:
          SymmTimeoutError: Launches had to be failed.

        Collective: no.
        """
        if self._finalizer.detach() is None or os.getpid() != self._pid:
            return
        deadline = Deadline(self._timeout_s)
        drain(self._local_devices, deadline.left_s())
        try:
            self._native.close(int(deadline.left_s() * 1e9))
        except BaseException:
            # Launches may still end: the next set-up frees what they use.
            abandon(self.spec.platform, list(self._multicast.values()))
            raise
        else:
            let_go(self._groups, {}, self._multicast)
        finally:
            open_names.discard(self.name)
            self._stop_watching()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __copy__(self) -> Workspace:
        """Itself: the copy of a module shares its workspace."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Workspace:
        return self

    def __reduce__(self) -> Any:
        raise SymmTypeError(
            f"Workspace({self.name!r}) cannot be pickled: it is memory of this "
            "process. A program finds it by its name: let one that is to be serialised "
            "close over it or use use_workspace, not take it as an argument, and open "
            "a workspace of this name where it is loaded"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Workspace) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    def __repr__(self) -> str:
        state = "closed, " if self.closed else ""
        margin = self.spec.sm_margin
        return (
            f"Workspace({self.name!r}, {state}{len(self.spec.device_ids)} groups of "
            f"{self.spec.world_size} ranks along {self.spec.axes}, "
            f"{self.nbytes} bytes per rank{f', sm_margin={margin}' if margin else ''})"
        )


def use_workspace(workspace: Workspace) -> Any:
    """A context in which calls without a workspace take this one, along its axis.

    It is part of the key of `jax.jit`: another workspace traces anew. Contexts nest;
    the innermost workspace of an axis counts. A context is of the thread that enters
    it.

    Example:
      with jax_symm.use_workspace(ws):
          y = model(x)
    """
    if not isinstance(workspace, Workspace):
        raise SymmTypeError(
            f"use_workspace: got {type(workspace).__name__}, expected a Workspace"
        )
    others = tuple(s for s in _current.value if s.axes != workspace.spec.axes)
    return _current((workspace.spec, *others))


def current_spec(axes: tuple[str, ...]) -> WorkspaceSpec | None:
    """The facts of the workspace that `use_workspace` set for `axes`, or None."""
    return next((s for s in _current.value if s.axes == axes), None)


def export_safety_checks() -> list[Any]:
    """What `jax.export.export(disabled_checks=...)` needs to export the operations.

    JAX guarantees compatibility of an export for its own custom calls alone; those of
    jax_symm carry a version in their names.
    """
    from jax import export

    return [
        export.DisabledSafetyCheck.custom_call(name) for name in _native.target_names()
    ]

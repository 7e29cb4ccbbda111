"""The native half of a workspace: opened, watched, drained, and left by a finaliser."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_symm import _native
from jax_symm._backends import backend
from jax_symm._helper_thread import HelperThread
from jax_symm._multicast_books import Outcome
from jax_symm._rendezvous import GroupMemory
from jax_symm._setup import Conversation
from jax_symm._workspace_request import open_names
from jax_symm.group import MeshGroups, Place
from jax_symm.ops._rules import GPU_PLATFORMS, WorkspaceSpec


def open_native(
    spec: WorkspaceSpec,
    timeout_s: float,
    talk: Conversation,
    memory: Mapping[int, GroupMemory],
    multicast: Mapping[int, Outcome],
) -> Any:
    """Opens a workspace on the memory of this process's ranks."""
    native = _native.module()
    common = (
        spec.name,
        talk.agreed.nonce,
        int(timeout_s * 1e9),
        spec.world_size,
        spec.capacity_bytes,
        "all_reduce" in spec.ops,
        ".".join(spec.axes),
        talk.groups.labels(),
        [
            _local_rank(spec, place, device, memory[place.group], multicast)
            for place, device in talk.groups.local(jax.process_index())
        ],
    )
    if spec.platform in GPU_PLATFORMS:
        return native.open_cuda_workspace(
            backend(spec.platform), *common, sm_margin=spec.sm_margin
        )
    return native.open_workspace(*common)


def _local_rank(
    spec: WorkspaceSpec,
    place: Place,
    device: Any,
    memory: GroupMemory,
    multicast: Mapping[int, Outcome],
) -> Any:
    native = _native.module()
    mapped = [memory.mappings[rank] for rank in range(spec.world_size)]
    if spec.platform not in GPU_PLATFORMS:
        return native.LocalRank(device.id, *place, mapped)
    shared = multicast[place.group].range
    address = shared.address if shared else 0
    return native.CudaLocalRank(device.local_hardware_id, *place, mapped, address)


def on_lost(
    opened: Any, groups: MeshGroups, links: Any, key: str, process: int
) -> None:
    """Ends the waits for the ranks of a process that died."""
    if links.has_left(process, key):
        return
    how = links.lost([process]).get(process, "its connection ended")
    mine = {place.group for place, _ in groups.local(jax.process_index())}
    for place, _ in groups.local(process):
        if place.group in mine:
            label = groups.label(place.group, place.rank)
            opened.abort(
                place.group, place.rank, f"{label} of group {place.group}: {how}"
            )


def leave(links: Any, watcher: Callable[[int], None], key: str) -> None:
    """Stops watching, and tells the peers that this is no death."""
    links.unwatch(watcher)
    links.say_left(key)


def nothing() -> None:
    """What there is to stop where there are no peers."""


def leave_behind(
    opened: Any,
    leave_multicast: Callable[[], None],
    name: str,
    stop: Callable[[], None],
    pid: int,
) -> None:
    """The finaliser: lets go without waiting, by dropping `opened`.

    Calls in flight on CPU devices keep the memory until they end; memory of GPUs is
    freed by the next set-up.
    """
    del opened
    if os.getpid() == pid:
        leave_multicast()
        open_names.discard(name)
        stop()


def drain(devices: Sequence[Any], timeout_s: float) -> None:
    """Waits until the programs already launched on these devices have ended."""

    def run() -> None:
        sharding = NamedSharding(
            Mesh(np.asarray(devices, dtype=object), ("local",)), P("local")
        )
        zeros = jax.device_put(np.zeros(len(devices), np.int32), sharding)
        jax.block_until_ready(_increment(zeros))

    waiting = HelperThread("jax_symm-drain", run)
    if waiting.done.wait(timeout_s):
        waiting.failure()  # a program that failed is reported to its own reader


@jax.jit
def _increment(x: jax.Array) -> jax.Array:
    return x + 1

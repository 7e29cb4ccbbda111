"""Votes: every process hears the verdict of every group, or all hear of none.

A vote is `lax.pmin` of an int32 per group in a jitted shard_map over one CPU device per
process: no communicator of a GPU is made for it, because on a rack that would take
multicast objects from the pool that is being asked for. A barrier with a deadline comes
first, so that nobody enters the collective before all are there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jax_symm import _jax_compat, config
from jax_symm._helper_thread import HelperThread
from jax_symm._links import Deadline, wait_or_lost
from jax_symm._rounds import OK
from jax_symm.errors import (
    SymmError,
    SymmPeerLostError,
    SymmStateError,
    SymmValueError,
    from_name,
)
from jax_symm.exchange import Exchange
from jax_symm.group import AxisName, MeshGroups

_FAILED = 1 << 16


class Ballot:
    """Votes among the processes of an exchange, on the groups of a mesh.

    Collective over every process of the exchange.
    """

    def __init__(self, exchange: Exchange, groups: MeshGroups):
        self._exchange = exchange
        self._groups = groups

    def vote(self, round_name: str, codes: Mapping[int, int]) -> dict[int, int]:
        """The least code of every group over all processes.

        Args:
          round_name: The same on every process, new for every vote.
          codes: By group, the least code of this process's ranks: `OK`, or
            `step << 16 | rank`, so that the minimum is the first failure.

        Raises:
          SymmTimeoutError: A process did not arrive; the text names its ranks.
          SymmPeerLostError: A process is gone.
        """
        mine = np.full(len(self._groups.devices), OK, np.int32)
        for group, code in codes.items():
            mine[group] = code
        self._exchange.barrier(round_name)
        return dict(enumerate(self._pmin(round_name, mine).tolist()))

    def post(self, key: str, text: str) -> None:
        """Publishes the text of a failure before the vote on it."""
        self._exchange.post(key, text)

    def read(self, key: str) -> str:
        """The text of a failure, or "" if its author died before posting."""
        return self._exchange.read(key)

    def _pmin(self, round_name: str, codes: np.ndarray) -> np.ndarray:
        """Runs the collective on a helper thread, so that it cannot hold this one."""
        vote = HelperThread(
            "jax_symm-vote", lambda: _pmin_over_processes(self._groups, codes)
        )
        exchange = self._exchange
        where = f"{exchange.purpose}: vote {round_name!r}"
        lost = wait_or_lost(
            vote.done, exchange.links, exchange.processes, exchange.deadline
        )
        if not vote.done.is_set():
            names = "; ".join(f"process {p}: {how}" for p, how in lost.items())
            exchange.expire(
                f"{where} did not end within {exchange.deadline.seconds:g} s"
                + (f", lost {names}" if lost else "")
            )
        if error := vote.failure():
            exchange.expire(f"{where} failed: {error}")
        return vote.result()


def open_conversation(
    groups: MeshGroups, purpose: str, deadline_s: float | None = None
) -> tuple[Exchange, Ballot]:
    """Begins a conversation between all processes of a mesh.

    Args:
      groups: The groups of the mesh.
      purpose: What it is for, as messages name it.
      deadline_s: For the whole of it, in seconds; None for `JAX_SYMM_INIT_TIMEOUT_S`.

    Raises:
      SymmStateError: JAX is tracing; or this process has no device in the mesh; or no
        conversation with other processes is possible any longer.

    Collective: yes, over every process of the mesh.
    """
    if _jax_compat.under_trace():
        raise SymmStateError(
            f"{purpose}: called while JAX is tracing; it is collective between "
            "processes and must run once, outside jax.jit and jax.shard_map"
        )
    if jax.process_index() not in groups.processes:
        raise SymmStateError(
            f"{purpose}: process {jax.process_index()} has no device in the mesh (its "
            f"devices belong to processes {groups.processes}); do not call it here"
        )
    deadline = Deadline(deadline_s or config.settings().init_timeout_s)
    exchange = Exchange(
        groups.processes, purpose, functools.partial(_describe, groups), deadline
    )
    return exchange, Ballot(exchange, groups)


def agree(
    flag: bool | Callable[[Any], bool], *, mesh: Any = None, axis_name: AxisName
) -> bool:
    """Whether all ranks of this process's groups say yes.

    Args:
      flag: This process's answer, or a function of a device that gives each rank's.
      mesh: The mesh; None for that of `jax.set_mesh`.
      axis_name: Axis of the mesh, or tuple of axes, along which the groups lie.

    Returns:
      True if every rank said yes in every group that has a rank in this process.

    Raises:
      SymmError: A rank's function raised, with the same text on every process; or a
        process did not arrive before the deadline, `JAX_SYMM_INIT_TIMEOUT_S`.

    Collective: yes, over every process of the mesh, outside jit.
    """
    groups = MeshGroups.of(concrete_mesh(mesh), axis_name)
    _, ballot = open_conversation(groups, "agree")
    codes: dict[int, int] = {}
    for place, device in groups.local(jax.process_index()):
        try:
            says_yes = bool(flag(device) if callable(flag) else flag)
            code = OK if says_yes else 2 * _FAILED | place.rank
        # The vote must be cast whatever the user's function raises.
        except Exception as error:
            code = _FAILED | place.rank
            label = groups.label(place.group, place.rank)
            text = f"agree: {label} of group {place.group} raised {error!r}"
            ballot.post(f"{place.group}/{code}", f"SymmValueError\n{text}")
        codes[place.group] = min(code, codes.get(place.group, OK))
    verdicts = ballot.vote("agree", codes)
    for group, code in verdicts.items():
        if code < 2 * _FAILED:
            raise _posted(ballot, groups, group, code, f"{group}/{code}")
    return all(verdicts[group] == OK for group in codes)


def settle(
    ballot: Ballot, groups: MeshGroups, name: str, failure: Exception | None
) -> None:
    """Ends a round that concerns whole processes: all go on, or all raise.

    Args:
      ballot: The votes of the conversation.
      groups: The groups of its mesh.
      name: Names the round, new for every round.
      failure: What went wrong in this process, or None.

    Raises:
      SymmError: The failure of the lowest rank that had one, the same on every process.

    Collective: yes, over every process of the mesh.
    """
    codes: dict[int, int] = {}
    for place, _ in groups.local(jax.process_index()):
        code = OK if failure is None else _FAILED | place.rank
        if failure is not None:
            ballot.post(
                f"{name}/{place.group}/{code}", f"{type(failure).__name__}\n{failure}"
            )
        codes[place.group] = min(code, codes.get(place.group, OK))
    for group, code in ballot.vote(name, codes).items():
        if code != OK:
            key = f"{name}/{group}/{code}"
            raise _posted(ballot, groups, group, code, key) from failure


def _posted(
    ballot: Ballot, groups: MeshGroups, group: int, code: int, key: str
) -> SymmError:
    """The failure behind a vote; its author may have died before it said more."""
    class_name, _, text = ballot.read(key).partition("\n")
    if class_name:
        return from_name(class_name, text)
    label = groups.label(group, code % _FAILED)
    return SymmPeerLostError(f"{label} of group {group} failed and left no reason")


def concrete_mesh(mesh: Any) -> Any:
    """`mesh`, or that of `jax.set_mesh` where it is None.

    Raises:
      SymmValueError: There is none, or it has no devices.
    """
    mesh = jax.sharding.get_mesh() if mesh is None else mesh
    if not isinstance(mesh, Mesh) or mesh.empty:
        raise SymmValueError(
            f"mesh: got {mesh}, expected a jax.sharding.Mesh with devices; pass one, "
            "or call jax.set_mesh first"
        )
    return mesh


def _describe(groups: MeshGroups, process: int) -> str:
    """A process and the ranks that it holds."""
    ranks: dict[int, list[int]] = {}
    for place, _ in groups.local(process):
        ranks.setdefault(place.group, []).append(place.rank)
    text = ", ".join(
        f"rank{'s' if len(r) > 1 else ''} {', '.join(map(str, r))} of group {group}"
        for group, r in ranks.items()
    )
    return f"process {process} ({text})"


def _voters(groups: MeshGroups) -> tuple[Any, ...]:
    """One device per process: of the CPU, or of the mesh where there is none."""
    try:
        candidates = jax.devices("cpu")
    except RuntimeError:
        candidates = [d for row in groups.devices for d in row]
    first: dict[int, Any] = {}
    for device in candidates:
        first.setdefault(device.process_index, device)
    return tuple(first[p] for p in groups.processes)


def _pmin_over_processes(groups: MeshGroups, codes: np.ndarray) -> np.ndarray:
    voters = _voters(groups)
    collective, sharding = _collective(voters)
    mine = jax.device_put(
        codes[None], voters[groups.processes.index(jax.process_index())]
    )
    votes = jax.make_array_from_single_device_arrays(
        (len(voters), codes.size), sharding, [mine]
    )
    return np.asarray(collective(votes))


@functools.lru_cache(maxsize=32)
def _collective(voters: tuple[Any, ...]) -> tuple[Callable[[Any], Any], NamedSharding]:
    mesh = Mesh(np.asarray(voters, dtype=object), ("process",))
    collective = jax.jit(
        jax.shard_map(
            lambda votes: lax.pmin(votes[0], "process"),
            mesh=mesh,
            in_specs=P("process"),
            out_specs=P(),
        )
    )
    return collective, NamedSharding(mesh, P("process"))

"""The contract round: what every process must want alike before memory is made.

Each process shows its record; every process then draws the same conclusion from the
same records, so a difference is an error with one text everywhere.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from jax_symm import config
from jax_symm.agreement import Ballot, settle
from jax_symm.errors import (
    SymmError,
    SymmUnavailableError,
    SymmValueError,
    from_name,
)
from jax_symm.exchange import Exchange
from jax_symm.group import MeshGroups

PROTOCOL_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Agreed:
    """What the processes found.

    Attributes:
      nonce: A number that no earlier set-up had, the same everywhere.
      veto: Why some process's site forbids multicast, or None.
      own: What each process said of itself, by position.
    """

    nonce: int
    veto: str | None
    own: tuple[Mapping[str, Any], ...]


def contract(
    exchange: Exchange,
    ballot: Ballot,
    groups: MeshGroups,
    alike: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    failure: Exception | None = None,
) -> Agreed:
    """Runs the round.

    Args:
      exchange: The conversation.
      ballot: Its votes.
      groups: The groups of its mesh.
      alike: What must be equal in all processes; values of JSON.
      own: What need not be, for the others to see; values of JSON.
      failure: What already went wrong in this process.

    Raises:
      SymmError: Something differs, or a process had failed, or the processes are on
        hosts that this memory cannot span; the same on every process.

    Collective: yes, over every process of the mesh.
    """
    record = {
        "alike": {
            "protocol": PROTOCOL_VERSION,
            "devices": groups.device_ids(),
            "axes": groups.axes,
            "settings": config.settings().path_settings(),
            **alike,
        },
        "own": dict(own or {}),
        "nonce": secrets.randbits(62),
        "veto": config.settings().multicast_veto,
        "failure": failure and [type(failure).__name__, str(failure)],
    }
    payloads = exchange.allgather("contract", json.dumps(record).encode())
    records = [json.loads(p) for p in payloads]
    settle(ballot, groups, "contract", _objection(exchange, groups, records))
    vetoes = [
        f"{r['veto']} in process {p}"
        for p, r in zip(exchange.processes, records, strict=True)
        if r["veto"]
    ]
    return Agreed(
        nonce=records[0]["nonce"],
        veto=vetoes[0] if vetoes else None,
        own=tuple(r["own"] for r in records),
    )


def _objection(
    exchange: Exchange, groups: MeshGroups, records: Sequence[Mapping[str, Any]]
) -> SymmError | None:
    for record in records:
        if record["failure"]:
            return from_name(*record["failure"])
    differences = _differences(exchange, records)
    if differences:
        return SymmValueError(
            f"{exchange.purpose}: the processes of the mesh do not ask for the same: "
            f"{'; '.join(differences)}. Every process must make the same calls of "
            "jax_symm with the same arguments, in the same order"
        )
    if groups.platform == "cpu" and len(set(exchange.hosts())) > 1:
        return SymmUnavailableError(
            f"{exchange.purpose}: memory of CPU devices spans the processes of one "
            f"host, and the mesh has processes on {len(set(exchange.hosts()))} hosts"
        )
    return None


def _differences(exchange: Exchange, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every entry in which a process differs from the first, with both values."""
    first, *others = records
    found = []
    for process, record in zip(exchange.processes[1:], others, strict=True):
        keys = sorted({*first["alike"], *record["alike"]})
        found += [
            f"{key} is {first['alike'].get(key)!r} in process {exchange.processes[0]} "
            f"but {record['alike'].get(key)!r} in process {process}"
            for key in keys
            if first["alike"].get(key) != record["alike"].get(key)
        ]
    return found

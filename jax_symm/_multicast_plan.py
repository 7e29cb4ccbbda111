"""What the ranks tell each other before memory is shared, and what follows from it.

`describe` is one process's part, `agree` a pure function of all parts: every process
computes the same plan, and raises the same error, from the same records.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax_symm._rounds import Surroundings
from jax_symm.errors import SymmUnavailableError, from_name

Record = Mapping[str, Any]

NO_HOST_MULTICAST = "memory of CPU devices has no multicast"


@dataclasses.dataclass(frozen=True)
class Wish:
    """What the caller wants, the same in every process.

    Attributes:
      multicast: "never", "auto" or "require".
      nbytes: The least size of each rank's memory.
      allocated: Whether that memory exists, so that its size is what it is.
      capacity_bytes: The size of a new multicast object, at least; buffers share it.
    """

    multicast: str
    nbytes: int
    capacity_bytes: int = 0
    allocated: bool = False


@dataclasses.dataclass(frozen=True)
class MulticastPlan:
    """Where a group's memory goes in a multicast object, or why nowhere.

    Attributes:
      reason: Why there is none; "" when there is one.
      devices: The group's set of devices.
      object_id: The object, the same name in every process.
      nbytes: Its size.
      offset: Where the group's memory goes in it.
      create: Whether the object is made now, or shared with buffers that have it.
    """

    reason: str = ""
    devices: str = ""
    object_id: str = ""
    nbytes: int = 0
    offset: int = 0
    create: bool = False


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What all processes have agreed on.

    Attributes:
      nbytes: Each rank's memory, rounded once to what every device accepts.
      handle_type: "NONE", "POSIX_FD" or "FABRIC": how handles travel.
      multicast: The plan of each group.
    """

    nbytes: int
    handle_type: str
    multicast: tuple[MulticastPlan, ...]


def describe(
    around: Surroundings, wish: Wish, books: Any, hosts: Sequence[str]
) -> bytes:
    """This process's record. Never raises: a failure becomes a part of the record.

    Args:
      around: What stays the same through the rendezvous.
      wish: What the caller wants.
      books: The process's multicast books (`_multicast.Books`).
      hosts: The host of each process: equal where descriptors can pass.
    """
    try:
        record = _describe(around, wish, books, hosts)
    except Exception as error:
        record = {"error": [type(error).__name__, str(error)]}
    return json.dumps(record).encode()


def _describe(
    around: Surroundings, wish: Wish, books: Any, hosts: Sequence[str]
) -> dict[str, Any]:
    backend = around.backend
    ranks = {}
    for group, rank, device in around.mine:
        facts = backend.facts(device)
        ranks[f"{group}/{rank}"] = {
            "uuid": facts.uuid,
            "fd": facts.posix_fd,
            "fabric": facts.fabric,
            "multicast": facts.multicast,
            "granularity": backend.granularity(device),
        }
    record: dict[str, Any] = {"ranks": ranks, "unreachable": _unreachable(around)}
    if len(set(hosts)) > 1:
        record["no_fabric"] = _fabric_refusal(around, ranks)
    if wish.multicast != "never":
        record |= _describe_multicast(around, ranks, books)
    return record


def _unreachable(around: Surroundings) -> str:
    """Two devices here, of one group, that cannot reach each other, if any."""
    for group in range(len(around.groups)):
        devices = around.devices(group)
        for device in devices:
            for peer in devices:
                if not around.backend.can_access(device, peer):
                    return f"GPU {device} cannot reach the memory of GPU {peer}"
    return ""


def _fabric_refusal(around: Surroundings, ranks: Mapping[str, Any]) -> str:
    """Why fabric handles do not work here, found by trying; "" when they do."""
    if not all(facts["fabric"] for facts in ranks.values()):
        return "its GPUs have no fabric handles"
    for device in sorted({device for _, _, device in around.mine}):
        try:
            around.backend.probe_fabric(device)
        except Exception as error:
            return str(error)
    return ""


def _describe_multicast(
    around: Surroundings, ranks: Mapping[str, Any], books: Any
) -> dict[str, Any]:
    record = {
        "veto": books.veto or "",
        "budget_left": books.budget_left(),
        "refusals": books.refusals(),
        "objects": books.describe(),
        "unit": 0,
        "no_unit": "",
    }
    if all(facts["multicast"] for facts in ranks.values()):
        sizes = {len(members) for members in around.groups}
        try:
            record["unit"] = max(map(around.backend.multicast_granularity, sizes))
        # Peers work without it: it is a reason against multicast, and no more.
        except Exception as error:
            record["no_unit"] = str(error)
    return record


def agree(
    around: Surroundings, wish: Wish, payloads: Sequence[bytes], hosts: Sequence[str]
) -> Agreement:
    """The plan that follows from the records of all processes.

    Raises:
      SymmError: A process could not describe itself, devices do not reach each other,
        no handle works between the processes, or multicast is required and impossible.
    """
    records: list[Record] = [json.loads(payload) for payload in payloads]
    for process, record in enumerate(records):
        if "error" in record:
            class_name, text = record["error"]
            raise from_name(
                class_name, f"process {process} failed while asked for its GPUs: {text}"
            )
    for process, record in enumerate(records):
        if record["unreachable"]:
            raise SymmUnavailableError(
                f"symmetric memory needs peer access between all GPUs of a group: in "
                f"process {process}, {record['unreachable']}; use the path 'xla' there"
            )
    ranks: dict[str, Any] = {}
    for record in records:
        ranks |= record["ranks"]
    unit = math.lcm(*(facts["granularity"] for facts in ranks.values()))
    if wish.multicast != "never":
        unit = math.lcm(unit, *(r["unit"] for r in records if r["unit"]))
    nbytes = max(1, -(-wish.nbytes // unit)) * unit
    planner = _Planner(around, wish, records, ranks, nbytes, unit)
    return Agreement(
        nbytes=nbytes,
        handle_type=_handle_type(records, ranks, hosts),
        multicast=tuple(planner.plan(group) for group in range(len(around.groups))),
    )


def _handle_type(
    records: Sequence[Record], ranks: Mapping[str, Any], hosts: Sequence[str]
) -> str:
    if len(records) == 1:
        return "NONE"
    if len(set(hosts)) == 1:
        for key, facts in sorted(ranks.items()):
            if not facts["fd"]:
                raise SymmUnavailableError(
                    f"the GPU of rank {key.split('/')[1]} cannot export its memory as "
                    "a file descriptor, so it cannot be shared with other processes"
                )
        return "POSIX_FD"
    for process, record in enumerate(records):
        if record["no_fabric"]:
            raise SymmUnavailableError(
                f"memory cannot be shared between the {len(set(hosts))} hosts of this "
                f"mesh: fabric handles do not work in process {process}: "
                f"{record['no_fabric']}. Every container needs an IMEX channel "
                "(/dev/nvidia-caps-imex-channels), and all hosts must be in one NVLink "
                "domain"
            )
    return "FABRIC"


class _Planner:
    """Decides about multicast group by group, in the order of the groups."""

    def __init__(
        self,
        around: Surroundings,
        wish: Wish,
        records: Sequence[Record],
        ranks: Mapping[str, Any],
        nbytes: int,
        unit: int,
    ):
        self._around = around
        self._wish = wish
        self._records = records
        self._ranks = ranks
        self._nbytes = nbytes
        self._unit = unit
        self._budget = [record.get("budget_left", 0) for record in records]

    def plan(self, group: int) -> MulticastPlan:
        """The plan of `group`.

        Raises:
          SymmUnavailableError: Multicast is required, and there is a reason against it.
        """
        if self._wish.multicast == "never":
            return MulticastPlan(reason="multicast was not asked for")
        reason = self._objection(group)
        if not reason:
            plan = self._shared(group) or self._new(group)
            if not plan.reason:
                return plan
            reason = plan.reason
        if self._wish.multicast == "require":
            raise SymmUnavailableError(
                f"multicast='require', but group {group} cannot have it: {reason}"
            )
        return MulticastPlan(reason=reason)

    def _facts(self, group: int) -> list[Any]:
        count = len(self._around.groups[group])
        return [self._ranks[f"{group}/{rank}"] for rank in range(count)]

    def _key(self, group: int) -> str:
        return ",".join(sorted(fact["uuid"] for fact in self._facts(group)))

    def _objection(self, group: int) -> str:
        facts = self._facts(group)
        if len(facts) < 2:
            return "a group of one rank has nobody to multicast to"
        for process, record in enumerate(self._records):
            if record["veto"]:
                return f"the environment of process {process} says {record['veto']}"
        if self._around.backend.name == "host":
            return NO_HOST_MULTICAST
        if self._wish.allocated and self._wish.nbytes != self._nbytes:
            return (
                f"its {self._wish.nbytes} bytes are not a multiple of {self._unit}, "
                "the granularity of multicast here"
            )
        uuids = [fact["uuid"] for fact in facts]
        for rank, uuid in enumerate(uuids):
            first = uuids.index(uuid)
            if first != rank:
                return f"ranks {first} and {rank} share one GPU ({uuid})"
        labels = self._around.labels[group]
        for rank, fact in enumerate(facts):
            if not fact["multicast"]:
                return f"the GPU of {labels[rank]} has no NVLink multicast"
        for process, record in enumerate(self._records):
            if record["no_unit"]:
                return f"in process {process}, {record['no_unit']}"
        return self._remembered(group)

    def _remembered(self, group: int) -> str:
        key = self._key(group)
        for process in sorted(self._around.processes(group)):
            refusals = self._records[process]["refusals"]
            text = refusals["*"] or refusals.get(key, "")
            if text:
                return str(text)
        return ""

    def _shared(self, group: int) -> MulticastPlan | None:
        """Room in an object that every process of the group still holds."""
        key = self._key(group)
        holders = [
            {o["id"]: o for o in self._records[p]["objects"] if o["devices"] == key}
            for p in self._around.processes(group)
        ]
        for object_id in sorted(set.intersection(*(set(h) for h in holders))):
            views = [holder[object_id] for holder in holders]
            # A range is free once no process has it: the union is what is taken.
            taken = sorted({tuple(r) for view in views for r in view["ranges"]})
            offset = _first_fit(taken, self._nbytes, self._unit)
            if offset + self._nbytes <= views[0]["nbytes"]:
                return MulticastPlan(
                    devices=key,
                    object_id=object_id,
                    nbytes=views[0]["nbytes"],
                    offset=offset,
                )
        return None

    def _new(self, group: int) -> MulticastPlan:
        processes = self._around.processes(group)
        for process in sorted(processes):
            if self._budget[process] < 1:
                return MulticastPlan(
                    reason=f"process {process} has used its budget of multicast "
                    "objects (JAX_SYMM_MULTICAST_BUDGET)"
                )
        for process in processes:
            self._budget[process] -= 1
        wanted = max(self._nbytes, self._wish.capacity_bytes)
        return MulticastPlan(
            devices=self._key(group),
            object_id=f"{self._around.name}/{group}",
            nbytes=-(-wanted // self._unit) * self._unit,
            create=True,
        )


def _first_fit(taken: Sequence[tuple[int, int]], nbytes: int, unit: int) -> int:
    """The least offset, a multiple of `unit`, at which `nbytes` fit between `taken`."""
    offset = 0
    for start, size in taken:
        if offset + nbytes <= start:
            break
        offset = max(offset, -(-(start + size) // unit) * unit)
    return offset

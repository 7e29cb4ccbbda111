"""The multicast rounds: create, join, bind. All ranks of a group get it, or none.

Two driver calls of these rounds, bind and map, wait without a time-out until every
device of the group has joined. That is why a vote lies between joining and binding:
nobody enters them before all have joined.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax_symm._multicast_books import Books, Outcome, Range, SharedObject
from jax_symm._multicast_plan import MulticastPlan
from jax_symm._rendezvous import GroupMemory
from jax_symm._rounds import (
    Handles,
    Round,
    Step,
    Surroundings,
    Verdict,
    close_all,
    first,
    swap_handles,
)

#: Waits before the fabric manager is asked again, in seconds: at most three retries.
_BACKOFF_S = (1.0, 2.0, 4.0)

_DEADLINE_EXCEEDED = 4


def rendezvous_multicast(
    around: Surroundings,
    memory: Mapping[int, GroupMemory],
    plans: Sequence[MulticastPlan],
    books: Books,
    *,
    handle_type: Any,
    required: bool,
    deadline_s: float,
    backoff_s: Sequence[float] = _BACKOFF_S,
) -> dict[int, Outcome]:
    """Gives multicast to the groups whose plan has it. Collective over all processes.

    The memory stays usable by peers whatever comes of this.

    Args:
      around: What stays the same through the rendezvous.
      memory: The peers' memory, as `rendezvous_peers` returned it.
      plans: One for every group, from the contract.
      books: This process's.
      handle_type: How handles travel, the same everywhere.
      required: Whether a group without multicast is an error.
      deadline_s: Longest wait in each driver call that may block.
      backoff_s: Waits before each retry when the fabric is not ready, in seconds.

    Returns:
      The outcome of every group; the range is None also where no member is here.

    Raises:
      SymmError: `required`, and some group failed: its first failure, in every process.
    """
    outcomes = {group: Outcome(reason=plan.reason) for group, plan in enumerate(plans)}
    failures: dict[int, Verdict] = {}
    todo = [group for group, plan in enumerate(plans) if not plan.reason]
    for attempt, wait_s in enumerate((0.0, *backoff_s)):
        if not todo:
            break
        time.sleep(wait_s)
        try_ = _Try(around, memory, plans, books, handle_type, deadline_s)
        try:
            verdicts = try_.run(todo, f"multicast{attempt}")
        except BaseException:
            for outcome in outcomes.values():
                outcome.release()
            raise
        for group in set(todo) & set(memory) - set(verdicts):
            outcomes[group].range = try_.ranges[group]
        failures |= verdicts
        for group in set(todo) - set(verdicts):
            failures.pop(group, None)
        todo = [g for g in verdicts if verdicts[g].step is Step.MULTICAST_NOT_READY]
    for group, verdict in failures.items():
        outcomes[group].reason = str(verdict.error)
        if group in memory:
            books.remember(plans[group].devices, verdict)
    if failures and required:
        for outcome in outcomes.values():
            outcome.release()
        raise first(failures).error
    return outcomes


class _Try:
    """One go through the three rounds, for some groups."""

    def __init__(
        self,
        around: Surroundings,
        memory: Mapping[int, GroupMemory],
        plans: Sequence[MulticastPlan],
        books: Books,
        handle_type: Any,
        deadline_s: float,
    ):
        self._around = around
        self._memory = memory
        self._plans = plans
        self._books = books
        self._handle_type = handle_type
        self._deadline_s = deadline_s
        self._handles: dict[int, Any] = {}
        self.ranges: dict[int, Range] = {}

    def run(self, groups: Sequence[int], name: str) -> dict[int, Verdict]:
        """The groups that failed. What they held is released."""
        failures: dict[int, Verdict] = {}
        try:
            new = [group for group in groups if self._plans[group].create]
            if new:
                exports: Handles = {}
                failures |= self._create(new, name, exports)
                new = [group for group in new if group not in failures]
                if new:
                    failures |= self._join(new, name, exports)
            rest = [group for group in groups if group not in failures]
            if rest:
                failures |= self._bind(rest, name)
        except BaseException:
            self._drop(groups)
            raise
        self._drop(failures)
        return failures

    def _mine(self, groups: Sequence[int]) -> list[int]:
        return [group for group in groups if group in self._memory]

    def _drop(self, groups: Any) -> None:
        for group in groups:
            if group in self.ranges:
                self.ranges.pop(group).release()
            if group in self._handles:
                self._handles.pop(group).release()

    # Create: rank 0 makes the object.

    def _create(
        self, groups: Sequence[int], name: str, exports: Handles
    ) -> dict[int, Verdict]:
        round_ = Round(self._around, f"{name}/create")
        for group in self._mine(groups):
            if (
                self._around.groups[group][0].process
                != self._around.exchange.process_index
            ):
                continue
            made = round_.attempt(
                Step.MULTICAST_CREATE,
                group,
                0,
                self._around.backend.create_multicast,
                len(self._around.groups[group]),
                self._plans[group].nbytes,
                self._handle_type,
            )
            if made is None:
                continue
            # Kept until all have imported: a late importer would get another object.
            self._handles[group] = made
            if len(self._around.processes(group)) > 1:
                handle = round_.attempt(
                    Step.MULTICAST_CREATE, group, 0, self._export, made
                )
                if handle is not None:
                    exports[group, 0] = handle
        failures = self._vote_or_close(round_, exports)
        close_all(exports.pop(key) for key in list(exports) if key[0] in failures)
        return failures

    def _export(self, made: Any) -> int | bytes:
        fabric = self._handle_type.name == "FABRIC"
        handle: int | bytes = made.export_fabric() if fabric else made.export_fd()
        return handle

    @staticmethod
    def _vote_or_close(round_: Round, exports: Handles) -> dict[int, Verdict]:
        try:
            return round_.vote()
        except BaseException:
            close_all(exports.values())
            raise

    # Join: everybody imports it and adds its devices.

    def _join(
        self, groups: Sequence[int], name: str, exports: Handles
    ) -> dict[int, Verdict]:
        around = self._around
        round_ = Round(around, f"{name}/join")
        wanted = {
            (group, 0): around.groups[group][0].process
            for group in self._mine(groups)
            if group not in self._handles
        }
        handles = swap_handles(
            around,
            round_,
            name,
            Step.MULTICAST_EXCHANGE,
            exports,
            wanted,
            fabric=self._handle_type.name == "FABRIC",
        )
        for group in self._mine(groups):
            self._join_group(round_, group, handles.get((group, 0)))
        close_all(handles.values())
        return round_.vote()

    def _join_group(
        self, round_: Round, group: int, handle: int | bytes | None
    ) -> None:
        if group not in self._handles:
            imported = round_.attempt(
                Step.MULTICAST_IMPORT,
                group,
                self._around.first_rank(group),
                self._import,
                handle,
                self._plans[group].nbytes,
            )
            if imported is not None:
                self._handles[group] = imported
        for other, rank, device in self._around.mine:
            if other == group:
                round_.attempt(
                    Step.MULTICAST_JOIN, group, rank, self._add_device, group, device
                )

    def _import(self, handle: int | bytes, nbytes: int) -> Any:
        if isinstance(handle, int):
            return self._around.backend.import_multicast_fd(handle, nbytes)
        return self._around.backend.import_multicast_fabric(handle, nbytes)

    def _add_device(self, group: int, device: int) -> None:
        self._handles[group].add_device(device)

    # Bind: every rank's memory, then the object is mapped once a process.

    def _bind(self, groups: Sequence[int], name: str) -> dict[int, Verdict]:
        round_ = Round(self._around, f"{name}/bind")
        for group in self._mine(groups):
            shared = round_.attempt(
                Step.MULTICAST_BIND,
                group,
                self._around.first_rank(group),
                self._open_range,
                group,
            )
            for other, rank, _ in self._around.mine:
                if other == group:
                    self._blocking(
                        round_,
                        Step.MULTICAST_BIND,
                        group,
                        rank,
                        self._bind_rank,
                        shared,
                    )
            self._blocking(
                round_,
                Step.MULTICAST_MAP,
                group,
                self._around.first_rank(group),
                self._map,
                shared,
            )
        return round_.vote()

    def _blocking(
        self,
        round_: Round,
        step: Step,
        group: int,
        rank: int,
        verb: Callable[..., None],
        shared: SharedObject | None,
    ) -> None:
        """Attempts a verb that waits in the driver, and remembers if it never ends."""

        def watched() -> None:
            try:
                verb(shared, group, rank)
            except Exception as error:
                if getattr(error, "code", None) == _DEADLINE_EXCEEDED:
                    self._books.remember_stuck(
                        f"{error}; this process makes no more multicast objects"
                    )
                raise

        round_.attempt(step, group, rank, watched)

    def _open_range(self, group: int) -> SharedObject:
        plan = self._plans[group]
        if plan.create:
            shared = SharedObject(plan.devices, plan.nbytes, self._handles.pop(group))
            self._books.objects[plan.object_id] = shared
        shared = self._books.objects[plan.object_id]
        nbytes = next(iter(self._memory[group].allocations.values())).nbytes
        shared.ranges[plan.offset] = nbytes
        self.ranges[group] = Range(self._books, plan.object_id, plan.offset, nbytes)
        return shared

    def _bind_rank(self, shared: SharedObject, group: int, rank: int) -> None:
        binding = self._around.backend.bind_multicast(
            shared.handle,
            self._plans[group].offset,
            self._memory[group].allocations[rank],
            self._deadline_s,
        )
        self.ranges[group].bindings.append(binding)

    def _map(self, shared: SharedObject, group: int, rank: int) -> None:
        if shared.mapping is None:
            shared.mapping = self._around.backend.map_multicast(
                shared.handle, self._around.devices(group), self._deadline_s
            )

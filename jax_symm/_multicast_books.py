"""The multicast objects that a process holds, and what it remembers of refusals."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any

from jax_symm._rounds import Step, Verdict

_log = logging.getLogger("jax_symm")


class SharedObject:
    """A multicast object of a device set, with the ranges that buffers have in it."""

    def __init__(self, devices: str, nbytes: int, handle: Any):
        self.devices = devices
        self.nbytes = nbytes
        self.handle = handle
        self.mapping: Any = None
        self.ranges: dict[int, int] = {}

    def release(self) -> None:
        """Drops the object, the mapping first."""
        for held in (self.mapping, self.handle):
            if held is not None:
                held.release()
        self.mapping = self.handle = None


@dataclasses.dataclass
class Range:
    """A buffer's part of a multicast object in this process.

    Attributes:
      address: Where multimem instructions reach the buffer on all ranks.
    """

    books: Books
    object_id: str
    offset: int
    nbytes: int
    bindings: list[Any] = dataclasses.field(default_factory=list)

    @property
    def address(self) -> int:
        """The multicast address of the buffer. Not for loads and stores."""
        mapping = self.books.objects[self.object_id].mapping
        return int(mapping.address) + self.offset

    def release(self) -> None:
        """Unbinds the buffer, and drops the object with its last range. Idempotent."""
        while self.bindings:
            self.bindings.pop().release()
        self.books.close_range(self)


class Books:
    """The multicast objects that this process holds, and what it remembers of refusals.

    A slot of the pool is dearer than a set-up, so an object without a buffer is dropped
    at once; and a refusal is remembered, so that the next buffer does not ask again.

    Args:
      budget: How many objects this process may hold.
      veto: The assignment by which the site forbids multicast, or None.
      in_use: Counts the objects that this process holds, quarantined ones included.
      memory_s: How long a refusal is remembered, in seconds.
    """

    def __init__(
        self,
        *,
        budget: int,
        veto: str | None,
        in_use: Callable[[], int],
        memory_s: float = 600.0,
    ):
        self.veto = veto
        self.objects: dict[str, SharedObject] = {}
        self._budget = budget
        self._in_use = in_use
        self._memory_s = memory_s
        self._refusals: dict[str, tuple[float, str]] = {}
        self._stuck = ""

    def budget_left(self) -> int:
        """How many more objects this process may make."""
        return self._budget - self._in_use()

    def describe(self) -> list[dict[str, Any]]:
        """The objects, for the contract."""
        return [
            {
                "id": object_id,
                "devices": shared.devices,
                "nbytes": shared.nbytes,
                "ranges": sorted(shared.ranges.items()),
            }
            for object_id, shared in self.objects.items()
        ]

    def refusals(self) -> dict[str, str]:
        """Device set -> why it was refused lately; "*" is for all of them."""
        now = time.monotonic()
        recent = {k: text for k, (until, text) in self._refusals.items() if now < until}
        return {"*": self._stuck} | recent

    def remember(self, devices: str, verdict: Verdict) -> None:
        """Notes why a group went without, warns of it once."""
        text = str(verdict.error)
        if verdict.step is Step.MULTICAST_DRAINED:
            text = f"the rack's pool of multicast objects is empty: {text}"
        if devices not in self.refusals():
            _log.warning("going on without multicast, peer to peer: %s", text)
        self._refusals[devices] = time.monotonic() + self._memory_s, text

    def remember_stuck(self, text: str) -> None:
        """A driver call never returned: this process makes no more objects."""
        self._stuck = text

    def forget(self) -> None:
        """Forgets refusals, for tests and for operators who know better."""
        self._refusals.clear()

    def close_range(self, range_: Range) -> None:
        """Gives a range back."""
        shared = self.objects.get(range_.object_id)
        if shared is None or shared.ranges.pop(range_.offset, None) is None:
            return
        if not shared.ranges:
            del self.objects[range_.object_id]
            shared.release()


@dataclasses.dataclass
class Outcome:
    """What a group got: a range of a multicast object, or the reason why not.

    Attributes:
      range: This process's part of it.
      reason: "" for a group that has multicast.
    """

    range: Range | None = None
    reason: str = ""

    def release(self) -> None:
        """Drops the range. Idempotent."""
        if self.range is not None:
            self.range.release()

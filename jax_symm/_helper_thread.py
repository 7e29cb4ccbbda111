"""A call on a thread of its own: one that never returns does not hold the caller.

The thread is a daemon, for the process must be able to exit without it. One that has
ended its call is joined before its result is used: a daemon thread that still holds a
jax.Array when the interpreter is finalised takes the process down, for the array's
destructor waits for the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class HelperThread(Generic[T]):
    """Runs `call`; `done` is set when it has returned or raised."""

    def __init__(self, name: str, call: Callable[[], T]) -> None:
        self.done = threading.Event()
        self._call = call
        self._outcome: T | Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except Exception as error:
            self._outcome = error
        self.done.set()

    def failure(self) -> Exception | None:
        """What the call raised, once it is done."""
        self._thread.join()
        return self._outcome if isinstance(self._outcome, Exception) else None

    def result(self) -> T:
        """What the call returned, once it is done; raises what it raised."""
        if error := self.failure():
            raise error
        return self._outcome  # type: ignore[return-value]

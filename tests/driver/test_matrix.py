"""Every driver call of a rendezvous x every rank x {error, never returns, dies}.

After each case: one verdict and one text on all survivors, equal rounds, nothing left in
the driver, and a clean rendezvous that succeeds.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections import Counter
from typing import Any

import pytest
from fake_cuda.launch import NOTHING, FakeMachine
from hub import Hub, Lost
from ranks import Seen, Setup

pytestmark = pytest.mark.timeout(360)

RANKS = 3
POLICIES = ("auto", "require")
GROUPS = {
    "one": [[(0, rank) for rank in range(RANKS)]],
    "several": [[(rank, 0) for rank in range(RANKS)]],
}
PROCESSES = {"one": 1, "several": RANKS}
# A failure to restore the context that was current leaves memory as it should be.
HARMLESS = {"cuCtxSetCurrent"}
# These wait on a helper thread, so the rank survives one that never returns.
WATCHED = {"cuMulticastBindMem", "cuMemMap"}

# Short, because each such case takes as long; long beside the milliseconds of a round.
_LOST_AFTER_S = 1.0
_STUCK_AFTER_S = 0.5

_names = (f"case{number}" for number in itertools.count())


@dataclasses.dataclass(frozen=True)
class Case:
    """The `nth` time that process `tag` makes `call`, `action` happens."""

    mode: str
    policy: str
    tag: str
    call: str
    nth: int
    action: int | str


class Matrix:
    """Runs cases of one mode and one policy."""

    def __init__(self, machine: FakeMachine, hub: Hub, mode: str, policy: str):
        self.machine = machine
        self.hub = hub
        self.mode = mode
        self.policy = policy
        self.calls = self._trace()

    def setup(self, stuck: bool = False) -> Setup:
        setup = Setup(next(_names), GROUPS[self.mode], self.policy)
        if stuck:
            return dataclasses.replace(setup, bind_deadline_s=_STUCK_AFTER_S)
        return setup

    def _trace(self) -> list[tuple[str, str, int]]:
        """Every call of a clean rendezvous, counted per process."""
        self.warm_up()
        setup = self.setup()
        self.machine.script(faults=[])
        opened = self.hub.run("open_kept", {"setup": setup})
        trace = self.machine.report()["trace"]
        assert all(isinstance(one, Seen) for one in opened), opened
        self.hub.run("close_kept", {"name": setup.name})
        seen: Counter[tuple[str, str]] = Counter()
        calls = []
        for tag, call in trace:
            seen[tag, call] += 1
            calls.append((tag, call, seen[tag, call]))
        return calls

    def warm_up(self) -> None:
        """Loads the driver and makes contexts, so that cases count the same calls."""
        self.machine.script(faults=[])
        self.clean()

    def clean(self) -> None:
        """A rendezvous without faults has multicast and leaves nothing."""
        self.hub.run("forget", {})
        outcomes = self.hub.run(
            "open_and_close", {"setup": self.setup(), "bytes_too": True}
        )
        for outcome in outcomes:
            assert isinstance(outcome, Seen), outcome
            assert all(outcome.multicast.values()), outcome
        assert self.machine.counts() == NOTHING

    def run(self, case: Case, stuck: bool = False) -> None:
        """One case with all that must hold after it.

        Args:
          stuck: A rank waits in Bind for one that does not come.
        """
        setup = self.setup(stuck or case.action == "hang")
        self.machine.script(faults=[(case.tag, case.call, case.nth, case.action)])
        outcomes = self.hub.run(
            "open_kept", {"setup": setup}, deadline_s=self._wait(case)
        )
        rounds = self.hub.rounds
        report = self.machine.report()
        survivors = [i for i, one in enumerate(outcomes) if not isinstance(one, Lost)]
        verdict = one_verdict([outcomes[i] for i in survivors])
        self._check_verdict(case, verdict, len(outcomes) - len(survivors))
        assert len({rounds[i] for i in survivors}) == 1, rounds
        assert report["premature_waits"] == 0
        assert report["violations"] == []
        if len(survivors) == len(outcomes) and verdict[0] != "raised":
            checked = self.hub.run("check_kept", {"name": setup.name})
            assert checked == [None] * len(outcomes), checked
        self.hub.run("close_kept", {"name": setup.name}, only=survivors)
        self._check_nothing_left(case, survivors)
        self.machine.script(faults=[])
        self.clean()

    def _wait(self, case: Case) -> float | None:
        """How long the others wait for a rank that will not come."""
        lost = case.action == "hang" and not is_watched(
            self, case.tag, case.call, case.nth
        )
        return _LOST_AFTER_S if lost else None

    def _check_verdict(self, case: Case, verdict: Any, lost: int) -> None:
        kind = verdict[0]
        # A rank is lost when its process dies, or is stuck where nobody watches.
        stuck = case.action == "hang" and kind in ("raised",) and lost == 1
        assert lost == (1 if case.action == "kill" or stuck else 0), verdict
        if lost:
            assert kind == "raised"
            assert f"process {case.tag[1:]}" in verdict[2].replace(
                "processes [", "process "
            )
        elif case.policy == "auto" and case.call.startswith("cuMulticast"):
            assert kind == "peers", verdict
        elif case.policy == "require":
            assert kind == "raised" or case.call in HARMLESS, verdict
        else:
            assert kind != "full" or case.call in HARMLESS, verdict

    def _check_nothing_left(self, case: Case, survivors: list[int]) -> None:
        if case.action == "hang" and len(survivors) == PROCESSES[self.mode]:
            self._check_quarantine(case)
        if not isinstance(case.action, int):
            # A process that was ended takes what it had along, quarantine included.
            eventually(lambda: self.machine.counts() == NOTHING)
        counts = self.machine.counts()
        assert counts == NOTHING, counts

    def _check_quarantine(self, case: Case) -> None:
        """What is stuck is kept and counted, and the process goes on without multicast."""
        kept = [one["quarantined"] for one in self.hub.run("ledger", {})]
        stuck = 0 if self.mode == "one" else int(case.tag[1:])
        assert kept == [int(index == stuck) for index in range(len(kept))]
        assert self.machine.counts()["handles"] > 0
        again = dataclasses.replace(self.setup(), multicast="auto")
        outcomes = self.hub.run("open_and_close", {"setup": again, "bytes_too": True})
        verdict = one_verdict(outcomes)
        assert verdict[0] == "peers", verdict
        assert "did not return" in verdict[2]
        for index in range(PROCESSES[self.mode]):
            self.hub.discard(index)


def eventually(condition: Any) -> None:
    """The server hears of the end of a process a moment later."""
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)


def one_verdict(outcomes: list[Any]) -> tuple[Any, ...]:
    """What all survivors found, which must be one thing."""
    verdicts = set()
    for outcome in outcomes:
        if isinstance(outcome, Seen):
            full = all(outcome.multicast.values())
            kind = "full" if full else "peers"
            assert full or not any(outcome.multicast.values()), outcome
            verdicts.add((kind, "", next(iter(outcome.reasons.values()))))
        else:
            verdicts.add(("raised", type(outcome).__name__, str(outcome)))
    assert len(verdicts) == 1, verdicts
    return next(iter(verdicts))


def run_all(matrix: Matrix, cases: list[Case], record_property: Any) -> None:
    """Runs cases and reports every one that fails."""
    failed = []
    for case in cases:
        try:
            matrix.run(case)
        except AssertionError as error:
            failed.append(f"{case}: {error}")
            for index in range(PROCESSES[matrix.mode]):
                matrix.hub.discard(index)
            matrix.warm_up()
    assert cases
    assert not failed, "\n".join(failed)
    record_property("matrix_cases", len(cases))


@pytest.fixture
def matrix(
    machine: FakeMachine, hubs: dict[int, Hub], request: pytest.FixtureRequest
) -> Matrix:
    mode, policy = request.param
    return Matrix(machine, hubs[PROCESSES[mode]], mode, policy)


BOTH = pytest.mark.parametrize(
    "matrix", list(itertools.product(GROUPS, POLICIES)), indirect=True
)
SEVERAL = pytest.mark.parametrize(
    "matrix", [("several", policy) for policy in POLICIES], indirect=True
)


@BOTH
def test_error_at_every_call(matrix: Matrix, record_property: Any) -> None:
    # 999 is an error that no decision hangs on; the others have tests of their own.
    cases = [Case(matrix.mode, matrix.policy, *call, 999) for call in matrix.calls]
    run_all(matrix, cases, record_property)


@SEVERAL
def test_death_at_every_call(matrix: Matrix, record_property: Any) -> None:
    cases = [Case(matrix.mode, matrix.policy, *call, "kill") for call in matrix.calls]
    run_all(matrix, cases, record_property)


@BOTH
def test_watched_call_never_returns(matrix: Matrix, record_property: Any) -> None:
    cases = [
        Case(matrix.mode, matrix.policy, *call, "hang")
        for call in matrix.calls
        if is_watched(matrix, *call)
    ]
    run_all(matrix, cases, record_property)


@SEVERAL
@pytest.mark.parametrize("rank", range(RANKS))
def test_other_call_never_returns(
    matrix: Matrix, rank: int, record_property: Any
) -> None:
    cases = [
        Case(matrix.mode, matrix.policy, *call, "hang")
        for call in matrix.calls
        if call[0] == f"p{rank}" and call[2] == 1 and not is_watched(matrix, *call)
    ]
    run_all(matrix, cases, record_property)


def is_watched(matrix: Matrix, tag: str, call: str, nth: int) -> bool:
    """Bind, and the map that comes after all maps of memory."""
    if call not in WATCHED:
        return False
    return call != "cuMemMap" or (tag, call, nth + 1) not in matrix.calls


def test_mutant_without_the_vote_before_bind_is_caught(
    machine: FakeMachine, hubs: dict[int, Hub]
) -> None:
    """The matrix can fail: without the vote, a rank that could not join hangs the others."""
    hub = hubs[RANKS]
    matrix = Matrix(machine, hub, "several", "auto")
    case = Case("several", "auto", "p1", "cuMulticastAddDevice", 1, 999)
    matrix.run(case)
    try:
        assert hub.run("without_join_vote", {}) == [None] * RANKS
        with pytest.raises(AssertionError):
            matrix.run(case, stuck=True)
    finally:
        for index in range(RANKS):
            hub.discard(index)

"""The fake machine, and ranks on it."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import pytest
from fake_cuda.launch import NOTHING, FakeMachine, machine_of_process
from hub import Hub

# The launcher of processes that JAX joins.
sys.path.append(str(pathlib.Path(__file__).parents[1] / "host"))


@pytest.fixture(scope="session")
def shared_machine() -> FakeMachine:
    return machine_of_process()


@pytest.fixture
def machine(shared_machine: FakeMachine) -> Iterator[FakeMachine]:
    """The fake machine, as new. Whatever a test leaves there is an error."""
    shared_machine.reset()
    yield shared_machine
    shared_machine.reset()


def _hub(machine: FakeMachine, processes: int) -> Hub:
    if processes == 1:
        return Hub([machine.environment("p0")])
    environments = [
        machine.environment(f"p{index}", str(index)) for index in range(processes)
    ]
    return Hub(environments)


@pytest.fixture(scope="session")
def shared_hubs(shared_machine: FakeMachine) -> Iterator[dict[int, Hub]]:
    hubs = {count: _hub(shared_machine, count) for count in (1, 2, 3, 4)}
    yield hubs
    for hub in hubs.values():
        hub.close()


@pytest.fixture
def hubs(machine: FakeMachine, shared_hubs: dict[int, Hub]) -> Iterator[dict[int, Hub]]:
    """Warm processes, by how many: process i has GPU i; a single process has all."""
    yield shared_hubs
    left = machine.counts()
    if left != NOTHING:
        for hub in shared_hubs.values():
            hub.close()
    assert left == NOTHING


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how large the fault matrix was."""
    cases = [
        value
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == "matrix_cases"
    ]
    if cases:
        terminalreporter.write_line(f"fault matrix: {sum(cases)} cases passed")

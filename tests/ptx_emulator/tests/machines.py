"""Machines that run one small kernel, for the tests."""

from __future__ import annotations

import numpy as np
import pytest

from ptx_emulator import EmulationError, Machine


def machine_for(text, threads=32, *, ranks=1, grid=1, arguments=(), **options):
    machine = Machine(ranks=ranks, arch="sm_90a", **options)
    kernel = machine.load(text).kernel()
    for rank in range(ranks):
        machine.launch(rank, kernel, grid, threads, list(arguments))
    return machine


def data_and_flags(machine):
    """64 bytes of each on every rank; the flags are 0."""
    data, flags = machine.symmetric(64), machine.symmetric(64)
    for rank in range(machine.ranks):
        flags.buffer(rank).write(np.zeros(16, np.uint32))
    return data, flags


def error_of(machine, seed=0, schedule=None):
    with pytest.raises(EmulationError) as caught:
        machine.run(seed, schedule)
    return caught.value


def run_with(text, *buffers, threads=32, seed=0, grid=1, arch="sm_90a", **launch):
    """Runs `k` with the buffers' contents; returns the machine's buffers."""
    machine = Machine(arch=arch)
    made = [machine.buffer(0, b) for b in buffers]
    kernel = machine.load(text).kernel()
    machine.launch(0, kernel, grid, threads, made, **launch)
    machine.run(seed)
    return made

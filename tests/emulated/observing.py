"""What the emulator executes, told instruction by instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from ptx_emulator.executor import Executor
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import Warp

# Takes the warp, the number of its lanes that execute, and the instruction.
Observer = Callable[[Warp, int, Instruction], None]


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Lets the emulator report every instruction that it completes."""
    original = Executor._block

    def block(self, w, split, block):
        lanes, function = int(np.count_nonzero(split.lanes)), w.cta.launch.program
        result = original(self, w, split, block)
        if not isinstance(result, str):
            last = block.pc + block.count
            for instruction in function.function.instructions[block.pc : last]:
                observer(w, lanes, instruction)
        return result

    Executor._block = block
    try:
        yield
    finally:
        Executor._block = original

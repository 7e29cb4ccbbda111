"""The emulator's fixtures, for its own tests."""

from ptx_emulator.fixtures import compile_ptx, emulated_machine

__all__ = ["compile_ptx", "emulated_machine"]

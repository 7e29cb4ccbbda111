"""PTX modules loaded on every rank, their kernels, and parameter blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .buffers import Buffer
from .program import Program
from .ptx import Function, Module, Parameter, parse


@dataclass(frozen=True)
class Kernel:
    """A translated kernel and where each rank has the module's variables."""

    program: Program
    globals_by_rank: tuple[dict[str, int], ...]

    @property
    def name(self) -> str:
        return self.program.function.name


class LoadedModule:
    """A module with its own copy of the global variables on every rank.

    Attributes:
      variables: per rank, buffers by variable name.
    """

    def __init__(self, text: str, ranks: int, allocate: Callable[..., Buffer]):
        self._text = text
        self.module: Module = parse(text)
        self.variables: list[dict[str, Buffer]] = [{} for _ in range(ranks)]
        for rank, buffers in enumerate(self.variables):
            for v in self.module.variables.values():
                if v.space in ("global", "const"):
                    raw = np.zeros(max(v.size_bytes, 1), np.uint8)
                    raw[: len(v.initial)] = np.frombuffer(v.initial, np.uint8)
                    buffers[v.name] = allocate(rank, raw, label=f"variable {v.name}")

    @property
    def kernels(self) -> list[str]:
        return [f.name for f in self.module.functions.values() if f.is_entry]

    def kernel(self, name: str | None = None) -> Kernel:
        """The kernel of this name, or whose name contains it; without one the only one.

        Raises:
          KeyError: there is none, or several.
          EmulationError: it has forms that the emulator does not know; all are listed.
        """
        names = self.kernels
        found = [n for n in names if n == name]
        found = found or [n for n in names if name is None or name in n]
        if len(found) != 1:
            raise KeyError(f"kernel {name!r}: expected one of {names}")
        addresses = [{n: b.address for n, b in x.items()} for x in self.variables]
        return Kernel(_program(self._text, found[0]), tuple(addresses))


@lru_cache(maxsize=8)
def _program(text: str, name: str) -> Program:
    module = parse(text)
    return Program(module, module.functions[name])


def pack_arguments(function: Function, args: bytes | Sequence) -> bytes:
    """The parameter block: bytes as they are, or one value a declared parameter."""
    if isinstance(args, bytes | bytearray | np.ndarray):
        raw = bytes(args)
        if len(raw) != function.parameter_bytes:
            what = f"{len(raw)} bytes of parameters for {function.name}"
            raise ValueError(f"{what}, expected {function.parameter_bytes}")
        return raw
    parameters = list(function.parameters.values())
    if len(args) != len(parameters):
        what = f"{len(args)} arguments for {function.name}"
        raise ValueError(f"{what}, expected {len(parameters)}")
    block = bytearray(function.parameter_bytes)
    for value, p in zip(args, parameters, strict=True):
        block[p.offset : p.offset + p.size_bytes] = _encode(value, p)
    return bytes(block)


def _encode(value, p: Parameter) -> bytes:
    if isinstance(value, Buffer):
        value = value.address
    if isinstance(value, int):
        value &= (1 << 8 * p.size_bytes) - 1
        return value.to_bytes(p.size_bytes, "little")
    if isinstance(value, float):
        value = np.array(value, f"f{p.size_bytes}")
    raw = bytes(value) if isinstance(value, bytes | bytearray) else value.tobytes()
    if len(raw) != p.size_bytes:
        what = f"argument {p.name} has {len(raw)} bytes"
        raise ValueError(f"{what}, expected {p.size_bytes}")
    return raw

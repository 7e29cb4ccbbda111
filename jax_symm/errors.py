"""The exceptions of jax_symm: one class per status code of the native side.

An error raised while a compiled program runs arrives as `jax.errors.JaxRuntimeError`
with the same text; everything raised outside a running program is one of these.
"""

from __future__ import annotations

from typing import ClassVar


class SymmError(Exception):
    """Base class of every exception that jax_symm raises."""

    #: Status code, numbered as XLA's FFI and absl number them.
    code: ClassVar[int] = 13


class SymmValueError(SymmError, ValueError):
    """An argument is wrong: a shape, an axis, an option."""

    code = 3


class SymmTypeError(SymmError, TypeError):
    """An operand has a dtype or a kind that is not accepted."""

    code = 3


class SymmAxisError(SymmError, NameError):
    """A mesh axis is not bound where the operation was called."""

    code = 3


class SymmStateError(SymmError, RuntimeError):
    """A workspace is missing, closed, too small, or belongs to another mesh."""

    code = 9


class SymmMemoryError(SymmError, MemoryError):
    """Memory, address space or descriptors ran out."""

    code = 8


class SymmUnsupportedError(SymmError, NotImplementedError):
    """No implementation covers what was asked for."""

    code = 12


class SymmUnavailableError(SymmError, RuntimeError):
    """The machine, its driver or its administrator does not offer what is asked."""

    code = 14


class SymmTimeoutError(SymmError, TimeoutError):
    """A rank did not arrive before the deadline."""

    code = 4


class SymmPeerLostError(SymmError, RuntimeError):
    """A process of the group is gone."""

    code = 10


class SymmInternalError(SymmError, RuntimeError):
    """An invariant of jax_symm is broken: please report it."""


def from_name(class_name: str, text: str) -> SymmError:
    """Rebuilds an exception that another process posted by class name and text."""
    cls = globals().get(class_name)
    if isinstance(cls, type) and issubclass(cls, SymmError):
        return cls(text)
    return SymmInternalError(f"{class_name}: {text}")

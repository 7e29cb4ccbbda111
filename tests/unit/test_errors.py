import inspect

import pytest

from jax_symm import errors

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_ours_and_survives_the_way_to_another_process(cls):
    assert issubclass(cls, errors.SymmError)
    again = errors.from_name(cls.__name__, "text")
    assert type(again) is cls
    assert str(again) == "text"


@pytest.mark.parametrize("name", ["KeyError", "from_name", "ClassVar", ""])
def test_a_foreign_error_becomes_internal(name):
    assert type(errors.from_name(name, "text")) is errors.SymmInternalError


@pytest.mark.parametrize(
    ("cls", "base"),
    [
        (errors.SymmValueError, ValueError),
        (errors.SymmTypeError, TypeError),
        (errors.SymmAxisError, NameError),
        (errors.SymmStateError, RuntimeError),
        (errors.SymmMemoryError, MemoryError),
        (errors.SymmUnsupportedError, NotImplementedError),
        (errors.SymmTimeoutError, TimeoutError),
    ],
)
def test_builtin_bases(cls, base):
    assert issubclass(cls, base)

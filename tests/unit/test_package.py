"""The package as a whole: what an import does, and who may import whom."""

import ast
import pathlib
import subprocess
import sys

import pytest

import jax_symm

PACKAGE = pathlib.Path(jax_symm.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# A file imports only from files that stand before it.
ORDER = [
    "errors",
    "config",
    "_jax_compat",
    "_native",
    "group",
    "_helper_thread",
    "_links",
    "_rounds",
    "exchange",
    "agreement",
    "_contract",
    "_rendezvous",
    "_multicast_plan",
    "_multicast_books",
    "_multicast",
    "_backends",
    "_setup",
    "memory",
    "ops._rules",
    "ops._crossover",
    "ops._paths",
    "_shared_gpu",
    "_workspace_request",
    "_workspace_native",
    "workspace",
    "ops.reference",
    "ops._surroundings",
    "ops._lowering",
    "ops._primitive",
    "ops.gemm",
    "_bench_programs",
    "_bench_plot",
    "bench",
    "__main__",
]


def module_name(path):
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imported(path):
    """(module, names) of every absolute import in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []


def ours(path):
    for module, names in imported(path):
        if module == "jax_symm" or module.startswith("jax_symm."):
            prefix = module.removeprefix("jax_symm").lstrip(".")
            for name in names or [""]:
                full = f"{prefix}.{name}".strip(".")
                yield full if full in ORDER else prefix


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_go_one_way(path):
    name = module_name(path)
    if name.endswith("__init__") or name == "__main__":
        return
    assert name in ORDER, f"{name} has no place in ORDER"
    for other in ours(path):
        assert ORDER.index(other) < ORDER.index(name), f"{name} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_only_one_file_names_jax_internals(path):
    uses = [m for m, _ in imported(path) if m.startswith(("jax._src", "jaxlib"))]
    assert not uses or module_name(path) == "_jax_compat"


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_only_one_file_names_the_native_module(path):
    assert "._jax_symm" not in path.read_text() or module_name(path) == "_native"


def test_import_starts_nothing():
    """C37: no backend, no thread, no driver, no native module; nothing but itself."""
    program = """
import sys, threading
import jax
before = set(sys.modules)
import jax_symm
others = {m for m in set(sys.modules) - before if not m.startswith("jax_symm")}
assert not others, f"jax_symm imports what jax had not yet: {sorted(others)}"
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
assert threading.active_count() == 1, threading.enumerate()
assert "jax_symm._jax_symm" not in sys.modules
libraries = open("/proc/self/maps").read()
assert "libcuda" not in libraries
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_class_of_primitives_is_the_supported_one():
    from jax.extend import core

    assert jax_symm._jax_compat.Primitive is core.Primitive

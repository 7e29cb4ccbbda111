"""What the anchors need, and the one place that skips without it."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest


def require_compiler() -> None:
    """Skips without nvcc or CUTLASS; fails if JAX_SYMM_TEST_REQUIRE has "anchors"."""
    missing = [] if shutil.which("nvcc") else ["nvcc"]
    if importlib.util.find_spec("cutlass_library") is None:
        missing.append("the package nvidia-cutlass")
    if not missing:
        return
    reason = f"the anchors need {' and '.join(missing)}"
    if "anchors" in os.environ.get("JAX_SYMM_TEST_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)

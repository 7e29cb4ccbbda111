"""Measures the data mappings on the Hopper GPU at hand and compares with the emulator."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from ptx_emulator.anchors import hardware  # noqa: E402


def why_not_measurable() -> str | None:
    if shutil.which("nvcc") is None:
        return "nvcc is not on the PATH"
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU"
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    if "9.0" not in found.split():
        return f"no GPU of compute capability 9.0, found {found.split()}"
    return None


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    if reason := why_not_measurable():
        if "gpu" in os.environ.get("JAX_SYMM_TEST_REQUIRE", "").split(","):
            pytest.fail(reason)
        pytest.skip(reason)
    program = tmp_path_factory.mktemp("measure") / "measure"
    target = "-gencode=arch=compute_90a,code=sm_90a"
    build = ["nvcc", "-std=c++20", target, "-o", program, HERE / "measure.cu"]
    subprocess.run(build, check=True)
    run = subprocess.run([program], check=True, capture_output=True, text=True)
    return json.loads(run.stdout)


@pytest.mark.parametrize("section", hardware.SECTIONS)
def test_emulator_predicts_this_gpu(tables, section):
    for case in tables[section]:
        if case.get("fault"):
            with pytest.raises(ValueError, match="innermost coordinate"):
                hardware.SECTIONS[section]({**case, "image_base": 0})
            continue
        predicted, measured = hardware.SECTIONS[section](case)
        np.testing.assert_array_equal(predicted, measured, err_msg=case.get("name", ""))

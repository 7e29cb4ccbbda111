"""Measures the data mappings on the Hopper GPU at hand and compares with the emulator."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from ptx_emulator.anchors import hardware

HERE = Path(__file__).parent


pytestmark = pytest.mark.requires("nvcc", "hopper")


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
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
            with pytest.raises(ValueError, match="coordinate.*hardware faults"):
                hardware.SECTIONS[section]({**case, "image_base": 0})
            continue
        predicted, measured = hardware.SECTIONS[section](case)
        np.testing.assert_array_equal(predicted, measured, err_msg=case.get("name", ""))

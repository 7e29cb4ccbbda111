"""The semantics agree, bit for bit, with what an H200 did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ptx_emulator.anchors import hardware

MEASURED = Path(__file__).parents[2] / "gpu/hardware_tables/measured_h200.json"
TABLES = json.loads(MEASURED.read_text())
SWIZZLES = ("none", "32B", "64B", "128B")
CASES = [
    pytest.param(section, case, id=f"{section}: {case.get('name', index)}")
    for section in hardware.SECTIONS
    for index, case in enumerate(TABLES[section])
]


@pytest.mark.parametrize(("section", "case"), CASES)
def test_semantics_agree_with_hardware(section, case):
    if case.get("fault"):
        with pytest.raises(ValueError, match="coordinate.*hardware faults"):
            hardware.SECTIONS[section]({**case, "image_base": 0})
        return
    predicted, measured = hardware.SECTIONS[section](case)
    np.testing.assert_array_equal(predicted, measured)


def test_transactions_of_a_box_are_its_full_bytes():
    finished = [case for case in TABLES["tma_load"] if not case.get("fault")]
    assert all(case["completed_with_box_bytes"] for case in finished)


def test_every_swizzle_and_element_size_is_measured():
    seen = {(c["swizzle"], c["element_bytes"]) for c in TABLES["tma_load"]}
    assert seen >= {(mode, size) for mode in SWIZZLES for size in (2, 4)}


@pytest.mark.parametrize("section", ["tma_load", "tma_store"])
def test_every_swizzle_is_measured_across_the_bounds_too(section):
    def crosses(case):
        box = zip(case["coords"], case["box"], case["dims"], strict=True)
        return any(start < 0 or start + size > end for start, size, end in box)

    finished = [c for c in TABLES[section] if not c.get("fault") and crosses(c)]
    assert {c["swizzle"] for c in finished} == set(SWIZZLES)


def test_faults_are_of_the_device():
    faults = [c["fault"] for s in ("tma_load", "tma_store") for c in TABLES[s] if "fault" in c]  # fmt: skip
    assert set(faults) == {"kernel: an illegal instruction was encountered"}


def test_every_operand_layout_is_measured():
    seen = {
        (
            case["operand"],
            case["mn_major"],
            hardware.descriptors.decode_wgmma_descriptor(case["descriptor"]).swizzle,
        )
        for case in TABLES["wgmma_operand"]
    }
    assert seen == {(o, mn, s) for o in "ab" for mn in (False, True) for s in SWIZZLES}


def test_a_wrong_swizzle_is_noticed(monkeypatch):
    """The blind spot of kernels that swizzle in hardware on both sides."""

    def weaker(addresses, mode):
        return addresses ^ ((addresses >> 3) & 0x30) if mode == "128B" else addresses

    monkeypatch.setattr(hardware.tma_box, "swizzle", weaker)
    case = next(c for c in TABLES["tma_load"] if c["name"] == "128B bf16")
    predicted, measured = hardware.tma_load(case)
    assert (predicted != measured).any()

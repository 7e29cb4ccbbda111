"""fence and membar: memory, proxy and mbarrier-initialisation fences."""

from __future__ import annotations

import re

import numpy as np

from ptx_emulator.codegen import Emitter, step
from ptx_emulator.ptx import Instruction
from ptx_emulator.warp import Warp


@step(
    r"fence\.(?P<sem>sc|acq_rel|acquire|release)\.(?P<scope>cta|cluster|gpu|sys)",
    r"membar\.(?P<scope>cta|gl|sys)",
)
def _fence(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)
    scope = "gpu" if m["scope"] == "gl" else m["scope"]
    sem = m.groupdict().get("sem") or "sc"
    sem = "acq_rel" if sem == "sc" else sem

    def body(w: Warp, lanes: np.ndarray):
        if w.machine.checker is not None:
            w.machine.checker.fence(w, lanes, sem, scope)

    return body


@step(
    r"fence\.proxy\.(?P<proxy>alias)",
    r"fence\.proxy\.(?P<proxy>async)(?:\.(?P<space>global|shared::(?:cta|cluster)))?",
)
def _fence_proxy(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)
    space = (m.groupdict().get("space") or "all").split("::")[0]

    def body(w: Warp, lanes: np.ndarray):
        if w.machine.checker is not None:
            w.machine.checker.proxy_fence(w, lanes, m["proxy"], space)

    return body


@step(r"fence\.mbarrier_init\.release\.cluster")
def _fence_init(e: Emitter, i: Instruction, m: re.Match):
    e.expect(0)

    def body(w: Warp, lanes: np.ndarray):
        if w.machine.checker is not None:
            w.machine.checker.init_fence(w, lanes)

    return body

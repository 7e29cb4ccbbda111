"""A kernel test that fails says which seed and schedule it ran with."""

import subprocess
import sys
from pathlib import Path

from .ptx_text import module

FAILING = '''
from ptx_emulator import Schedule
from ptx_emulator.fixtures import compile_ptx, emulated_machine

TEXT = """{text}"""


def test_fails(emulated_machine):
    machine = emulated_machine(arch="sm_90a")
    out = machine.buffer(0, 4)
    machine.launch(0, machine.load(TEXT).kernel(), 1, 32, [out])
    machine.run(seed=4711, schedule=Schedule(split_rate=0.25))
    assert False
'''


def test_a_failure_shows_the_seed_and_the_schedule(tmp_path):
    text = module("st.global.u32 [%out], 1;", "out")
    (tmp_path / "test_it.py").write_text(FAILING.format(text=text))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    assert "seed=4711" in done.stdout
    assert "split_rate=0.25" in done.stdout

"""The programs and the launcher of tests/host."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "host"))

"""Shares the ranks of tests/driver and the launcher of tests/host."""

import pathlib
import sys

for folder in ("driver", "host"):
    sys.path.append(str(pathlib.Path(__file__).parents[1] / folder))

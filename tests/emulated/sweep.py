"""Random configurations of the whole product under random schedules, for as long as wanted.

    PYTHONPATH=tests:tests/emulated python tests/emulated/sweep.py /tmp/sweep.jsonl --minutes 60

appends a line a run, resumes where the file ends, and draws the same runs in the same
order whenever it starts. `--table` prints the account of a file, as committed in
docs/design. A run that fails is recorded with its error, and the sweep goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from configurations import SPACES, Configuration, Space
from ptx_emulator import ADVERSARIAL

SEEDS = 20
FAMILIES = ("reducer", "collective")


@dataclass(frozen=True)
class Run:
    """One run: which configuration, which of the 20 seeds; the schedule follows from it."""

    space: str
    config: Configuration
    seed: int

    @property
    def schedule(self) -> str:
        names = list(ADVERSARIAL)
        return names[self.seed % len(names)]

    @property
    def group(self) -> str:
        """What the account is by."""
        reducer, collective = (self.config[name].name.lower() for name in FAMILIES)
        return f"{self.space} {reducer} {collective}"

    def record(self) -> dict[str, object]:
        """Makes the run; what is written down of it."""
        start = time.perf_counter()
        space, error = SPACES[self.space], None
        try:
            space.run(self.config, ADVERSARIAL[self.schedule], self.seed)
        except Exception:
            error = traceback.format_exc(limit=-2)
        return {
            "group": self.group,
            "config": space.identify(self.config),
            "schedule": self.schedule,
            "seed": self.seed,
            "error": error,
            "seconds": round(time.perf_counter() - start, 2),
        }


def draw(space: Space, chance: random.Random) -> Configuration:
    """An allowed configuration, all alike likely."""
    while True:
        values = {name: chance.choice(v) for name, v in space.parameters.items()}
        if space.allowed(values):
            return values


def runs() -> Iterator[Run]:
    """The same endless list every time: the families in turn."""
    chance = random.Random(0)
    for number in count():
        name = list(SPACES)[number % len(SPACES)]
        yield Run(name, draw(SPACES[name], chance), chance.randrange(SEEDS))


def sweep(path: Path, minutes: float) -> None:
    """Makes runs until the time is over."""
    done = len(path.read_text().splitlines()) if path.exists() else 0
    end = time.monotonic() + 60 * minutes
    with path.open("a") as file:
        for number, run in enumerate(runs()):
            if number < done:
                continue
            if time.monotonic() > end:
                return
            file.write(json.dumps(run.record()) + "\n")
            file.flush()


def table(path: Path) -> str:
    """Markdown: the size of the product, runs made and failures, by kind of kernel."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    made = Counter(row["group"] for row in rows)
    failed = Counter(row["group"] for row in rows if row["error"])
    hours = sum(row["seconds"] for row in rows) / 3600
    configurations = Counter(
        Run(name, config, 0).group
        for name, space in SPACES.items()
        for config in space.every()
    )
    lines = [
        f"| kernels | configurations | x {SEEDS} seeds | runs made | failures |",
        "|---|---|---|---|---|",
    ]
    for group, size in configurations.items():
        counts = f"{size:,} | {size * SEEDS:,} | {made[group]:,} | {failed[group]}"
        lines.append(f"| {group} | {counts} |")
    total = configurations.total()
    counts = f"{total:,} | {total * SEEDS:,} | {made.total():,} | {failed.total()}"
    lines.append(f"| **all** | {counts} |")
    return "\n".join([*lines, "", f"{hours:.1f} hours."])


def main() -> None:
    """Runs, or prints the account."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(arguments.path))
    else:
        sweep(arguments.path, arguments.minutes)


if __name__ == "__main__":
    main()

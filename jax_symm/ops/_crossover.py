"""From which m on a fused call was measured to be the faster one.

`crossover.json` is made by `python -m jax_symm bench --crossover` from rows of a run on
several GPUs. What it does not cover is left to the model of bytes and rates.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

from jax_symm.ops._rules import Op

_COLUMNS = ("arch", "op", "R", "n", "k")
_REACH = 4.0  # a layer speaks for others up to this factor away, in n and k together


class Crossover(NamedTuple):
    """A measured layer: `least_m` is None where fusing was never the faster way."""

    n: int
    k: int
    least_m: int | None


@functools.cache
def table() -> tuple[dict[str, Any], ...]:
    """The entries of `crossover.json`, the same in every process of one version."""
    text = resources.files(__package__).joinpath("crossover.json").read_text()
    return tuple(json.loads(text)["layers"])


def find(arch: str, op: Op, ranks: int, n: int, k: int) -> Crossover | None:
    """The measured layer that is nearest in n and k; None where none is near."""
    measured = [
        Crossover(one["n"], one["k"], one["least_m"])
        for one in table()
        if (one["arch"], one["op"], one["R"]) == (arch, op, ranks)
    ]

    def distance(one: Crossover) -> float:
        return abs(math.log(one.n / n)) + abs(math.log(one.k / k))

    nearest = min(measured, key=distance, default=None)
    near = nearest is not None and distance(nearest) <= math.log(_REACH)
    return nearest if near else None


def from_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries that rows of the benchmark give.

    Args:
      rows: Of any document; only those of one GPU a rank, by push, count.

    Returns:
      For each layer the least m from which on fusing was faster at every m measured.
    """
    layers: dict[tuple[Any, ...], dict[int, float]] = {}
    for row in rows:
        if row["path"] == "peer" and row["ratio_to"].startswith("xla_dot_psum"):
            op = row["op"].removeprefix("gemm_")
            key = (row["arch"], op, row["R"], row["n"], row["k"])
            layers.setdefault(key, {})[row["m"]] = row["ratio"]
    return [
        {**dict(zip(_COLUMNS, key, strict=True)), "least_m": _least_m(ratios)}
        for key, ratios in sorted(layers.items())
    ]


def _least_m(ratios: dict[int, float]) -> int | None:
    least = None
    for m in sorted(ratios, reverse=True):
        if ratios[m] < 1.0:
            break
        least = m
    return least

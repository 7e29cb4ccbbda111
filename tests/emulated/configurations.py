"""What is varied in the tests of each family of kernels, and how a configuration is run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codegen.gemm_variants import GemmVariant, Sm90Variant, Sm100Variant
from comm_world import World, check_results, launch_simt
from gemm_world import run
from kernel_layout import Call, Collective, Reducer
from pairwise import pairwise
from ptx_emulator import RunResult, Schedule

MAX_F16_RANKS = 8  # beyond, sums of multiples of 2**rank leave the range of f16

Configuration = dict[str, Any]


@dataclass(frozen=True)
class Space:
    """The configurations of one family of kernels.

    Attributes:
      parameters: values of each.
      allowed: whether the emulator can afford a configuration, and its data are exact.
      run: makes one call of all ranks under a schedule and seed, and checks everything.
      identify: a configuration's name.
    """

    parameters: Mapping[str, Sequence[Any]]
    allowed: Callable[[Configuration], bool]
    run: Callable[[Configuration, Schedule | None, int], RunResult]
    identify: Callable[[Configuration], str]

    def few(self) -> list[Configuration]:
        """A pairwise set."""
        return pairwise(self.parameters, self.allowed)

    def every(self) -> Iterator[Configuration]:
        """The allowed part of the product."""
        for values in itertools.product(*self.parameters.values()):
            config = dict(zip(self.parameters, values, strict=True))
            if self.allowed(config):
                yield config

    @property
    def product(self) -> int:
        """Configurations, allowed or not."""
        return math.prod(map(len, self.parameters.values()))


def variant_of(family: type[GemmVariant], config: Configuration) -> GemmVariant:
    """The kernel that a configuration names."""
    names = ("layout", "element", "reducer", "collective")
    return family(config["shape"], *(config[name] for name in names))


def _gemm_space(
    family: type[GemmVariant], parameters: Mapping[str, Sequence[Any]], max_work: int
) -> Space:
    """Calls of kernels with a tensor-core mainloop.

    Args:
      family: of kernels.
      parameters: what this family has besides those of all.
      max_work: elements of all ranks' partials.
    """
    every = {
        **parameters,
        "layout": ["kn", "nk"],
        "element": ["bf16", "f16"],
        "reducer": list(Reducer),
        "collective": list(Collective),
        "ranks": [2, 3, 4, 8, 16],
        "rows": [1, 7, 127, 128, 129, 255, 300],
        "n": [8, 72, 264],
        "k": [8, 72, 200],
        "batch": [1, 3],
        "float32_output": [False, True],
    }

    def allowed(config: Configuration) -> bool:
        work = config["ranks"] * config["batch"] * config["rows"] * config["n"]
        exact = config["element"] == "bf16" or config["ranks"] <= MAX_F16_RANKS
        return work <= max_work and exact

    def run_one(
        config: Configuration, schedule: Schedule | None, seed: int
    ) -> RunResult:
        names = ("ranks", "rows", "n", "k", "batch", "float32_output", "tight")
        sizes = {name: config[name] for name in names if name in config}
        variant = variant_of(family, config)
        return run(variant, schedule, seed=seed, clusters=1 + seed % 2, **sizes)

    def identify(config: Configuration) -> str:
        words = [variant_of(family, config).label]
        words += [f"R{config['ranks']}", f"b{config['batch']}x{config['rows']}"]
        words += [f"n{config['n']}", f"k{config['k']}"]
        flags = [name for name in ("float32_output", "tight") if config.get(name)]
        return "-".join(words + flags)

    return Space(every, allowed, run_one, identify)


_SIMT_PARAMETERS = {
    "ranks": [1, 2, 3, 4, 8, 16],
    "reducer": list(Reducer),
    "collective": list(Collective),
    # One row; fewer rows than ranks; a tile and its neighbours; several tiles.
    "rows": [1, 7, 63, 64, 65, 130],
    "batch": [1, 2, 3],
    "n": [8, 72],
    "float32_output": [False, True],
    "spare_shard_rows": [0, 3],
    "grid": [1, 3],
    "resident_ctas": [1, 4],
}


def _simt_allowed(c: Configuration) -> bool:
    # A single rank owns exactly the rows there are, and stores them straight to the output.
    possible = c["ranks"] > 1 or not c["spare_shard_rows"]
    return possible and c["ranks"] * c["rows"] * c["batch"] * c["n"] <= 30_000


def _run_simt(c: Configuration, schedule: Schedule | None, seed: int) -> RunResult:
    shard_rows = -(-c["rows"] // c["ranks"]) + c["spare_shard_rows"]
    names = (
        *("ranks", "rows", "batch", "n"),
        *("float32_output", "reducer", "collective"),
    )
    call = Call(
        **{name: c[name] for name in names},
        shard_rows=shard_rows,
        # Room for results of f32 in place of the operands' type.
        payload_bytes=4 * c["batch"] * c["ranks"] * shard_rows * 128,
    )
    world = World(call, resident_ctas=c["resident_ctas"], seed=seed)
    launches = launch_simt(world, call, grid=c["grid"])
    result = world.run(seed, schedule)
    check_results(launches)
    assert result.reports == ()
    assert world.faults() == [None] * call.ranks
    return result


def _identify_simt(config: Configuration) -> str:
    return "-".join(str(value) for value in config.values())


SM100_SHAPES = [(128, 128, 1), (128, 128, 2), (128, 256, 2)]
SM90_SHAPES = [
    *((128, 256, 2), (128, 256, 1), (128, 128, 2), (128, 128, 1)),
    (64, 128, 1),
]
SPACES = {
    "sm100": _gemm_space(
        Sm100Variant,
        # `tight`: no room in the workspace for rows of whole cache lines.
        {"shape": SM100_SHAPES, "tight": [False, True]},
        40_000,
    ),
    "sm90": _gemm_space(Sm90Variant, {"shape": SM90_SHAPES}, 80_000),
    "comm": Space(_SIMT_PARAMETERS, _simt_allowed, _run_simt, _identify_simt),
}

"""A few configurations in which every pair of values of two parameters occurs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

MAX_CANDIDATES = 25_000


def pairwise(
    parameters: Mapping[str, Sequence[Any]],
    allowed: Callable[[dict[str, Any]], bool] = lambda _: True,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Covers all pairs greedily; the same list for the same arguments.

    Args:
      parameters: values of each parameter.
      allowed: whether a whole configuration makes sense; pairs that no allowed
        configuration has are left out.
      seed: of the candidates.
    """
    names = list(parameters)
    chance = random.Random(seed)
    pool = [
        configuration
        for values in _candidates(parameters, chance)
        if allowed(configuration := dict(zip(names, values, strict=True)))
    ]
    chance.shuffle(pool)
    uncovered = set().union(*(_pairs(configuration) for configuration in pool))
    chosen = []
    while uncovered:
        candidates = chance.sample(pool, min(len(pool), 200))
        best = max(candidates, key=lambda c: len(_pairs(c) & uncovered))
        if _pairs(best) & uncovered:
            chosen.append(best)
            uncovered -= _pairs(best)
    return chosen


def _candidates(
    parameters: Mapping[str, Sequence[Any]], chance: random.Random
) -> Iterable[tuple[Any, ...]]:
    """The product of the values, or a sample of it where it is large."""
    if math.prod(map(len, parameters.values())) <= MAX_CANDIDATES:
        return itertools.product(*parameters.values())
    return (
        tuple(chance.choice(values) for values in parameters.values())
        for _ in range(MAX_CANDIDATES)
    )


def _pairs(configuration: dict[str, Any]) -> set[tuple[tuple[str, Any], ...]]:
    return set(itertools.combinations(configuration.items(), 2))

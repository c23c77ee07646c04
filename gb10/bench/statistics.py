"""Median, pairs, ratios and the bootstrap interval of a median ratio. Used by compare.py; docs/metrics.md says why so."""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)

LEAST_PAIRS = 10
RESAMPLES = 4000
SEED = 42
LEVEL = 0.95


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the middle two. `values` must not be empty."""
    return _middle(sorted(values))


def _middle(ordered: Sequence[float]) -> float:
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2


def summary(values: Sequence[float]) -> dict[str, float | int | None]:
    """`n`, `median`, `min` and `max`; all but `n` are None when there are no values."""
    if not values:
        return {"n": 0, "median": None, "min": None, "max": None}
    return {"n": len(values), "median": median(values), "min": min(values), "max": max(values)}


def paired(a: Mapping[Key, float], b: Mapping[Key, float]) -> list[tuple[float, float]]:
    """The values that stand under the same key on both sides, in the order of `a`."""
    return [(value, b[key]) for key, value in a.items() if key in b]


def ratios(pairs: Sequence[tuple[float, float]]) -> list[float]:
    """b / a of each pair. A pair whose a is zero has no ratio and is left out."""
    return [b / a for a, b in pairs if a > 0]


def interval(
    values: Sequence[float], *, resamples: int = RESAMPLES, seed: int = SEED, level: float = LEVEL
) -> tuple[tuple[float, float] | None, str]:
    """The percentile bootstrap interval of the median of pairwise ratios, and how it was made or why there is none.

    Pairs are drawn with replacement as pairs (each ratio is one pair), so what both sides of a pair share stays shared.
    The same values give the same interval, always.
    """
    count = len(values)
    if count < LEAST_PAIRS:
        return None, f"{words(count, 'pair')}, and no interval is given below {LEAST_PAIRS}"
    ordered = sorted(values)
    draw = random.Random(seed)
    medians = sorted(_middle(sorted(draw.choices(ordered, k=count))) for _ in range(resamples))
    tail = (1 - level) / 2
    low = medians[math.floor(tail * resamples)]
    high = medians[min(resamples, math.ceil((1 - tail) * resamples)) - 1]
    return (low, high), f"{level:.0%}, bootstrap of {count} pairs, {resamples} resamples, seed {seed}"


def words(count: int, noun: str) -> str:
    """`1 pair`, `2 pairs`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

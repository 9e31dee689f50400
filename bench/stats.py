"""Statistics over rounds. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of these values that at least this share of them does not exceed.

    Args:
        values: at least one, in any order.
        share: from 0 to 1; 0.5 is a median without interpolation.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def ratios(
    rounds: Mapping[str, Sequence[float]], reference: str
) -> dict[str, tuple[float, float, float]]:
    """Each contender against the reference, round by round: the machine's load cancels out.

    Args:
        rounds: by contender, one figure for each round, in the same order of rounds for all.
        reference: the contender that the others are divided by.

    Returns:
        By contender the lowest, the median and the highest of its rounds' ratios.
    """
    base = rounds[reference]
    found = {}
    for name, figures in rounds.items():
        each = [mine / its for mine, its in zip(figures, base, strict=True)]
        found[name] = (min(each), statistics.median(each), max(each))
    return found


def evenness(counts: Sequence[int]) -> float:
    """How evenly a total is shared out: Jain's index, 1 if all have the same, 1/n if one has all.

    Source: Jain, Chiu, Hawe, "A quantitative measure of fairness" (1984).
    """
    squares = sum(count * count for count in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 1.0

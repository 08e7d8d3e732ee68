"""Slow and obvious twins of the decision rules."""

from __future__ import annotations

import math
from collections.abc import Sequence


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Fewest substitutions, insertions and deletions that turn one sequence into the other."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        previous, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (a != b)))
    return row[-1]


def plain_distance_matrix(words: Sequence[Sequence[str]], unit: str) -> list[list[int]]:
    tokens = [list("".join(hypothesis)) if unit == "character" else hypothesis for hypothesis in words]
    return [[edit_distance(one, other) for other in tokens] for one in tokens]


def plain_posteriors(totals: Sequence[float], temperature: float) -> list[float]:
    largest = max(totals)
    powers = [math.exp((total - largest) / temperature) for total in totals]
    return [power / sum(powers) for power in powers]


def plain_expected_errors(
    words: Sequence[Sequence[str]], posteriors: Sequence[float], unit: str
) -> list[float]:
    """Σ_j p_j · d(i, j) for each hypothesis i."""
    matrix = plain_distance_matrix(words, unit)
    return [sum(p * d for p, d in zip(posteriors, row, strict=True)) for row in matrix]

"""Slow and obvious twins of the decision rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.support.units_twin import plain_units


def edit_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """Fewest substitutions, insertions and deletions that turn one sequence into the other."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        previous, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (a != b)))
    return row[-1]


def plain_distance_matrix(words: Sequence[Sequence[str]], unit: str) -> list[list[int]]:
    tokens = [plain_units(hypothesis, unit) for hypothesis in words]
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


def plain_alignment(
    slots: list[dict[str, float]], words: Sequence[str], scale: int
) -> list[tuple[int | None, int | None]]:
    """Cheapest alignment of words to slots of shares, by recursion over suffixes of the table.

    Costs are rounded to 1 / scale. Walking back from the end, a pair is preferred to a slot without a word,
    and that to a new slot.
    """

    def cost(s: int, word: str) -> int:
        return scale - round(scale * slots[s].get(word, 0.0))

    best: dict[tuple[int, int], int] = {(0, 0): 0}
    steps: dict[tuple[int, int], tuple[int | None, int | None]] = {}
    for i in range(len(words) + 1):
        for s in range(len(slots) + 1):
            ways: list[tuple[int, tuple[int | None, int | None]]] = []
            if i and s:
                ways.append((best[i - 1, s - 1] + cost(s - 1, words[i - 1]), (s - 1, i - 1)))
            if s:
                ways.append((best[i, s - 1] + cost(s - 1, ""), (s - 1, None)))
            if i:
                ways.append((best[i - 1, s] + scale, (None, i - 1)))
            if ways:
                best[i, s], steps[i, s] = min(ways, key=lambda way: way[0])
    alignment = []
    i, s = len(words), len(slots)
    while i or s:
        slot, word = steps[i, s]
        alignment.append((slot, word))
        i, s = i - (word is not None), s - (slot is not None)
    return alignment[::-1]


def plain_network(
    words: Sequence[Sequence[str]], weights: Sequence[float], scale: int
) -> list[dict[str, float]]:
    """Shares of each word by slot, of a network to which the sequences are added in this order."""
    slots: list[dict[str, float]] = []
    total = 0.0
    for sequence, weight in zip(words, weights, strict=True):
        shares = [{word: mass / total for word, mass in slot.items()} for slot in slots]
        grown = []
        for s, i in plain_alignment(shares, sequence, scale):
            slot = ({"": total} if total else {}) if s is None else dict(slots[s])
            word = "" if i is None else sequence[i]
            slot[word] = slot.get(word, 0.0) + weight
            grown.append(slot)
        slots, total = grown, total + weight
    return [{word: mass / total for word, mass in slot.items()} for slot in slots]

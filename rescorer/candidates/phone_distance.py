"""Find what sounds like phrases: the weighted edit distance of phones, for many phrases and places at once.

The distance of two sequences of phones is the least sum of costs of replacing, leaving out and adding phones
(``phones``). It is computed row by row, for all pairs of a phrase and a place where it may begin: a row is
one phone of the phrases against all phones from the place on. Pairs whose distance must become too large are
left out as soon as this is certain: first of all those where each phone of the phrase alone, compared with
the phone after the place that is nearest to it, costs too much already.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rescorer.candidates.phones import Phones, gap_costs, substitution_costs

SUBSTITUTIONS, GAPS = substitution_costs(), gap_costs()
SILENCE = len(GAPS)
"""Number beyond those of phones, where a text has ended or has a word that cannot be pronounced: it is unlike
everything."""
FAR = 1_000_000
MAX_PAIRS = 65_536
"""Pairs that are computed at a time; 64 Ki pairs take about 30 MB."""
COSTS = np.full((SILENCE + 1, SILENCE + 1), FAR, dtype=np.int32)
COSTS[:SILENCE, :SILENCE] = SUBSTITUTIONS
GAP_OR_FAR = np.append(GAPS, np.int32(FAR))


class SoundMatch(NamedTuple):
    """Phones of a text that sound like a phrase."""

    text: int
    phrase: int
    start: int
    """Number of phones of the text before it."""
    end: int
    distance: int
    """In the units of ``phones.UNIT``."""


def find_similar(
    texts: Sequence[Phones],
    boundaries: Sequence[Sequence[int]],
    phrases: Sequence[Phones],
    max_per_phone: float,
) -> list[SoundMatch]:
    """Find, for each phrase and each place where a word begins, the words from there that are nearest to it.

    Args:
        texts: phones of each text.
        boundaries: places of each text where a word may begin or end, ascending, as numbers of phones.
        phrases: phones of each phrase.
        max_per_phone: largest distance, as a multiple of ``UNIT`` times the number of phones of the phrase.

    Returns:
        The matches within the bound, by text, start and phrase. Of equal distances, the shortest match.
    """
    found: list[SoundMatch] = []
    by_length: dict[int, list[int]] = {}
    for index, phrase in enumerate(phrases):
        if phrase:
            by_length.setdefault(len(phrase), []).append(index)
    for length, indices in sorted(by_length.items()):
        width = longest_match(length, max_per_phone)
        phones, is_end, places = _cut_windows(texts, boundaries, width)
        rows = np.array([list(phrases[index]) for index in indices])
        step = max(1, MAX_PAIRS // max(1, len(places)))
        for begin in range(0, len(indices) if places else 0, step):
            part = _match_rows(rows[begin : begin + step], phones, is_end, _bound(length, max_per_phone))
            for window, row, size, distance in part:
                for text, start in places[window]:
                    found.append(SoundMatch(text, indices[begin + row], start, start + size, distance))
    return sorted(found, key=lambda match: (match.text, match.start, match.phrase))


def _bound(length: int, max_per_phone: float) -> int:
    return int(max_per_phone * 100 * length)


def longest_match(length: int, max_per_phone: float) -> int:
    """Largest number of phones that can be near enough to a phrase of a number of phones."""
    return length + _bound(length, max_per_phone) // int(GAPS.min())


Places = list[list[tuple[int, int]]]
"""Text and start of all places with the same window."""


def _cut_windows(
    texts: Sequence[Phones], boundaries: Sequence[Sequence[int]], width: int
) -> tuple[np.ndarray, np.ndarray, Places]:
    """The phones after each place, (W, width); whether a word ends after each, (W, width) bool; the places.

    Hypotheses of a list are much alike: places with the same phones and ends are one row.
    """
    places: dict[tuple[Phones, tuple[int, ...]], list[tuple[int, int]]] = {}
    for text, cuts in enumerate(boundaries):
        for start in cuts:
            if part := texts[text][start : start + width]:
                ends = tuple(place - start - 1 for place in cuts if start < place <= start + width)
                places.setdefault((part, ends), []).append((text, start))
    phones = np.full((len(places), width), SILENCE, dtype=np.int64)
    is_end = np.zeros((len(places), width), dtype=bool)
    for row, (part, ends) in enumerate(places):
        phones[row, : len(part)] = list(part)
        is_end[row, list(ends)] = True
    return phones, is_end, list(places.values())


def _find_possible(phrases: np.ndarray, phones: np.ndarray, bound: int) -> tuple[np.ndarray, np.ndarray]:
    """The windows and phrases whose phones, each taken by itself, can be within the bound."""
    nearest = np.minimum(COSTS[:SILENCE][:, phones].min(axis=2), GAPS[:, None])  # (phones, W)
    counts = np.zeros((len(phrases), SILENCE))
    np.add.at(counts, (np.arange(len(phrases))[:, None], phrases), 1.0)
    windows, near = np.nonzero(nearest.T.astype(np.float64) @ counts.T <= bound)
    return windows, near


def _match_rows(
    phrases: np.ndarray, phones: np.ndarray, is_end: np.ndarray, bound: int
) -> list[tuple[int, int, int, int]]:
    """Compare all phrases of one length with all windows.

    Args:
        phrases: (P, L) numbers of phones.
        phones: (W, N) numbers of phones.

    Returns:
        Window, phrase, number of phones and distance of the nearest ends within the bound.
    """
    window, phrase = _find_possible(phrases, phones, bound)
    gaps = np.minimum(GAP_OR_FAR[phones].cumsum(axis=1), FAR).astype(np.int32)
    added = np.concatenate([np.zeros((len(phones), 1), np.int32), gaps], axis=1)  # (W, N + 1)
    cells = added[window]
    for column in range(phrases.shape[1]):
        phone = phrases[phrase, column]
        replaced = cells[:, :-1] + COSTS[phone[:, None], phones[window]]
        cells = cells + GAPS[phone, None]
        np.minimum(cells[:, 1:], replaced, out=cells[:, 1:])
        # adding phones: the least of all cells to the left, plus what the phones between them cost
        total = added[window]
        cells = np.minimum.accumulate(cells - total, axis=1) + total
        near = cells.min(axis=1) <= bound
        if not near.all():
            window, phrase, cells = window[near], phrase[near], cells[near]
    ends = np.where(is_end[window], cells[:, 1:], FAR)
    best = ends.argmin(axis=1)
    distances = ends[np.arange(len(ends)), best]
    is_match = distances <= bound
    columns = window[is_match], phrase[is_match], best[is_match] + 1, distances[is_match]
    return list(zip(*(column.tolist() for column in columns), strict=True))

"""Find what sounds like phrases: the weighted edit distance of phones, for many phrases and places at once.

The distance of two sequences of phones is the least sum of costs of replacing, leaving out and adding phones
(``phones``). It is computed row by row, for all pairs of a phrase and a place where it may begin: a row is
one phone of the phrases against all phones from the place on. Pairs whose distance must become too large are
left out as soon as this is certain: first of all those where each phone of the phrase alone, compared with
the phone after the place that is nearest to it, costs too much already.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from rescorer.candidates.phones import UNIT, Phones, gap_costs, substitution_costs
from rescorer.conversation import DISTANCE_COST

SUBSTITUTIONS, GAPS = substitution_costs(), gap_costs()
SILENCE = len(GAPS)
"""Number beyond those of phones, where a text has ended or has a word that cannot be pronounced: it is unlike
everything."""
FAR = 1_000_000
MAX_PAIRS = 65_536
"""Pairs of a window and a phrase that are looked at at a time."""
MAX_CELLS = 2_000_000
"""Cells of pairs that are computed at a time, which take about 50 MB: those of 64 Ki pairs of 30 phones."""
MAX_STEPS = 200_000_000
"""Cells that are computed for a list, in about 2 s on one core; 2,000 phrases of three words and five
hypotheses of 20 words need a quarter. What is beyond is left out, beginning with the longest phrases."""
MAX_MATCHES = 4096
"""Largest number of matches of a list; those for which sound says most."""
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
        The matches within the bound, by text, start and phrase. Of equal distances, the shortest match. Of
        very many, or of very long texts and phrases, only some; see ``MAX_MATCHES`` and ``MAX_STEPS``.
    """
    found: list[SoundMatch] = []
    by_length: dict[int, list[int]] = {}
    for index, phrase in enumerate(phrases):
        if phrase:
            by_length.setdefault(len(phrase), []).append(index)
    steps_left = MAX_STEPS
    for length, indices in sorted(by_length.items()):
        width, bound = longest_match(length, max_per_phone), _bound(length, max_per_phone)
        windows, places = _cut_windows(texts, boundaries, width)
        rows = np.array([list(phrases[index]) for index in indices])
        for pairs in _find_possible(rows, windows.phones, bound) if places else ():
            pairs = pairs[: steps_left // (length * width)]
            steps_left -= len(pairs) * length * width
            nearest_first = sorted(_match_pairs(pairs, rows, windows, bound), key=itemgetter(3))
            new = (
                SoundMatch(text, indices[row], start, start + size, distance)
                for window, row, size, distance in nearest_first
                for text, start in places[window]
            )
            found = _keep_best([*found, *islice(new, MAX_MATCHES)], phrases)
    return sorted(found, key=lambda match: (match.text, match.start, match.phrase))


def _keep_best(found: list[SoundMatch], phrases: Sequence[Phones]) -> list[SoundMatch]:
    """Leave out the matches for which sound says least (``Generated.sound_match``) if there are too many."""
    if len(found) <= MAX_MATCHES:
        return found

    def cost(match: SoundMatch) -> tuple[float, ...]:
        against = DISTANCE_COST * match.distance - UNIT * len(phrases[match.phrase])
        return against, match.text, match.start, match.phrase

    return sorted(found, key=cost)[:MAX_MATCHES]


def _bound(length: int, max_per_phone: float) -> int:
    return int(max_per_phone * 100 * length)


def longest_match(length: int, max_per_phone: float) -> int:
    """Largest number of phones that can be near enough to a phrase of a number of phones."""
    return length + _bound(length, max_per_phone) // int(GAPS.min())


Places = list[list[tuple[int, int]]]
"""Text and start of all places with the same window."""


class Windows(NamedTuple):
    """The phones after places of texts."""

    phones: np.ndarray
    """(W, N) numbers of phones, ``SILENCE`` beyond the end of a text."""
    is_end: np.ndarray
    """(W, N) bool, whether a word ends after the phone."""


def _cut_windows(
    texts: Sequence[Phones], boundaries: Sequence[Sequence[int]], width: int
) -> tuple[Windows, Places]:
    """Cut the phones after each place, of (W, width).

    Hypotheses of a list are much alike: places with the same phones and ends are one row.
    """
    places: dict[tuple[Phones, tuple[int, ...]], list[tuple[int, int]]] = {}
    for text, cuts in enumerate(boundaries):
        for index, start in enumerate(cuts):
            if part := texts[text][start : start + width]:
                later = cuts[index + 1 : bisect_right(cuts, start + width)]
                ends = tuple(place - start - 1 for place in later)
                places.setdefault((part, ends), []).append((text, start))
    windows = Windows(
        np.full((len(places), width), SILENCE, dtype=np.int64), np.zeros((len(places), width), dtype=bool)
    )
    for row, (part, ends) in enumerate(places):
        windows.phones[row, : len(part)] = list(part)
        windows.is_end[row, list(ends)] = True
    return windows, list(places.values())


def _find_possible(phrases: np.ndarray, phones: np.ndarray, bound: int) -> Iterator[np.ndarray]:
    """Find the windows and phrases whose phones, each taken by itself, can be within the bound.

    Args:
        phrases: (P, L) numbers of phones.
        phones: (W, N) numbers of phones, at least one window.

    Yields:
        (n, 2) int64 windows and phrases, as many as ``MAX_CELLS`` permits.
    """
    cheapest = [np.minimum(costs[phones].min(axis=1), gap) for costs, gap in zip(COSTS, GAPS, strict=False)]
    nearest = np.array(cheapest, dtype=np.float64)  # (phones, W)
    n_phrases = max(1, MAX_PAIRS // len(phones))
    n_pairs = max(1, min(MAX_PAIRS, MAX_CELLS // phones.shape[1]))
    for begin in range(0, len(phrases), n_phrases):
        part = phrases[begin : begin + n_phrases]
        counts = np.zeros((len(part), SILENCE))
        np.add.at(counts, (np.arange(len(part))[:, None], part), 1.0)
        costs = nearest.T @ counts.T  # (W, P)
        pairs = np.argwhere(costs <= bound) + np.array([0, begin])
        for first in range(0, len(pairs), n_pairs):
            yield pairs[first : first + n_pairs]


def _match_pairs(
    pairs: np.ndarray, phrases: np.ndarray, windows: Windows, bound: int
) -> list[tuple[int, int, int, int]]:
    """Compare phrases of one length with windows.

    Args:
        pairs: (n, 2) windows and phrases.
        phrases: (P, L) numbers of phones.

    Returns:
        Window, phrase, number of phones and distance of the nearest ends within the bound.
    """
    window, phrase = pairs.T
    gaps = np.minimum(GAP_OR_FAR[windows.phones].cumsum(axis=1), FAR).astype(np.int32)
    added = np.concatenate([np.zeros((len(gaps), 1), np.int32), gaps], axis=1)  # (W, N + 1)
    cells = added[window]
    for column in range(phrases.shape[1]):
        phone = phrases[phrase, column]
        replaced = cells[:, :-1] + COSTS[phone[:, None], windows.phones[window]]
        cells = cells + GAPS[phone, None]
        np.minimum(cells[:, 1:], replaced, out=cells[:, 1:])
        # adding phones: the least of all cells to the left, plus what the phones between them cost
        total = added[window]
        cells = np.minimum.accumulate(cells - total, axis=1) + total
        near = cells.min(axis=1) <= bound
        if not near.all():
            window, phrase, cells = window[near], phrase[near], cells[near]
    ends = np.where(windows.is_end[window], cells[:, 1:], FAR)
    best = ends.argmin(axis=1)
    distances = ends[np.arange(len(ends)), best]
    is_match = distances <= bound
    columns = window[is_match], phrase[is_match], best[is_match] + 1, distances[is_match]
    return list(zip(*(column.tolist() for column in columns), strict=True))

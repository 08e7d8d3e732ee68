"""Find what sounds like phrases: the weighted edit distance of phones, for many phrases and places at once.

The distance of two sequences of phones is the least sum of costs of replacing, leaving out and adding phones
(``phones``). It is computed row by row, for all pairs of a phrase and a place where it may begin: a row is
one phone of the phrases against all phones from the place on. Pairs whose distance must become too large are
left out as soon as this is certain: first of all those where each phone of the phrase alone, compared with
the phone after the place that is nearest to it, costs too much already.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import starmap
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
WINDOW_BYTES, PLACE_BYTES, PAIR_BYTES, CELL_BYTES = 16, 1_024, 64, 48
"""Memory of a phone of a window, of a place, of a pair, and of a cell, at most."""
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


TEXT, PHRASE, START, _, DISTANCE = range(len(SoundMatch._fields))


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
    found = np.empty((0, len(SoundMatch._fields)), dtype=np.int64)
    by_length: dict[int, list[int]] = {}
    for index, phrase in enumerate(phrases):
        if phrase:
            by_length.setdefault(len(phrase), []).append(index)
    steps_left = MAX_STEPS
    for length, indices in sorted(by_length.items()):
        width, bound = longest_match(length, max_per_phone), _bound(length, max_per_phone)
        if steps_left < length * width:
            break
        windows, places = _cut_windows(texts, boundaries, width)
        rows = np.array([list(phrases[index]) for index in indices])
        for pairs in _find_possible(rows, windows.phones, bound) if len(windows.phones) else ():
            pairs = pairs[: steps_left // (length * width)]
            if not len(pairs):
                break
            steps_left -= len(pairs) * length * width
            matched = _match_pairs(pairs, rows, windows, bound)
            if len(matched.window):
                new = _place_nearest(matched, np.array(indices), places)
                found = _keep_best(np.concatenate([found, new]), phrases)
    order = np.lexsort((found[:, PHRASE], found[:, START], found[:, TEXT]))
    return list(starmap(SoundMatch, found[order].tolist()))


def estimate_steps(n_places: int, lengths: Iterable[int], max_per_phone: float) -> int:
    """Return an upper bound of the steps of ``find_similar``: cells, phones of windows, and pairs.

    Args:
        n_places: number of places of all texts where a word may begin.
        lengths: number of phones of each phrase.
    """
    cells = others = 0
    for length, n_phrases in Counter(lengths).items():
        width = longest_match(length, max_per_phone)
        cells += n_places * n_phrases * length * width
        others += n_places * (n_phrases + width)
    return min(cells, MAX_STEPS) + others


def estimate_bytes(n_places: int, lengths: Iterable[int], max_per_phone: float) -> int:
    """Return an upper bound of the memory of ``find_similar``; arguments are those of ``estimate_steps``."""
    counts = Counter(lengths)
    width = longest_match(max(counts, default=0), max_per_phone)
    pairs = min(n_places * max(counts.values(), default=0), MAX_PAIRS)
    cells = min(pairs * (width + 1), MAX_CELLS + width)
    return n_places * (width * WINDOW_BYTES + PLACE_BYTES) + pairs * PAIR_BYTES + cells * CELL_BYTES


class Matched(NamedTuple):
    """Pairs of a window and a phrase within the bound, (n,) each."""

    window: np.ndarray
    phrase: np.ndarray
    size: np.ndarray
    """Number of phones of the window, up to the nearest end."""
    distance: np.ndarray


def _place_nearest(matched: Matched, indices: np.ndarray, places: Places) -> np.ndarray:
    """The matches of the nearest pairs at all places of their windows, at most ``MAX_MATCHES``, (n, 5).

    Args:
        indices: index of each phrase among all phrases.
    """
    nearest = np.argsort(matched.distance, kind="stable")[:MAX_MATCHES]
    ends = places.counts[matched.window[nearest]].cumsum()
    nearest = nearest[: np.searchsorted(ends, MAX_MATCHES) + 1]
    pair = np.repeat(nearest, places.counts[matched.window[nearest]])[:MAX_MATCHES]
    nth = (
        np.arange(len(pair))
        - np.concatenate([[0], ends])[np.searchsorted(ends, np.arange(len(pair)), "right")]
    )
    at = places.begins[matched.window[pair]] + nth
    text, start = places.text[at], places.start[at]
    return np.stack(
        [text, indices[matched.phrase[pair]], start, start + matched.size[pair], matched.distance[pair]],
        axis=1,
    )


def _keep_best(found: np.ndarray, phrases: Sequence[Phones]) -> np.ndarray:
    """Leave out the matches for which sound says least (``Generated.sound_match``) if there are too many."""
    if len(found) <= MAX_MATCHES:
        return found
    lengths = np.array(list(map(len, phrases)))
    against = DISTANCE_COST * found[:, DISTANCE] - UNIT * lengths[found[:, PHRASE]]
    order = np.lexsort((found[:, PHRASE], found[:, START], found[:, TEXT], against))
    return found[order[:MAX_MATCHES]]


def _bound(length: int, max_per_phone: float) -> int:
    return int(max_per_phone * 100 * length)


def longest_match(length: int, max_per_phone: float) -> int:
    """Largest number of phones that can be near enough to a phrase of a number of phones."""
    return length + _bound(length, max_per_phone) // int(GAPS.min())


class Places(NamedTuple):
    """The places of each window."""

    text: np.ndarray
    """(n,) text of each place, by window."""
    start: np.ndarray
    """(n,) number of phones of the text before it."""
    counts: np.ndarray
    """(W,) number of places of each window."""
    begins: np.ndarray
    """(W,) index of the first place of each window."""


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
    found: dict[tuple[Phones, bytes], list[tuple[int, int]]] = {}
    for text, cuts in enumerate(boundaries):
        is_end = bytearray(len(texts[text]) + 1)
        for cut in cuts:
            is_end[cut] = 1
        ends = bytes(is_end)
        for start in cuts:
            if part := texts[text][start : start + width]:
                found.setdefault((part, ends[start + 1 : start + 1 + width]), []).append((text, start))
    silence = bytes([SILENCE])
    phones = b"".join(part.ljust(width, silence) for part, _ in found)
    ends = b"".join(part.ljust(width, b"\0") for _, part in found)
    windows = Windows(
        np.frombuffer(phones, np.uint8).reshape(len(found), width).astype(np.int64),
        np.frombuffer(ends, bool).reshape(len(found), width),
    )
    places = np.array([place for part in found.values() for place in part], dtype=np.int64).reshape(-1, 2)
    counts = np.array(list(map(len, found.values())), dtype=np.int64)
    return windows, Places(places[:, 0], places[:, 1], counts, counts.cumsum() - counts)


def _find_possible(phrases: np.ndarray, phones: np.ndarray, bound: int) -> Iterator[np.ndarray]:
    """Find the windows and phrases whose phones, each taken by itself, can be within the bound.

    Args:
        phrases: (P, L) numbers of phones.
        phones: (W, N) numbers of phones, at least one window.

    Yields:
        (n, 2) int64 windows and phrases, as many as ``MAX_CELLS`` permits.
    """
    nearest = _nearest_costs(phones)
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


def _nearest_costs(phones: np.ndarray) -> np.ndarray:
    """What each phone costs at least in each window, (SILENCE, W) float64.

    Args:
        phones: (W, N) numbers of phones.
    """
    has = np.zeros((len(phones), SILENCE + 1), dtype=bool)
    has[np.arange(len(phones))[:, None], phones] = True
    nearest = np.repeat(GAPS[:, None], len(phones), axis=1)
    for phone in range(SILENCE):
        windows = np.flatnonzero(has[:, phone])
        nearest[:, windows] = np.minimum(nearest[:, windows], SUBSTITUTIONS[:, phone, None])
    return nearest.astype(np.float64)


def _match_pairs(pairs: np.ndarray, phrases: np.ndarray, windows: Windows, bound: int) -> Matched:
    """Compare phrases of one length with windows.

    Args:
        pairs: (n, 2) windows and phrases.
        phrases: (P, L) numbers of phones.

    Returns:
        Those whose nearest ends are within the bound.
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
    return Matched(window[is_match], phrase[is_match], best[is_match] + 1, distances[is_match])

"""Posteriors of words in their places: each hypothesis is aligned with the best one.

A slot is a word of the best hypothesis, or the k-th word that others insert before one or at the end. The
posterior of a word in its slot is the sum of those of the hypotheses with the same word there: an
approximation of a confusion network whose alignments take microseconds, because no hypothesis moves the
slots of others.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.decision.distances import MAX_STEPS
from rescorer.errors import LimitExceeded
from rescorer.ranking import best_first
from rescorer.reranking.list_view import ListView

MOVES = {"delete": 1, "insert": -1, "replace": 0}
"""By how many places an edit of the best hypothesis moves the words after it."""
MAX_CELLS = 1 << 20
"""Largest table by which numbers are counted; beyond, they are sorted."""


def find_slots(view: ListView) -> np.ndarray:
    """Return the slot of every word of a list, (N,) int64.

    A slot is S times the place of a word in the best hypothesis, plus k for the k-th word inserted there,
    where S is greater than the length of any hypothesis.

    Raises:
        LimitExceeded: the list is too long to be aligned.
    """
    _check_work(view.lengths)
    pivot, step = view.texts[int(best_first(view.totals)[0])], int(view.lengths.max()) + 1
    found = {text: Levenshtein.editops(pivot, text).as_list() for text in dict.fromkeys(view.texts)}
    edits = [found[text] for text in view.texts]
    edit_rows = np.repeat(np.arange(len(edits)), np.fromiter(map(len, edits), np.int64, len(edits)))
    tags, sources, targets = zip(("equal", 0, 0), *chain.from_iterable(edits), strict=True)
    moves = np.fromiter(map(MOVES.__getitem__, tags[1:]), np.int64, len(edit_rows))
    from_place, to_word = np.array(sources[1:], dtype=np.int64), np.array(targets[1:], dtype=np.int64)
    # A word deleted from the best hypothesis moves the places of the words after it by 1, an inserted one by
    # −1. All moves of a hypothesis sum to its difference in length, so one sum runs over all hypotheses, of
    # which each has a cell more than words.
    cells = view.offsets[edit_rows] + edit_rows + to_word + (moves < 0)
    moved = np.cumsum(np.bincount(cells, moves, len(view.codes) + len(edits))).astype(np.int64)
    words = np.arange(len(view.codes))
    slots: np.ndarray = (words + moved[words + view.rows] - view.rows * len(pivot)) * step
    inserted = moves < 0
    places = edit_rows[inserted] * step + from_place[inserted]  # ascending
    n_th = np.arange(len(places)) - np.searchsorted(places, places) + 1
    slots[view.offsets[edit_rows[inserted]] + to_word[inserted]] = from_place[inserted] * step + n_th
    return slots


def index_slots(view: ListView) -> np.ndarray:
    """Number the pairs of a slot and a word in it, and return that of every word of a list, (N,) int64.

    Raises:
        LimitExceeded: the list is too long to be aligned.
    """
    index = number_values(find_slots(view)) * len(view.vocabulary) + view.codes
    return index if index.max(initial=0) < MAX_CELLS else number_values(index)


def number_values(values: np.ndarray) -> np.ndarray:
    """Number the distinct ones of (N,) integers, at least 0, in ascending order: (N,) int64."""
    if values.max(initial=0) >= MAX_CELLS:
        return np.unique(values, return_inverse=True)[1]
    occurs = np.zeros(int(values.max(initial=0)) + 1, dtype=np.int64)
    occurs[values] = 1
    numbers: np.ndarray = np.cumsum(occurs)[values] - 1
    return numbers


def count_slot_steps(lengths: np.ndarray) -> int:
    """Bound the work of aligning all hypotheses with one, in units of ``distances.count_steps``."""
    return 2 * int(lengths.sum()) * (int(lengths.max(initial=0)) // 64 + 1)


def _check_work(lengths: np.ndarray) -> None:
    """Raise LimitExceeded if aligning hypotheses of some lengths would take too long."""
    if (steps := count_slot_steps(lengths)) > MAX_STEPS:
        raise LimitExceeded(
            f"aligning {len(lengths):,} hypotheses of up to {int(lengths.max()):,} words takes {steps:,} "
            f"steps; expected at most {MAX_STEPS:,}; send fewer hypotheses",
            field="hypotheses",
        )

"""Posteriors of words in their places: each hypothesis is aligned with the best one.

A slot is a word of the best hypothesis, or the k-th word that others insert before one or at the end. The
posterior of a word in its slot is the sum of those of the hypotheses with the same word there: an
approximation of a confusion network whose alignments take microseconds, because no hypothesis moves the
slots of others.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.decision.distances import MAX_STEPS
from rescorer.errors import LimitExceeded
from rescorer.ranking import best_first
from rescorer.reranking.list_view import ListView


def find_slots(view: ListView) -> np.ndarray:
    """Return the slot of every word of a list, (N,) int64.

    Raises:
        LimitExceeded: the list is too long to be aligned.
    """
    _check_work(view.lengths)
    pivot = view.texts[int(best_first(view.totals)[0])]
    step = int(view.lengths.max()) + 1  # slots of a word and of what is inserted before it
    found = {text: _align(pivot, text, step) for text in dict.fromkeys(view.texts)}
    slots = chain.from_iterable(found[text] for text in view.texts)
    return np.fromiter(slots, np.int64, len(view.codes))


def index_slots(view: ListView) -> np.ndarray:
    """Number the pairs of a slot and a word in it, and return that of every word of a list, (N,) int64.

    Raises:
        LimitExceeded: the list is too long to be aligned.
    """
    _, index = np.unique(find_slots(view) * (len(view.vocabulary) + 1) + view.codes, return_inverse=True)
    return index


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


def _align(pivot: str, hypothesis: str, step: int) -> list[int]:
    """Slot of each word: ``step`` times its place in the pivot, plus the count of words inserted there."""
    slots: list[int] = []
    place = n_inserted = 0
    operations: list[Any] = Levenshtein.editops(pivot, hypothesis).as_list()
    for tag, _, target in operations:
        if n_equal := target - len(slots):
            slots += range(place * step, (place + n_equal) * step, step)
            place, n_inserted = place + n_equal, 0
        if tag == "insert":
            n_inserted += 1
            slots.append(place * step + n_inserted)
            continue
        if tag == "replace":
            slots.append(place * step)
        place, n_inserted = place + 1, 0
    return [*slots, *range(place * step, (place + len(hypothesis) - len(slots)) * step, step)]

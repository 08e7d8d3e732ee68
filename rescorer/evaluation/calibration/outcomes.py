"""Collect what confidences are fitted to and judged by: posteriors, and whether the words were right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.decision.confidence import agreement_posteriors, align_words, find_equal
from rescorer.trie import Words

TEMPERATURES = np.geomspace(0.1, 10_000.0, 81)
"""Temperatures among which fitting chooses; neighbours differ by 15 %, which hardly changes a posterior."""


@dataclass(frozen=True)
class Outcomes:
    """Claims that something is right, namely a best hypothesis or one of its words, and whether it was."""

    posteriors: np.ndarray
    """(T, N) float64: posteriors of the N claims at each of ``TEMPERATURES``."""
    correct: np.ndarray
    """(N,) bool."""
    list_index: np.ndarray
    """(N,) int64: the list of each claim."""

    def __len__(self) -> int:
        return len(self.correct)

    def at(self, temperature: float) -> np.ndarray:
        """The posteriors at the one of ``TEMPERATURES`` that is nearest to ``temperature``, (N,)."""
        return self.posteriors[int(np.argmin(np.abs(TEMPERATURES - temperature)))]

    def select(self, lists: np.ndarray) -> Outcomes:
        """Return the claims about some lists, given as (L,) bool."""
        chosen = lists[self.list_index]
        return Outcomes(self.posteriors[:, chosen], self.correct[chosen], self.list_index[chosen])


def collect_outcomes(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> Outcomes:
    """Concatenate the claims of all lists: pairs of (T, K) posteriors and (K,) correctness."""
    list_index = np.repeat(np.arange(len(parts)), [len(correct) for _, correct in parts])
    posteriors, correct = zip(*parts, strict=True)
    return Outcomes(np.concatenate(posteriors, axis=1), np.concatenate(correct), list_index)


def judge_utterance(
    words: Sequence[Words], totals: np.ndarray, best: int, readings: Sequence[Words]
) -> tuple[np.ndarray, np.ndarray]:
    """Judge the claim that the best hypothesis is right.

    Args:
        words: canonical words of each hypothesis.
        totals: (H,) float64, finite, before merging.
        best: index of the best hypothesis.
        readings: canonical words of the reference, in each of its readings.

    Returns:
        (T, 1) posteriors and (1,) bool.
    """
    agrees = find_equal(words, best)[None]
    return _posteriors(agrees, totals), np.array([words[best] in readings])


def judge_words(
    words: Sequence[Words], totals: np.ndarray, best: int, readings: Sequence[Words]
) -> tuple[np.ndarray, np.ndarray]:
    """Judge the claims that each of the W words of the best hypothesis is right; arguments as above.

    A word is right if a minimum edit distance alignment pairs it with an equal word of the reference; of
    several readings, the one with the fewest errors counts.

    Returns:
        (T, W) posteriors and (W,) bool.
    """
    reading = min(readings, key=lambda reference: Levenshtein.distance(words[best], reference))
    correct = align_words((words[best], reading), 0)[:, 1]
    return _posteriors(align_words(words, best), totals), correct


def _posteriors(agrees: np.ndarray, totals: np.ndarray) -> np.ndarray:
    return np.stack([agreement_posteriors(agrees, totals, temperature) for temperature in TEMPERATURES])

"""Confidence in the best hypothesis of a list, and in each of its words.

Posteriors of a list are the softmax of its totals divided by a temperature. The posterior of the best
hypothesis is the share that hypotheses with the same words have; the posterior of one of its words is the
share of the hypotheses that have the word in the same place, by their minimum edit distance alignment with
the best one (Wessel et al. 2001 compute it on time frames, which n-best lists rarely have). A calibrated,
monotone map turns posteriors into confidences. It is needed because posteriors know only the list: the
truth may be outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz.distance import Levenshtein

from rescorer.ranking import posteriors
from rescorer.trie import Words
from rescorer.types import Calibration, ConfidenceMap

POSTERIOR_DECIMALS = 9
"""Decimals of posteriors: the posterior of what all hypotheses agree on is exactly 1."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """Confidence in one hypothesis of a list."""

    utterance: float | None
    """Probability that all its words are right; None if the calibration does not give it."""
    words: np.ndarray | None
    """(W,) probability that each canonical word is right; None if the calibration does not give it."""


def estimate_confidence(
    calibration: Calibration, words: Sequence[Words], totals: np.ndarray, best: int
) -> Confidence:
    """Estimate the confidence in the best hypothesis of a list.

    Args:
        words: canonical words of each hypothesis, also of those that were merged or dropped.
        totals: (H,) float64, finite, before merging.
        best: index of the best hypothesis.
    """
    utterance, word = None, None
    if calibration.utterance is not None:
        is_equal = find_equal(words, best)[None]
        shares = agreement_posteriors(is_equal, totals, calibration.utterance.temperature)
        utterance = float(apply_map(calibration.utterance, shares)[0])
    if calibration.word is not None:
        shares = agreement_posteriors(align_words(words, best), totals, calibration.word.temperature)
        word = apply_map(calibration.word, shares)
    return Confidence(utterance, word)


def find_equal(words: Sequence[Words], best: int) -> np.ndarray:
    """Find the hypotheses that have the same words as the best one: (H,) bool."""
    return np.array([hypothesis == words[best] for hypothesis in words], dtype=bool)


def align_words(words: Sequence[Words], best: int) -> np.ndarray:
    """Find which hypotheses have each word of the best one in the same place.

    Each hypothesis is aligned with the best one by minimum edit distance; if there are several such
    alignments, rapidfuzz chooses.

    Returns:
        (W, H) bool, for the W words of the best hypothesis.
    """
    spoken = words[best]
    columns: dict[Words, np.ndarray] = {}
    for hypothesis in words:
        if hypothesis not in columns:
            column = columns[hypothesis] = np.zeros(len(spoken), dtype=bool)
            for block in Levenshtein.opcodes(spoken, hypothesis):
                if block.tag == "equal":
                    column[block.src_start : block.src_end] = True
    return np.stack([columns[hypothesis] for hypothesis in words], axis=1)


def agreement_posteriors(agrees: np.ndarray, totals: np.ndarray, temperature: float) -> np.ndarray:
    """Add the posteriors of the hypotheses that agree.

    Args:
        agrees: (K, H) bool: whether each hypothesis agrees with each of K claims.
        totals: (H,) float64, finite.

    Returns:
        (K,) float64, from 0 to 1.
    """
    return np.round(agrees @ posteriors(totals, temperature), POSTERIOR_DECIMALS)


def apply_map(confidence_map: ConfidenceMap, shares: np.ndarray) -> np.ndarray:
    """Turn posteriors at the temperature of the map into confidences, of the same shape."""
    return np.interp(shares, confidence_map.posteriors, confidence_map.confidences)

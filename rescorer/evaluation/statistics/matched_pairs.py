"""NIST's matched pairs test of two systems on the same speech (MAPSSWE).

After Gillick and Cox, "Some statistical issues in the comparison of speech recognition algorithms" (ICASSP
1989), as ``sc_stats -t mapsswe`` does it. The errors of both systems are divided into segments that are
separated by at least two words that both have right, so that what one segment's errors are says nothing about
the next one's; the test asks whether the mean difference of errors per segment can be 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.evaluation.statistics.distributions import normal_tail


@dataclass(frozen=True, slots=True)
class MatchedPairs:
    """Result of the test."""

    segments: int
    """Number of segments in which at least one of the systems has errors."""
    mean: float
    """Mean difference of errors per segment: positive if the second system is better."""
    z: float
    """``mean`` in standard errors; 0 if all differences are equal, as in ``sc_stats``."""
    p_value: float
    """Two-sided, from the normal distribution."""


def place_errors(kinds: Iterable[str]) -> np.ndarray:
    """Count the errors at each place of a reference of R words: (2 R + 1,) int64.

    Odd places are words (1 if the word is substituted or deleted), even places the gaps before, between and
    after them (number of words inserted).

    Args:
        kinds: of each pair of an alignment, in order: ``correct``, ``substitution``, ``deletion``,
            ``insertion``.

    >>> place_errors(["insertion", "correct", "substitution"]).tolist()
    [1, 0, 0, 1, 0]
    """
    places = [0]
    for kind in kinds:
        if kind == "insertion":
            places[-1] += 1
        else:
            places += (int(kind != "correct"), 0)
    return np.array(places, dtype=np.int64)


def matched_pairs(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> MatchedPairs:
    """Compare two systems by their errors at each place of the same references.

    Args:
        first, second: one array per list from ``place_errors``. Where the systems follow different readings
            of a reference, or their errors have no places, arrays of length 1 with all errors of the list
            make it a single segment.

    Raises:
        ValueError: the systems have different numbers of lists or places.
    """
    errors = segment_errors(first, second)
    differences = errors[0] - errors[1]
    n = len(differences)
    mean = float(differences.mean()) if n else 0.0
    deviation = float(differences.std(ddof=1)) if n > 1 else 0.0
    z = mean / (deviation / math.sqrt(n)) if deviation else 0.0
    return MatchedPairs(n, mean, z, 2 * normal_tail(abs(z)))


def segment_errors(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> np.ndarray:
    """Errors of both systems in each segment with errors: (2, G) int64."""
    lengths = [len(places) for places in first]
    if lengths != [len(places) for places in second]:
        raise ValueError("the two systems have different lists or different numbers of reference words")
    if not lengths:
        return np.zeros((2, 0), dtype=np.int64)
    errors = np.stack([np.concatenate(first), np.concatenate(second)])
    list_starts = np.cumsum([0, *lengths[:-1]])
    place = np.arange(errors.shape[1]) - np.repeat(list_starts, lengths)
    is_clean = np.asarray(errors.sum(axis=0) == 0)
    starts_segment = place == 0
    # a gap without insertions between two words that both systems have right
    is_inner_gap = (place % 2 == 0) & (place > 0)
    is_inner_gap[:-1] &= place[1:] > 0
    is_inner_gap[-1] = False
    gaps = np.flatnonzero(is_inner_gap & is_clean)
    starts_segment[gaps[is_clean[gaps - 1] & is_clean[gaps + 1]]] = True
    segments = np.add.reduceat(errors, np.flatnonzero(starts_segment), axis=1)
    return np.asarray(segments[:, segments.any(axis=0)])

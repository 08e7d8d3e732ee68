"""Reduce arrays list by list: the hypotheses of all lists lie one after the other in flat arrays.

``offsets`` (L + 1,) int64 says where each list begins; every list has at least one hypothesis.
"""

from __future__ import annotations

import numpy as np


def make_offsets(lengths: np.ndarray) -> np.ndarray:
    """Offsets (L + 1,) of lists with these numbers of hypotheses (L,)."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def spread_over(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Repeat the value of each list (L,) for each of its hypotheses, (H,)."""
    return np.repeat(values, np.diff(offsets))


def maximum_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Largest value of each list, (L,)."""
    result: np.ndarray = np.maximum.reduceat(values, offsets[:-1])
    return result


def sum_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Sum of each list, (L,)."""
    result: np.ndarray = np.add.reduceat(values, offsets[:-1])
    return result


def first_maximum_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Position in ``values`` of the largest value of each list, the first one of several: (L,) int64."""
    positions = np.flatnonzero(values == spread_over(maximum_per_list(values, offsets), offsets))
    result: np.ndarray = positions[np.searchsorted(positions, offsets[:-1])]
    return result


def spread_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Standard deviation within each list, (L,)."""
    lengths = np.diff(offsets)
    centred = values - spread_over(sum_per_list(values, offsets) / lengths, offsets)
    result: np.ndarray = np.sqrt(sum_per_list(centred**2, offsets) / lengths)
    return result


def softmax_per_list(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Softmax of the values of each list, (H,) float64."""
    probabilities = np.exp(values - spread_over(maximum_per_list(values, offsets), offsets))
    probabilities /= spread_over(sum_per_list(probabilities, offsets), offsets)
    return probabilities

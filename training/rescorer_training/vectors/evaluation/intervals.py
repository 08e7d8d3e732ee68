"""Bootstrap intervals of accuracies and of rank correlations.

Questions, or pairs of words, are drawn with replacement, and an interval leaves out 2.5 % of the draws at
each end (Efron and Tibshirani 1993, chapter 13). It tells what other questions of the same kind would give.
Questions that share words resemble each other more than such draws assume, so that intervals of analogies are
too narrow; and they do not contain what another training of the vectors would change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DRAWS = 1000
TAIL = 0.025
"""Share of the draws outside the interval, at each end."""


def accuracy_interval(n_right: int, n_questions: int) -> tuple[float, float]:
    """Interval of a share of right answers, without any drawing.

    The number of right answers among ``n_questions`` drawn ones has a binomial distribution, so that its
    quantiles are known exactly. If all answers are right, or all wrong, the draws say nothing: both ends are
    the share itself.
    """
    from scipy.stats import binom

    low, high = binom.ppf([TAIL, 1 - TAIL], n_questions, n_right / n_questions)
    return float(low / n_questions), float(high / n_questions)


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's rank correlation, ties having their mean rank; NaN if all values of a side are equal."""
    return float(_correlate_ranks(first[None], second[None])[0])


def draw_spearman(
    first: np.ndarray, second: np.ndarray, seed: int | Sequence[int], draws: int = DRAWS
) -> np.ndarray:
    """Rank correlations of draws of pairs, (draws,); NaN where all values of a side are equal."""
    generator = np.random.default_rng(seed)
    drawn = []
    chunk = max((1 << 20) // len(first), 1)
    for start in range(0, draws, chunk):
        places = generator.integers(0, len(first), (min(chunk, draws - start), len(first)))
        drawn.append(_correlate_ranks(first[places], second[places]))
    return np.concatenate(drawn)


def percentile_interval(drawn: np.ndarray) -> tuple[float, float]:
    """The ends that leave out ``TAIL`` of the draws on each side; draws that are NaN do not count."""
    low, high = np.nanquantile(drawn, [TAIL, 1 - TAIL])
    return float(low), float(high)


def _correlate_ranks(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Correlate the ranks of each row, (R, N) and (R, N) -> (R,)."""
    from scipy.stats import rankdata

    ranks = [rankdata(side, axis=1) for side in (first, second)]
    centred = [side - side.mean(axis=1, keepdims=True) for side in ranks]
    products = (centred[0] * centred[1]).sum(axis=1)
    squares = [(side**2).sum(axis=1) for side in centred]
    with np.errstate(invalid="ignore"):
        return np.asarray(products / np.sqrt(squares[0] * squares[1]))

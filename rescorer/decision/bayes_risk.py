"""Expected errors of each hypothesis, and the order of minimum Bayes risk.

The expected errors of hypothesis i are R_i = Σ_j p_j · d(i, j), where d is the edit distance and p the
posteriors of the list: the errors to expect if the reference is one of the hypotheses and these are their
probabilities (Stolcke, König & Weintraub 1997; Goel & Byrne 2000). Choosing the hypothesis with the fewest
minimises the expected number of errors; choosing the maximum minimises that of wrong sentences.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.decision.distances import CodedList, code_list, distance_blocks
from rescorer.ranking import TIE_DECIMALS
from rescorer.trie import Words
from rescorer.types import ErrorUnit


def expected_errors(words: Sequence[Words], posteriors: np.ndarray, unit: ErrorUnit = "word") -> np.ndarray:
    """Compute the expected errors of each hypothesis under the posteriors of a list.

    Args:
        words: canonical words of each hypothesis.
        posteriors: (H,) float64, not negative; ``ranking.posteriors`` computes them from totals. Those of
            equal hypotheses are added. Or (H, T), several posteriors of each hypothesis.
        unit: what counts as an error: a wrong word, or another unit of ``rescorer.text.units``.

    Returns:
        The shape of ``posteriors``, float64, in words or other units.

    Raises:
        LimitExceeded: the list is too long to be compared, see ``distances.MAX_STEPS``.
    """
    return expected_distances(code_list(words, unit), posteriors)


def expected_distances(coded: CodedList, posteriors: np.ndarray) -> np.ndarray:
    """Like ``expected_errors``, for hypotheses that are coded already."""
    mass = np.zeros((len(coded.codes), *posteriors.shape[1:]))
    np.add.at(mass, coded.index, posteriors)
    risks = np.zeros_like(mass)
    for begin, block in distance_blocks(coded.codes):
        end = begin + len(block)
        risks[begin:end] += block @ mass[begin:]
        risks[end:] += block[:, len(block) :].T @ mass[begin:end]
    return risks[coded.index]


def fewest_errors_first(errors: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Indices of hypotheses from fewest to most expected errors, (H,) int64.

    Ties, after rounding as in ``ranking.best_first``, are settled by the totals and then by input order.
    """
    return np.lexsort((-np.round(totals, TIE_DECIMALS), np.round(errors, TIE_DECIMALS)))

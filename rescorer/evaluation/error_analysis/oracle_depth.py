"""The oracle of the best hypotheses only: how much longer lists could help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rescorer.evaluation.error_rate.error_counts import WordErrors


def choose_depths(longest: int) -> list[int]:
    """Depths 1, 2, 5, 10, 20, 50, … below the length of the longest list, then that length.

    >>> choose_depths(20), choose_depths(37)
    ([1, 2, 5, 10, 20], [1, 2, 5, 10, 20, 37])
    """
    steps = (factor * 10**power for power in range(len(str(longest))) for factor in (1, 2, 5))
    return [depth for depth in steps if depth < longest] + [longest] * (longest > 0)


def oracle_by_depth(lists: Iterable[Sequence[WordErrors]]) -> dict[int, WordErrors]:
    """Sum the fewest errors among the first hypotheses of each list, for several numbers of hypotheses.

    Args:
        lists: the errors of the hypotheses of each list, in the order of the first pass.
    """
    lists = list(lists)
    sums: dict[int, WordErrors] = {}
    for depth in choose_depths(max(map(len, lists), default=0)):
        best = (min(counts[:depth], key=lambda count: count.errors) for counts in lists)
        sums[depth] = sum(best, WordErrors.zero())
    return sums

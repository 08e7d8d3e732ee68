"""Intervals of the rows of a comparison, and their gains over the first pass and over each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.evaluation.comparison.row import Row, count_by_list
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.statistics.bootstrap import DRAWS, Bootstrap, Gain, Interval, bootstrap, choose_units


class Significance:
    """Bootstrap of all rows of a comparison on the same draws, by group where there are several groups.

    Args:
        comparison: rows about at least one list.
        draws: number of draws.
    """

    def __init__(self, comparison: Comparison, draws: int = DRAWS) -> None:
        self._rows = [comparison.first_pass, *comparison.rows]
        counts = [count_by_list(row, comparison.scored) for row in self._rows]
        errors, words = (np.stack(columns).astype(np.float64) for columns in zip(*counts, strict=True))
        units = choose_units([item.evaluated.group for item in comparison.scored])
        self.bootstrap: Bootstrap = bootstrap(errors, words, units, draws)

    def interval(self, row: Row) -> Interval:
        """Interval of 95 % of the error rate of a row."""
        return self.bootstrap.interval(self._index(row))

    def gain(self, row: Row, over: Row | None = None) -> Gain:
        """By how much the error rate of a row is lower than that of another; None for the first pass."""
        return self.bootstrap.gain(0 if over is None else self._index(over), self._index(row))

    def _index(self, row: Row) -> int:
        return next(index for index, known in enumerate(self._rows) if known is row)


def find_best_baseline(rows: Sequence[Row]) -> Row | None:
    """The row with the fewest errors of those that need no language model; the first one of several."""
    baselines = [row for row in rows if row.is_baseline]
    return min(baselines, key=lambda row: row.report.total.system.errors, default=None)

"""What share of intervals from few lists or groups contains the truth, by simulation.

``docs/decisions/intervals.md`` has the whole table, and names the program that made it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Coverage(NamedTuple):
    """Share of intervals of 95 % that contained the truth, in percent."""

    rate: float
    """Share for intervals of an error rate."""
    gain: float
    """Share for intervals of a gain."""


COVERAGE: Mapping[str, Mapping[int, Coverage]] = {
    "group": {
        6: Coverage(93.3, 99.0),
        7: Coverage(94.2, 98.3),
        10: Coverage(94.8, 97.1),
        15: Coverage(94.9, 95.8),
        20: Coverage(94.5, 96.0),
        30: Coverage(95.0, 94.9),
    },
    "list": {10: Coverage(89.5, 75.9), 20: Coverage(94.7, 94.1), 143: Coverage(95.1, 96.7)},
}
"""By what was drawn, and how many there were: groups that share 143 lists (30: 1,000 lists), or single
lists."""


def find_coverage(n_units: int, unit: str) -> tuple[int, Coverage]:
    """The simulated number of lists or groups that is nearest to a number, and its coverage.

    Args:
        unit: ``list`` or ``group``.

    >>> find_coverage(8, "group")
    (7, Coverage(rate=94.2, gain=98.3))
    """
    simulated = COVERAGE[unit]
    nearest = min(simulated, key=lambda number: (abs(number - n_units), number))
    return nearest, simulated[nearest]


def describe_coverage(n_units: int, unit: str) -> str:
    """Say how many intervals from about as many simulated lists or groups contained the truth.

    >>> describe_coverage(12, "list")
    'from 10 simulated lists, 90 % of those of error rates and 76 % of those of gains contained the truth'
    """
    nearest, coverage = find_coverage(n_units, unit)
    warning = ", and fewer will if one group is unlike the others" if unit == "group" else ""
    return (
        f"from {nearest} simulated {unit}s, {coverage.rate:.0f} % of those of error rates and "
        f"{coverage.gain:.0f} % of those of gains contained the truth{warning}"
    )

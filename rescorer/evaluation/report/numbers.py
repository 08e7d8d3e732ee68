"""Write numbers as readers expect them: fixed decimals, true minus signs, thousands separated by commas.

Numbers that are not known become a dash.
"""

from __future__ import annotations

from rescorer.evaluation import figures
from rescorer.evaluation.error_rate.report import PERCENT_DECIMALS
from rescorer.evaluation.report.data import Range

UNKNOWN = "–"


def format_rate(value: float | None) -> str:
    """A rate in percent without the sign %."""
    return UNKNOWN if value is None else figures.format_number(value)


def format_signed(value: float | None, decimals: int = PERCENT_DECIMALS) -> str:
    """A number with its sign, also if it is positive."""
    return UNKNOWN if value is None else figures.format_signed(value, decimals)


def format_range(interval: Range | None, signed: bool = False) -> str:
    """Both ends of an interval."""
    if interval is None:
        return UNKNOWN
    form = format_signed if signed else format_rate
    return f"{form(interval[0])} to {form(interval[1])}"


def format_p(value: float | None) -> str:
    """A p-value with three decimals."""
    return UNKNOWN if value is None else figures.format_p(value)


def format_count(value: int) -> str:
    """A count with thousands separated."""
    return f"{value:,}"


def format_compact(value: float) -> str:
    """A component: two decimals, none for whole numbers such as counts.

    >>> format_compact(-310.257), format_compact(12.0)
    ('−310.26', '12')
    """
    return figures.format_number(value, 0 if value == int(value) else PERCENT_DECIMALS)

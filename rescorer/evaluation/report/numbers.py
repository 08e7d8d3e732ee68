"""Write numbers as readers expect them: fixed decimals, true minus signs, thousands separated by commas."""

from __future__ import annotations

from rescorer.evaluation.report.charts.scale import format_number
from rescorer.evaluation.report.data import Range

RATE_DECIMALS = 2
SMALLEST_P = 0.001


def format_rate(value: float | None) -> str:
    """A rate in percent without the sign; a dash if it is undefined."""
    return "–" if value is None else format_number(value, RATE_DECIMALS)


def format_signed(value: float | None, decimals: int = RATE_DECIMALS) -> str:
    """A number with its sign, also if it is positive.

    >>> format_signed(1.5), format_signed(-0.04), format_signed(0.0)
    ('+1.50', '−0.04', '0.00')
    """
    if value is None:
        return "–"
    text = format_number(value, decimals)
    is_zero = not any(digit in text for digit in "123456789")
    return text if is_zero or value < 0 else f"+{text}"


def format_range(interval: Range | None, signed: bool = False) -> str:
    """Both ends of an interval; a dash if it is unknown."""
    if interval is None:
        return "–"
    form = format_signed if signed else format_rate
    return f"{form(interval[0])} to {form(interval[1])}"


def format_p(value: float | None) -> str:
    """A p-value with three decimals.

    >>> format_p(0.0312), format_p(0.00001), format_p(None)
    ('0.031', '< 0.001', '–')
    """
    if value is None:
        return "–"
    return f"< {SMALLEST_P}" if value < SMALLEST_P else f"{value:.3f}"


def format_count(value: int) -> str:
    """A count with thousands separated."""
    return f"{value:,}"


def format_compact(value: float) -> str:
    """A component: two decimals, none for whole numbers such as counts.

    >>> format_compact(-310.257), format_compact(12.0)
    ('−310.26', '12')
    """
    return format_number(value, 0 if value == int(value) else RATE_DECIMALS)


def pluralise(count: int, noun: str) -> str:
    """A count and its noun.

    >>> pluralise(1, "utterance"), pluralise(1200, "utterance")
    ('1 utterance', '1,200 utterances')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

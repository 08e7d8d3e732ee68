"""Write rates, gains, intervals and p-values, as text for tables and sentences and as JSON data."""

from __future__ import annotations

import math
from typing import Any

from rescorer.evaluation.list_errors import PERCENT_DECIMALS, to_percent
from rescorer.evaluation.statistics import MIN_UNITS_FOR_INTERVAL, Gain, Interval

UNKNOWN = "-"
MAX_NUMBER_CHARS = 12
"""Longest number in a table or a message; what is larger is shown as a power of ten."""
MIN_P = 0.001
"""Smaller p-values are shown as less than this."""


def format_size(value: float, decimals: int = PERCENT_DECIMALS) -> str:
    """Fixed decimals with commas; a power of ten if that takes more than ``MAX_NUMBER_CHARS`` characters.

    >>> format_size(-1234.5), format_size(-1.8905e40), format_size(1234567890, 0), format_size(math.inf)
    ('-1,234.50', '-1.89e+40', '1234567890', 'inf')
    """
    for text in (f"{value:,.{decimals}f}", f"{value:.{decimals}f}"):
        if len(text) <= MAX_NUMBER_CHARS:
            return text
    return f"{value:.3g}"


def format_number(value: float, decimals: int = PERCENT_DECIMALS) -> str:
    """Fixed decimals, thousands separated by commas, and a true minus sign, which zero does not have.

    What is not finite, such as a rate without reference words, is a hyphen.

    >>> format_number(-1234.5, 1), format_number(-0.001)
    ('−1,234.5', '0.00')
    """
    if not math.isfinite(value):
        return UNKNOWN
    text = format_size(value, decimals)
    return text.lstrip("-") if _is_zero(text) else text.replace("-", "−")


def format_signed(value: float, decimals: int = PERCENT_DECIMALS) -> str:
    """Like ``format_number``, with a plus sign if the number is positive.

    >>> format_signed(1.234), format_signed(-0.5), format_signed(0.001)
    ('+1.23', '−0.50', '0.00')
    """
    text = format_number(value, decimals)
    return f"+{text}" if value > 0 and not _is_zero(text) else text


def _is_zero(text: str) -> bool:
    return not any(digit in text for digit in "123456789")


def format_percent(share: float) -> str:
    """A share in percent, without the sign %.

    >>> format_percent(0.12345)
    '12.35'
    """
    return f"{100 * share:.{PERCENT_DECIMALS}f}" if math.isfinite(share) else UNKNOWN


def format_interval(interval: Interval) -> str:
    """The ends of the interval of a rate in percent; a dash if the lists say nothing about them.

    >>> format_interval(Interval(0.1, 0.2)), format_interval(Interval(0.0, math.inf))
    ('10.00–20.00', '-')
    """
    if not interval.is_finite:
        return UNKNOWN
    return f"{format_percent(interval.low)}–{format_percent(interval.high)}"


def format_gain(gain: Gain) -> str:
    """A gain in percentage points with half of its interval, if that is known.

    >>> format_gain(Gain(-0.001, Interval(-0.007, 0.005), 0.7, 9))
    '−0.10 ± 0.60'
    """
    points = format_signed(100 * gain.gain)
    return f"{points} ± {format_percent(gain.interval.half_width)}" if gain.interval.is_finite else points


def explain_unknown(gain: Gain, unit: str) -> str:
    """Why a gain has neither interval nor p-value.

    Args:
        unit: what was drawn: ``list`` or ``group``.

    >>> explain_unknown(Gain(0.25, Interval(-math.inf, math.inf), 1.0, 2), "group")
    'only 2 groups differ, and an interval or a test needs at least 6'
    """
    if math.isnan(gain.gain):
        return "the references have no words"
    if gain.units_changed >= MIN_UNITS_FOR_INTERVAL:
        return f"all {unit}s that differ do so by the same rate, which leaves no interval and no test"
    differ = f"1 {unit} differs" if gain.units_changed == 1 else f"{gain.units_changed} {unit}s differ"
    return f"only {differ}, and an interval or a test needs at least {MIN_UNITS_FOR_INTERVAL}"


def describe_unknown(system: str, baseline: str, gain: Gain, unit: str) -> str:
    """Say in one sentence that nothing can be shown about a gain, and why; arguments as above.

    >>> describe_unknown("a", "b", Gain(-0.0017, Interval(-math.inf, math.inf), 1.0, 4), "group")
    'nothing can be shown about a against b (−0.17 points): only 4 groups differ, and an interval or a test \
needs at least 6'
    """
    points = "" if math.isnan(gain.gain) else f" ({format_gain(gain)} points)"
    return f"nothing can be shown about {system} against {baseline}{points}: {explain_unknown(gain, unit)}"


def format_p(p_value: float) -> str:
    """A p-value with three decimals, or its upper limit if it is smaller than these can show.

    >>> format_p(0.0424), format_p(0.0001)
    ('0.042', '<0.001')
    """
    return f"<{MIN_P}" if p_value < MIN_P else f"{p_value:.3f}"


def describe_p(p_value: float) -> str:
    """A p-value as an equation, for sentences.

    >>> describe_p(0.0424), describe_p(0.0001)
    ('p = 0.042', 'p < 0.001')
    """
    text = format_p(p_value)
    return f"p < {text[1:]}" if text.startswith("<") else f"p = {text}"


def interval_to_list(interval: Interval) -> list[float | None] | None:
    """Convert an interval of rates to JSON data: its ends in percent, or null if they are infinite."""
    return [to_percent(interval.low), to_percent(interval.high)] if interval.is_finite else None


def gain_to_dict(gain: Gain) -> dict[str, Any]:
    """Convert a gain to JSON data; rates in percent, interval and p-value null if unknown."""
    return {
        "gain": to_percent(gain.gain),
        "gain_interval": interval_to_list(gain.interval),
        "p_value": round_p(gain.p_value) if gain.interval.is_finite else None,
    }


def round_p(p_value: float) -> float:
    """A p-value with three significant digits."""
    return float(f"{p_value:.3g}")

"""Owns how a table shows a figure that may not have been measured."""

from __future__ import annotations


def shown(value: float | None, form: str) -> str:
    """In the format; a dash, which is no zero, for what was not measured.

    >>> shown(1234.56, ",.1f"), shown(None, ",.1f")
    ('1,234.6', '–')
    """
    return "–" if value is None else format(value, form)

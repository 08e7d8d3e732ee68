"""Write the ranks and scores of many hypotheses as JSON at once, without a Python object for each number.

A row is laid out in cells of four bytes: the keys, and for each number its digits, three to a cell, which are
looked up in tables. Bytes that a number does not need are NUL, and are deleted from all rows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import orjson

from rescorer.formats.common import round_scaled

SCORE_DECIMALS = 6
"""Number of decimals of written scores: a hundred times finer than 1e-4, to which rankings are exact. Numbers
are laid out for two cells of decimals."""
MAX_INTEGER = 10**6
"""Integers, and the integer parts of numbers, must be smaller than this."""
CELL = 4  # bytes
INTEGER_CELLS, NUMBER_CELLS = 2, 4
BLOCK_ROWS = 1024
"""Number of rows that are made at a time, so that they stay in the cache of the processor."""
ROW_END = "\n"


class Digits(NamedTuple):
    """Tables of digits; each has cells of four bytes."""

    high: np.ndarray
    """(2000,) the thousands of a number; then the same with a minus sign."""
    low: np.ndarray
    """(2000,) the last three digits of an integer; then the same after thousands, with leading zeros."""
    point: np.ndarray
    """(2000,) ``low`` with a decimal point."""
    first: np.ndarray
    """(2000,) the first three decimals if no others follow, at least one; then the same if others follow."""
    last: np.ndarray
    """(1000,) the last three decimals."""
    tiny: np.ndarray
    """(10, 3) the cells after ``high`` for numbers below 1e-5, which JSON has in scientific notation."""


def _make_table(texts: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(text.ljust(CELL, b"\0") for text in texts), dtype=np.uint32)


@cache
def _digits() -> Digits:
    plain = [b"%d" % n for n in range(1000)]
    filled = [b"%03d" % n for n in range(1000)]
    short = [text.rstrip(b"0") for text in filled]
    high = [b"", *plain[1:]]
    low = [*plain, *filled]
    tiny = [b"", *(orjson.dumps(n / 10**SCORE_DECIMALS) for n in range(1, 10))]
    return Digits(
        _make_table([*high, *(b"-" + text for text in high)]),
        _make_table(low),
        _make_table([text + b"." for text in low]),
        _make_table([b"0", *short[1:], *filled]),
        _make_table(short),
        np.frombuffer(b"".join(text.ljust(3 * CELL, b"\0") for text in tiny), dtype=np.uint32).reshape(10, 3),
    )


def encode_rows(
    keys: Sequence[str], integers: Sequence[np.ndarray], numbers: np.ndarray, end: str
) -> list[str] | None:
    """Write the values of N rows, each after its key, as orjson writes them.

    Args:
        keys: what comes before each value: I integers, then C numbers. Neither keys nor ``end`` have NUL or
            line ends.
        integers: I arrays, (N,) of integers from 0.
        numbers: (C, N) float64, to be rounded to ``SCORE_DECIMALS`` decimals.
        end: what comes after the last value.

    Returns:
        The rows; None if an integer or number is so large that it must be written by other means.
    """
    units, unsure = round_scaled(numbers, SCORE_DECIMALS)
    scale = 10.0**SCORE_DECIMALS
    sizes = np.abs(units)
    if not sizes.max(initial=0.0) < MAX_INTEGER * scale or any(
        array.max(initial=0) >= MAX_INTEGER for array in integers
    ):
        return None
    if unsure.any():
        units[unsure] = [round(value, SCORE_DECIMALS) * scale for value in numbers[unsure].tolist()]
        np.rint(units, out=units)
    template, places = _lay_out(keys, len(integers), end)
    rows = list[str]()
    for begin in range(0, numbers.shape[1], BLOCK_ROWS):
        block = slice(begin, begin + BLOCK_ROWS)
        cells = np.repeat(template[None], len(units[0, block]), axis=0)
        for place, values in zip(places, integers, strict=False):
            _place_integers(cells, place, values[block])
        _place_numbers(cells, places[len(integers) :], units[:, block])
        rows += cells.tobytes().translate(None, b"\0").decode().split(ROW_END)
        rows.pop()  # what follows the last end
    return rows


def _lay_out(keys: Sequence[str], n_integers: int, end: str) -> tuple[np.ndarray, list[int]]:
    """Return the cells of a row without its values, and the place of the first cell of each value."""
    row, places = b"", list[int]()
    for index, key in enumerate(keys):
        row += _fill(key)
        places.append(len(row) // CELL)
        row += bytes(CELL * (INTEGER_CELLS if index < n_integers else NUMBER_CELLS))
    return np.frombuffer(row + _fill(end + ROW_END), dtype=np.uint32), places


def _fill(text: str) -> bytes:
    """Return a text as whole cells."""
    encoded = text.encode()
    return encoded + bytes(-len(encoded) % CELL)


def _place_integers(cells: np.ndarray, place: int, values: np.ndarray) -> None:
    digits = _digits()
    if values.max() < 1000:  # as nearly always
        cells[:, place] = digits.low.take(values)
        return
    thousands = values // 1000
    cells[:, place] = digits.high.take(thousands)
    cells[:, place + 1] = digits.low.take(_index(values - 1000 * thousands, thousands > 0))


def _place_numbers(cells: np.ndarray, places: Sequence[int], units: np.ndarray) -> None:
    """Write numbers, given as millionths: (C, N) float64, whose products and differences here are exact."""
    digits = _digits()
    sizes = np.abs(units)
    whole = np.floor(sizes / 1e6)
    fraction = sizes - whole * 1e6
    thousands = np.floor(whole / 1e3)
    first = np.floor(fraction / 1e3)
    last = fraction - first * 1e3
    columns = (
        digits.high.take(_index(thousands, units < 0)),
        digits.point.take(_index(whole - thousands * 1e3, thousands > 0)),
        digits.first.take(_index(first, last > 0)),
        digits.last.take(last.astype(np.intp)),
    )
    for row, place in enumerate(places):
        for offset, column in enumerate(columns):
            cells[:, place + offset] = column[row]
    for row, n in zip(*np.nonzero((sizes > 0) & (sizes < 10)), strict=True):
        cells[n, places[row] + 1 : places[row] + NUMBER_CELLS] = digits.tiny[int(sizes[row, n])]


def _index(values: np.ndarray, is_second: np.ndarray) -> np.ndarray:
    """The index in a table that has two halves of a thousand cells."""
    index = values.astype(np.intp)
    index[is_second] += 1000
    return index

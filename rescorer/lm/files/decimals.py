"""Parse decimal numbers, all at once: the same float64 as Python's ``float``, to the last bit."""

from __future__ import annotations

import numpy as np

from rescorer.lm.files.token_bytes import LAST_BYTES, TokenBytes

MAX_DECIMALS = 8
"""Decimals of the numbers that are parsed all at once: as many as there are bytes in 64 bits."""
POWERS = 10.0 ** np.arange(MAX_DECIMALS + 1)
ZEROS, ABOVE_9, HIGH_BITS = (np.uint64(byte * 0x0101010101010101) for byte in (0x30, 0x76, 0x80))
PAIRS = np.uint64(0x000000FF000000FF)
HIGH_PAIRS, LOW_PAIRS = np.uint64((1_000_000 << 32) + 100), np.uint64((10_000 << 32) + 1)


def parse_decimals(text: TokenBytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Parse tokens as numbers, (n,) float64.

    Those like -12.345678, with up to two digits before the point, are exact integers below 2^53 divided by an
    exact power of ten, so that one division rounds them as ``float`` does (Clinger 1990). All others, such as
    1e-5 or -inf, are left to ``float``.

    Raises:
        ValueError: a token is not a number.
    """
    is_negative = text.at(starts) == ord("-")
    first = starts + is_negative
    second = text.at(first + 1)
    is_one_digit = (second == ord(".")) | (first + 1 == ends)
    points = first + 2 - is_one_digit
    tens, ones = text.at(first) - ord("0"), text.at(points - 1) - ord("0")
    n_decimals = np.maximum(ends - points - 1, 0)
    is_plain = (tens <= 9) & (ones <= 9) & (first < ends) & (n_decimals <= MAX_DECIMALS)
    is_plain &= (text.at(points) == ord(".")) | (points == ends)
    n_decimals[~is_plain] = 0
    fractions, are_digits = _parse_last_digits(text.eight_before(ends), n_decimals)
    is_plain &= are_digits
    powers = POWERS.take(n_decimals)
    values = (np.where(is_one_digit, ones, 10 * tens + ones) * powers + fractions) / powers
    np.negative(values, out=values, where=is_negative)
    if not is_plain.all():
        others = np.flatnonzero(~is_plain)
        values[others] = list(map(float, text.tokens(starts[others], ends[others])))
    return values


def _parse_last_digits(eights: np.ndarray, n_digits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parse the last n of 8 bytes as a number, (N,) uint64, and say which are digits, (N,) bool.

    Neighbours are joined to pairs of digits, pairs to fours and fours to eight, by multiplications of a whole
    word (Lemire, "Quickly parsing eight digits", 2018).
    """
    digits = (eights ^ ZEROS) & LAST_BYTES.take(n_digits)
    are_digits = ((digits + ABOVE_9) | digits) & HIGH_BITS == 0
    digits = digits * np.uint64(10) + (digits >> 8)
    return ((digits & PAIRS) * HIGH_PAIRS + ((digits >> 16) & PAIRS) * LOW_PAIRS) >> 32, are_digits

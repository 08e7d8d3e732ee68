"""Look up the tokens of many texts at once, as arrays of bytes.

Texts that have few characters beyond ASCII, and no white space but spaces, are divided at their spaces by
NumPy. A token of at most ``MAX_BYTES`` bytes is compared as two integers. A hash of these chooses two slots
that may have its number. Tokens that are found in neither slot are looked up one by one, and get a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import numpy as np

from rescorer.text.normaliser import TEXT_END

END = "\0"
"""Ends each text in the joined texts. A text that contains it is not looked up here."""
SPACE = 32
ASCII = bytes(range(128))
MAX_GROWTH = 1.125
"""Largest number of bytes per character of texts that are looked up here. In most scripts but the Latin one,
words are too long for the table."""
WORD = 8  # bytes of an integer
MAX_BYTES = 2 * WORD
MASKS = np.array([(1 << 8 * n) - 1 for n in range(WORD + 1)], dtype=np.uint64)
"""For each number of bytes, the bits of so many first bytes of an integer in little-endian order."""
SLOT_BITS = 18
MAX_TOKENS = 1 << 15
"""Largest number of tokens in the table: an eighth of the slots, so that nearly all have one of their own."""
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)  # odd, random bits
HALF = np.uint64(32)


class TokenTable:
    """The numbers of the tokens that were looked up first.

    Any thread may use it: the row of a token is complete before a slot leads to it, and is never changed.

    Args:
        slot_bits: logarithm of the number of slots to base 2.
    """

    def __init__(self, slot_bits: int = SLOT_BITS) -> None:
        self._shift = np.uint64(64 - slot_bits)
        self._rows = np.zeros(1 << slot_bits, dtype=np.int32)
        """The row of each slot; 0 is that of empty tokens."""
        size = MAX_TOKENS + 1
        self._first, self._second = np.zeros(size, dtype=np.uint64), np.zeros(size, dtype=np.uint64)
        self._numbers = np.full(size, -1, dtype=np.int64)
        self._row_of: dict[str, int] = {}
        self._next_row = count(1)  # so that threads that add different tokens at once use different rows

    def find(
        self, texts: Sequence[str], number_of: Callable[[str], int]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the numbers of the tokens of all texts, (M,) int64, -1 for empty ones, and the index of the
        last token of each text, (N,) int64; None if texts have other characters than those that are looked up
        here.

        Args:
            number_of: returns the number of a token, which never changes. An error that it raises ends the
                search.
        """
        joined = END.join([*texts, ""])
        encoded = joined.encode("utf-8", "surrogatepass")
        if len(encoded) > len(joined) and not _can_divide(encoded, len(joined)):
            return None
        data = np.frombuffer(encoded + bytes(MAX_BYTES), dtype=np.uint8)
        ends = np.flatnonzero(data[: len(encoded)] <= SPACE)
        if len(ends) != encoded.count(b" ") + len(texts):
            return None
        starts = np.empty_like(ends)
        starts[:1] = 0
        starts[1:] = ends[:-1] + 1
        found = self._find_tokens(encoded, data, starts, ends - starts, number_of)
        return found, np.flatnonzero(data.take(ends) == 0)

    def _find_tokens(
        self,
        encoded: bytes,
        data: np.ndarray,
        starts: np.ndarray,
        lengths: np.ndarray,
        number_of: Callable[[str], int],
    ) -> np.ndarray:
        """Return the number of each token, (M,) int64; -1 for empty ones."""
        integers = np.ndarray(len(data) - WORD + 1, np.uint64, data, strides=(1,))  # from each byte on
        first, second = integers.take(starts), integers.take(starts + WORD, mode="clip")
        first &= MASKS.take(lengths, mode="clip")
        second &= MASKS.take(lengths - WORD, mode="clip")
        mixed = mix(first, second)
        rows = self._rows.take(self._first_slot(mixed))
        missing = np.flatnonzero(self._differ(rows, first, second, lengths))
        if len(missing):
            rows[missing] = others = self._rows.take(self._second_slot(mixed.take(missing)))
            parts = (array.take(missing) for array in (first, second, lengths))
            missing = missing[self._differ(others, *parts)]
        found, new = self._numbers.take(rows), dict[str, int]()
        for place in missing.tolist():
            start, length = starts[place], int(lengths[place])
            token = encoded[start : start + length].decode("utf-8", "surrogatepass")
            if token not in new:
                new[token] = number_of(token)
                if length <= MAX_BYTES and len(self._row_of) < MAX_TOKENS:
                    self._add(token, first[place], second[place], new[token])
            found[place] = new[token]
        return found

    def _differ(
        self, rows: np.ndarray, first: np.ndarray, second: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Whether tokens, given by their integers and lengths, are not those of these rows: (M,) bool."""
        differ = self._first.take(rows) != first
        differ |= self._second.take(rows) != second
        differ |= lengths > MAX_BYTES
        return differ

    def _add(self, token: str, first: np.uint64, second: np.uint64, number: int) -> None:
        """Give a token a row, and the first of its slots that is free, or else the second one. Slot 0 is that
        of empty tokens."""
        row = self._row_of.get(token) or self._row_of.setdefault(token, next(self._next_row))
        if row >= len(self._numbers):  # other threads have added the last ones meanwhile
            return
        self._first[row], self._second[row], self._numbers[row] = first, second, number
        mixed = mix(np.array([first]), np.array([second]))
        slot = int(self._first_slot(mixed)[0])
        if not slot or self._rows[slot]:
            slot = int(self._second_slot(mixed)[0])
        if slot:
            self._rows[slot] = row

    def _first_slot(self, mixed: np.ndarray) -> np.ndarray:
        """Return the first slot of each token, (M,) int64, from its hash."""
        return (mixed >> self._shift).view(np.int64)

    def _second_slot(self, mixed: np.ndarray) -> np.ndarray:
        """Return the second slot of each token, (M,) int64, from its hash."""
        return self._first_slot((mixed ^ (mixed >> HALF)) * FIRST_FACTOR)


def _can_divide(encoded: bytes, n_characters: int) -> bool:
    """Whether texts with characters beyond ASCII have no white space among these, and few of them.

    The mark between texts, which is such a character, has another meaning than a token.
    """
    if len(encoded) > MAX_GROWTH * n_characters:
        return False
    others = encoded.translate(None, ASCII).decode("utf-8", "surrogatepass")
    return others.split() == [others] and TEXT_END not in others


def mix(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Hash pairs of integers; the highest bits depend on all others."""
    mixed = first * FIRST_FACTOR
    mixed += second
    mixed *= SECOND_FACTOR
    return mixed

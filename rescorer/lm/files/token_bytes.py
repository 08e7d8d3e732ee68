"""Text as an array of bytes, of whose tokens 8 bytes at a time are read, all tokens at once."""

from __future__ import annotations

import numpy as np

SPACE, TAB, NEWLINE = b" \t\n"
FIRST_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)
"""(9,) masks of the first n of 8 bytes, which are the lowest ones of an integer."""
LAST_BYTES = ~FIRST_BYTES[::-1]
"""(9,) masks of the last n of 8 bytes."""
FACTORS = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F)
"""Odd multipliers whose bits look random, one for each of several hash functions."""


class TokenBytes:
    """Tokens of a text by where they start and end.

    Attributes:
        bytes: (N + 16,) uint8, the text between 8 zeros; byte i of the text is at i + 8.
    """

    def __init__(self, text: bytes) -> None:
        self.bytes = np.frombuffer(b"".join((bytes(8), text, bytes(8))), np.uint8)
        self._eights = np.ndarray((len(text) + 9,), "V8", self.bytes, strides=(1,))  # they overlap

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the byte at each place, (n,) uint8."""
        return self.bytes.take(places + 8)

    def eight_from(self, starts: np.ndarray) -> np.ndarray:
        """Return the 8 bytes that start at each place, (n,) uint64, the first byte as the lowest."""
        return self._eights[starts + 8].view("<u8")

    def eight_before(self, ends: np.ndarray) -> np.ndarray:
        """Return the 8 bytes that end before each place, (n,) uint64, the first byte as the lowest."""
        return self._eights[ends].view("<u8")

    def tokens(self, starts: np.ndarray, ends: np.ndarray) -> list[bytes]:
        """Return tokens one by one."""
        text = self.bytes[8:-8].tobytes()
        return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def hash(self, starts: np.ndarray, ends: np.ndarray, factor: int = FACTORS[0]) -> np.ndarray:
        """Hash tokens, (n,) uint64; tokens of up to 7 bytes have distinct hashes."""
        lengths = ends - starts
        hashes = self.eight_from(starts)
        hashes &= FIRST_BYTES.take(np.minimum(lengths, 8))
        hashes ^= lengths.astype(np.uint64) << 56
        _mix(hashes, factor)
        longer, n_read = np.flatnonzero(lengths > 8), 8
        while len(longer):
            next_bytes = self.eight_from(starts.take(longer) + n_read)
            next_bytes &= FIRST_BYTES.take(np.minimum(lengths.take(longer) - n_read, 8))
            next_bytes ^= hashes.take(longer)
            hashes[longer] = _mix(next_bytes, factor)
            n_read += 8
            longer = longer[lengths.take(longer) > n_read]
        return hashes


def _mix(hashes: np.ndarray, factor: int) -> np.ndarray:
    """Spread every bit over all bits above and below it, in place; distinct values stay distinct."""
    hashes ^= hashes >> 32
    hashes *= np.uint64(factor)
    hashes ^= hashes >> 29
    return hashes

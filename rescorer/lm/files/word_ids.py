"""Numbers of the words of an ARPA file, found for all words of a text at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rescorer.lm.files.token_bytes import FACTORS, TokenBytes

NO_ID = -1
MAX_STEPS = 4
"""Steps from the first hash of a bucket before the search goes over to halving."""


class WordIds:
    """Numbers words as they are added.

    Attributes:
        ids: the id of each word.

    Args:
        words: words with the first ids, each under one or several names.
    """

    def __init__(self, words: Iterable[Sequence[bytes]] = ()) -> None:
        names = list(words)
        self.ids: dict[bytes, int] = {word: i for i, (word, *_) in enumerate(names)}
        self._aliases = {alias: i for i, (_, *aliases) in enumerate(names) for alias in aliases}
        self._index: _HashIndex | None = None

    def add(self, words: Iterable[bytes]) -> np.ndarray:
        """Return the id of each word, (n,) int32; new words get the next ids."""
        ids, aliases, self._index = self.ids, self._aliases, None
        return np.array(
            [i if (i := aliases.get(word)) is not None else ids.setdefault(word, len(ids)) for word in words],
            dtype=np.int32,
        )

    def find(self, text: TokenBytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the id of each token, (n,) int32, or ``NO_ID``; starts, ends: (n,)."""
        if self._index is None:
            self._index = _HashIndex({**self.ids, **self._aliases})
        return self._index.find(text, starts, ends)


class _HashIndex:
    """Ids of words in the order of their hashes, in buckets of equal high bits.

    As in KenLM, two words are taken for the same if all 64 bits of their hashes are equal: a word of the
    file that has a wrong letter is found with a probability of one in 10^14.
    """

    def __init__(self, ids: dict[bytes, int]) -> None:
        lengths = np.fromiter(map(len, ids), np.int64)
        text, ends = TokenBytes(b"\n".join(ids)), np.cumsum(lengths + 1) - 1
        for factor in FACTORS:
            hashes = text.hash(ends - lengths, ends, factor)
            by_hash = np.argsort(hashes)
            hashes = hashes[by_hash]
            if (hashes[1:] != hashes[:-1]).all():
                break
        else:
            raise ValueError("two words have the same hash with each of several hash functions")
        n_bits = len(hashes).bit_length() + 1
        self._factor, self._shift = factor, np.uint64(64 - n_bits)
        self._first = np.searchsorted(hashes >> self._shift, np.arange(1 << n_bits, dtype=np.uint64)).astype(
            np.int32
        )
        self._hashes = np.append(hashes, np.uint64((1 << 64) - 1))
        self._ids = np.append(np.fromiter(ids.values(), np.int32)[by_hash], np.int32(NO_ID))

    def find(self, text: TokenBytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        hashes = text.hash(starts, ends, self._factor)
        places = self._first.take((hashes >> self._shift).view(np.int64)).astype(np.int64)
        candidates = self._hashes.take(places)
        behind = np.flatnonzero(candidates < hashes)
        for _ in range(MAX_STEPS):
            places[behind] += 1
            behind = behind[self._hashes.take(places.take(behind)) < hashes.take(behind)]
        places[behind] = np.searchsorted(self._hashes, hashes.take(behind))
        found = self._ids.take(places)
        found[self._hashes.take(places) != hashes] = NO_ID
        return found

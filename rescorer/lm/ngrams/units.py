"""What the n-grams of a model are sequences of: words, or classes of words.

The table knows only units, by number. A ``Units`` maps each word to its unit, and says how probable the word
is within it, so that

    P(w | h) = P(unit of w | units of h) · P(w | unit of w)

Models of pieces of words would map a word to several units, whose log-probabilities are summed: there the
forest of ``table`` gets an entry per piece, and this interface the pieces of a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import repeat
from typing import NamedTuple, Protocol

import numpy as np

from rescorer.lm.files.arpa_ngrams import FIRST_WORDS
from rescorer.lm.ngrams.table import UNKNOWN_ID

N_SPECIAL = len(FIRST_WORDS)
"""The first units are ``<unk>``, ``<s>`` and ``</s>``, whatever the others are."""


class Units(Protocol):
    """Maps words to the units of a table."""

    def vocabulary(self) -> AbstractSet[str]:
        """Words that the model knows."""

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Return the unit of each word, (n,) int64; ``<s>`` and ``</s>`` inside a text are unknown words."""

    def log10_within(self, words: Sequence[str]) -> np.ndarray | None:
        """log10 P(word | its unit), (n,) float64; None if units are words."""


class WordUnits:
    """Every word is a unit of its own.

    Args:
        words: the word of each unit, ``<unk>``, ``<s>`` and ``</s>`` first.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self._ids = dict(zip(words[N_SPECIAL:], range(N_SPECIAL, len(words)), strict=True))

    def vocabulary(self) -> AbstractSet[str]:
        return self._ids.keys()

    def encode(self, words: Iterable[str]) -> np.ndarray:
        return np.fromiter(map(self._ids.get, words, repeat(UNKNOWN_ID)), dtype=np.int64)

    def log10_within(self, words: Sequence[str]) -> None:
        return None


class ClassMembers(NamedTuple):
    """The words of classes."""

    words: tuple[str, ...]
    classes: np.ndarray
    """(n,) int32 unit of each word; none is ``<unk>``, ``<s>`` or ``</s>``."""
    log10_probs: np.ndarray
    """(n,) float32 log10 P(word | class)."""


class ClassUnits:
    """Units are classes of words (Brown et al. 1992); ``<unk>`` and ``</s>`` have classes of their own."""

    def __init__(self, members: ClassMembers) -> None:
        self.members = members
        self._numbers = dict(zip(members.words, range(len(members.words)), strict=True))
        # unknown words get the last row
        self._classes = np.append(members.classes, UNKNOWN_ID).astype(np.int64)
        self._log10_probs = np.append(members.log10_probs, 0.0).astype(np.float64)

    def vocabulary(self) -> AbstractSet[str]:
        return self._numbers.keys()

    def encode(self, words: Iterable[str]) -> np.ndarray:
        return self._classes[self._rows(words)]

    def log10_within(self, words: Sequence[str]) -> np.ndarray:
        return self._log10_probs[self._rows(words)]

    def _rows(self, words: Iterable[str]) -> np.ndarray:
        return np.fromiter(map(self._numbers.get, words, repeat(-1)), dtype=np.int64)

"""Vocabulary of a neural model: words and their ids, including ``<s>``, ``</s>`` and ``<unk>``.

The model predicts ids 0 … V-2, which are ordered so that the words of a class are contiguous. ``<s>`` has the
last id because it is never predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path

import numpy as np

from rescorer.errors import BundleError

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
SPECIAL_TOKENS = frozenset({START, END, UNKNOWN})
"""Entries that are not words; if one of them occurs as a word in a text, it counts as unknown."""


@dataclass(frozen=True)
class Vocabulary:
    """Bidirectional mapping between words and ids.

    Raises:
        BundleError: the words contain duplicates, lack a special token, or do not end with ``<s>``.
    """

    words: tuple[str, ...]
    """Words in the order of their ids."""
    ids: Mapping[str, int] = field(init=False, repr=False, compare=False)
    _word_ids: Mapping[str, int] = field(init=False, repr=False, compare=False)
    """Without special tokens."""

    def __post_init__(self) -> None:
        ids = {word: i for i, word in enumerate(self.words)}
        if len(ids) != len(self.words):
            raise BundleError(f"the vocabulary contains {len(self.words) - len(ids)} duplicate words")
        missing = [token for token in sorted(SPECIAL_TOKENS) if token not in ids]
        if missing:
            raise BundleError(f"the vocabulary lacks {', '.join(missing)}")
        if self.words[-1] != START:
            raise BundleError(
                f"expected {START} as the last word of the vocabulary, got {self.words[-1][:100]!r}"
            )
        object.__setattr__(self, "ids", ids)
        word_ids = {word: i for word, i in ids.items() if word not in SPECIAL_TOKENS}
        object.__setattr__(self, "_word_ids", word_ids)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def start(self) -> int:
        """Id of the start of a sentence."""
        return self.ids[START]

    @property
    def end(self) -> int:
        """Id of the end of a sentence."""
        return self.ids[END]

    @property
    def unknown(self) -> int:
        """Id of unknown words."""
        return self.ids[UNKNOWN]

    def is_known(self, word: str) -> bool:
        """Whether the vocabulary contains this word; special tokens are not words."""
        return word in self._word_ids

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Return the ids of ``words``, (n,) int64; unknown words have the id of ``<unk>``."""
        return np.fromiter(map(self._word_ids.get, words, repeat(self.unknown)), dtype=np.int64)

    def save(self, path: Path) -> None:
        """Write one word per line, in the order of ids."""
        path.write_text("".join(f"{word}\n" for word in self.words), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read a file written by ``save``.

        Raises:
            BundleError: the file cannot be read, or is not a valid vocabulary.
        """
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BundleError(f"{path}: cannot be read as a vocabulary: {error.strerror}") from None
        return cls.parse(data, str(path))

    @classmethod
    def parse(cls, data: bytes, place: str) -> Vocabulary:
        """Parse the content of a file written by ``save``.

        Args:
            place: path of the file, for messages.

        Raises:
            BundleError: the content is not a valid vocabulary.
        """
        try:
            return cls(tuple(data.decode("utf-8").removesuffix("\n").split("\n")))
        except UnicodeDecodeError as error:
            raise BundleError(
                f"{place}: cannot be read as a vocabulary: not UTF-8 at byte {error.start:,}"
            ) from None
        except BundleError as error:
            raise BundleError(f"{place}: {error}") from None

"""Owns the word ↔ id table of one neural model, with ``<s>``, ``</s>`` and ``<unk>``.

Ids 0 … V-2 are what the model can predict, ordered so that the words of a class stand together;
``<s>`` has the last id, because nothing ever predicts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rescorer.errors import BundleError

START, END, UNKNOWN = "<s>", "</s>", "<unk>"
MARKS = frozenset({START, END, UNKNOWN})
"""Not words: where a text has one of them as a word, it is a word that nobody knows."""


@dataclass(frozen=True)
class Vocabulary:
    """Words in the order of their ids."""

    words: tuple[str, ...]
    ids: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        ids = {word: i for i, word in enumerate(self.words)}
        if len(ids) != len(self.words):
            raise BundleError(f"the vocabulary has {len(self.words) - len(ids)} words twice")
        missing = [mark for mark in sorted(MARKS) if mark not in ids]
        if missing:
            raise BundleError(f"the vocabulary lacks {', '.join(missing)}")
        if self.words[-1] != START:
            raise BundleError(f"the vocabulary's last word is {self.words[-1]!r}; expected {START}")
        object.__setattr__(self, "ids", ids)

    def __len__(self) -> int:
        return len(self.words)

    @property
    def start(self) -> int:
        return self.ids[START]

    @property
    def end(self) -> int:
        return self.ids[END]

    @property
    def unknown(self) -> int:
        return self.ids[UNKNOWN]

    def knows(self, word: str) -> bool:
        return word in self.ids and word not in MARKS

    def encode(self, words: Iterable[str]) -> np.ndarray:
        """Ids of ``words``, (n,) int64; ``<unk>``'s where the word is not known."""
        unknown = self.unknown
        ids = (self.ids[word] if self.knows(word) else unknown for word in words)
        return np.fromiter(ids, dtype=np.int64)

    def save(self, path: Path) -> None:
        """One word a line, the line number being its id."""
        path.write_text("".join(f"{word}\n" for word in self.words), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Raises BundleError where the file is missing, not UTF-8, or lacks a mark."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as fault:
            raise BundleError(f"{path}: cannot be read as a vocabulary: {fault}") from None
        return cls(tuple(text.removesuffix("\n").split("\n")))

"""Read analogy questions, and pairs of words with the similarity that people gave them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import FormatError, quote
from rescorer.formats.io import text_io
from rescorer_training.vectors.files.formats import is_number


@dataclass(frozen=True, slots=True)
class Category:
    """Questions of one kind: the first word is to the second as the third is to the fourth."""

    name: str
    questions: tuple[tuple[str, ...], ...]

    @property
    def is_syntactic(self) -> bool:
        """Whether the questions are about grammar; Google's names of those begin with ``gram``."""
        return self.name.startswith("gram")


@dataclass(frozen=True, slots=True)
class SimilaritySet:
    """Pairs of words with the similarity that people gave them."""

    name: str
    pairs: tuple[tuple[str, str], ...]
    scores: np.ndarray
    """(N,) float64, higher is more similar; every set has a scale of its own."""

    def is_part_of(self, other: SimilaritySet) -> bool:
        """Whether all pairs are in another, larger set, in either order and any case."""
        mine, others = self._unordered(), other._unordered()
        return mine < others

    def _unordered(self) -> set[frozenset[str]]:
        return {frozenset(word.lower() for word in pair) for pair in self.pairs}


def read_analogies(path: Path) -> list[Category]:
    """Read questions in the format of Google's: ``: category``, then four words per line.

    Raises:
        FormatError: the file cannot be read, a line is neither, or there is no question; names the line.
    """
    questions: dict[str, list[tuple[str, ...]]] = {}
    current: list[tuple[str, ...]] | None = None
    for number, line in text_io.read_lines_strict(path):
        fields = line.split()
        if not fields:
            continue
        if fields[0].startswith(":"):
            current = questions.setdefault(line.lstrip(": ").strip(), [])
        elif len(fields) != 4 or current is None:
            expected = "four words" if current is not None else "a category, such as ': family'"
            raise FormatError(f"expected {expected}, got {quote(line)}", file=str(path), line=number)
        else:
            current.append(tuple(fields))
    categories = [Category(name, tuple(found)) for name, found in questions.items() if found]
    if not categories:
        raise FormatError("no questions; expected ': category' and lines of four words", file=str(path))
    return categories


def read_similarities(path: Path) -> SimilaritySet:
    """Read a set of pairs: per line two words and a number, separated by tabs or blanks.

    Blank lines and those that begin with ``#`` are skipped. The set's name is the file's, without endings
    and without ``EN-``.

    Raises:
        FormatError: the file cannot be read, a line is something else, or there is none; names the line.
    """
    pairs, scores = [], []
    for number, line in text_io.read_lines_strict(path):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        if len(fields) != 3 or not is_number(fields[2]) or not np.isfinite(float(fields[2])):
            message = f"expected two words and a number, got {quote(line)}"
            raise FormatError(message, file=str(path), line=number)
        pairs.append((fields[0], fields[1]))
        scores.append(float(fields[2]))
    if not pairs:
        raise FormatError("no pairs; expected lines of two words and a number", file=str(path))
    name = path.name.split(".")[0].removeprefix("EN-")
    return SimilaritySet(name, tuple(pairs), np.array(scores))

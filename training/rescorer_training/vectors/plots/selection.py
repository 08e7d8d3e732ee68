"""Choose the words of a picture: the most frequent ones, or those of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, quote
from rescorer.formats.io import text_io
from rescorer_training.vectors.word_vectors import WordVectors

MAX_GROUPS = 7
"""Number of colours that people with any colour vision can tell apart."""
MIN_WORDS = 4
"""Smallest number of words that a picture needs."""
MAX_WORDS = 20_000
"""Largest number of words, whose time grows with its square."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Words of a picture."""

    rows: tuple[int, ...]
    """Row of each word in the vectors."""
    groups: tuple[str, ...]
    """Names of the groups, of which each has a colour; one empty name if there are none."""
    group_of: tuple[int, ...]
    """Group of each word."""
    missing: tuple[str, ...] = ()
    """Words of the file that have no vector."""


def select_most_frequent(vectors: WordVectors, n: int) -> Selection:
    """Choose the first words of the vectors; raises ConfigError if there are too few or too many."""
    rows = range(min(n, len(vectors)))
    return _check(Selection(tuple(rows), ("",), (0,) * len(rows)))


def select_from_file(vectors: WordVectors, path: Path) -> Selection:
    """Choose the words of a file: one per line, and after a tab, if you like, the name of its group.

    Words without a vector are left out; a word that occurs again is too.

    Raises:
        FormatError: the file cannot be read, or has too many groups.
        ConfigError: too few words have vectors, or too many.
    """
    chosen: dict[int, int] = {}
    groups: dict[str, int] = {}
    missing = []
    for number, line in text_io.read_lines_strict(path):
        word, _, group = (part.strip() for part in line.partition("\t"))
        if not word:
            continue
        if word not in vectors.index:
            missing.append(word)
            continue
        place = groups.setdefault(group, len(groups))
        if len(groups) > MAX_GROUPS:
            message = f"{quote(group)} is group {len(groups)}; expected at most {MAX_GROUPS}, one per colour"
            raise FormatError(message, file=str(path), line=number)
        chosen.setdefault(vectors.index[word], place)
    return _check(Selection(tuple(chosen), tuple(groups), tuple(chosen.values()), tuple(missing)))


def _check(selection: Selection) -> Selection:
    if len(selection.rows) < MIN_WORDS:
        without = f"; {len(selection.missing)} have no vector" if selection.missing else ""
        raise ConfigError(f"{len(selection.rows)} words to draw{without}; expected at least {MIN_WORDS}")
    if len(selection.rows) > MAX_WORDS:
        raise ConfigError(f"{len(selection.rows):,} words to draw; expected at most {MAX_WORDS:,}")
    return selection

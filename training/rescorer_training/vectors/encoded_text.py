"""Prepare the text of word vectors: choose the vocabulary, encode the text once, map it into memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import BundleError, ConfigError, quote
from rescorer.formats.io.targets import make_folder
from rescorer.text import Normaliser
from rescorer_training.data.corpus import count_ids, iterate_blocks, number_words, read_encoded, renumber
from rescorer_training.vectors.full_disk import report_full_disk

IDS_FILE, VOCABULARY_FILE = "text.ids", "vocabulary.json"
MIN_WORDS = 2
"""Smallest vocabulary: with a single word there is nothing to predict."""
MAX_COUNT = 1 << 48
"""Upper bound of the occurrences of a word, so that sums of them are exact."""


@dataclass(frozen=True)
class EncodedText:
    """A text as word ids.

    Words have the ids 0 … V-1, the most frequent one first. V marks the end of a sentence, and V + 1 stands
    for any word that is too rare.
    """

    words: tuple[str, ...]
    counts: np.ndarray
    """(V,) int64: occurrences of each word."""
    ids: np.ndarray
    """(n,) int32, mapped from the file."""

    @property
    def sentence_end(self) -> int:
        return len(self.words)

    @property
    def n_words(self) -> int:
        """Number of words in the text that are in the vocabulary."""
        return int(self.counts.sum())


def prepare_text(texts: Sequence[Path], normaliser: Normaliser, folder: Path, min_count: int) -> EncodedText:
    """Read texts, and write their words and ids to ``folder``.

    Raises:
        FormatError: a text cannot be read or has no words.
        ConfigError: fewer than two words occur ``min_count`` times.
        ScoringError: the disk is full.
    """
    with report_full_disk(folder, "words of the text"):
        make_folder(folder)
        vocabulary = folder / VOCABULARY_FILE
        vocabulary.unlink(missing_ok=True)  # written last, because it marks a complete text
        found, _ = number_words(texts, normaliser, folder / IDS_FILE, "reading text")
        entries = _choose_vocabulary(found, folder / IDS_FILE, min_count)
        vocabulary.write_text(json.dumps(entries, ensure_ascii=False), encoding="utf-8")
    return load_text(folder)


def _choose_vocabulary(found: Sequence[str], ids: Path, min_count: int) -> list[tuple[str, int]]:
    """Renumber the text by frequency; return the frequent words and their counts in this order."""
    counts = count_ids(read_encoded(ids), len(found) + 1)[1:]
    by_count = np.argsort(-counts, kind="stable")
    kept = by_count[: int((counts >= min_count).sum())]
    if len(kept) < MIN_WORDS:
        raise ConfigError(
            f"{len(kept)} of the text's {len(found):,} distinct words occur {min_count} times or more; "
            f"expected at least {MIN_WORDS}: give more text, or a lower --min-count"
        )
    new_ids = np.full(len(found) + 1, len(kept) + 1, dtype=np.int32)
    new_ids[0] = len(kept)
    new_ids[kept + 1] = np.arange(len(kept), dtype=np.int32)
    renumber(ids, new_ids)
    return [(found[index], int(counts[index])) for index in kept]


def load_text(folder: Path) -> EncodedText:
    """Map the text that ``prepare_text`` wrote to ``folder`` into memory.

    Raises:
        ConfigError: the folder has no prepared text.
        BundleError: vocabulary or text is damaged or incomplete.
    """
    ids = folder / IDS_FILE
    if not ids.exists():
        raise ConfigError(f"{folder} has no run of word vectors; start one without --resume")
    words, counts = load_vocabulary(folder)
    if ids.stat().st_size % np.dtype(np.int32).itemsize:
        raise _damaged(ids, f"{ids.stat().st_size:,} bytes are not whole numbers of 4 bytes")
    text = EncodedText(words, counts, read_encoded(ids))
    _check_ids(text, ids)
    return text


def load_vocabulary(folder: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """Read the words of a prepared text, the most frequent one first, and how often each occurs, (V,) int64.

    Raises:
        ConfigError: the folder has no prepared text.
        BundleError: the vocabulary is damaged.
    """
    path = folder / VOCABULARY_FILE
    if not path.exists():
        raise ConfigError(f"{folder} has no run of word vectors; start one without --resume")
    try:
        entries = [(word, count) for word, count in json.loads(path.read_text(encoding="utf-8"))]
    except (TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    words = tuple(word for word, _ in entries)
    if len(words) < MIN_WORDS or not all(isinstance(word, str) and word for word in words):
        raise _damaged(path, f"expected at least {MIN_WORDS} words")
    if len(set(words)) < len(words):
        double = next(word for word, times in Counter(words).items() if times > 1)
        raise _damaged(path, f"{quote(double)} occurs twice")
    for word, count in entries:
        if type(count) is not int or not 0 < count < MAX_COUNT:
            raise _damaged(path, f"{quote(word)} has the count {count!r}, expected a whole number above 0")
    return words, np.array([count for _, count in entries], dtype=np.int64)


def _check_ids(text: EncodedText, path: Path) -> None:
    """Raise BundleError unless every word occurs in the text as often as the vocabulary says."""
    n_ids = len(text.words) + 2
    for block in iterate_blocks(text.ids):
        if block.min() < 0 or block.max() >= n_ids:
            raise _damaged(path, f"ids from {block.min()} to {block.max()}, expected 0 to {n_ids - 1}")
    found = count_ids(text.ids, n_ids)[: len(text.words)]
    if len(wrong := np.flatnonzero(found != text.counts)):
        word = wrong[0]
        message = f"{quote(text.words[word])} occurs {found[word]:,} times, expected {text.counts[word]:,}"
        raise _damaged(path, message)


def _damaged(path: Path, problem: str) -> BundleError:
    return BundleError(f"{path} is damaged: {problem}; start the run again in another folder")

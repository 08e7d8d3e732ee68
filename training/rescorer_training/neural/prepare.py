"""Owns the preparation of a neural run: vocabulary chosen, text encoded once and mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError, FormatError
from rescorer.text import Normaliser
from rescorer.vocabulary import Vocabulary
from rescorer_training.classes.partition import order_vocabulary
from rescorer_training.data.corpus import count_ids, number_words, read_encoded, read_lines, renumber
from rescorer_training.data.sentence_batches import Sentences

ANY_LENGTH = 1 << 30
WORDS, TRAIN, VALIDATION, CORPORA = "vocabulary.txt", "train.ids", "validation.ids", "corpora.json"


@dataclass(frozen=True)
class PreparedText:
    """Training and validation text as ids."""

    vocabulary: Vocabulary
    train: Sentences
    validation: Sentences

    def counts(self) -> np.ndarray:
        """How often each word that can be predicted occurs in the training text, (V - 1,)."""
        return count_ids(self.train.ids, len(self.vocabulary))[:-1]


def choose_vocabulary(counts: Mapping[str, int], file: Path | None, size: int) -> Vocabulary:
    """The words of ``file`` (one a line), or the ``size`` most frequent of those counted."""
    if file is None:
        return order_vocabulary(counts, sorted(counts, key=counts.__getitem__, reverse=True)[:size])
    words = [word for line in read_lines(file) if (word := line.strip())]
    if not words:
        raise FormatError("no words in it; expected one a line", file=str(file))
    return order_vocabulary(counts, words)


def prepare(
    folder: Path,
    texts: Sequence[Path],
    validation: Path,
    normaliser: Normaliser,
    vocabulary: Vocabulary | Path | None = None,
    *,
    size: int = 50_000,
    longest: int = 200,
    weights: Sequence[float] = (),
) -> PreparedText:
    """Encodes the texts into ``folder``, each read and normalised once.

    Args:
        vocabulary: that of another model, or a file of words; None: the ``size`` most frequent words.
        weights: how often an epoch draws each sentence of each text, on average; none: all of them once.

    Raises:
        FormatError: a text cannot be read, has no words or only one, or the vocabulary has none of its words.
    """
    words, n_sentences = number_words(texts, normaliser, folder / TRAIN, "reading training text")
    if len(words) < 2:
        names = ", ".join(map(str, texts))
        raise FormatError(f"the only word is {words[0]!r}; expected at least two different words", file=names)
    if not isinstance(vocabulary, Vocabulary):
        counts = count_ids(read_encoded(folder / TRAIN), len(words) + 1)[1:].tolist()
        vocabulary = choose_vocabulary(dict(zip(words, counts, strict=True)), vocabulary, size)
    vocabulary.save(folder / WORDS)
    _encode(folder / TRAIN, words, vocabulary, ", ".join(map(str, texts)))
    (folder / CORPORA).unlink(missing_ok=True)
    if set(weights) - {1.0}:
        (folder / CORPORA).write_text(json.dumps(list(zip(n_sentences, weights, strict=True))))
    words, _ = number_words([validation], normaliser, folder / VALIDATION, "reading validation text")
    _encode(folder / VALIDATION, words, vocabulary, str(validation))
    return prepared(folder, longest)


def _encode(path: Path, words: Sequence[str], vocabulary: Vocabulary, text: str) -> None:
    """Puts the vocabulary's ids in place of provisional ones; raises FormatError where it knows no word."""
    if not any(map(vocabulary.knows, words)):
        raise FormatError(
            f"the vocabulary has none of its {len(words):,} different words, such as {words[0]!r}; do "
            "its case and the normaliser fit?",
            file=text,
        )
    new_ids = np.append(vocabulary.end, vocabulary.encode(words)).astype(np.int32)
    renumber(path, new_ids)


def reorder(folder: Path, vocabulary: Vocabulary, order: np.ndarray) -> None:
    """Gives the words of a prepared run new ids; ``order``: (V - 1,) the old id at each new place."""
    words = [vocabulary.words[i] for i in order]
    Vocabulary((*words, *vocabulary.words[-1:])).save(folder / WORDS)
    new_ids = np.empty(len(order), dtype=np.int32)
    new_ids[order] = np.arange(len(order), dtype=np.int32)
    for name in (TRAIN, VALIDATION):
        renumber(folder / name, new_ids)


def prepared(folder: Path, longest: int) -> PreparedText:
    """Maps what ``prepare`` left in ``folder``; ``longest`` cuts training sentences only.

    Raises:
        ConfigError: nothing was prepared there.
    """
    if not (folder / VALIDATION).exists():
        raise ConfigError(f"{folder} holds no run; start one without --resume")
    vocabulary = Vocabulary.load(folder / WORDS)
    corpora: tuple[tuple[int, float], ...] = ()
    if (folder / CORPORA).exists():
        corpora = tuple((n, weight) for n, weight in json.loads((folder / CORPORA).read_text()))
    train = Sentences.from_ids(
        read_encoded(folder / TRAIN),
        start_id=vocabulary.start,
        end_id=vocabulary.end,
        max_words=longest,
        corpora=corpora,
    )
    validation = Sentences.from_ids(
        read_encoded(folder / VALIDATION),
        start_id=vocabulary.start,
        end_id=vocabulary.end,
        max_words=ANY_LENGTH,
    )
    return PreparedText(vocabulary, train, validation)

"""Owns the way from word vectors in a text file, as word2vec and GloVe write them, to a model's embedding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io import text_io
from rescorer.lm.networks import NeuralModel
from rescorer.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many words of a vocabulary a file of vectors knows."""

    covered: int
    words: int

    def __str__(self) -> str:
        return f"{self.covered:,} of {self.words:,} words have a vector"


def read_vectors(path: Path, ids: Mapping[str, int], width: int) -> Iterator[tuple[int, np.ndarray]]:
    """Id and vector of each word of the file that is known, in the file's order.

    A line holds a word and its values with blanks between; a first line of two whole numbers, as word2vec
    writes it, is passed over. A word may hold blanks itself, as a few of GloVe's do. Gzip is known by its
    first bytes.

    Args:
        ids: id of each known word.
        width: values that each vector is expected to have.

    Raises:
        FormatError: the file cannot be read, a line has not ``width`` values, a known word stands there
            twice, or one of its values is no finite number; names the line.
    """
    seen: dict[int, int] = {}
    for number, line in text_io.read_lines(path):
        if isinstance(line, FormatError):
            raise line
        fields = line.rstrip().split(" ")
        if fields == [""] or (number == 1 and _is_header(fields, width, path)):
            continue
        word = _word(fields, width, path, number)
        if (known := ids.get(word)) is None:
            continue
        if known in seen:
            raise FormatError(
                f"{word!r} was there before, in line {seen[known]}", file=str(path), line=number
            )
        seen[known] = number
        yield known, _values(fields[-width:], word, path, number)


def initialise_embedding(
    model: NeuralModel, vocabulary: Vocabulary, path: Path, frozen: bool = False
) -> Coverage:
    """Gives the words of a vectors file these vectors as embeddings; others keep what they have.

    The vectors are scaled by one factor to the root mean square that the embedding has, so that all words
    start with equal weight; directions and relative lengths are the file's.

    Args:
        frozen: training leaves the whole embedding as it is, words without a vector too.

    Raises:
        FormatError: see ``read_vectors``; or there is no known word in the file.
        ConfigError: ``frozen`` is asked for where the embedding is also the output layer's weights.
    """
    if frozen and model.config.tied:
        raise ConfigError(
            "a frozen embedding cannot be tied: the output layer's word weights would be frozen too; "
            "untie them, or let the vectors be tuned"
        )
    weight = model.network.embedding.weight
    found = dict(read_vectors(path, vocabulary.ids, weight.shape[1]))
    if not found:
        raise FormatError(f"none of the vocabulary's {len(vocabulary):,} words is there", file=str(path))
    vectors = np.stack(list(found.values()))
    size = math.sqrt(np.mean(np.square(vectors, dtype=np.float64)))
    with torch.no_grad():
        scale = float(weight.square().mean().sqrt()) / size if size else 1.0
        rows = torch.tensor(list(found), device=weight.device)
        weight[rows] = torch.from_numpy(vectors * np.float32(scale)).to(weight)
    weight.requires_grad_(not frozen)
    return Coverage(len(found), len(vocabulary))


def _is_header(fields: list[str], width: int, path: Path) -> bool:
    """Whether the first line tells how many vectors of which width follow."""
    if len(fields) != 2 or not all(field.isascii() and field.isdigit() for field in fields) or width == 1:
        return False
    if int(fields[1]) != width:
        message = f"the header says {fields[1]} values a word; expected {width}, the size of the embedding"
        raise FormatError(message, file=str(path), line=1)
    return True


def _word(fields: list[str], width: int, path: Path, number: int) -> str:
    """What stands before the last ``width`` fields."""
    word = fields[:-width]
    if not word or any(_is_number(field) for field in word[1:]):
        message = f"{len(fields) - 1} values; expected {width}, the size of the embedding"
        raise FormatError(message, file=str(path), line=number)
    return " ".join(word)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _values(fields: list[str], word: str, path: Path, number: int) -> np.ndarray:
    """(width,) float32."""
    try:
        values = np.array(fields, dtype=np.float32)
    except ValueError as fault:
        raise FormatError(f"{word!r}: {fault}", file=str(path), line=number) from None
    if not np.isfinite(values).all():
        raise FormatError(f"{word!r} has a value that is not finite", file=str(path), line=number)
    return values

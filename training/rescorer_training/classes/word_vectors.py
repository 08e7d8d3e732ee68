"""Initialise a network's embedding from a text file of word vectors, as word2vec and GloVe write it."""

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
    """Number of words of a vocabulary that a file of vectors covers."""

    n_covered: int
    """Number of words of the vocabulary that have a vector."""
    n_words: int
    """Number of words in the vocabulary."""

    def __str__(self) -> str:
        return f"{self.n_covered:,} of {self.n_words:,} words have a vector"


def read_vectors(path: Path, ids: Mapping[str, int], width: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the id and the vector of each known word, in file order.

    Each line has a word and its values, separated by blanks; the word may contain blanks itself, as a few of
    GloVe's do. A header line of two integers, as word2vec writes it, is skipped. Gzip files are detected from
    their content.

    Args:
        ids: id of each known word.
        width: number of values per vector.

    Raises:
        FormatError: the file cannot be read, a line does not have ``width`` values, or a known word occurs
            twice or has a value that is not finite; names the line.
    """
    first_lines: dict[int, int] = {}
    for number, line in text_io.read_lines(path):
        if isinstance(line, FormatError):
            raise line
        fields = line.rstrip().split(" ")
        if fields == [""] or (number == 1 and _is_header(fields, width, path)):
            continue
        word = _parse_word(fields, width, path, number)
        if (word_id := ids.get(word)) is None:
            continue
        if word_id in first_lines:
            message = f"{word!r} occurs twice, first in line {first_lines[word_id]}"
            raise FormatError(message, file=str(path), line=number)
        first_lines[word_id] = number
        yield word_id, _parse_values(fields[-width:], word, path, number)


def initialise_embedding(
    model: NeuralModel, vocabulary: Vocabulary, path: Path, frozen: bool = False
) -> Coverage:
    """Set the embeddings of words that have a vector in a file; other words keep their embeddings.

    All vectors are multiplied by the same factor, so that their root mean square equals that of the existing
    embedding and all words start with equal weight. Directions and relative lengths do not change.

    Args:
        frozen: exclude the whole embedding from training, including words without a vector.

    Raises:
        FormatError: the file is invalid, see ``read_vectors``, or has no known word.
        ConfigError: ``frozen`` is set and the embedding is tied to the output layer's weights.
    """
    if frozen and model.config.tied:
        raise ConfigError(
            "a frozen embedding cannot be tied, because the output layer's word weights would be frozen too; "
            "untie them, or do not freeze the embedding"
        )
    weight = model.network.embedding.weight
    found = dict(read_vectors(path, vocabulary.ids, weight.shape[1]))
    if not found:
        message = f"no vector for any of the vocabulary's {len(vocabulary):,} words"
        raise FormatError(message, file=str(path))
    vectors = np.stack(list(found.values()))
    size = math.sqrt(np.mean(np.square(vectors, dtype=np.float64)))
    with torch.no_grad():
        scale = float(weight.square().mean().sqrt()) / size if size else 1.0
        rows = torch.tensor(list(found), device=weight.device)
        weight[rows] = torch.from_numpy(vectors * np.float32(scale)).to(weight)
    weight.requires_grad_(not frozen)
    return Coverage(len(found), len(vocabulary))


def _is_header(fields: list[str], width: int, path: Path) -> bool:
    """Whether the first line is word2vec's header: the number of vectors and their width."""
    if len(fields) != 2 or not all(field.isascii() and field.isdigit() for field in fields) or width == 1:
        return False
    if int(fields[1]) != width:
        message = (
            f"the header announces {fields[1]} values per word; expected {width}, the size of the embedding"
        )
        raise FormatError(message, file=str(path), line=1)
    return True


def _parse_word(fields: list[str], width: int, path: Path, number: int) -> str:
    """Return the word, which is everything before the last ``width`` fields."""
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


def _parse_values(fields: list[str], word: str, path: Path, number: int) -> np.ndarray:
    """Return a vector, (width,) float32."""
    try:
        values = np.array(fields, dtype=np.float32)
    except ValueError as error:
        raise FormatError(f"{word!r}: {error}", file=str(path), line=number) from None
    if not np.isfinite(values).all():
        raise FormatError(f"{word!r} has a value that is not finite", file=str(path), line=number)
    return values

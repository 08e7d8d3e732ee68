"""Divide the words of an n-gram model into classes, learnt from its text or read from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rescorer.errors import ConfigError, FormatError
from rescorer.lm.ngrams.units import ClassMembers
from rescorer_training.classes.brown import find_brown_clusters
from rescorer_training.data.corpus import read_lines


class UnitText(NamedTuple):
    """A text in the units of a model."""

    ids: np.ndarray
    """(T,) int32 units; those from ``n_kept`` on are not in the model."""
    names: tuple[str, ...]
    """Name of each unit: a word, or a class."""
    n_kept: int
    members: ClassMembers | None = None


def divide_into_classes(
    ids: np.ndarray, words: Sequence[str], n_kept: int, n_special: int, class_of: np.ndarray
) -> UnitText:
    """Replace the words of a text by their classes.

    Special words and words that are not in the model stay units of their own. P(word | class) is the word's
    share of the occurrences of its class.

    Args:
        ids: (T,) word ids; ids below ``n_special`` and from ``n_kept`` on are those that stay.
        words: the word of each id.
        class_of: (n_kept - n_special,) class of the other words, any whole numbers.
    """
    counts = np.bincount(ids, minlength=len(words))[n_special:n_kept]
    numbers, classes = np.unique(class_of, return_inverse=True)
    totals = np.bincount(classes, weights=counts)
    n_units = n_special + len(numbers)
    unit_of = np.concatenate([
        np.arange(n_special), n_special + classes, np.arange(len(words) - n_kept) + n_units
    ]).astype(np.int32)  # fmt: skip
    members = ClassMembers(
        tuple(words[n_special:n_kept]),
        unit_of[n_special:n_kept],
        np.log10(counts / totals[classes]).astype(np.float32),
    )
    names = (*words[:n_special], *(f"class {number}" for number in numbers), *words[n_kept:])
    return UnitText(unit_of[ids], names, n_units, members)


def learn_classes(
    ids: np.ndarray, n_kept: int, n_special: int, *, unknown_id: int, end_id: int, n_classes: int
) -> np.ndarray:
    """Learn Brown classes from a text; see ``find_brown_clusters``.

    Args:
        ids: (T,) word ids, special words first and the others by falling count; words that are not in the
            model, from ``n_kept`` on, count as unknown.
        n_classes: number of classes, besides those of special words.

    Returns:
        (n_kept - n_special,) class of each word that is in the model and not special.

    Raises:
        ConfigError: there are fewer words than classes.
    """
    n_words = n_kept - n_special
    if not 2 <= n_classes <= n_words:
        raise ConfigError(f"{n_classes} classes for {n_words:,} words; expected 2 to {n_words:,}")
    order = np.full(n_kept, 1)  # </s> first, then unknown words, as the clustering has it
    order[end_id] = 0
    order[n_special:] = 2 + np.arange(n_words)
    clusters = find_brown_clusters(order[np.where(ids < n_kept, ids, unknown_id)], 2 + n_words, 1 + n_classes)
    return clusters[2:]


def read_class_file(path: Path, words: Sequence[str]) -> np.ndarray:
    """Read the class of each of some words from lines ``WORD CLASS``, as mkcls writes: (n,) int64.

    Raises:
        FormatError: the file cannot be read, or a line is not a word and the name of a class.
        ConfigError: a word has no class.
    """
    class_of: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), 1):
        match line.split():
            case []:
                continue
            case [word, name]:
                class_of[word] = name
            case _:
                raise FormatError("expected a word and its class", file=str(path), line=number)
    if missing := [word for word in words if word not in class_of]:
        raise ConfigError(
            f"{path}: {len(missing):,} words of the text have no class, such as {missing[0]!r}; add them, or "
            "limit the vocabulary to the words of the file"
        )
    numbers: Mapping[str, int] = {name: i for i, name in enumerate(dict.fromkeys(class_of.values()))}
    return np.array([numbers[class_of[word]] for word in words])

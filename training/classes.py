"""Owns the assignment of words to output classes and the vocabulary order that follows from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from rescorer.errors import ConfigError
from rescorer.vocabulary import END, START, UNKNOWN, Vocabulary


def ordered_vocabulary(counts: Mapping[str, int], words: Iterable[str]) -> Vocabulary:
    """``</s>``, ``<unk>``, then ``words`` by falling count, so that frequency classes are ranges of ids."""
    listed = set(words) - {START, END, UNKNOWN}
    return Vocabulary((END, UNKNOWN, *sorted(listed, key=lambda word: (-counts.get(word, 0), word)), START))


def frequency_bins(counts: np.ndarray, n_classes: int, power: float = 0.5) -> tuple[int, ...]:
    """Sizes of ``n_classes`` classes of about equal Σ count^power over words ordered by falling count.

    power 1 is Mikolov et al. (2011)'s equal mass, which leaves one vast class of rare words; 0.5, the
    ``-new`` binning of his toolkit, bounds the classes far better and is the default.

    Args:
        counts: (V,) in the vocabulary's order.

    Returns:
        ``n_classes`` sizes of at least one word, summing to V.
    """
    n_words = len(counts)
    if not 1 <= n_classes <= n_words:
        raise ConfigError(f"{n_classes} classes for {n_words} words; expected between 1 and {n_words}")
    mass = np.cumsum(np.maximum(counts, 1).astype(np.float64) ** power)
    ends = np.searchsorted(mass, mass[-1] * np.arange(1, n_classes) / n_classes, side="left") + 1
    # Every class keeps a word: frequent words may be worth more than a whole class each.
    steps = np.arange(1, n_classes)
    ends = np.maximum.accumulate(ends - steps) + steps  # strictly rising
    ends = np.minimum(ends, n_words - n_classes + steps)
    bounds = np.concatenate([[0], ends, [n_words]])
    return tuple(int(size) for size in np.diff(bounds))


def default_n_classes(n_words: int) -> int:
    """√V, which balances the two softmaxes."""
    return max(1, math.isqrt(n_words))

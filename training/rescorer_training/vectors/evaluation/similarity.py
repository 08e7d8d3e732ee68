"""Compare cosines of word vectors with the similarities that people gave, by Spearman's rank correlation.

Pairs with a word that has no vector are left out, and counted. Words are compared in lower case, see
``lookup``. The mean over sets is the usual single figure; a set whose pairs are all in a larger one that is
measured too does not count in it, because it would count these pairs again: of the sets in common use those
are the two halves of WordSim-353, and MC-30, which is 30 pairs of RG-65 judged again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.vectors.evaluation.intervals import draw_spearman, percentile_interval, spearman
from rescorer_training.vectors.evaluation.lookup import FoldedVectors
from rescorer_training.vectors.evaluation.questions import SimilaritySet
from rescorer_training.vectors.word_vectors import WordVectors

MIN_PAIRS = 6
"""Smallest number of pairs with vectors for which a correlation is given."""


@dataclass(frozen=True, slots=True)
class Correlation:
    """Agreement of word vectors with one set."""

    name: str
    n_pairs: int
    n_covered: int
    """Pairs of which both words have a vector."""
    part_of: str
    """Name of a larger set that has all of these pairs; empty if there is none."""
    spearman: float | None
    """None if fewer than ``MIN_PAIRS`` pairs have vectors, or all have the same similarity."""
    interval: tuple[float, float] | None

    @property
    def counts(self) -> bool:
        """Whether the set counts in the mean."""
        return self.spearman is not None and not self.part_of


@dataclass(frozen=True, slots=True)
class Similarities:
    """Agreement of word vectors with several sets."""

    sets: tuple[Correlation, ...]
    mean: float
    """Mean over the sets that count, all of the same weight."""
    interval: tuple[float, float]


def measure_similarity(vectors: WordVectors, sets: Sequence[SimilaritySet], seed: int = 0) -> Similarities:
    """Correlate the cosines of pairs with the similarities of every set.

    Raises:
        ConfigError: no set counts, because none has enough pairs with vectors.
    """
    folded = FoldedVectors(vectors)
    measured = [_measure_set(folded, item, sets, [seed, number]) for number, item in enumerate(sets)]
    counted = [(row, drawn) for row, drawn in measured if row.counts]
    if not counted:
        raise ConfigError(f"no set has {MIN_PAIRS} pairs with vectors for both words")
    mean = float(np.mean([row.spearman for row, _ in counted]))
    all_drawn = np.array([drawn for _, drawn in counted])
    drawn_means = np.nanmean(all_drawn[:, ~np.isnan(all_drawn).all(axis=0)], axis=0)
    return Similarities(tuple(row for row, _ in measured), mean, percentile_interval(drawn_means))


def _measure_set(
    folded: FoldedVectors, item: SimilaritySet, sets: Sequence[SimilaritySet], seed: list[int]
) -> tuple[Correlation, np.ndarray]:
    found = [folded.find(pair) for pair in item.pairs]
    covered = [number for number, rows in enumerate(found) if rows]
    part_of = next((other.name for other in sets if item.is_part_of(other)), "")
    result, interval, drawn = math.nan, None, np.empty(0)
    if len(covered) >= MIN_PAIRS:
        cosines = folded.cosines(np.array([found[number] for number in covered]))
        scores = item.scores[covered]
        result = spearman(scores, cosines)
    if not math.isnan(result):
        drawn = draw_spearman(scores, cosines, seed)
        interval = percentile_interval(drawn)
    value = None if math.isnan(result) else result
    return Correlation(item.name, len(item.pairs), len(covered), part_of, value, interval), drawn

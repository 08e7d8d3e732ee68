"""How the score streams of a recogniser follow the words of its hypotheses: a linear model of real lists.

What a list has in common does not rank its hypotheses, so scores and facts are centred in each list. Facts of
a hypothesis: words, characters, ln P by a language model, substitutions, deletions and insertions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer_training.lists.context_model import ContextModel
from rescorer_training.lists.patterns import Words

RIDGE = 1e-3
"""Penalty on weights, relative to the variance of their facts."""


def describe(hypotheses: Sequence[Words], errors: np.ndarray, model: ContextModel) -> np.ndarray:
    """Facts of the hypotheses of a list, centred, (H, 6) float64."""
    lengths = [(len(words), sum(map(len, words)), model.score(words)) for words in hypotheses]
    facts = np.column_stack([np.array(lengths, dtype=np.float64), errors])
    centred: np.ndarray = facts - facts.mean(axis=0)
    return centred


@dataclass(frozen=True, slots=True)
class ScoreModel:
    """Change of each stream with each fact."""

    weights: np.ndarray
    """(6, S) float64."""

    @classmethod
    def fit(cls, facts: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> ScoreModel:
        """Fit by least squares; every list counts the same.

        Args:
            facts: (H, 6) of each list, centred.
            scores: (H, S) of each list.
        """
        x = np.concatenate([list_facts / np.sqrt(len(list_facts)) for list_facts in facts])
        y = np.concatenate([(part - part.mean(axis=0)) / np.sqrt(len(part)) for part in scores])
        gram = x.T @ x
        return cls(np.linalg.solve(gram + np.diag(RIDGE * np.diag(gram) + 1e-9), x.T @ y))

    def transfer(self, scores: np.ndarray, facts: np.ndarray, new_facts: np.ndarray) -> np.ndarray:
        """Scores (H, S) of hypotheses with other words: those of the imitated list, changed by what its words
        do not explain."""
        result: np.ndarray = scores + (new_facts - facts) @ self.weights
        return result

"""Which words a recogniser hears instead of others: a model learned from real lists.

A wrong word h for the word r, after the words c, has a probability proportional to
exp(−a · phone cost(r, h) + b · ln P(h | c)), where a and b are fitted to the substitutions of real lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from rescorer.errors import ConfigError
from rescorer_training.lists.context_model import ContextModel
from rescorer_training.lists.patterns import Words
from rescorer_training.lists.pronunciations import PhoneCosts, Pronunciations

N_NEIGHBOURS = 40
"""Number of words that are considered in place of a word: those whose phones are most alike."""
MAX_VOCABULARY = 30_000
PHONE_WEIGHTS, LM_WEIGHTS = (0.1, 0.2, 0.4, 0.8, 1.6), (0.0, 0.25, 0.5, 0.75, 1.0)
"""Values of a and b to choose from."""


class Substitution(NamedTuple):
    """A wrong word in a real hypothesis."""

    right: str
    heard: str
    context: Words
    """Words of the reference before it."""


class Confusions:
    """Draws wrong words."""

    def __init__(
        self,
        pronunciations: Pronunciations,
        counts: Mapping[str, int],
        model: ContextModel,
        substitutions: Sequence[Substitution],
        insertions: Counter[Words],
    ) -> None:
        """Learn from the substitutions and insertions of real lists.

        Args:
            counts: number of occurrences of words; the commonest that have a pronunciation can be heard.

        Raises:
            ConfigError: fewer than two words have a pronunciation.
        """
        known = [word for word, _ in Counter(counts).most_common() if word in pronunciations]
        if len(known) < 2:
            raise ConfigError(
                f"only {len(known)} of the {len(counts):,} distinct words of the texts are in the "
                "pronunciation dictionary; expected at least 2: give texts of its language, or another "
                "--dictionary"
            )
        self._vocabulary = known[:MAX_VOCABULARY]
        self._heard = [pronunciations[word] for word in self._vocabulary]
        self._pronunciations, self._model = pronunciations, model
        self._insertions = list(insertions)
        frequencies = np.array([insertions[words] for words in self._insertions], dtype=np.float64)
        self._insertion_shares = frequencies / max(frequencies.sum(), 1.0)
        pairs = Counter((pronunciations[s.right], pronunciations[s.heard]) for s in substitutions)
        self.costs = PhoneCosts(
            pronunciations.phones, [(right, heard, float(n)) for (right, heard), n in pairs.items()]
        )
        self._neighbours: dict[str, tuple[list[str], np.ndarray]] = {}
        self.phone_weight, self.lm_weight = self._fit(substitutions)

    def _fit(self, substitutions: Sequence[Substitution]) -> tuple[float, float]:
        """Choose a and b by the likelihood of those substitutions whose wrong word is a neighbour."""
        seen = []
        for right, heard, context in dict.fromkeys(substitutions):
            words, costs = self.neighbours(right)
            if heard in words:
                seen.append((words.index(heard), costs, self._model.log_probs(context, words)))

        def log_likelihood(phone_weight: float, lm_weight: float) -> float:
            total = 0.0
            for index, costs, log_probs in seen:
                logits = lm_weight * log_probs - phone_weight * costs
                total += logits[index] - np.logaddexp.reduce(logits)
            return total

        grid = [(a, b) for a in PHONE_WEIGHTS for b in LM_WEIGHTS]
        return max(grid, key=lambda weights: log_likelihood(*weights))

    def neighbours(self, word: str) -> tuple[list[str], np.ndarray]:
        """Words that sound like a word, without itself, and their phone costs."""
        if word not in self._neighbours:
            phones = self._pronunciations[word]
            distances = process.cdist([phones], self._heard, scorer=Levenshtein.distance, dtype=np.uint8)[0]
            nearest = np.argsort(distances, kind="stable")[: N_NEIGHBOURS + 1]
            words = [self._vocabulary[index] for index in nearest if self._vocabulary[index] != word]
            costs = self.costs.distances(phones, [self._pronunciations[w] for w in words])
            self._neighbours[word] = words[:N_NEIGHBOURS], costs[:N_NEIGHBOURS]
        return self._neighbours[word]

    def draw_wrong(self, word: str, context: Words, n_words: int, random: np.random.Generator) -> Words:
        """Draw wrong words for a word, distinct if there are enough."""
        words, costs = self.neighbours(word)
        logits = self.lm_weight * self._model.log_probs(context, words) - self.phone_weight * costs
        # the largest logits with Gumbel noise are a draw without replacement
        order = np.argsort(-(logits + random.gumbel(size=len(words))))
        return tuple(words[order[index % len(order)]] for index in range(n_words))

    def draw_inserted(self, n_insertions: int, random: np.random.Generator) -> tuple[Words, ...]:
        """Draw insertions as often as they occur in real lists, distinct if there are enough."""
        n_distinct = min(n_insertions, len(self._insertions))
        chosen = random.choice(len(self._insertions), n_distinct, replace=False, p=self._insertion_shares)
        insertions = [self._insertions[index] for index in chosen]
        return tuple(insertions[index % n_distinct] for index in range(n_insertions))

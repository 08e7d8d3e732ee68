"""Read phrases as the words of their slots, for n-grams that were trained on text with such words.

An n-gram that has seen *call $name now* gives ``$name`` a probability wherever a name may stand. Each phrase
of a hypothesis that has a slot is then read in two ways, as its words or as its slot,

    P(w_i … w_j | h) = P(slot | h) · P(w_i … w_j | slot),

and what follows sees the slot. The probability of a hypothesis is the sum of those of all its readings. Word
by word, as mixtures need it, it is P(w_1 … w_i) / P(w_1 … w_{i-1}), each the sum over the distinct beginnings
of the readings. A model that does not know a slot leaves out the readings that have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from rescorer.lm.base import EdgeScores
from rescorer.phrases.matching import PhraseMatch, phrase_log_probs
from rescorer.trie import HypothesisTrie, Words, build_trie

MAX_READ = 3
"""Number of phrases of a hypothesis that are read in two ways, the first ones: eight readings."""

SlotScores = Mapping[int, Mapping[str, np.ndarray]]
"""For each hypothesis with a slot, by its index in the trie: ln P of each word, and of ``</s>`` unless the
hypothesis is partial, by the model that read it."""


class Reading(NamedTuple):
    """A hypothesis with some of its phrases replaced by their slots."""

    words: Words
    replaced: tuple[PhraseMatch, ...]
    token: np.ndarray
    """(n + 1,) index among ``words`` of each word of the hypothesis, or of its slot, and of ``</s>``."""

    def spread(self, log_probs: np.ndarray, unknown: np.ndarray, credits: np.ndarray) -> np.ndarray:
        """ln P of each word of the hypothesis and of ``</s>``, (n + 1,).

        Args:
            log_probs: ln P of the words of this reading and of ``</s>``.
            unknown: whether the model does not know each of them; unknown slots have the probability 0.
            credits: (n + 1,) ln P of the words of the hypothesis under the phrase model.
        """
        spread = log_probs[self.token]
        spread = np.where(unknown[self.token], np.maximum(spread, credits), spread)
        for match in self.replaced:
            place = self.token[match.start]
            in_slot = np.array(match.slot_log_probs)
            in_slot[0] += -np.inf if unknown[place] else log_probs[place]
            spread[match.start : match.start + match.n_words] = in_slot
        return spread


class ReadHypothesis(NamedTuple):
    """The readings of a hypothesis; the first one is the hypothesis itself."""

    row: int
    """Index of the hypothesis in the trie of its batch."""
    readings: tuple[Reading, ...]
    credits: np.ndarray
    """(n + 1,) ln P of its words under the phrase model, which counts where a word is unknown."""
    partial: bool

    def sum_readings(self, log_probs: Sequence[np.ndarray]) -> np.ndarray:
        """ln P of each word, summed over the readings.

        Args:
            log_probs: for each reading, ln P of the n words and of ``</s>``.
        """
        rows = np.stack(log_probs)
        # until the last slot of a reading begins, it is the same as another one
        begins = [reading.replaced[-1].start if reading.replaced else 0 for reading in self.readings]
        is_distinct = np.arange(rows.shape[1]) >= np.array(begins)[:, None]
        prefixes = np.where(is_distinct, np.cumsum(rows, axis=1), -np.inf)
        sums = np.diff(np.logaddexp.reduce(prefixes, axis=0), prepend=0.0)
        return sums[:-1] if self.partial else sums


class SlotReadings(NamedTuple):
    """The readings of the hypotheses of a batch that have phrases with slots."""

    hypotheses: tuple[ReadHypothesis, ...]
    trie: HypothesisTrie
    """The readings of all hypotheses, one after the other."""

    def sum_scores(self, scores: Mapping[str, EdgeScores]) -> SlotScores:
        """Sum the readings of each hypothesis.

        Args:
            scores: edge scores of the readings by the n-grams that have slots, all of them forward models.
        """
        first, sums = 0, {}
        for hypothesis in self.hypotheses:
            sums[hypothesis.row] = {
                name: hypothesis.sum_readings(list(self._spread(hypothesis, first, part)))
                for name, part in scores.items()
            }
            first += len(hypothesis.readings)
        return sums

    def _spread(self, hypothesis: ReadHypothesis, first: int, scores: EdgeScores) -> list[np.ndarray]:
        """ln P of each word under each reading of a hypothesis, from a given one of the trie on."""
        spread = []
        for index, reading in enumerate(hypothesis.readings, first):
            edges = scores.path_edges(self.trie, index)
            parts = scores.log_probs[edges], scores.unknown[edges]
            spread.append(reading.spread(*parts, hypothesis.credits))
        return spread


def read_slots(
    words: Sequence[Words],
    contexts: Sequence[Words],
    matches: Sequence[Sequence[PhraseMatch]],
    partial: Sequence[bool],
) -> SlotReadings:
    """List the readings of the hypotheses of a batch that have phrases with slots.

    Args:
        words: words of each hypothesis.
        contexts: words before each of them, which are read as they are.
        matches: phrases of each of them.
        partial: whether the end of each of them is not scored.
    """
    hypotheses = tuple(
        ReadHypothesis(
            row,
            _list_readings(words[row], slots),
            np.append(phrase_log_probs(words[row], found), -np.inf),
            bool(partial[row]),
        )
        for row, found in enumerate(matches)
        if (slots := [match for match in found if match.slot])
    )
    readings = [(reading.words, contexts[h.row]) for h in hypotheses for reading in h.readings]
    trie = build_trie([words for words, _ in readings], [context for _, context in readings])
    return SlotReadings(hypotheses, trie)


def _list_readings(words: Words, slots: Sequence[PhraseMatch]) -> tuple[Reading, ...]:
    """All readings of a hypothesis, itself first."""
    readings = []
    for is_replaced in product((False, True), repeat=min(len(slots), MAX_READ)):
        replaced = tuple(match for match, is_slot in zip(slots, is_replaced, strict=False) if is_slot)
        read, token = list(words), np.arange(len(words) + 1)
        for match in reversed(replaced):
            end = match.start + match.n_words
            read[match.start : end] = [match.slot]
            token[match.start : end] = match.start
            token[end:] -= match.n_words - 1
        readings.append(Reading(tuple(read), replaced, token))
    return tuple(readings)

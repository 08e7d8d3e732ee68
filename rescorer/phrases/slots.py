"""Read phrases as the words of their slots, for n-grams that were trained on text with such words.

An n-gram that has seen *call $name now* gives ``$name`` a probability wherever a name may stand. Each phrase
of a hypothesis that has a slot is then read as its words and as its slot, or as each of its slots,

    P(w_i … w_j | h) = P(slot | h) · P(w_i … w_j | slot),

and what follows sees the slot. The probability of a hypothesis is the sum of those of all its readings. Word
by word, as mixtures need it, it is P(w_1 … w_i) / P(w_1 … w_{i-1}), each the sum over the distinct beginnings
of the readings. A model that does not know a slot leaves out the readings that have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from rescorer.lm.base import EdgeScores
from rescorer.phrases.matching import PhraseMatch, SlotShare, phrase_log_probs
from rescorer.trie import HypothesisTrie, Words, build_trie

MAX_PART_WORDS = 262_144
"""Number of words of readings that are held and scored at a time, in 40 MB."""

SlotScores = Mapping[int, Mapping[str, np.ndarray]]
"""For each hypothesis with a slot, by its index in the trie: ln P of each word, and of ``</s>`` unless the
hypothesis is partial, by the model that read it."""


class Reading(NamedTuple):
    """A hypothesis with some of its phrases replaced by their slots."""

    words: Words
    replaced: tuple[tuple[PhraseMatch, SlotShare], ...]
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
        for match, share in self.replaced:
            place = self.token[match.start]
            in_slot = np.array(share.log_probs)
            in_slot[0] += -np.inf if unknown[place] else log_probs[place]
            spread[match.start : match.start + match.n_words] = in_slot
        return spread


class ReadHypothesis(NamedTuple):
    """The readings of a hypothesis; the first one is the hypothesis itself."""

    rows: tuple[int, ...]
    """Indices in the trie of the batch of the hypotheses that are equal to it."""
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
        begins = [reading.replaced[-1][0].start if reading.replaced else 0 for reading in self.readings]
        is_distinct = np.arange(rows.shape[1]) >= np.array(begins)[:, None]
        prefixes = np.where(is_distinct, np.cumsum(rows, axis=1), -np.inf)
        sums = np.diff(np.logaddexp.reduce(prefixes, axis=0), prepend=0.0)
        return sums[:-1] if self.partial else sums


class SlotReadings(NamedTuple):
    """The readings of hypotheses of a batch that have phrases with slots."""

    hypotheses: tuple[ReadHypothesis, ...]
    trie: HypothesisTrie
    """The readings of all hypotheses, one after the other."""

    def sum_scores(self, scores: Mapping[str, EdgeScores]) -> SlotScores:
        """Sum the readings of each hypothesis.

        Args:
            scores: edge scores of the readings by the n-grams that have slots, all of them forward models.
        """
        paths = self.trie.list_paths()
        first, sums = 0, dict[int, Mapping[str, np.ndarray]]()
        for hypothesis in self.hypotheses:
            edges = paths[first : first + len(hypothesis.readings)]
            first += len(hypothesis.readings)
            by_model = {
                name: hypothesis.sum_readings(
                    [
                        reading.spread(part.log_probs[path], part.unknown[path], hypothesis.credits)
                        for reading, path in zip(hypothesis.readings, edges, strict=True)
                    ]
                )
                for name, part in scores.items()
            }
            sums |= dict.fromkeys(hypothesis.rows, by_model)
        return sums


def read_slots(
    words: Sequence[Words],
    contexts: Sequence[Words],
    matches: Sequence[Sequence[PhraseMatch]],
    partial: Sequence[bool],
    max_words: int = MAX_PART_WORDS,
) -> Iterator[SlotReadings]:
    """List the readings of the hypotheses of a batch that have phrases with slots, in parts.

    Args:
        words: words of each hypothesis.
        contexts: words before each of them, which are read as they are.
        matches: phrases of each of them.
        partial: whether the end of each of them is not scored.
        max_words: largest number of words of all readings of a part; a hypothesis that has more is a part of
            its own.
    """
    rows_of: dict[tuple[int, int, int, bool], list[int]] = {}
    for row, found in enumerate(matches):
        if any(match.slots for match in found):
            # equal hypotheses of a list share these objects
            key = id(words[row]), id(contexts[row]), id(found), bool(partial[row])
            rows_of.setdefault(key, []).append(row)
    part, n_words = list[ReadHypothesis](), 0
    for rows in rows_of.values():
        hypothesis = _read_hypothesis(tuple(rows), words[rows[0]], matches[rows[0]], partial[rows[0]])
        n_more = sum(len(reading.words) + 1 for reading in hypothesis.readings) + len(contexts[rows[0]])
        if part and n_words + n_more > max_words:
            yield _build_readings(part, contexts)
            part, n_words = [], 0
        part.append(hypothesis)
        n_words += n_more
    if part:
        yield _build_readings(part, contexts)


def _build_readings(hypotheses: Sequence[ReadHypothesis], contexts: Sequence[Words]) -> SlotReadings:
    readings = [(reading.words, contexts[h.rows[0]]) for h in hypotheses for reading in h.readings]
    trie = build_trie([words for words, _ in readings], [context for _, context in readings])
    return SlotReadings(tuple(hypotheses), trie)


def _read_hypothesis(
    rows: tuple[int, ...], words: Words, matches: Sequence[PhraseMatch], partial: bool
) -> ReadHypothesis:
    credits = np.append(phrase_log_probs(words, matches), -np.inf)
    return ReadHypothesis(rows, _list_readings(words, matches), credits, bool(partial))


def _list_readings(words: Words, matches: Sequence[PhraseMatch]) -> tuple[Reading, ...]:
    """All readings of a hypothesis, itself first."""
    choices = [(None, *((match, share) for share in match.slots)) for match in matches if match.slots]
    readings = []
    for chosen in product(*choices):
        replaced = tuple(choice for choice in chosen if choice is not None)
        read, token = list(words), np.arange(len(words) + 1)
        for match, share in reversed(replaced):
            end = match.start + match.n_words
            read[match.start : end] = [share.slot]
            token[match.start : end] = match.start
            token[end:] -= match.n_words - 1
        readings.append(Reading(tuple(read), replaced, token))
    return tuple(readings)

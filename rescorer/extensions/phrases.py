"""Phrases that are expected in a list: credits where they stand, and better scores of their unknown words.

A name that is not in a model's vocabulary costs as much as any other unknown word, which is often too much to
be chosen. Where it is part of a phrase, it is expected, and gets the probability that the phrase model gives
it; n-grams that know slots read a phrase as its slot, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from rescorer.conversation import Phrase
from rescorer.lm.base import EdgeScores
from rescorer.lm.mixture import mix
from rescorer.options import RescoreOptions
from rescorer.score_combination import MIXTURE, OOV, PHRASES
from rescorer.scoring.batch import Batch, ScoreRequest
from rescorer.scoring.components import (
    Asked,
    AskedBy,
    Columns,
    Component,
    Interpolation,
    PreparedList,
    ScoredList,
    interpolate_mixture,
)
from rescorer.trie import HypothesisTrie, Words
from rescorer.types import Weights

if TYPE_CHECKING:
    from rescorer.phrases.finder import PhraseFinder
    from rescorer.phrases.matching import PhraseMatch
    from rescorer.phrases.phrase_set import PhraseSet
    from rescorer.phrases.slots import SlotScores


class Phrases(Component):
    """The credits of the phrases of each hypothesis; only lists in which a phrase was found have them."""

    name = "phrases"
    asked_by = AskedBy(options=("phrases", "phrase_lists"), lists=("phrases",))
    columns = (PHRASES,)
    expected: Sequence[PhraseSet] = ()
    """Sets of phrases that are expected in all lists, whatever a request says."""
    shared: Sequence[PhraseSet] = ()
    """Sets of phrases that are expected in all lists of a request."""

    @cached_property
    def finder(self) -> PhraseFinder:
        """Compiles phrases and finds them; keeps the sets of the latest requests."""
        from rescorer.phrases.finder import PhraseFinder

        return PhraseFinder(self.normalise, self.bundle.phrases, self.bundle.slot_words)

    def expect(self, phrases: Sequence[Phrase], names: Sequence[str]) -> None:
        """Expect phrases, and the bundle's lists of some names, in all lists from now on.

        Raises:
            ConfigError: the bundle does not have phrases of a name.
            LimitExceeded: a phrase is invalid, or there are too many.
        """
        self.expected = self.finder.select(tuple(phrases), names)
        self.always = bool(self.expected)

    def bind(self, options: RescoreOptions, weights: Weights) -> Component:
        finder, bound = self.finder, copy(self)  # the copies share the finder
        bound.shared = [*self.expected, *finder.select(options.phrases, options.phrase_lists)]
        return bound

    def steps_to_prepare(self, prepared: PreparedList) -> int:
        return self.finder.estimate_steps(prepared.nbest, prepared.words, self.shared)

    def prepare(self, prepared: PreparedList) -> PreparedList:
        found = self.finder.find(prepared.nbest, prepared.words, self.shared)
        if not found or prepared.options.weights.phrases == 0:  # nor do unknown words count then
            return prepared
        return replace(prepared, notes={**prepared.notes, self.name: found})

    def ask(self, batch: Batch) -> Asked:
        """Have the hypotheses with slots read by the n-grams that know them."""
        models = [name for name in self.bundle.slots if not batch.models or name in batch.models]
        if not models or not any(self.name in part.prepared.notes for part in batch.parts):
            return
        from rescorer.phrases.slots import read_slots

        hypotheses = [(part.prepared, i) for part in batch.parts for i in part.indices]
        sums: dict[int, Mapping[str, np.ndarray]] = {}
        for readings in read_slots(
            [prepared.words[i] for prepared, i in hypotheses],
            [prepared.history for prepared, _ in hypotheses],
            [self._matches(prepared, i) for prepared, i in hypotheses],
            batch.partial.tolist(),
        ):
            scores = yield ScoreRequest(readings.trie, tuple(models))
            sums |= readings.sum_scores(scores)
        batch.notes[self.name] = sums

    def _matches(self, prepared: PreparedList, index: int) -> Sequence[PhraseMatch]:
        found: Sequence[Sequence[PhraseMatch]] = prepared.notes.get(self.name, ())
        return found[index] if found else ()

    def tokens(self, prepared: PreparedList) -> int:
        """All readings of distinct hypotheses with slots; what is read before them counts once a part."""
        found: Sequence[Sequence[PhraseMatch]] = prepared.notes.get(self.name, ())
        if not self.bundle.slots or not found:
            return 0
        from rescorer.phrases.slots import MAX_PART_WORDS

        distinct = {id(matches): i for i, matches in enumerate(found)}  # equal hypotheses share their matches
        n_readings = {i: math.prod(1 + len(match.slots) for match in found[i]) for i in distinct.values()}
        n_words = sum(n * (len(prepared.words[i]) + 1) for i, n in n_readings.items() if n > 1)
        return n_words + len(prepared.history) * (1 + n_words // MAX_PART_WORDS) if n_words else 0

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        """Add the credits, and let unknown words of phrases count as known in the columns before them."""
        found: Sequence[Sequence[PhraseMatch]] = scored.prepared.notes.get(self.name, ())
        if not found:
            return
        for part in scored.parts:
            batch = part.batch
            slots: SlotScores = batch.notes.get(self.name, {})
            if not slots and not batch.once("has unknown words", lambda: _has_unknown(batch)):  # noqa: B023
                continue
            reader = PhraseReader(
                batch.trie,
                batch.scores,
                scored.weights.mixture,
                self.bundle.ngram,
                interpolate_mixture(batch, scored.options),
                slots,
            )
            for row, index in enumerate(part.indices, start=part.rows.start):
                if found[index]:
                    gains = reader.find_gains(row, scored.prepared.words[index], found[index])
                    for name in gains.keys() & columns.keys():
                        columns[name][index] += gains[name]
        columns[PHRASES] = np.array([math.fsum(match.credit for match in matches) for matches in found])


def expected_phrases(prepared: PreparedList) -> tuple[Phrase, ...]:
    """All phrases that are expected in a list, each once.

    Raises:
        InvalidList: a phrase of the list is invalid, or it has too many.
    """
    found = (one for one in prepared.components if isinstance(one, Phrases))
    component = next(found, None)
    return component.finder.collect(prepared.nbest, component.shared) if component else ()


def _has_unknown(batch: Batch) -> bool:
    return any(part.unknown.any() for part in batch.scores.values())


@dataclass(frozen=True, slots=True)
class PhraseReader:
    """Scores of a trie whose n-grams read slots, and in which unknown words of phrases count as known.

    The log-probability of an unknown word becomes that of the phrase model, or stays that of ``<unk>`` if it
    is larger; see ``PhraseSet.word_log_probs``. Of n-grams that read slots, ``slots`` has this already.
    """

    trie: HypothesisTrie
    scores: Mapping[str, EdgeScores]
    """The models' edge scores, by name."""
    mixture: Mapping[str, float]
    """λ of the mixture."""
    ngram: str
    """Name of the model whose unknown words are counted."""
    interpolations: Mapping[str, Interpolation] = field(default_factory=dict)
    """What the mixture is interpolated with, by column."""
    slots: SlotScores = field(default_factory=dict)
    """Scores of the readings of hypotheses with slots."""

    def find_gains(self, row: int, words: Words, matches: Sequence[PhraseMatch]) -> dict[str, float]:
        """What one hypothesis of the trie gains by its phrases, by column.

        Args:
            row: its index in the trie.
            words: its canonical words.
            matches: its phrases.
        """
        from rescorer.phrases.matching import phrase_log_probs

        log_probs = phrase_log_probs(words, matches)
        read = self.slots.get(row, {})
        # what follows a slot is predicted from it
        n_scored = max([len(words), *map(len, read.values())])
        log_probs = np.append(log_probs, -np.inf)[:n_scored]
        in_phrases = log_probs > -np.inf
        indices = np.arange(n_scored) if read else np.flatnonzero(in_phrases)
        edges = {name: part.path_edges(self.trie, row)[indices] for name, part in self.scores.items()}
        gains = self._compare(edges, log_probs[indices], read)
        gains[OOV] = -float(self.scores[self.ngram].unknown[edges[self.ngram]][in_phrases[indices]].sum())
        return gains

    def _compare(
        self, edges: Mapping[str, np.ndarray], log_probs: np.ndarray, read: Mapping[str, np.ndarray]
    ) -> dict[str, float]:
        """What words of a hypothesis gain by model, and in the mixture.

        Args:
            edges: (n,) edges of these words, by model.
            log_probs: (n,) their log-probabilities under the phrase model; -inf outside of phrases.
            read: (n,) their log-probabilities under models that read slots.
        """
        before = {name: part.log_probs[edges[name]] for name, part in self.scores.items()}
        after = {
            name: np.where(self.scores[name].unknown[edges[name]], np.maximum(values, log_probs), values)
            for name, values in before.items()
        }
        after |= read
        for part in (before, after):
            mixed = mix([part[name] for name in self.mixture], list(self.mixture.values()))
            # all models of an interpolated mixture read the same trie, forward
            for name, interpolation in self.interpolations.items():
                interpolated = interpolation.interpolate(mixed, edges[next(iter(self.mixture))])
                part[name] = interpolated - mixed
                mixed = interpolated
            part[MIXTURE] = mixed
        return {name: float(np.sum(values - before[name])) for name, values in after.items()}

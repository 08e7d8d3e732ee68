"""Find the weights of a vote of several systems, and judge the vote on utterances that did not choose
them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rescorer.decision.rover import RoverSettings, build_network, vote
from rescorer.evaluation.calibration.fitting import Division, fit_temperature
from rescorer.evaluation.calibration.outcomes import Outcomes, collect_outcomes, judge_words
from rescorer.evaluation.combination.utterances import Utterance
from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING, CountingSettings, ErrorCounter
from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.ranking import best_first
from rescorer.trie import Words

NULL_WEIGHTS = (1.0, 0.5, 0.7, 1.4, 2.0)
"""Weights of the vote for no word that are tried; of equally good ones, the first is taken."""
PAIR_SHARES = (0.6, 0.4, 0.7, 0.3, 0.8, 0.2, 0.9, 0.1)
"""Shares of the first of two systems that are tried, besides equal ones."""
SHARES = (0.2, 0.4, 0.6, 0.8)
"""Shares of each of three or more systems that are tried, while the others share the rest equally."""


def try_weights(n_systems: int) -> Iterator[tuple[float, ...]]:
    """Yield weights to try, equal ones first."""
    yield (1.0 / n_systems,) * n_systems
    if n_systems == 1:
        return
    if n_systems == 2:
        yield from ((share, 1.0 - share) for share in PAIR_SHARES)
        return
    for system in range(n_systems):
        for share in SHARES:
            rest = (1.0 - share) / (n_systems - 1)
            yield tuple(share if i == system else rest for i in range(n_systems))


@dataclass
class RoverTuner:
    """Counts the errors of votes, each only once.

    Args:
        utterances: utterances with references.
        counters: counts the errors of a text, per utterance.
        normalise: converts text to canonical words.
        counting: settings of the counters.
    """

    utterances: Sequence[Utterance]
    counters: Sequence[ErrorCounter]
    normalise: Callable[[str], Words]
    counting: CountingSettings = DEFAULT_COUNTING
    _errors: dict[RoverSettings, list[WordErrors]] = field(default_factory=dict)
    _outcomes: list[Outcomes] = field(default_factory=list)

    @property
    def n_systems(self) -> int:
        return len(self.utterances[0].systems)

    def count(self, settings: RoverSettings) -> list[WordErrors]:
        """Count the errors of the vote for each utterance."""
        if settings not in self._errors:
            by_null_weight = [replace(settings, null_weight=value) for value in NULL_WEIGHTS]
            if settings.null_weight not in NULL_WEIGHTS:
                by_null_weight.append(settings)
            for variant in by_null_weight:
                self._errors[variant] = []
            for utterance, count in zip(self.utterances, self.counters, strict=True):
                slots = build_network(utterance.systems, settings)
                for variant in by_null_weight:
                    words = vote(slots, variant.null_weight)
                    self._errors[variant].append(count(" ".join(word.word for word in words)))
        return self._errors[settings]

    def count_system(self, system: int) -> list[WordErrors]:
        """Count the errors of the best hypothesis of one system for each utterance."""
        return [
            count(" ".join(lists.words[int(best_first(lists.totals)[0])]))
            for lists, count in zip(
                (item.systems[system] for item in self.utterances), self.counters, strict=True
            )
        ]

    def count_oracle(self) -> list[WordErrors]:
        """Count the errors of the hypothesis of any system with the fewest, for each utterance."""
        return [
            min(
                (count(" ".join(words)) for lists in item.systems for words in lists.words),
                key=lambda errors: errors.errors,
            )
            for item, count in zip(self.utterances, self.counters, strict=True)
        ]

    def tune(self, chosen: np.ndarray) -> RoverSettings:
        """Find settings by the errors of some utterances, given as (L,) bool.

        The temperature of a system is the power of two nearest to that at which the posteriors of its words
        are most likely; weights are those with the fewest errors.
        """
        temperatures = tuple(self._fit_temperature(system, chosen) for system in range(self.n_systems))
        candidates = [
            RoverSettings(weights, temperatures, null_weight)
            for weights in try_weights(self.n_systems)
            for null_weight in NULL_WEIGHTS
        ]
        return min(
            candidates,
            key=lambda settings: sum(
                errors.errors for errors, use in zip(self.count(settings), chosen, strict=True) if use
            ),
        )

    def cross_validate(self, division: Division) -> list[WordErrors | None]:
        """Count the errors of each utterance under settings that other folds and references tuned.

        None for utterances of folds that no other utterance may tune.
        """
        counts: list[WordErrors | None] = [None] * len(self.utterances)
        for fold in sorted(set(division.folds)):
            training = division.training(fold)
            if not training.any():
                continue
            errors = self.count(self.tune(training))
            for index in np.flatnonzero(division.held_out(fold)).tolist():
                counts[index] = errors[index]
        return counts

    def _fit_temperature(self, system: int, chosen: np.ndarray) -> float:
        if all(len(item.systems[system].words) == 1 for item in self.utterances):
            return 1.0
        if not self._outcomes:
            self._outcomes = [self._judge(number) for number in range(self.n_systems)]
        likeliest = fit_temperature(self._outcomes[system].select(chosen)).temperature
        return 2.0 ** round(math.log2(likeliest))  # so that folds share their counts

    def _judge(self, system: int) -> Outcomes:
        """Judge the words of a system's best hypotheses."""
        parts = []
        for item in self.utterances:
            lists = item.systems[system]
            readings = self.counting.expand(item.reference or "", item.id)
            words = [self.normalise(" ".join(reading)) for reading in readings]
            parts.append(judge_words(lists.words, lists.totals, int(best_first(lists.totals)[0]), words))
        return collect_outcomes(parts)

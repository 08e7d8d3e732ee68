"""Combine several recognisers by a vote (ROVER), and judge the combination against each of them.

The input is the lists of all systems for the same utterances. The output is the settings of the vote, and
error rates on utterances that took no part in tuning these settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import compress, product
from typing import Any

import numpy as np

from rescorer.consensus import RoverSettings, SystemList, build_voting_network, vote
from rescorer.errors import ConfigError, InvalidList
from rescorer.evaluation.calibration import Outcomes, collect_outcomes, fit_temperature, judge_words
from rescorer.evaluation.error_rate import DEFAULT_COUNTING, CountingSettings, ErrorCounter, WordErrors
from rescorer.evaluation.folds import Folds, make_folds
from rescorer.evaluation.list_errors import (
    ListKey,
    find_shared_lists,
    gain_to_dict,
    index_lists,
    interval_to_list,
    to_percent,
)
from rescorer.evaluation.statistics import Gain, Interval, bootstrap, choose_units
from rescorer.formats.fields import is_finite_number
from rescorer.formats.rescored import is_rescored
from rescorer.ranking import MAX_TOTAL, best_first
from rescorer.text import Normaliser
from rescorer.trie import Words
from rescorer.types import ErrorUnit, NBestList


@dataclass(frozen=True, slots=True)
class Utterance:
    """The lists of all systems for one utterance."""

    id: str
    group: str
    reference: str | None
    systems: tuple[SystemList, ...]


def find_totals(nbest: NBestList) -> np.ndarray:
    """Find the scores by which a list is ranked, (H,) float64.

    If ``rescorer rescore`` wrote the list, they are its totals; otherwise they are the scores of its only
    stream. A list of one hypothesis needs no scores.

    Raises:
        InvalidList: there are several hypotheses without such scores, or a score is too large.
    """
    if is_rescored(nbest):
        found = [hypothesis.fields.get("total") for hypothesis in nbest.hypotheses]
        for index, total in enumerate(found):
            if not is_finite_number(total):
                message = f"expected a finite number, got {total!r}"
                raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="total")
        totals = np.array(found, dtype=np.float64)
    elif len(nbest.hypotheses) == 1:
        return np.zeros(1)
    elif len(nbest.streams) != 1:
        message = f"{len(nbest.streams)} score streams; expected one, or the output of `rescorer rescore`"
        raise InvalidList(message, list_id=nbest.id, field="streams")
    else:
        totals = np.array(next(iter(nbest.streams.values())), dtype=np.float64)
    for index in np.flatnonzero(np.abs(totals) > MAX_TOTAL)[:1].tolist():
        message = f"the score is {totals[index]}; expected at most {MAX_TOTAL} in absolute value"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index)
    return totals


def join_systems(
    systems: Sequence[Iterable[NBestList]], normaliser: Normaliser
) -> tuple[list[Utterance], list[InvalidList], list[int]]:
    """Join the lists of all systems by id.

    Returns:
        The utterances that all systems have, in the order of the first system; the errors of lists without
        scores; and for each system the number of its lists that are left out because another system lacks
        them.
    """
    errors: list[InvalidList] = []
    indexed: list[dict[ListKey, tuple[NBestList, SystemList]]] = [{} for _ in systems]
    for found, lists in zip(indexed, systems, strict=True):
        for key, nbest in index_lists((nbest.id, (), nbest) for nbest in lists).items():
            texts = [hypothesis.text for hypothesis in nbest.hypotheses]
            try:
                totals = find_totals(nbest)
            except InvalidList as error:
                errors.append(error)
                continue
            words, surfaces = map(normaliser.normalise, texts), map(normaliser.surfaces, texts)
            found[key] = nbest, SystemList(tuple(words), totals, tuple(surfaces))
    shared = find_shared_lists(indexed)
    utterances = [_join([found[key] for found in indexed]) for key in shared]
    return utterances, errors, [len(found) - len(shared) for found in indexed]


def _join(parts: Sequence[tuple[NBestList, SystemList]]) -> Utterance:
    """Join the lists of an utterance; reference and group are those of the first list that has one."""
    lists, systems = zip(*parts, strict=True)
    reference = next((nbest.reference for nbest in lists if nbest.reference is not None), None)
    return Utterance(lists[0].id, next(filter(None, (n.group for n in lists)), ""), reference, systems)


NULL_WEIGHTS = (1.0, 0.5, 0.7, 1.4, 2.0)
"""Values of ``RoverSettings.null_weight`` that are tried; among equally good ones, the first is taken."""
PAIR_SHARES = (0.6, 0.4, 0.7, 0.3, 0.8, 0.2, 0.9, 0.1)
"""With two systems: weights that are tried for the first one, in addition to equal weights."""
SHARES = (0.2, 0.4, 0.6, 0.8)
"""With more systems: weights that are tried for each one, while the others share the rest equally."""


def try_weights(n_systems: int) -> Iterator[tuple[float, ...]]:
    """Yield the weights of systems that are tried, equal weights first."""
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
    """Tunes the settings of a vote, and keeps the errors of each setting, so that these are counted once.

    Args:
        utterances: utterances with references.
        counters: for each utterance, a function that counts the errors of a text.
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
                slots = build_voting_network(utterance.systems, settings)
                for variant in by_null_weight:
                    words = vote(slots, variant.null_weight)
                    self._errors[variant].append(count(" ".join(word.word for word in words)))
        return self._errors[settings]

    def count_system(self, system: int) -> list[WordErrors]:
        """Count the errors of the best hypothesis of one system for each utterance."""
        lists = [item.systems[system] for item in self.utterances]
        best = (" ".join(one.words[int(best_first(one.totals)[0])]) for one in lists)
        return [count(text) for count, text in zip(self.counters, best, strict=True)]

    def count_oracle(self) -> list[WordErrors]:
        """Count the errors of the hypothesis with the fewest errors of all systems, for each utterance."""
        fewest = []
        for item, count in zip(self.utterances, self.counters, strict=True):
            texts = (" ".join(words) for lists in item.systems for words in lists.words)
            fewest.append(min(map(count, texts), key=lambda errors: errors.errors))
        return fewest

    def tune(self, chosen: np.ndarray) -> RoverSettings:
        """Find settings on some utterances, given as (L,) bool.

        The temperature of a system is the power of two that is nearest to the most likely temperature of its
        word posteriors. The weights are those with the fewest errors.
        """
        temperatures = tuple(self._fit_temperature(system, chosen) for system in range(self.n_systems))

        def cost(settings: RoverSettings) -> int:
            return sum(errors.errors for errors in compress(self.count(settings), chosen))

        tried = product(try_weights(self.n_systems), NULL_WEIGHTS)
        return min((RoverSettings(weights, temperatures, null) for weights, null in tried), key=cost)

    def cross_validate(self, folds: Folds) -> list[WordErrors | None]:
        """Count the errors of each utterance under settings tuned on other folds that share no reference with
        it.

        The errors of a fold are None if no utterance is left for tuning.
        """
        counts: list[WordErrors | None] = [None] * len(self.utterances)
        for fold in range(folds.n_folds):
            training = folds.training(fold)
            if training.any():
                errors = self.count(self.tune(training))
                for index in np.flatnonzero(folds.held_out(fold)).tolist():
                    counts[index] = errors[index]
        return counts

    def _fit_temperature(self, system: int, chosen: np.ndarray) -> float:
        if all(len(item.systems[system].words) == 1 for item in self.utterances):
            return 1.0
        if not self._outcomes:
            self._outcomes = [self._judge(number) for number in range(self.n_systems)]
        likeliest = fit_temperature(self._outcomes[system].select(chosen)).temperature
        return 2.0 ** round(math.log2(likeliest))  # rounded, so that folds often need the same counts

    def _judge(self, system: int) -> Outcomes:
        """Make claims that the words of a system's best hypotheses are right."""
        parts = []
        for item in self.utterances:
            lists = item.systems[system]
            readings = self.counting.expand(item.reference or "", item.id)
            words = [self.normalise(" ".join(reading)) for reading in readings]
            parts.append(judge_words(lists.words, lists.totals, int(best_first(lists.totals)[0]), words))
        return collect_outcomes(parts)


MAX_FOLDS = 10
"""Largest number of folds in the cross-validation of a tuned combination. Folds do not divide groups."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The errors of a system or of a combination."""

    errors: int
    reference_words: int
    interval: Interval
    """Bootstrap interval of the error rate."""

    @property
    def rate(self) -> float:
        return self.errors / self.reference_words if self.reference_words else float("nan")


@dataclass(frozen=True, slots=True)
class CombinationReport:
    """Error rates of systems and of their combination, on the same utterances."""

    rows: dict[str, ErrorRow]
    best_system: str
    gain: Gain
    """The error rate of the best system minus that of the combination, with an interval."""
    utterances: int
    unit: str
    """Whether the bootstrap drew lists or whole groups: ``list`` or ``group``."""
    warning: str
    """Caveat about intervals from few lists or groups; may be empty."""
    tuned: RoverSettings | None = None
    """Settings that were tuned on all utterances; None if the settings were given."""
    counted: ErrorUnit = "word"
    """The unit that errors were counted in."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent."""
        return {
            "systems": [
                {
                    "name": name,
                    "wer": to_percent(row.rate),
                    "wer_interval": interval_to_list(row.interval),
                    "errors": row.errors,
                    "reference_words": row.reference_words,
                }
                for name, row in self.rows.items()
            ],
            "gain": {"over": self.best_system, **gain_to_dict(self.gain)},
            "tuned": None if self.tuned is None else asdict(self.tuned),
            "utterances": self.utterances,
            "unit": self.counted,
        }


def judge_settings(
    utterances: Sequence[Utterance],
    names: Sequence[str],
    normalise: Callable[[str], Words],
    counting: CountingSettings,
    settings: RoverSettings,
) -> CombinationReport:
    """Count the errors of each system and of their combination under given settings.

    Args:
        utterances: utterances with references.
        names: names of the systems.

    Raises:
        InvalidList: a reference is malformed.
        LimitExceeded: the lists of an utterance are too long to be combined.
    """
    tuner = _make_tuner(utterances, normalise, counting)
    combined = {f"{len(names)} systems": tuner.count(settings)}
    systems = {name: tuner.count_system(system) for system, name in enumerate(names)}
    return _report(utterances, systems, combined, tuner.count_oracle(), counting.unit)


def tune_and_judge(
    utterances: Sequence[Utterance],
    names: Sequence[str],
    normalise: Callable[[str], Words],
    counting: CountingSettings,
    folds: Folds | None = None,
) -> CombinationReport:
    """Tune the combination, and judge it by cross-validation.

    The report also has the errors of a vote among the hypotheses of the best system alone, which show the
    part of the gain that needs no second system. Other arguments and errors are those of ``judge_settings``.

    Args:
        folds: divides the utterances; None for ``make_folds``.

    Raises:
        ConfigError: all utterances are in one fold, or share references, so that none is left for tuning.
    """
    if folds is None:
        ids, groups, references = zip(*((u.id, u.group, u.reference or "") for u in utterances), strict=True)
        folds = make_folds(ids, groups, references, MAX_FOLDS)
    tuner = _make_tuner(utterances, normalise, counting)
    systems = {name: tuner.count_system(system) for system, name in enumerate(names)}
    best = _find_best(systems)
    alone = [replace(item, systems=(item.systems[names.index(best)],)) for item in utterances]
    tuner_alone = RoverTuner(alone, tuner.counters, normalise, tuner.counting)
    held_out = tuner.cross_validate(folds)
    is_judged = [errors is not None for errors in held_out]
    if not any(is_judged):
        raise ConfigError(
            "--tune needs more utterances with different references: every utterance shares its reference "
            "with one of each other fold; omit --tune, or give the settings"
        )
    votes = {
        f"{best}, its own vote, held out": tuner_alone.cross_validate(folds),
        f"{len(names)} systems, held out": held_out,
    }

    def select(counts: Sequence[WordErrors | None]) -> list[WordErrors]:
        return [errors for errors in compress(counts, is_judged) if errors is not None]

    report = _report(
        list(compress(utterances, is_judged)),
        {name: select(counts) for name, counts in systems.items()},
        {name: select(counts) for name, counts in votes.items()},
        select(tuner.count_oracle()),
        counting.unit,
    )
    return replace(report, tuned=tuner.tune(np.ones(len(utterances), dtype=bool)))


def _make_tuner(
    utterances: Sequence[Utterance], normalise: Callable[[str], Words], counting: CountingSettings
) -> RoverTuner:
    counters = [counting.counter_for(item.reference or "", normalise, item.id) for item in utterances]
    return RoverTuner(utterances, counters, normalise, counting)


def _find_best(systems: Mapping[str, Sequence[WordErrors]]) -> str:
    return min(systems, key=lambda name: sum(errors.errors for errors in systems[name]))


def _report(
    utterances: Sequence[Utterance],
    systems: Mapping[str, Sequence[WordErrors]],
    votes: Mapping[str, Sequence[WordErrors]],
    oracle: Sequence[WordErrors],
    unit: ErrorUnit,
) -> CombinationReport:
    """Make the report. Its gain is that of the last of ``votes`` over the best system."""
    counts = {**systems, **votes, "oracle": oracle}
    names = list(counts)
    drawn = bootstrap(
        [[errors.errors for errors in counts[name]] for name in names],
        [[errors.reference_words for errors in counts[name]] for name in names],
        choose_units([item.group for item in utterances]),
    )
    rows = {
        name: ErrorRow(total.errors, total.reference_words, drawn.interval(index))
        for index, name in enumerate(names)
        for total in [sum(counts[name], WordErrors.zero())]
    }
    best, combined = _find_best(systems), list(votes)[-1]
    gain = drawn.gain(names.index(best), names.index(combined))
    return CombinationReport(rows, best, gain, len(utterances), drawn.unit, drawn.warning, counted=unit)

"""Judge a combination of systems: error rates with intervals, and a paired test against the best system."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.decision.rover import RoverSettings
from rescorer.errors import ConfigError
from rescorer.evaluation.calibration.fitting import Division
from rescorer.evaluation.combination.tuning import RoverTuner
from rescorer.evaluation.combination.utterances import Utterance
from rescorer.evaluation.error_rate.counting import CountingSettings
from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.evaluation.statistics.bootstrap import Gain, Interval, bootstrap, choose_units
from rescorer.trie import Words
from rescorer.types import ErrorUnit

MAX_FOLDS = 10
"""Number of folds, made of whole groups, by which a tuned combination is judged."""


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
    """By how much the error rate of the combination is lower than that of the best system."""
    utterances: int
    unit: str
    """What the bootstrap drew: ``list`` or ``group``."""
    warning: str
    """What to expect of intervals from few lists or groups; may be empty."""
    tuned: RoverSettings | None = None
    """Settings that all utterances together tune; None if the settings were given."""
    counted: ErrorUnit = "word"
    """What errors were counted in."""


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
    return _report(utterances, _count_systems(tuner, names), combined, tuner.count_oracle())


def tune_and_judge(
    utterances: Sequence[Utterance],
    names: Sequence[str],
    normalise: Callable[[str], Words],
    counting: CountingSettings,
    folds: Sequence[str],
) -> CombinationReport:
    """Tune the combination, and judge it by cross-validation; arguments and errors as above.

    A vote of the best system's own list, without the others, shows what comes from voting alone.

    Args:
        folds: (L,) fold of each utterance.

    Raises:
        ConfigError: no utterance may tune the settings for another.
    """
    tuner = _make_tuner(utterances, normalise, counting)
    division = Division(folds, [item.reference or "" for item in utterances]).merge(MAX_FOLDS)
    systems = _count_systems(tuner, names)
    best = _find_best(systems)
    alone = [replace(item, systems=(item.systems[names.index(best)],)) for item in utterances]
    tuner_alone = RoverTuner(alone, tuner.counters, normalise, tuner.counting)
    held_out = tuner.cross_validate(division)
    judged = [index for index, errors in enumerate(held_out) if errors is not None]
    if not judged:
        raise ConfigError(
            "--tune needs more utterances with different references: every utterance shares its reference "
            "with one of each other fold; omit --tune, or give the settings"
        )
    votes = {
        f"{best}, its own vote, held out": tuner_alone.cross_validate(division),
        f"{len(names)} systems, held out": held_out,
    }

    def select(counts: Sequence[WordErrors | None]) -> list[WordErrors]:
        return [errors for index in judged if (errors := counts[index]) is not None]

    report = _report(
        [utterances[index] for index in judged],
        {name: select(counts) for name, counts in systems.items()},
        {name: select(counts) for name, counts in votes.items()},
        select(tuner.count_oracle()),
    )
    return replace(report, tuned=tuner.tune(np.ones(len(utterances), dtype=bool)))


def _make_tuner(
    utterances: Sequence[Utterance], normalise: Callable[[str], Words], counting: CountingSettings
) -> RoverTuner:
    counters = [counting.counter_for(item.reference or "", normalise, item.id) for item in utterances]
    return RoverTuner(utterances, counters, normalise, counting)


def _count_systems(tuner: RoverTuner, names: Sequence[str]) -> dict[str, list[WordErrors]]:
    return {name: tuner.count_system(system) for system, name in enumerate(names)}


def _find_best(systems: Mapping[str, Sequence[WordErrors]]) -> str:
    return min(systems, key=lambda name: sum(errors.errors for errors in systems[name]))


def _report(
    utterances: Sequence[Utterance],
    systems: Mapping[str, Sequence[WordErrors]],
    votes: Mapping[str, Sequence[WordErrors]],
    oracle: Sequence[WordErrors],
) -> CombinationReport:
    """Make the report; the last of the votes is the combination that is compared with the best system."""
    counts = {**systems, **votes, "oracle": oracle}
    names = list(counts)
    drawn = bootstrap(
        [[errors.errors for errors in counts[name]] for name in names],
        [[errors.reference_words for errors in counts[name]] for name in names],
        choose_units([item.group for item in utterances]),
    )
    rows = {
        name: ErrorRow(
            sum(errors.errors for errors in counts[name]),
            sum(errors.reference_words for errors in counts[name]),
            drawn.interval(index),
        )
        for index, name in enumerate(names)
    }
    best, combined = _find_best(systems), list(votes)[-1]
    gain = drawn.gain(names.index(best), names.index(combined))
    return CombinationReport(rows, best, gain, len(utterances), drawn.unit, drawn.warning)

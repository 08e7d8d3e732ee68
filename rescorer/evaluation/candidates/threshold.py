"""Choose the weights of generated hypotheses under a bound on false alarms; judge them on lists held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.evaluation.candidates.outcomes import Outcome
from rescorer.evaluation.statistics.distributions import binomial_cdf
from rescorer.evaluation.tuning.folds import Folds

SOUND_WEIGHTS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
"""Weights of ``sound_match`` that are tried, as multiples of the weights of the language models together."""
CHANCE = 0.05
"""Largest probability of as few false alarms as were permitted, if their rate were above the bound."""
STEP = 1e-3
"""How far the weight ``generated`` stays below the one at which one false alarm more would win."""
OFF = -1e12
"""Weight ``generated`` under which no generated hypothesis wins."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Two weights, and the word errors that they leave on the lists that chose them."""

    generated: float
    sound_match: float
    errors: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What happened on some lists."""

    lists: int
    words: int
    errors: int
    right: int
    """Lists whose best hypothesis is generated from a phrase of the reference."""
    false_alarms: int
    """Lists whose best hypothesis is generated from another phrase."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.lists + other.lists,
            self.words + other.words,
            self.errors + other.errors,
            self.right + other.right,
            self.false_alarms + other.false_alarms,
        )


NOTHING = Tally(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What weights chosen without a fold do on that fold, summed over the folds."""

    before: Tally
    """Without generated hypotheses."""
    after: Tally
    decoys: Tally
    """On lists with phrases that are not in their references."""
    errors: np.ndarray
    """(2, L) int64, errors of each list without and with generated hypotheses."""


def tally(outcomes: Sequence[Outcome], generated: float, sound_match: float) -> Tally:
    """Count what wins under two weights."""
    found = NOTHING
    for outcome in outcomes:
        best = outcome.winner(generated, sound_match)
        made, right = outcome.generated[best] > 0, bool(outcome.right[best])
        found += Tally(1, outcome.n_words, int(outcome.errors[best]), int(right), int(made and not right))
    return found


def permitted_false_alarms(lists: int, max_rate: float) -> int:
    """Return the largest number of false alarms on some lists that shows a rate below a bound beyond chance.

    Raises:
        ConfigError: the lists are too few: not even none of them would show it.
    """
    count = -1
    while count < lists and binomial_cdf(count + 1, lists, max_rate) <= CHANCE:
        count += 1
    if count < 0:
        raise ConfigError(
            f"{lists:,} lists with phrases that were not said cannot show that at most {100 * max_rate:g} % "
            "have false alarms; give more lists, a higher --max-false-alarms, or more --rounds"
        )
    return count


def choose(outcomes: Sequence[Outcome], decoys: Sequence[Outcome], max_rate: float, unit: float) -> Choice:
    """Choose the weights with the fewest errors among those with few enough false alarms.

    For each weight of ``sound_match``, ``generated`` is as large as the bound permits.

    Args:
        decoys: lists with phrases that are not in their references.
        max_rate: bound of the rate of false alarms; see ``permitted_false_alarms``.
        unit: sum of the weights of the language models.

    Raises:
        ConfigError: there are too few decoys.
    """
    permitted = permitted_false_alarms(len(decoys), max_rate)
    choices = []
    for factor in SOUND_WEIGHTS:
        sound_match = factor * unit
        margins = sorted((outcome.margin(sound_match) for outcome in decoys), reverse=True)
        first_refused = margins[min(permitted, len(margins) - 1)]
        generated = -first_refused - STEP if np.isfinite(first_refused) else 0.0
        errors = tally(outcomes, generated, sound_match).errors
        choices.append(Choice(round(generated, 3), sound_match, errors))
    return min(choices, key=lambda choice: choice.errors)


def judge(
    outcomes: Sequence[Outcome],
    decoys: Sequence[Sequence[Outcome]],
    folds: Folds,
    max_rate: float,
    unit: float,
) -> Judgement:
    """Choose the weights without each fold, and count what they do on it.

    Args:
        outcomes: lists with their own phrases.
        decoys: the same lists with phrases that were not said, in the same order; each as often as drawn.
    """
    before = after = wrong = NOTHING
    errors = np.zeros((2, len(outcomes)), dtype=np.int64)
    for fold in range(folds.n_folds):
        others, held_out = (indices.tolist() for indices in folds.split(fold))
        known = [outcome for i in others for outcome in decoys[i]]
        choice = choose([outcomes[i] for i in others], known, max_rate, unit)
        for i in held_out:
            without = tally([outcomes[i]], OFF, 0.0)
            with_generated = tally([outcomes[i]], choice.generated, choice.sound_match)
            errors[:, i] = without.errors, with_generated.errors
            before, after = before + without, after + with_generated
        unknown = [outcome for i in held_out for outcome in decoys[i]]
        wrong += tally(unknown, choice.generated, choice.sound_match)
    return Judgement(before, after, wrong, errors)

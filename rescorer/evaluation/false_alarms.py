"""Count false alarms of phrases, and find weights under which false alarms are rare.

A phrase is something that users expect to be said, such as the name of a contact. A list has a false alarm if
phrases that were not said let a hypothesis with more errors win. To count false alarms, each list is scored
twice: without phrases, and with those of its phrases that do not occur in its reference. ``PhraseBound``
lowers the weight of phrases until false alarms are rare enough.

In generated hypotheses, phrases replace words that sound alike. Two weights decide when such hypotheses win:
``generated`` and ``sound_match``. ``learn_threshold`` learns them from lists with phrases and references. It
judges them on held-out lists, by two counts: the errors, and the false alarms when phrases that were not said
are given to the same lists.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np

from rescorer.errors import ConfigError, InputError, InvalidList, pluralise
from rescorer.evaluation.error_rate import DEFAULT_COUNTING
from rescorer.evaluation.folds import Folds, make_folds
from rescorer.evaluation.list_errors import format_percent
from rescorer.evaluation.scored_lists import MeasuredList, collect_components
from rescorer.evaluation.statistics import Gain, binomial_cdf, bootstrap, choose_units
from rescorer.extensions import Phrases
from rescorer.pipeline import Rescorer
from rescorer.ranking import TIE_DECIMALS, Ranking, best_first
from rescorer.scoring.options import RescoreOptions
from rescorer.trie import Words
from rescorer.types import MAXIMUM, Generated, NBestList, Phrase, Weights
from rescorer.weights import GENERATED, MIXTURE, PHRASES, SOUND_MATCH, phrase_weight, totals

DEFAULT_MAX_SHARE = 0.005
"""Default for the largest permitted share of lists with a false alarm."""
MAX_DISTRACTOR_WORDS = 3
SEED = 1
MAX_KEPT = 8
"""Largest number of candidates for distractors in memory, as a multiple of the number to draw."""
N_WEIGHTS = 120
"""Number of weights of phrases that are tried, evenly spaced on a logarithmic scale."""
LEAST_WEIGHT = 1e-3
"""Smallest weight that is tried, as a share of the largest."""
NO_MIXTURE = np.zeros(1)  # where all models read pieces of words

Normalise = Callable[[str], Words]
Components = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Exposure:
    """A list in some of whose hypotheses phrases were found that were not said."""

    plain: Components
    """Components without phrases."""
    biased: Components
    """Components with these phrases."""
    mixture: np.ndarray
    """(H,) the component of the mixture under the same λ, as scored with all phrases of the list; a single 0
    without a mixture."""
    competing: np.ndarray
    """(H,) bool, which hypotheses may win: the recogniser's, and those generated from phrases not said."""


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Counts the lists with false alarms under any weights; see ``find_false_alarms``."""

    exposures: Mapping[int, Exposure]
    """The lists that can have a false alarm, by the index of the list."""
    n_lists: int
    n_phrases: int
    """Number of phrases of all lists together, without distractors."""
    n_said: int
    """Number of these phrases that occur in the reference of their list."""
    n_distractors: int = 0
    """Number of distractors: phrases that all lists were given in addition to their own phrases."""

    def count(
        self, scored: Sequence[MeasuredList], weights: Weights, lists: Collection[int] | None = None
    ) -> int:
        """Count the lists with false alarms if the hypothesis with the largest total wins.

        Args:
            scored: the lists that ``find_false_alarms`` was given; the λ of their mixture may have changed
                since.
            lists: indices of the lists to count; None for all.
        """
        return int(self._count(scored, weights, np.array([phrase_weight(weights)]), lists)[0])

    def find_limit(
        self,
        scored: Sequence[MeasuredList],
        weights: Weights,
        max_share: float,
        lists: Collection[int] | None = None,
    ) -> float:
        """Find the largest weight of phrases, up to that of ``weights``, with few enough false alarms.

        Under this weight, and under all smaller weights that were tried, at most ``max_share`` of the lists
        have a false alarm.
        """
        highest = phrase_weight(weights)
        allowed = int(max_share * (self.n_lists if lists is None else len(lists)) + 1e-9)
        tried = highest * np.geomspace(LEAST_WEIGHT, 1.0, N_WEIGHTS)
        too_many = self._count(scored, weights, tried, lists) > allowed
        if not too_many.any():
            return highest
        first = int(np.argmax(too_many))
        return float(tried[first - 1]) if first else 0.0

    def _count(
        self,
        scored: Sequence[MeasuredList],
        weights: Weights,
        phrase_weights: np.ndarray,
        lists: Collection[int] | None,
    ) -> np.ndarray:
        """Count the lists with false alarms, (W,), for each weight of phrases."""
        counted = range(len(scored)) if lists is None else set(lists)
        worse = np.zeros(len(phrase_weights), dtype=np.int64)
        for index, exposure in self.exposures.items():
            if index in counted:
                worse += _is_worse(scored[index], exposure, weights, phrase_weights)
        worse[phrase_weights == 0] = 0  # then phrases do not matter at all, nor do their unknown words
        return worse


def _is_worse(
    item: MeasuredList, exposure: Exposure, weights: Weights, phrase_weights: np.ndarray
) -> np.ndarray:
    """Tell for each weight of phrases whether phrases let a hypothesis with more errors win: (W,) bool."""
    moved = item.components.get(MIXTURE, NO_MIXTURE) - exposure.mixture  # by other λ

    def total(part: Components) -> np.ndarray:
        columns = {name: values for name, values in part.items() if name != PHRASES}
        if MIXTURE in columns:
            columns[MIXTURE] = columns[MIXTURE] + moved
        return totals(columns, weights)

    plain, biased = total(exposure.plain), total(exposure.biased)
    own = np.arange(len(item.words)) < item.n_recognised
    before = item.selection.order(item.words, np.where(own, plain, -np.inf))[0][0]
    order, merged = item.selection.order(item.words, np.where(exposure.competing, biased, -np.inf))
    kept = sorted(order)
    errors = np.array([counts.errors for counts in item.evaluated.hypotheses])
    boosted = merged[kept] + phrase_weights[:, None] * exposure.biased[PHRASES][kept]  # (W, N)
    winners = np.argmax(np.round(boosted, TIE_DECIMALS), axis=1)
    return np.asarray(errors[kept][winners] > errors[before])


@dataclass(frozen=True, slots=True)
class PhraseBound:
    """Bounds the weight of phrases so that false alarms are rare."""

    alarms: FalseAlarms
    max_share: float = DEFAULT_MAX_SHARE
    """Largest share of the lists that may have a false alarm."""

    def apply(
        self, scored: Sequence[MeasuredList], weights: Weights, lists: Collection[int] | None = None
    ) -> Weights:
        """Lower the weight of phrases until few enough of ``lists`` (None: of all lists) have false
        alarms."""
        limit = self.alarms.find_limit(scored, weights, self.max_share, lists)
        return weights if limit == phrase_weight(weights) else replace(weights, phrases=limit)


def has_phrases(rescorer: Rescorer, scored: Sequence[MeasuredList]) -> bool:
    """Whether some lists have phrases of their own, or the ranker expects phrases in all lists."""
    return bool(rescorer.ranker.component(Phrases).expected) or any(item.nbest.phrases for item in scored)


def find_false_alarms(
    rescorer: Rescorer, scored: Sequence[MeasuredList], weights: Weights, distractors: Sequence[Words] = ()
) -> FalseAlarms:
    """Score each list with those of its phrases that were not said and without phrases, to compare the two.

    Args:
        scored: the lists, scored under the λ of ``weights``.
        weights: complete weights.
        distractors: phrases that are given to all lists in addition to their own.
    """
    normalise = cache(rescorer.bundle.normaliser.normalise)
    others = _PhraseTable([Phrase(" ".join(words)) for words in distractors], normalise)
    expected = [phrase for known in rescorer.ranker.component(Phrases).expected for phrase in known.phrases]
    shared = _PhraseTable(expected, normalise)
    unsaid: dict[int, tuple[Phrase, ...]] = {}
    n_phrases = n_said = 0
    for index, item in enumerate(scored):
        tables = (_PhraseTable(item.nbest.phrases, normalise), shared, others)
        longest = max(table.longest for table in tables)
        readings = normalise_reference(item, normalise)
        said = {gram for words in readings for gram in _list_grams(words, longest)}
        heard = {gram for words in set(item.read) for gram in _list_grams(words, longest)}
        if found := [phrase for table in tables for phrase in table.find(heard) - table.find(said)]:
            unsaid[index] = tuple(sorted(found, key=lambda phrase: phrase.text))
        n_phrases += len(item.nbest.phrases) + len(expected)
        n_said += sum(len(table.find(said)) for table in tables[:2])
    exposures = _expose(rescorer, scored, weights, unsaid)
    return FalseAlarms(exposures, len(scored), n_phrases, n_said, len(distractors))


class _PhraseTable:
    """Phrases, by the words of each of their spellings."""

    def __init__(self, phrases: Sequence[Phrase], normalise: Normalise) -> None:
        self._by_words: dict[Words, set[Phrase]] = {}
        for phrase in phrases:
            for text in (phrase.text, *phrase.spellings):
                self._by_words.setdefault(normalise(text), set()).add(phrase)
        self.longest = max(map(len, self._by_words), default=0)

    def find(self, grams: set[Words]) -> set[Phrase]:
        """Return the phrases one of whose spellings is among these word sequences."""
        return {phrase for words in grams & self._by_words.keys() for phrase in self._by_words[words]}


def _expose(
    rescorer: Rescorer,
    scored: Sequence[MeasuredList],
    weights: Weights,
    unsaid: Mapping[int, tuple[Phrase, ...]],
) -> dict[int, Exposure]:
    """Score lists without phrases and with ``unsaid``, but never with those that the ranker always
    expects."""
    if weights.phrases == 0:  # phrases are left out altogether
        return {}
    component = rescorer.ranker.component(Phrases)
    expected, component.expected = component.expected, ()
    try:
        lists = [replace(scored[i].nbest, phrases=own) for i, own in unsaid.items()]
        plain = rescorer.rescore_each(
            [replace(nbest, phrases=()) for nbest in lists], weights, decision=MAXIMUM
        )
        biased = rescorer.rescore_each(lists, weights, decision=MAXIMUM)
    finally:
        component.expected = expected
    exposures = {}
    for index, first, second in zip(unsaid, plain, biased, strict=True):
        if isinstance(first, InvalidList) or isinstance(second, InvalidList):  # only too many phrases
            continue
        mixture = scored[index].components.get(MIXTURE, NO_MIXTURE)
        parts = collect_components(first), collect_components(second)
        texts = {phrase.text for phrase in unsaid[index]}
        made = (hypothesis.generated for hypothesis in scored[index].nbest.hypotheses)
        competing = [one is None or all(part.phrase in texts for part in one.parts) for one in made]
        exposures[index] = Exposure(*parts, mixture, np.array(competing))
    return exposures


def normalise_reference(item: MeasuredList, normalise: Normalise) -> list[Words]:
    """Return the canonical words of each reading of a reference."""
    return [normalise(" ".join(reading)) for reading in item.readings]


def draw_distractors(
    scored: Sequence[MeasuredList], normalise: Normalise, n: int, seed: int = SEED
) -> list[Words]:
    """Draw ``n`` phrases of one to three words that occur in some hypothesis, but in no reference.

    All such phrases are equally likely, however often they occur. The phrases with the smallest hashes are
    taken, so that the draw does not depend on the order of lists or hypotheses.
    """
    said = {
        gram
        for item in scored
        for reading in normalise_reference(item, normalise)
        for gram in _list_grams(reading)
    }
    drawn: set[tuple[bytes, Words]] = set()
    for item in scored:
        heard = {gram for words in set(item.read) for gram in _list_grams(words)} - said
        drawn.update(
            (hashlib.blake2b(" ".join(words).encode(), digest_size=8, key=str(seed).encode()).digest(), words)
            for words in heard
        )
        if len(drawn) > MAX_KEPT * n:
            drawn = set(heapq.nsmallest(n, drawn))
    return [words for _, words in heapq.nsmallest(n, drawn)]


def _list_grams(words: Words, longest: int = MAX_DISTRACTOR_WORDS) -> Iterator[Words]:
    for size in range(1, longest + 1):
        for start in range(len(words) - size + 1):
            yield words[start : start + size]


def find_over_boosting(rescorer: Rescorer, scored: Sequence[MeasuredList], weights: Weights) -> int:
    """Count the lists with false alarms, for a warning; return 0 if few enough lists have one.

    Args:
        scored: the lists, scored under the λ of ``weights``.
        weights: complete weights.
    """
    if not has_phrases(rescorer, scored):
        return 0
    n_worse = find_false_alarms(rescorer, scored, weights).count(scored, weights)
    return n_worse if n_worse > DEFAULT_MAX_SHARE * len(scored) else 0


MAX_SAID = 0.5
"""If more than this share of the phrases was said, a warning says that lists in use have more false
alarms."""


def describe_false_alarms(bound: PhraseBound, held_out: int) -> Iterator[str]:
    """Yield lines about false alarms under a bound, and warnings if there are many or the count says little.

    Args:
        held_out: number of held-out lists with false alarms.
    """
    alarms = bound.alarms
    others = f", {pluralise(alarms.n_distractors, 'distractor')}" if alarms.n_distractors else ""
    yield (
        f"phrases: {alarms.n_phrases:,} in {pluralise(alarms.n_lists, 'list')}, {alarms.n_said:,} of them "
        f"said{others}; some that were not said occur in the hypotheses of "
        f"{pluralise(len(alarms.exposures), 'list')}"
    )
    yield (
        f"false alarms: held out, they make {describe_share(held_out, alarms.n_lists)} worse; "
        f"at most {100 * bound.max_share:g} % of the tuning lists are allowed"
    )
    if held_out > bound.max_share * alarms.n_lists:
        yield "warning: held out, the weight of phrases over-boosts: give more lists, or a smaller bound"
    if alarms.n_said > MAX_SAID * alarms.n_phrases and not alarms.n_distractors:
        yield (
            "warning: most of the phrases of these lists were said, so that false alarms are rarer here than "
            "where most are not: give each list the phrases that it would have in use, or add --distractors"
        )


def describe_over_boosting(n_worse: int, n_lists: int, weight: float) -> str:
    """Say in a sentence that a weight of phrases is too large, because phrases win that were not said."""
    return (
        f"the weight of phrases, {weight:.4g}, over-boosts: phrases that were not said make "
        f"{describe_share(n_worse, n_lists)} worse"
    )


def describe_share(n_worse: int, n_lists: int) -> str:
    """Format a number of lists and their share.

    >>> describe_share(3, 1200)
    '3 of 1,200 lists (0.25 %)'
    """
    return f"{n_worse:,} of {pluralise(n_lists, 'list')} ({format_percent(n_worse / n_lists)} %)"


def false_alarms_to_dict(bound: PhraseBound, held_out: int) -> dict[str, Any]:
    """Convert the figures about false alarms to JSON data; shares are in percent."""
    alarms = bound.alarms
    return {
        "lists": alarms.n_lists,
        "phrases": alarms.n_phrases,
        "said": alarms.n_said,
        "distractors": alarms.n_distractors,
        "lists_with_unsaid_phrases": len(alarms.exposures),
        "max_false_alarms": 100 * bound.max_share,
        "held_out_worse": held_out,
    }


@dataclass(frozen=True, slots=True)
class Outcome:
    """A list with generated hypotheses: the total of each, and the errors of the list if this one won."""

    totals: np.ndarray
    """(H,) float64, totals without the components ``generated`` and ``sound_match``."""
    generated: np.ndarray
    """(H,) float64, number of replaced spans; 0 for hypotheses of the recogniser."""
    sound_match: np.ndarray
    """(H,) float64; 0 for hypotheses of the recogniser."""
    right: np.ndarray
    """(H,) bool, whether the hypothesis was generated, and all its phrases occur in the reference."""
    errors: np.ndarray
    """(H,) int64."""
    n_words: int
    """Number of words of the reference."""

    def winner(self, generated: float, sound_match: float) -> int:
        """Find the hypothesis with the largest total under the weights of the two components."""
        made = generated * self.generated + sound_match * self.sound_match
        return int(best_first(self.totals + made)[0])

    def margin(self, sound_match: float) -> float:
        """Find the m such that a wrong phrase wins as soon as the weight ``generated`` is above -m.

        The result is -inf if no phrase of the list is wrong.
        """
        is_own = self.generated == 0
        wrong = ~is_own & ~self.right
        lead = (self.totals + sound_match * self.sound_match)[wrong] - self.totals[is_own].max()
        return float((lead / self.generated[wrong]).max(initial=-np.inf))


def score_outcomes(
    rescorer: Rescorer, lists: Sequence[NBestList], weights: Weights
) -> list[Outcome | InputError]:
    """Generate hypotheses for lists with references, and score them.

    Returns:
        One outcome per list, or the error of a list that cannot be used.
    """
    outcomes: list[Outcome | InputError] = []
    for nbest in lists:
        if nbest.reference is None:
            outcomes.append(InvalidList("missing", list_id=nbest.id, field="reference"))
            continue
        (ranking,) = rescorer.rank_each([nbest], RescoreOptions(weights, generate=True))
        outcomes.append(_to_outcome(ranking, rescorer, weights) if isinstance(ranking, Ranking) else ranking)
    return outcomes


def _to_outcome(ranking: Ranking, rescorer: Rescorer, weights: Weights) -> Outcome:
    nbest, normalise = ranking.nbest, rescorer.bundle.normaliser.normalise
    counted = rescorer.ranker.text_normaliser.normalise
    count = DEFAULT_COUNTING.counter_for(nbest.reference or "", counted, nbest.id)
    counts = [count(hypothesis.text) for hypothesis in nbest.hypotheses]
    spoken = normalise(nbest.reference or "")
    made = [hypothesis.generated for hypothesis in nbest.hypotheses]
    none = np.zeros(len(made))

    def is_right(one: Generated) -> bool:
        return all(contains(spoken, normalise(part.phrase)) for part in one.parts)

    own = {
        name: values for name, values in ranking.components.items() if name not in (GENERATED, SOUND_MATCH)
    }
    return Outcome(
        totals(own, weights),
        ranking.components.get(GENERATED, none),
        ranking.components.get(SOUND_MATCH, none),
        np.array([one is not None and is_right(one) for one in made]),
        np.array([errors.errors for errors in counts]),
        len(counted(nbest.reference or "")),
    )


def draw_decoys(
    rescorer: Rescorer, lists: Sequence[NBestList], count: int, rounds: int
) -> list[list[NBestList]]:
    """Draw phrases of other lists that do not occur in a list's reference; return copies of it with them.

    Args:
        count: largest number of phrases per copy.
        rounds: number of draws for each list; a draw with the same phrases as an earlier one is left out.

    Returns:
        The draws for each list, at least one.
    """
    normalise = rescorer.bundle.normaliser.normalise
    words = {phrase: normalise(phrase.text) for nbest in lists for phrase in nbest.phrases}
    generators, decoys = [random.Random(seed) for seed in range(rounds)], []
    for nbest in lists:
        spoken = normalise(nbest.reference or "")
        absent = [phrase for phrase, part in words.items() if part and not contains(spoken, part)]
        draws = [draw.sample(absent, min(count, len(absent))) for draw in generators]
        distinct = {frozenset(chosen): chosen for chosen in reversed(draws)}
        decoys.append([replace(nbest, phrases=tuple(chosen)) for chosen in reversed(distinct.values())])
    return decoys


def contains(words: Words, part: Words) -> bool:
    """Whether a sequence of words contains another one without gaps."""
    return any(words[i : i + len(part)] == part for i in range(len(words) - len(part) + 1))


SOUND_WEIGHTS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0)
"""Weights of ``sound_match`` that are tried, as multiples of the sum of all language models' weights."""
CHANCE = 0.05
"""Largest probability that so few false alarms are seen although their rate is at the bound."""
STEP = 1e-3
"""The weight ``generated`` stays this far below the value above which one false alarm too many occurs."""
MAX_FOLDS = 10
OFF = -1e12
"""Value of the weight ``generated`` so low that no generated hypothesis wins."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The two weights of generated hypotheses, and the errors under them on the lists that chose them."""

    generated: float
    sound_match: float
    errors: int


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over lists; tallies add with ``+``."""

    lists: int
    words: int
    errors: int
    right: int
    """Number of lists in which a generated hypothesis wins, all of whose phrases occur in the reference."""
    false_alarms: int
    """Number of lists in which another generated hypothesis wins."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))


NOTHING = Tally(0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class ThresholdJudgement:
    """Counts over held-out lists. The weights for the lists of a fold were chosen on the other folds."""

    before: Tally
    """Without generated hypotheses."""
    after: Tally
    """With generated hypotheses."""
    decoys: Tally
    """Counts on the same lists, but with phrases that are not in their references."""
    errors: np.ndarray
    """(2, L) int64, errors of each list without and with generated hypotheses."""


def tally(outcomes: Sequence[Outcome], generated: float, sound_match: float) -> Tally:
    """Count errors and winners under two weights."""
    found = NOTHING
    for outcome in outcomes:
        best = outcome.winner(generated, sound_match)
        made, right = outcome.generated[best] > 0, bool(outcome.right[best])
        found += Tally(1, outcome.n_words, int(outcome.errors[best]), int(right), int(made and not right))
    return found


def permitted_false_alarms(lists: int, max_rate: float) -> int:
    """Return the largest number of false alarms in so many lists that still shows a rate below ``max_rate``.

    Raises:
        ConfigError: there are so few lists that even no false alarm would not show that.
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

    For each value of ``sound_match`` that is tried, ``generated`` is as large as the bound permits.

    Args:
        outcomes: lists with their own phrases.
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


def judge_threshold(
    outcomes: Sequence[Outcome],
    decoys: Sequence[Sequence[Outcome]],
    folds: Folds,
    max_rate: float,
    unit: float,
) -> ThresholdJudgement:
    """Hold out each fold in turn: choose the weights on the other folds, and count errors on this one.

    Args:
        outcomes: lists with their own phrases.
        decoys: for each of these lists, the outcomes of all its draws from ``draw_decoys``.
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
    return ThresholdJudgement(before, after, wrong, errors)


@dataclass(frozen=True, slots=True)
class LearnedThreshold:
    """The weights of generated hypotheses that were chosen on lists, and their judgement."""

    lists: Sequence[NBestList]
    """The lists that could be used."""
    choice: Choice
    judgement: ThresholdJudgement
    gain: Gain
    """The held-out error rate without generated hypotheses minus that with them, with an interval."""
    folds: Folds


def learn_threshold(
    rescorer: Rescorer,
    lists: Sequence[NBestList],
    weights: Weights,
    *,
    decoys: int,
    rounds: int,
    max_rate: float,
    on_rejected: Callable[[InputError], object],
) -> LearnedThreshold | None:
    """Learn the weights of generated hypotheses, and judge them by cross-validation.

    Args:
        weights: complete weights, which rank the lists.
        decoys: to provoke false alarms, each list gets up to this many phrases of other lists.
        rounds: number of times that such phrases are drawn for each list.
        max_rate: bound of the rate of false alarms; see ``permitted_false_alarms``.
        on_rejected: called with the error of each list that cannot be used.

    Returns:
        None if no list can be used.

    Raises:
        ConfigError: there are too few lists.
    """
    found = score_outcomes(rescorer, lists, weights)
    draws = draw_decoys(rescorer, lists, decoys, rounds)
    others = [score_outcomes(rescorer, drawn, weights) for drawn in draws]
    kept, own, wrong = [], list[Outcome](), list[list[Outcome]]()
    for nbest, first, drawn in zip(lists, found, others, strict=True):
        results = [first, *drawn]
        if errors := [result for result in results if not isinstance(result, Outcome)]:
            on_rejected(errors[0])
        else:
            kept.append(nbest)
            outcome, *decoy_outcomes = (result for result in results if isinstance(result, Outcome))
            own.append(outcome)
            wrong.append(decoy_outcomes)
    if not kept:
        return None
    ids, groups, references = zip(*((n.id, n.group, n.reference or "") for n in kept), strict=True)
    folds = make_folds(ids, groups, references, MAX_FOLDS)
    unit = sum(weights.lm.values())
    judgement = judge_threshold(own, wrong, folds, max_rate, unit)
    choice = choose(own, [one for drawn in wrong for one in drawn], max_rate, unit)
    n_words = [one.n_words for one in own]
    gain = bootstrap(judgement.errors, n_words, choose_units(groups)).gain(0, 1)
    return LearnedThreshold(kept, choice, judgement, gain, folds)

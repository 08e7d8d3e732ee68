"""Phrases that were not said: which lists they make worse, and the weight that keeps these few."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.evaluation.false_alarms import (
    LEAST_WEIGHT,
    N_WEIGHTS,
    FalseAlarms,
    PhraseBound,
    draw_distractors,
    find_false_alarms,
)
from rescorer.evaluation.list_errors import ALL, Selection
from rescorer.evaluation.scored_lists import MeasuredList, score_lists
from rescorer.evaluation.systems import Tuning
from rescorer.extensions import Phrases
from rescorer.pipeline import Rescorer
from rescorer.types import Hypothesis, NBestList, Phrase, Weights
from tests.support.scored_lists import VOCABULARY, make_scored_lists

WEIGHTS = Weights("start", {"acoustic": 1.0}, {"mixture": 0.5}, mixture={"ngram": 1.0}, phrases=2.0)
SELECTIONS = (ALL, Selection(merge=True), Selection(drop_empty=True))
SHARED = (Phrase("uh cat"), Phrase("mat", 0.5))


@pytest.fixture(scope="module")
def rescorer(ngram_bundle):
    return Rescorer.load(ngram_bundle)


def split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def make_lists(rescorer: Rescorer, seed: int, selection: Selection = ALL) -> list[MeasuredList]:
    """Lists with three random phrases each, some of which were said; some of their words are unknown."""
    choices = random.Random(seed)
    lists = []
    for item in make_scored_lists(12, seed):
        texts = [" ".join(choices.choices(VOCABULARY, k=choices.randint(1, 2))) for _ in range(3)]
        lists.append(replace(item.nbest, phrases=tuple(map(Phrase, texts))))
    scored, _ = score_lists(rescorer, lists, WEIGHTS, selection=selection)
    return scored


def count_slowly(
    rescorer: Rescorer, lists: Sequence[MeasuredList], weights: Weights, shared: Sequence[Phrase] = ()
) -> int:
    """Rescore each list with only those phrases that were not said, and without phrases."""
    n_worse = 0
    for item in lists:
        phrases = (*item.nbest.phrases, *shared)
        unsaid = tuple(phrase for phrase in phrases if f" {phrase.text} " not in f" {item.reference} ")
        errors = []
        for some in ((), unsaid):
            (answer,) = rescorer.rescore(
                [replace(item.nbest, phrases=some)],
                weights,
                merge=item.selection.merge,
                drop_empty=item.selection.drop_empty,
            )
            errors.append(item.evaluated.hypotheses[answer.best.original_rank].errors)
        n_worse += errors[1] > errors[0]
    return n_worse


@settings(max_examples=30)
@given(st.integers(0, 500), st.sampled_from(SELECTIONS), st.sampled_from([0.0, 0.1, 1.0, 5.0, 50.0]))
def test_counts_what_rescoring_with_and_without_the_phrases_shows(rescorer, seed, selection, weight):
    lists, weights = make_lists(rescorer, seed, selection), replace(WEIGHTS, phrases=weight)
    alarms = find_false_alarms(rescorer, lists, WEIGHTS)
    assert alarms.count(lists, weights) == count_slowly(rescorer, lists, weights)
    parts = [alarms.count(lists, weights, some) for some in (range(5), range(5, 12))]
    assert sum(parts) == alarms.count(lists, weights)


def test_phrases_that_are_expected_in_all_lists_count_too(rescorer):
    lists = make_lists(rescorer, 3)
    phrases = rescorer.ranker.component(Phrases)
    phrases.expect(SHARED, ())
    try:
        alarms = find_false_alarms(rescorer, lists, WEIGHTS)
        assert phrases.expected
    finally:
        phrases.expected = ()
    weights = replace(WEIGHTS, phrases=20.0)
    assert alarms.count(lists, weights) == count_slowly(rescorer, lists, weights, SHARED) > 0
    assert alarms.n_phrases == 12 * (3 + len(SHARED))


@settings(max_examples=10)
@given(st.integers(0, 500), st.sampled_from([0.0, 0.1, 0.2]))
def test_the_limit_is_the_last_weight_before_false_alarms_are_too_many(rescorer, seed, share):
    lists, weights = make_lists(rescorer, seed), replace(WEIGHTS, phrases=50.0)
    alarms = find_false_alarms(rescorer, lists, WEIGHTS)
    limit = 0.0
    for weight in 50.0 * np.geomspace(LEAST_WEIGHT, 1.0, N_WEIGHTS):
        if alarms.count(lists, replace(weights, phrases=weight)) > share * len(lists):
            break
        limit = weight
    assert alarms.find_limit(lists, weights, share) == pytest.approx(limit)
    assert alarms.find_limit(lists, weights, 1.0) == 50.0


def test_the_mixture_may_have_other_shares(rescorer):
    """Phrases of known words make the same difference under any λ."""
    lists = make_lists(rescorer, 8)
    alarms = find_false_alarms(rescorer, lists, WEIGHTS)
    shifts = [np.arange(len(item.words)) * 0.7 for item in lists]
    moved = [
        replace(item, components={**item.components, "mixture": item.components["mixture"] + shift})
        for item, shift in zip(lists, shifts, strict=True)
    ]
    streams = [
        replace(item, components={**item.components, "shift": s})
        for item, s in zip(lists, shifts, strict=True)
    ]
    by_stream = FalseAlarms(
        {
            index: replace(
                exposure,
                plain={**exposure.plain, "shift": shifts[index]},
                biased={**exposure.biased, "shift": shifts[index]},
            )
            for index, exposure in alarms.exposures.items()
        },
        alarms.n_lists,
        alarms.n_phrases,
        alarms.n_said,
    )
    with_stream = replace(WEIGHTS, streams={"acoustic": 1.0, "shift": 0.5})
    assert alarms.count(moved, WEIGHTS) == by_stream.count(streams, with_stream)


def test_a_phrase_counts_as_said_in_any_spelling_and_any_reading(rescorer):
    phrases = (Phrase("kat", spellings=("cat", "khat")), Phrase("mat"), Phrase("rug"), Phrase("t rug"))
    texts = (Hypothesis("a cat t rug"), Hypothesis("the mat"))
    nbest = NBestList("u", texts, {"acoustic": (-1.0, -2.0)}, phrases=phrases)
    scored, _ = score_lists(rescorer, [replace(nbest, reference="the cat { sat / mat } rug")], WEIGHTS)
    alarms = find_false_alarms(rescorer, scored, WEIGHTS)
    assert (alarms.n_phrases, alarms.n_said, list(alarms.exposures)) == (4, 3, [0])
    assert alarms.exposures[0].biased["phrases"].tolist() == [2.0, 0.0]


def test_distractors_occur_in_hypotheses_but_in_no_reference():
    lists = make_scored_lists(30, seed=5)
    drawn = draw_distractors(lists, split, 40)
    spoken = " | ".join(f" {item.reference} " for item in lists)
    heard = " | ".join(f" {' '.join(words)} " for item in lists for words in item.words)
    assert len(set(drawn)) == 40
    for words in drawn:
        assert 1 <= len(words) <= 3
        assert f" {' '.join(words)} " in heard
        assert f" {' '.join(words)} " not in spoken
    assert draw_distractors(lists[::-1], split, 40) == drawn
    assert draw_distractors(lists, split, 20) == drawn[:20]
    assert draw_distractors(lists, split, 40, seed=2) != drawn
    assert draw_distractors(lists[:1], split, 10_000) == draw_distractors(lists[:1], split, 20_000)


def test_distractors_are_given_to_all_lists(rescorer):
    lists = [replace(item, nbest=replace(item.nbest, phrases=())) for item in make_lists(rescorer, 5)]
    distractors = draw_distractors(lists, split, 40)
    drawn = [Phrase(" ".join(words)) for words in distractors]
    alarms = find_false_alarms(rescorer, lists, WEIGHTS, distractors)
    weights = replace(WEIGHTS, phrases=20.0)
    assert alarms.count(lists, weights) == count_slowly(rescorer, lists, weights, drawn) > 0
    assert (alarms.n_phrases, alarms.n_said, alarms.n_distractors) == (0, 0, 40)


def make_names(rescorer: Rescorer, n_said: int) -> list[MeasuredList]:
    """Forty lists whose second hypothesis has a name; in the first ``n_said`` lists it was said."""
    lists = []
    for number in range(40):
        was_said = number < n_said
        margin = 1.0 if was_said else 3.0 + number / 10
        lists.append(
            NBestList(
                f"u{number}",
                (Hypothesis("the cat"), Hypothesis("the mat")),
                {"acoustic": (margin, 0.0)},
                reference=f"the {'mat' if was_said else 'cat'} {'x ' * number}",
                phrases=(Phrase("mat"),),
            )
        )
    scored, _ = score_lists(rescorer, lists, replace(WEIGHTS, lm={}))
    return scored


def test_tuning_finds_a_weight_of_phrases_within_the_bound(rescorer):
    lists = make_names(rescorer, 20)
    start = replace(WEIGHTS, lm={}, phrases=0.1)
    bound = PhraseBound(find_false_alarms(rescorer, lists, start), 0.0)
    bounded = Tuning(lists, start, ("phrases",), phrase_bound=bound)
    weights = bounded.tuned[0][1]
    assert 1.0 < weights.phrases <= 5.0
    assert bound.alarms.count(lists, weights) == 0
    assert bounded.report().judgement.is_better
    assert bounded.count_false_alarms() <= 1
    assert Tuning(lists, start, ("phrases",)).count_false_alarms() == 0  # without a bound
    over = replace(start, phrases=9.0)
    assert bound.apply(lists, over).phrases == pytest.approx(5.0, rel=0.1)
    assert PhraseBound(bound.alarms, 1.0).apply(lists, over) is over


def test_fixed_phrases_count_while_other_weights_are_tuned(rescorer):
    """Without a weight of their own, phrases keep the one that they have at the start."""
    lists = make_names(rescorer, 20)
    start = replace(WEIGHTS, lm={"mixture": 3.5}, phrases=None)
    tuning = Tuning(lists, start, ("lm", "word"))
    assert tuning.parameters.names[-1] == "phrases"
    before = tuning.report().judgement.start_rate
    words = sum(item.evaluated.hypotheses[0].reference_words for item in lists)
    assert tuning.problem.list_errors(tuning.problem.start).sum() == before * words
    assert tuning.tuned[0][1].phrases == 3.5

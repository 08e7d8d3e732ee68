"""Tuning the λ of the cache of sessions: what it ranks is what rescoring ranks, and it finds what helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer import Hypothesis, NBestList, Rescorer, Utterance, Weights
from rescorer.evaluation.folds import CACHE_SHARES
from rescorer.evaluation.scored_lists import rerank, score_lists
from rescorer.evaluation.systems import Tuning, score_mixtures
from tests.support.tiny_models import write_bundle

WEIGHTS = Weights("w", {"acoustic": 1.0}, {"mixture": 1.0}, mixture={"ngram": 0.5, "neural": 0.5})
WORDS = ("the", "cat", "sat", "on", "mat", "dog", "ran", "fast")


@pytest.fixture(scope="module")
def rescorer(tmp_path_factory):
    return Rescorer.load(write_bundle(tmp_path_factory.mktemp("bundle"), replace(WEIGHTS, name="default")))


def make_lists(seed: int, n: int = 12) -> list[NBestList]:
    """What was said before is said again; another hypothesis has another word in its place."""
    draw = np.random.default_rng(seed)
    lists = []
    for number in range(n):
        said, wrong, other = draw.choice(WORDS, 3, replace=False).tolist()
        reference, heard = f"{other} {said} {number}", f"{other} {wrong} {number}"
        lists.append(
            NBestList(
                f"u{number}",
                (Hypothesis(heard), Hypothesis(reference)),
                {"acoustic": (float(draw.exponential(1.0)), 0.0)},
                reference=reference,
                previous=(Utterance(" ".join([said] * 20), confidence=float(draw.uniform(0.5, 1.0))),),
            )
        )
    return lists


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(st.integers(0, 500), st.sampled_from([0.0, 0.2]))
def test_lists_are_ranked_as_rescoring_ranks_them(rescorer, seed, cache):
    start = rescorer.ranker.effective_weights(replace(WEIGHTS, cache=cache))
    scored, _ = score_lists(rescorer, make_lists(seed), start)
    free = ("word", "cache")
    tuning = Tuning(scored, start, free, score_mixtures(rescorer, scored, start, free))
    for item, weights in (*tuning.hold_out(), *tuning.tuned):
        assert weights.cache in (*CACHE_SHARES, cache)
        (answer,) = rescorer.rescore([item.nbest], weights)
        assert rerank(item, weights).system == item.evaluated.hypotheses[answer.best.original_rank]


def test_a_cache_that_helps_is_found_on_lists_that_are_held_out(rescorer):
    start = rescorer.ranker.effective_weights(WEIGHTS)
    scored, _ = score_lists(rescorer, make_lists(1, 60), start)
    tuning = Tuning(scored, start, ("cache",), score_mixtures(rescorer, scored, start, ("cache",)))
    assert all(weights.cache > 0 for _, weights in tuning.hold_out())
    report = tuning.report()
    assert report.judgement.is_better
    assert report.decide().cache == tuning.tuned[0][1].cache > 0
    (row,) = (row for row in report.weights if row.name == "cache")
    assert (row.start, row.tuned) == (0.0, report.tuned.cache)


def test_without_sessions_the_cache_stays_as_it_is(rescorer):
    start = rescorer.ranker.effective_weights(replace(WEIGHTS, cache=0.1))
    lists = [replace(item, previous=()) for item in make_lists(2)]
    scored, _ = score_lists(rescorer, lists, start)
    mixture = score_mixtures(rescorer, scored, start)
    assert {choice.cache for choice in mixture.choices} == {0.1}
    assert score_mixtures(rescorer, scored, start, ("cache", "word")) is None
    tuning = Tuning(scored, start, mixture=mixture)
    assert tuning.tuned[0][1].cache == 0.1
    assert "cache" not in {row.name for row in tuning.report().weights}

"""Weights tuned on scored lists, and how they are judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rescorer.evaluation.folds import MixtureChoice
from rescorer.evaluation.scored_lists import rerank, score_lists
from rescorer.evaluation.systems import (
    MixtureScores,
    Tuning,
    compare_systems,
    score_mixtures,
    weights_by_system,
)
from rescorer.formats.jsonlines import read_lists
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList, Weights
from tests.support.scored_lists import make_scored_lists

ROOT = Path(__file__).resolve().parents[2]
START = Weights("start", {"acoustic": 1.0}, {"mixture": 1.0}, mixture={"good": 0.0, "bad": 1.0})


def make_lists_of_two_mixtures():
    """Lists whose mixture is right under the second λ, and wrong under that of the start."""
    scored = make_scored_lists(30, n_groups=0)
    errors = [np.array([counts.errors for counts in item.evaluated.hypotheses]) for item in scored]
    log_probs = [np.stack([3.0 * wrong, -30.0 * wrong]) for wrong in errors]
    scored = [
        replace(item, components={**item.components, "mixture": scores[0]})
        for item, scores in zip(scored, log_probs, strict=True)
    ]
    return scored, MixtureScores((MixtureChoice((0.0, 1.0)), MixtureChoice((1.0, 0.0))), log_probs)


def test_lists_are_judged_under_the_mixture_of_their_fold():
    scored, mixture = make_lists_of_two_mixtures()
    tuning = Tuning(scored, START, ("word", "mix"), mixture)
    fewest = sum(min(counts.errors for counts in item.evaluated.hypotheses) for item in scored)
    assert all(weights.mixture == {"good": 1.0, "bad": 0.0} for _, weights in tuning.hold_out())
    for lists in (tuning.hold_out(), tuning.tuned):
        assert sum(rerank(*pair).system.errors for pair in lists) == fewest
    report = tuning.report()
    assert report.judgement.rate < report.judgement.start_rate
    assert report.judgement.is_better


def test_the_mixture_can_be_all_that_changes():
    scored, mixture = make_lists_of_two_mixtures()
    weights = Tuning(scored, START, ("mix",), mixture).tuned[0][1]
    assert weights.mixture == {"good": 1.0, "bad": 0.0}
    assert (weights.streams, weights.lm) == (START.streams, START.lm)


def test_without_other_mixtures_lists_stay_as_they_are():
    scored, _ = make_lists_of_two_mixtures()
    tuning = Tuning(scored, START, ("word",))
    assert all(pair[0] is item for pair, item in zip(tuning.hold_out(), scored, strict=True))


class RecordingBound:
    """A bound of the weight of phrases that notes the lists by which it is asked to choose."""

    def __init__(self):
        self.asked: list[set[int]] = []

    def apply(self, scored, weights, lists=None):
        self.asked.append(set(lists))
        return weights


def test_phrases_are_bounded_without_lists_that_share_a_reference_with_the_fold():
    yes = [
        replace(item, reference="yes") if n % 5 < 3 else item for n, item in enumerate(make_scored_lists(30))
    ]
    bound = RecordingBound()
    tuning = Tuning(yes, Weights("start", {"acoustic": 1.0}, {"mixture": 1.0}), ("word",), phrase_bound=bound)
    assert tuning.folds.shares_references
    folds = [set(fold.lists.tolist()) for fold in tuning.cross_validation.folds]
    assert tuning.fold_weights
    for held_out, asked in zip(folds, bound.asked, strict=True):
        assert asked
        assert not {yes[i].reference for i in asked} & {yes[i].reference for i in held_out}


def keep_hypotheses(nbest: NBestList, n: int) -> NBestList:
    streams = {name: values[:n] for name, values in nbest.streams.items()}
    return replace(nbest, hypotheses=nbest.hypotheses[:n], streams=streams)


@pytest.mark.slow
def test_evaluation_tunes_the_mixture_as_tune_does():
    starter = Rescorer.load(ROOT / "models" / "starter")
    lists = [item for item in read_lists(ROOT / "demo" / "lists.jsonl.gz") if isinstance(item, NBestList)]
    lists = [keep_hypotheses(item, 5) for item in lists[:8]]
    weights = starter.ranker.effective_weights(starter.bundle.weights["pocketsphinx"])
    scored, _ = score_lists(starter, lists, weights)
    system = weights_by_system(starter, weights)["mixture"]
    tuned = compare_systems(scored, {"mixture": system}, True, rescorer=starter)
    tuning = Tuning(scored, system, mixture=score_mixtures(starter, scored, system))
    assert [held_out.mixture for held_out in tuned.held_out["mixture"]] == [
        held_out.mixture for _, held_out in tuning.hold_out()
    ]
    assert len(tuning.mixtures) > 1
    alone = weights_by_system(starter, weights)["neural"]
    assert score_mixtures(starter, scored, alone) is None

"""Errors around the chosen weights equal those of ranking with each of these weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.folds import MixtureChoice
from rescorer.evaluation.list_errors import ALL, Selection
from rescorer.evaluation.report.data import (
    describe_curves,
    describe_share_curves,
    describe_surface,
    make_problem,
)
from rescorer.evaluation.report.pages import draw_share_curve
from rescorer.evaluation.scored_lists import rerank
from rescorer.evaluation.systems import MixtureScores
from rescorer.types import Weights
from tests.support.scored_lists import make_scored_lists

WEIGHTS = Weights("w", {"acoustic": 1.0, "ngram": 0.4}, {"mixture": 0.7}, word=-0.3)


def count_by_ranking(scored, weights: Weights) -> int:
    return sum(rerank(item, weights).system.errors for item in scored)


def change(weights: Weights, name: str, value: float) -> Weights:
    if name == "word":
        return replace(weights, word=value)
    if name.startswith("lm:"):
        return replace(weights, lm={name.removeprefix("lm:"): value})
    return replace(weights, streams={**weights.streams, name: value})


@pytest.mark.parametrize("selection", [ALL, Selection(merge=True), Selection(drop_empty=True)])
@given(seed=st.integers(0, 50), share=st.floats(0.01, 0.99))
def test_curves_are_the_errors_of_ranking(selection, seed, share):
    scored = make_scored_lists(6, seed, selection=selection)
    problem = make_problem(scored, WEIGHTS)
    for curve in describe_curves(problem, []):
        low, high = curve.shown
        step = low + share * (high - low)
        gap = min((abs(step - corner) for corner in curve.corners), default=1.0)
        if gap < 1e-3:  # totals are rounded before they are compared
            continue
        expected = count_by_ranking(scored, change(WEIGHTS, curve.weight, step))
        assert curve.errors[np.searchsorted(curve.corners, step)] == expected
        assert len(curve.errors) == len(curve.corners) + 1


@pytest.mark.parametrize("value", [-0.7, 0.7])
def test_a_language_model_is_shown_on_its_own_side_of_0(value):
    problem = make_problem(make_scored_lists(8), replace(WEIGHTS, lm={"mixture": value}))
    low, high = next(curve for curve in describe_curves(problem, []) if curve.weight == "lm:mixture").shown
    assert low < value < high
    assert (low < 0) == (value < 0)


@given(seed=st.integers(0, 20))
def test_surface_is_the_errors_of_ranking(seed):
    scored = make_scored_lists(5, seed)
    folds = [replace(WEIGHTS, lm={"mixture": 0.9}, word=0.1)]
    surface = describe_surface(make_problem(scored, WEIGHTS), folds)
    if surface is None:
        return
    assert surface.chosen == (0.7, -0.3)
    assert surface.fold_values == ((0.9, 0.1),)
    rng = np.random.default_rng(seed)
    for row, column in rng.integers(0, len(surface.x), (4, 2)).tolist():
        weights = replace(WEIGHTS, lm={"mixture": surface.x[column]}, word=surface.y[row])
        near = [replace(weights, word=weights.word + shift) for shift in (-2e-4, 2e-4)]
        if len({count_by_ranking(scored, item) for item in (weights, *near)}) == 1:
            assert surface.errors[row][column] == count_by_ranking(scored, weights)


def test_ranges_contain_the_choices_of_all_folds():
    scored = make_scored_lists(8)
    folds = [replace(WEIGHTS, lm={"mixture": value}, word=-value) for value in (0.1, 50.0)]
    for curve in describe_curves(make_problem(scored, WEIGHTS), folds):
        assert curve.shown[0] <= min(curve.fold_values) <= max(curve.fold_values) < curve.shown[1]
        if curve.weight.startswith("lm:"):
            assert curve.shown[0] >= 0


def test_first_stream_sets_the_scale():
    curves = describe_curves(make_problem(make_scored_lists(8), WEIGHTS), [])
    assert [curve.weight for curve in curves] == ["ngram", "lm:mixture", "word"]
    assert list(WEIGHTS.by_option()) == ["acoustic", "ngram", "lm:mixture", "word", "oov", "empty"]


def test_weights_at_0_have_curves_if_they_make_a_difference():
    """Lists of end-to-end recognisers start at language model weight 0, and folds may leave 0 or reach it."""
    words = np.array([0.0, 3.0, 3.0])
    scored = [
        replace(item, components={**item.components, "words": words, "oov": np.array([0.0, 1.0, 0.0])})
        for item in make_scored_lists(40)
        if len(item.words) == 3
    ]
    start = replace(WEIGHTS, lm={"ngram": 0.0, "mixture": 0.0})
    folds = [
        replace(start, lm={"ngram": 0.0, "mixture": 0.3}, empty=-5.0, oov=value) for value in (0.0, -1.0)
    ]
    problem = make_problem(scored, start)
    curves = {curve.weight: curve for curve in describe_curves(problem, folds)}
    assert list(curves) == ["ngram", "lm:ngram", "lm:mixture", "word", "oov", "empty"]
    assert curves["empty"].fold_values == (-5.0, -5.0)
    assert curves["oov"].fold_values == (0.0, -1.0)
    assert all(curve.shown[0] <= curve.chosen <= curve.shown[1] for curve in curves.values())
    surface = describe_surface(make_problem(scored, replace(start, lm={"ngram": 0.0, "mixture": 0.7})), [])
    assert surface is not None
    assert surface.x_weight == "lm:mixture"


def test_lists_of_one_hypothesis_have_no_curves():
    scored = [item for item in make_scored_lists(60) if len(item.words) == 1]
    problem = make_problem(scored, WEIGHTS)
    assert describe_curves(problem, []) == ()
    assert describe_surface(problem, []) is None


def test_streams_without_a_weight_have_curves():
    """A stream that the weights leave out may be worth a weight."""
    scored = make_scored_lists(12)
    weights = replace(WEIGHTS, streams={"acoustic": 1.0})
    scored = [
        replace(item, components={**item.components, "graph": item.components["ngram"]}) for item in scored
    ]
    (curve,) = [c for c in describe_curves(make_problem(scored, weights), [WEIGHTS]) if c.weight == "graph"]
    assert (curve.chosen, curve.fold_values) == (0.0, (0.0,))
    for step in (0.4 * curve.shown[0], 0.6 * curve.shown[1]):
        expected = count_by_ranking(scored, replace(weights, streams={"acoustic": 1.0, "graph": step}))
        assert curve.errors[np.searchsorted(curve.corners, step)] == expected


def test_share_curves_are_the_errors_of_ranking():
    scored = make_scored_lists(12)
    rng = np.random.default_rng(0)
    shares = (0.25, 0.0, 0.5, 1.0)
    log_probs = [rng.normal(0, 3, (len(shares), len(item.words))) for item in scored]
    choices = tuple(MixtureChoice((1 - share, share)) for share in shares)
    others = tuple(MixtureChoice(choice.shares, 0.1) for choice in choices)
    more = [np.concatenate([rows, rows + 1.0]) for rows in log_probs]
    mixture = MixtureScores((*choices, *others), more, ("ngram", "neural"))
    folds = [replace(WEIGHTS, mixture={"ngram": 0.5, "neural": 0.5})]
    (curve,) = describe_share_curves(scored, WEIGHTS, folds, mixture)
    assert (curve.model, curve.chosen, curve.fold_values) == ("neural", 0.25, (0.5,))
    assert curve.values == tuple(sorted(shares))
    for value, errors in zip(curve.values, curve.errors, strict=True):
        assert errors == count_by_ranking(mixture.apply(scored, shares.index(value)), WEIGHTS)
    picture = draw_share_curve(curve, 100, "WER")
    assert "λ of neural = 0.5" in picture
    assert "The folds chose 0.5 to 0.5." in picture
    assert describe_share_curves(scored, replace(WEIGHTS, lm={}), folds, mixture) == ()

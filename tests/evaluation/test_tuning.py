"""Exact line search and weight tuning against brute force, and leave-one-group-out cross-validation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.evaluation.error_rate.oracle import evaluate_list
from rescorer.evaluation.tuning.line_search import compute_error_curve
from rescorer.evaluation.tuning.search import (
    TuningList,
    TuningSettings,
    choose_best,
    leave_one_group_out,
    tune,
)
from rescorer.formats.field_map import parse_field_map
from rescorer.formats.nbest.jsonlines import read_lists
from rescorer.formats.nist.references import read_groups

SMALL = st.integers(-3, 3)
PLAIN = TuningSettings(move_penalty=0.0, restarts=0)


def count_one_by_one(lists: list[TuningList], weights: list[float]) -> int:
    """Slow reference implementation: rank each list and add up the errors of its top hypothesis."""
    total = 0
    for item in lists:
        scores = [sum(w * c for w, c in zip(weights, row, strict=True)) for row in item.components.tolist()]
        total += int(item.errors[max(range(len(scores)), key=lambda h: (round(scores[h], 4), -h))])
    return total


@st.composite
def tuning_lists(draw, weights: int = 2) -> list[TuningList]:
    lists = []
    for _ in range(draw(st.integers(1, 5))):
        rows = st.lists(SMALL, min_size=weights, max_size=weights)
        components = draw(st.lists(rows, min_size=1, max_size=6))
        errors = draw(st.lists(st.integers(0, 9), min_size=len(components), max_size=len(components)))
        lists.append(TuningList(np.array(components, dtype=float), np.array(errors)))
    return lists


@given(tuning_lists(), st.lists(st.floats(-10, 10), max_size=5))
def test_error_curve_matches_brute_force_between_corners(lists, steps):
    longest = max(len(item.errors) for item in lists)
    rows = [[h if h < len(item.errors) else 0 for h in range(longest)] for item in lists]
    intercepts, slopes = np.stack(
        [item.components[index] for item, index in zip(lists, rows, strict=True)]
    ).transpose(2, 0, 1)
    errors = np.stack([item.errors[index] for item, index in zip(lists, rows, strict=True)])
    curve = compute_error_curve(intercepts, slopes, errors)
    assert (np.diff(curve.corners) > 0).all()
    ends = [-100.0, *curve.corners, 100.0]
    middles = [(left + right) / 2 for left, right in pairwise(ends) if right - left > 1e-6]
    for step in middles + [s for s in steps if (np.abs(curve.corners - s) > 1e-3).all()]:
        assert curve.at(step) == count_one_by_one(lists, [1.0, step])


@given(tuning_lists(), st.sampled_from([-2.0, 0.0, 0.5]))
def test_tuning_one_weight_is_at_least_as_good_as_a_grid(lists, start):
    tuned = tune(lists, [1.0, start], PLAIN)
    assert tuned.errors == count_one_by_one(lists, list(tuned.weights))
    assert tuned.start_errors == count_one_by_one(lists, [1.0, start])
    assert tuned.errors <= min(
        count_one_by_one(lists, [1.0, value]) for value in np.linspace(-8, 8, 97) + 0.01
    )


@given(tuning_lists(weights=3), st.integers(0, 99))
def test_tuning_never_adds_errors_and_keeps_the_first_weight(lists, seed):
    tuned = tune(lists, [1.0, 0.5, 0.0], TuningSettings(move_penalty=0.1, restarts=1, seed=seed))
    assert tuned.weights[0] == 1.0
    assert tuned.errors == count_one_by_one(lists, list(tuned.weights)) <= tuned.start_errors
    assert tuned == tune(lists, [1.0, 0.5, 0.0], TuningSettings(move_penalty=0.1, restarts=1, seed=seed))


@given(tuning_lists(weights=3))
def test_keeps_weights_if_moving_does_not_pay(lists):
    start = (1.0, 0.5, 0.0)
    tuned = tune(lists, start, TuningSettings(move_penalty=1e9))
    saved = tuned.start_errors - tuned.errors
    assert tuned.weights == start or saved > 0
    assert np.abs(np.subtract(tuned.weights, start)).max() < 0.1


@given(tuning_lists(weights=3))
def test_keeps_bounds_and_fixed_weights(lists):
    settings = replace(PLAIN, bounds=((0, 9), (0, 1), (-1, 1)), free=(1,), restarts=3)
    tuned = tune(lists, [1.0, 0.5, -1.0], settings)
    assert (tuned.weights[0], tuned.weights[2]) == (1.0, -1.0)
    assert 0 <= tuned.weights[1] <= 1


def pair(lm_gain: float, errors: tuple[int, int]) -> TuningList:
    """Two hypotheses: the first scores 1 more, the second has the better language-model score."""
    return TuningList(np.array([[0.0, 0.0], [-1.0, lm_gain]]), np.array(errors))


def test_takes_the_middle_of_the_best_interval():
    # The second hypothesis wins from weight 1 in the first list and from weight 3 in the other.
    assert tune([pair(1.0, (1, 0)), pair(1 / 3, (0, 1))], [1.0, 0.0], PLAIN).weights[1] == pytest.approx(2.0)


def test_keeps_the_weight_of_a_constant_component():
    lists = [TuningList(np.array([[0.0, 7.0], [-1.0, 7.0]]), np.array([1, 0]))]
    assert tune(lists, [1.0, 0.3]).weights == (1.0, 0.3)


def test_ties_go_to_the_first_hypothesis():
    assert choose_best(np.array([[[1.0], [1.00001], [1.0]]]), [1.0]).tolist() == [0]


def test_evaluates_each_group_with_weights_tuned_without_it():
    lists = [pair(1.0, (1, 0)), pair(1 / 3, (1, 0)), pair(1.0, (0, 5))]
    groups = ["s1", "s2", "s3"]
    result = leave_one_group_out(lists, groups, [1.0, 0.0], PLAIN)
    assert [fold.group for fold in result.folds] == groups
    assert [fold.lists for fold in result.folds] == [(0,), (1,), (2,)]
    for fold in result.folds:
        rest = [item for item, group in zip(lists, groups, strict=True) if group != fold.group]
        held_out = [item for item, group in zip(lists, groups, strict=True) if group == fold.group]
        assert fold.errors == count_one_by_one(held_out, list(fold.weights))
        assert count_one_by_one(rest, list(fold.weights)) == tune(rest, [1.0, 0.0], PLAIN).errors
    assert result.errors == sum(item.errors[h] for item, h in zip(lists, result.chosen, strict=True))
    assert result.start_errors == 2


def test_held_out_errors_do_not_influence_their_weights():
    lists = [pair(1.0, (1, 0)), pair(1 / 3, (1, 0)), pair(1.0, (0, 5))]
    changed = [*lists[:2], replace(lists[2], errors=np.array([9, 0]))]
    before, after = (
        leave_one_group_out(variant, ["a", "b", "c"], [1.0, 0.0], PLAIN) for variant in (lists, changed)
    )
    assert before.folds[2].weights == after.folds[2].weights
    assert before.folds[0].weights != after.folds[0].weights


def test_holds_out_lists_that_share_a_sentence():
    lists = [pair(1.0, (1, 0)), pair(1.0, (1, 0)), pair(1.0, (0, 1))]
    apart = leave_one_group_out(lists, ["a", "b", "c"], [1.0, 0.0], PLAIN, sentences=["x", "x", "y"])
    assert apart.folds[0].weights == tune(lists[2:], [1.0, 0.0], PLAIN).weights
    with pytest.raises(ConfigError, match="no lists are left to tune on without group 'a'"):
        leave_one_group_out(lists, ["a", "b", "c"], [1.0, 0.0], PLAIN, sentences=["x", "x", "x"])


@pytest.mark.parametrize(
    ("lists", "start", "settings", "message"),
    [
        ([], [1.0], PLAIN, "no lists to tune on"),
        ([pair(1.0, (0, 1))], [1.0], PLAIN, r"list 0: components \(2, 2\), errors \(2,\); expected \(N, 1\)"),
        ([pair(np.nan, (0, 1))], [1.0, 0.0], PLAIN, "list 0: components are not all finite"),
        ([pair(1.0, (0, 1))], [1.0, 0.0], TuningSettings(free=(2,)), "expected indices below 2"),
        ([pair(1.0, (0, 1))], [1.0, 0.0], TuningSettings(bounds=((0, 1),)), "1 bounds for 2 weights"),
        (
            [pair(1.0, (0, 1))],
            [1.0, 0.0],
            TuningSettings(bounds=((0, 1), (1, 2))),
            "0.0 is outside its bounds",
        ),
    ],
)
def test_rejects_invalid_input(lists, start, settings, message):
    with pytest.raises(ConfigError, match=message):
        tune(lists, start, settings)


@given(tuning_lists(), st.data())
def test_result_does_not_depend_on_the_order_of_lists(lists, data):
    shuffled = data.draw(st.permutations(lists))
    assert tune(lists, [1.0, 0.5], PLAIN).errors == tune(shuffled, [1.0, 0.5], PLAIN).errors


@pytest.mark.data
def test_tunes_the_first_pass_of_real_lists(data_dir):
    folder = data_dir / "nbest" / "read-speech"
    names = parse_field_map(["hypotheses=hyps,reference=ref"], ["am=am", "lm=lm"])
    nbests = list(
        read_lists(
            folder / "pocketsphinx-100best.jsonl.gz", names, read_groups(folder / "utterances.json").get
        )
    )
    lists = []
    for nbest in nbests:
        lengths = [len(hypothesis.text.split()) for hypothesis in nbest.hypotheses]
        components = np.array([nbest.streams["am"], nbest.streams["lm"], lengths]).T
        counts = evaluate_list(nbest, lambda text: tuple(text.split())).hypotheses
        lists.append(TuningList(components, np.array([errors.errors for errors in counts])))
    groups, sentences = [nbest.group for nbest in nbests], [nbest.reference for nbest in nbests]
    recogniser, acoustic = (1.0, 9.5, -0.6296), (1.0, 0.0, 0.0)
    assert count_one_by_one(lists, list(recogniser)) == 835  # 46.06 % of 1813 words
    assert count_one_by_one(lists, list(acoustic)) == 988  # 54.50 %
    held_out = leave_one_group_out(lists, groups, acoustic, sentences=sentences)
    assert tune(lists, acoustic).errors < held_out.errors < 0.87 * held_out.start_errors

"""Priors from lists of another kind: they help where lists are few, and learn nothing of held-out lists."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rescorer.evaluation.folds import make_folds
from rescorer_training.reranker.arrays import (
    START,
    START_EMPTY_OUT,
    Candidate,
    TrainingArrays,
    make_arrays,
    make_candidates,
)
from rescorer_training.reranker.fitting import ListKeys, NestedTraining, PriorLists

N_MODELS = 40
FEATURES = ("total", "score:own", *(f"score:m{number}" for number in range(N_MODELS)))
SETS = {START: ("total",), START_EMPTY_OUT: ("total",), "all": FEATURES}
PRIOR_SETS = {name: tuple(part for part in parts if part != "score:own") for name, parts in SETS.items()}
WEIGHTS = np.array([0.3, 1.0, *[0.5, -0.5] * (N_MODELS // 2)])
LENGTH = 6


def draw_arrays(n_lists: int, seed: int, sets=SETS, scales=1.0) -> TrainingArrays:
    """Lists whose errors follow from all features, of which some are weighed against each other."""
    random = np.random.default_rng(seed)
    matrices = [random.normal(size=(LENGTH, len(FEATURES))) for _ in range(n_lists)]
    errors = [np.round(8 - x @ WEIGHTS + random.normal(scale=3, size=LENGTH)).clip(0) for x in matrices]
    columns = [FEATURES.index(name) for name in sets["all"]]
    empty = [np.zeros(LENGTH, dtype=bool)] * n_lists
    return make_arrays(sets["all"], [scales * x[:, columns] for x in matrices], errors, empty)


def make_keys(name: str, n_lists: int, n_groups: int = 5) -> ListKeys:
    numbers = range(n_lists)
    return ListKeys(
        [f"{name}{i}" for i in numbers],
        [f"g{i % n_groups}" for i in numbers],
        [f"{name} {i}" for i in numbers],
    )


def make_training(arrays: TrainingArrays, prior: PriorLists | None) -> NestedTraining:
    keys = make_keys("a", arrays.n_lists)
    folds = make_folds(keys.ids, keys.groups, keys.ids)
    candidates = make_candidates(SETS, arrays.n_lists, has_prior_lists=prior is not None)[::2]
    return NestedTraining(arrays, folds, SETS, candidates, prior_lists=prior)


def make_prior(n_lists: int, others: TrainingArrays, **changes) -> PriorLists:
    arrays = draw_arrays(n_lists, 1, PRIOR_SETS, scales=5.0)
    keys = make_keys("b", n_lists)._replace(**changes)
    return PriorLists(arrays, PRIOR_SETS, keys, make_keys("a", others.n_lists))


NO_GROUPS = {"groups": [""] * 300}


def test_helps_where_lists_are_few():
    arrays, new = draw_arrays(20, 10), draw_arrays(500, 2)
    errors = {}
    for name, prior in (("base", None), ("prior lists", make_prior(300, arrays, **NO_GROUPS))):
        training = make_training(arrays, prior)
        candidate = training.choose(np.arange(20))
        assert candidate.from_prior_lists == (prior is not None)
        new_errors = new.list_errors(training.fit_all(candidate).score(new)).sum()
        errors[name] = np.array([training.cross_validate().errors.sum(), new_errors])
    assert (errors["prior lists"] < 0.95 * errors["base"]).all()


def test_features_that_the_prior_lists_lack_keep_their_prior():
    arrays = draw_arrays(20, 0)
    training = make_training(arrays, make_prior(300, arrays, **NO_GROUPS))
    strong = Candidate("all", "expected errors", 1e9, from_prior_lists=True)
    weights = dict(zip(FEATURES, training.fit_all(strong).ensemble.parameters["linear"][0], strict=True))
    assert weights["score:own"] == pytest.approx(0.0, abs=1e-6)
    assert np.sign([weights[f"score:m{number}"] for number in range(N_MODELS)]).tolist() == [1, -1] * (
        N_MODELS // 2
    )
    assert arrays.spread(training.fit_all(strong).score(arrays)) == pytest.approx(1.0)
    without = make_training(arrays, None).fit_all(replace(strong, from_prior_lists=False))
    np.testing.assert_allclose(
        without.ensemble.parameters["linear"][0], [1.0, *[0.0] * (len(FEATURES) - 1)], atol=1e-6
    )


@pytest.mark.parametrize("shared", ["ids", "groups", "references"])
def test_prior_lists_teach_nothing_of_held_out_lists(shared):
    arrays = draw_arrays(25, 0)
    keys = make_keys("a", 25)
    values = list(getattr(keys, shared)) * 12
    changes = {"groups": [""] * 300} | {shared: values}
    prior = make_prior(300, arrays, **changes)
    fold = make_training(arrays, prior).folds.fold
    held_out = np.flatnonzero(fold == 0)
    is_leak = np.isin(values, np.array(getattr(keys, shared))[held_out])
    assert 0 < is_leak.sum() < 280
    errors = np.where(np.repeat(is_leak, LENGTH), 9.0 - prior.arrays.errors, prior.arrays.errors)
    changed = replace(prior, arrays=replace(prior.arrays, errors=errors))
    rows = np.repeat(fold == 0, LENGTH)
    before, after = (make_training(arrays, part).cross_validate() for part in (prior, changed))
    assert before.chosen[0] == after.chosen[0]
    np.testing.assert_array_equal(before.scores[rows], after.scores[rows])
    candidate = Candidate("all", "expected errors", from_prior_lists=True)
    before, after = (
        make_training(arrays, part).cross_validate_candidate(candidate) for part in (prior, changed)
    )
    np.testing.assert_array_equal(before.scores[rows], after.scores[rows])
    assert not np.allclose(before.scores[~rows], after.scores[~rows])


def test_the_prior_is_that_of_the_base_weights_where_few_prior_lists_remain():
    arrays = draw_arrays(20, 0)
    training = make_training(arrays, make_prior(19, arrays, groups=[""] * 19))
    with_prior, without = (
        training.fit_all(Candidate("all", from_prior_lists=choice)).ensemble.parameters["linear"]
        for choice in (True, False)
    )
    np.testing.assert_array_equal(with_prior, without)


labels = st.lists(st.tuples(*[st.sampled_from(["", "x", "y", "z"])] * 3), min_size=1, max_size=8)


@given(labels, labels, st.data())
def test_allowed_lists_are_those_that_share_nothing_with_held_out_ones(own, others, data):
    used = data.draw(st.sets(st.sampled_from(range(len(others)))))
    prior = PriorLists(
        draw_arrays(1, 0),
        SETS,
        ListKeys(*(list(part) for part in zip(*own, strict=True))),
        ListKeys(*(list(part) for part in zip(*others, strict=True))),
    )
    held_out = [keys for index, keys in enumerate(others) if index not in used]
    expected = [
        index
        for index, keys in enumerate(own)
        if not any(a and a == b for other in held_out for a, b in zip(keys, other, strict=True))
    ]
    assert prior.find_allowed(np.array(sorted(used), dtype=np.int64)).tolist() == expected

"""Transformers over lists: training agrees with the runtime, follows the seed, and learns more than lines."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.evaluation.folds import make_folds
from rescorer.reranking.networks import TransformerSizes
from rescorer_training.reranker import fitting
from rescorer_training.reranker.arrays import (
    OBJECTIVES,
    START,
    START_EMPTY_OUT,
    Candidate,
    TrainingArrays,
    make_arrays,
)
from rescorer_training.reranker.fitting import (
    Fitted,
    NestedTraining,
    fit,
    fit_transformer,
    linear_parameters,
    make_batches,
    make_transformer_ensemble,
    score_batch,
)
from tests.support.tiny_rerankers import random_ensemble

FEATURES = ("total", "tone")


@st.composite
def problems(draw):
    """Transformers with random parameters, and some lists of 1 to 5 hypotheses."""
    heads = draw(st.integers(1, 2))
    sizes = TransformerSizes(
        draw(st.integers(1, 4)), 0, draw(st.integers(1, 2)), heads * draw(st.integers(1, 3)), heads, 3
    )
    random = np.random.default_rng(draw(st.integers(0, 99)))
    ensemble = random_ensemble(sizes, members=1, random=random)
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    lists = [random.normal(size=(n, sizes.features)) for n in lengths]
    return ensemble, lists, random


def pad(lists, longest):
    padded = np.full((len(lists), longest, lists[0].shape[1]), 7.0)  # what stands there must not count
    for row, part in zip(padded, lists, strict=True):
        row[: len(part)] = part
    return torch.from_numpy(padded), torch.arange(longest) < torch.tensor([[len(part)] for part in lists])


@given(problems())
def test_training_and_runtime_compute_the_same_scores(problem):
    ensemble, lists, _ = problem
    parameters = {name: torch.from_numpy(values[0]) for name, values in ensemble.parameters.items()}
    inputs, is_present = pad(lists, 6)
    scores = score_batch(parameters, inputs, is_present, ensemble.sizes.heads)
    for row, mask, part in zip(scores, is_present, lists, strict=True):
        np.testing.assert_allclose(row[mask].numpy(), ensemble.score(part), rtol=1e-9, atol=1e-9)


@given(problems())
def test_scores_follow_their_hypotheses(problem):
    ensemble, lists, random = problem
    parameters = {name: torch.from_numpy(values[0]) for name, values in ensemble.parameters.items()}
    inputs, is_present = pad(lists, 5)
    order = random.permutation(5)
    scores = score_batch(parameters, inputs, is_present, ensemble.sizes.heads)
    found = score_batch(parameters, inputs[:, order], is_present[:, order], ensemble.sizes.heads)
    torch.testing.assert_close(found[is_present[:, order]], scores[:, order][is_present[:, order]])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradients_are_those_of_the_loss(objective):
    random = np.random.default_rng(0)
    arrays = make_lists(random, 6)
    (batch,) = make_batches(arrays, objective, random)
    sizes = TransformerSizes(2, 0, 1, 4, 2, 3)
    drawn = fitting.draw_transformer(sizes, random.normal(size=2), random)
    parameters = {name: values.detach().double() for name, values in drawn.items()}
    parameters["output"] = torch.from_numpy(random.normal(size=4))
    inputs = batch.inputs.double()

    def loss(values, name):
        scores = score_batch({**parameters, name: values}, inputs, batch.is_present, 2)
        return scores[batch.is_present]

    for name, values in parameters.items():
        leaf = values.clone().requires_grad_()
        scores = loss(leaf, name)
        scores.backward(torch.from_numpy(batch.loss(scores.detach().numpy())[1]))
        move = torch.from_numpy(random.normal(size=values.shape)) * 1e-5
        ahead, behind = (batch.loss(loss(values + s * move, name).numpy())[0] for s in (1, -1))
        assert float((leaf.grad * move).sum()) == pytest.approx((ahead - behind) / 2, rel=1e-4, abs=1e-12)


def make_lists(random: np.random.Generator, n_lists: int = 240) -> TrainingArrays:
    """Lists in which the middle tone is right, which no weights of the features know."""
    matrices, errors = [], []
    for _ in range(n_lists):
        n = int(random.integers(3, 7))
        tone = random.permutation(n) - (n - 1) / 2
        matrices.append(np.stack([random.normal(size=n), tone], axis=1))
        errors.append(np.abs(tone))
    return make_arrays(FEATURES, matrices, errors, [np.zeros(len(part), dtype=bool) for part in matrices])


SETS = {START: ("total",), START_EMPTY_OUT: ("total", "empty"), "all": FEATURES}
CANDIDATE = Candidate("all", "expected errors", 0.1, n_layers=1, members=2)


def make_training(seed: int = 0) -> NestedTraining:
    arrays = make_lists(np.random.default_rng(1), 60)
    ids = [str(number) for number in range(arrays.n_lists)]
    return NestedTraining(arrays, make_folds(ids, [""] * len(ids), ids), SETS, (), seed)


def test_learns_from_the_list_what_linear_networks_cannot(monkeypatch):
    monkeypatch.setattr(fitting, "N_EPOCHS", 40)
    monkeypatch.setattr(fitting, "LEARNING_RATE", 1e-2)
    monkeypatch.setattr(fitting, "NETWORK_STRENGTH", 0.1)
    arrays = make_lists(np.random.default_rng(1))
    training, held_out = arrays.select(np.arange(160)), arrays.select(np.arange(160, 240))
    prior = np.array([1.0, 0.0])
    linear = fit(training, "expected errors", 0.1, prior, linear_parameters(prior)).linear
    fitted = fit_transformer(training, "expected errors", 0.1, prior, linear, 1, 0)
    found = Fitted(FEATURES, make_transformer_ensemble([fitted])).score(held_out)
    assert held_out.list_errors(found).sum() < 0.6 * held_out.list_errors(held_out.x @ linear).sum()


def test_follows_the_seed_and_leaves_torch_as_it_was():
    state, n_threads = torch.random.get_rng_state(), torch.get_num_threads()
    one, same, other = (make_training(seed).fit_all(CANDIDATE).ensemble.parameters for seed in (3, 3, 4))
    for name in one:
        np.testing.assert_array_equal(one[name], same[name])
    assert not np.array_equal(one["input"], other["input"])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.get_num_threads() == n_threads


def test_strong_penalties_keep_it_at_the_prior(monkeypatch):
    monkeypatch.setattr(fitting, "N_EPOCHS", 200)
    monkeypatch.setattr(fitting, "NETWORK_STRENGTH", 1e4)
    prior = np.array([1.0, 0.5])
    fitted = fit_transformer(make_training().arrays, "expected errors", 1e4, prior, prior + 0.1, 1, 0)
    np.testing.assert_allclose(fitted["linear"], prior, atol=0.02)
    assert np.abs(fitted["output"]).max() < 0.02


def test_long_lists_come_in_small_batches(monkeypatch):
    arrays = make_lists(np.random.default_rng(0), 20)
    monkeypatch.setattr(fitting, "MAX_BATCH_CELLS", 4 * 36)
    batches = make_batches(arrays, "pairwise", np.random.default_rng(0))
    assert max(len(batch.inputs) for batch in batches) == 4
    assert sum(int(batch.is_present.sum()) for batch in batches) == len(arrays.errors)


def test_refuses_sizes_beyond_those_of_the_runtime():
    arrays = make_training().arrays
    with pytest.raises(ConfigError, match="9 layers; expected 1 to 4"):
        fit_transformer(arrays, "pairwise", 1.0, np.zeros(2), np.zeros(2), 9, 0)

"""Transformers over a list: scores agree with their definition, and follow hypotheses that change places."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from rescorer.errors import ConfigError, LimitExceeded
from rescorer.reranking import networks
from rescorer.reranking.networks import Ensemble, TransformerSizes
from tests.support.tiny_rerankers import random_ensemble


@st.composite
def problems(draw):
    """An ensemble, and the inputs of a list."""
    heads = draw(st.sampled_from([1, 2, 3]))
    sizes = TransformerSizes(
        features=draw(st.integers(1, 4)),
        encoding=draw(st.integers(0, 3)),
        layers=draw(st.integers(1, 3)),
        width=heads * draw(st.integers(1, 3)),
        heads=heads,
        units=draw(st.integers(1, 5)),
    )
    random = np.random.default_rng(draw(st.integers(0, 99)))
    n = draw(st.integers(1, 7))
    ensemble = random_ensemble(sizes, members=draw(st.integers(1, 3)), random=random)
    encoding = random.normal(size=(n, sizes.encoding)) if sizes.encoding else None
    return ensemble, random.normal(size=(n, sizes.features)), encoding


def slow_score(ensemble, x, encoding):
    """The score by torch's own layers, member by member, and head by head."""
    sizes, scores = ensemble.sizes, []
    for member in range(ensemble.members):
        p = {name: torch.from_numpy(values[member]) for name, values in ensemble.parameters.items()}
        inputs = torch.from_numpy(x if encoding is None else np.hstack([x, encoding]))
        norm = functional.layer_norm
        z = inputs @ p["input"] + p["input_bias"]
        for layer in range(sizes.layers):
            projected = norm(z, z.shape[1:]) @ p["attention"][layer] + p["attention_bias"][layer]
            queries, keys, values = (part.chunk(sizes.heads, dim=1) for part in projected.chunk(3, dim=1))
            heads = []
            for q, k, v in zip(queries, keys, values, strict=True):
                rows = [torch.softmax(one @ k.T / len(one) ** 0.5, 0) @ v for one in q]
                heads.append(torch.stack(rows))
            mixed = torch.cat(heads, dim=1)
            z = z + mixed @ p["attention_output"][layer] + p["attention_output_bias"][layer]
            hidden = norm(z, z.shape[1:]) @ p["hidden"][layer] + p["hidden_bias"][layer]
            hidden = functional.gelu(hidden, approximate="tanh")
            z = z + hidden @ p["hidden_output"][layer] + p["hidden_output_bias"][layer]
        scores.append(inputs @ p["linear"] + norm(z, z.shape[1:]) @ p["output"])
    return torch.stack(scores).mean(dim=0).numpy()


@given(problems())
def test_scores_agree_with_their_definition(problem):
    np.testing.assert_allclose(problem[0].score(*problem[1:]), slow_score(*problem), rtol=1e-9, atol=1e-9)


@given(problems(), st.randoms(use_true_random=False))
def test_scores_follow_hypotheses_that_change_places(problem, random):
    ensemble, x, encoding = problem
    order = random.sample(range(len(x)), len(x))
    found = ensemble.score(x[order], None if encoding is None else encoding[order])
    np.testing.assert_allclose(found, ensemble.score(x, encoding)[order], rtol=1e-9, atol=1e-9)


@given(problems(), st.integers(1, 40))
def test_memory_is_bounded_without_other_results(problem, cells):
    expected = problem[0].score(*problem[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "MAX_CELLS", cells)
        np.testing.assert_allclose(problem[0].score(*problem[1:]), expected, rtol=1e-9, atol=1e-9)


def test_without_outputs_it_is_the_linear_reranker():
    ensemble = random_ensemble(TransformerSizes(3, 0, 1, 4, 2, 5))
    plain = Ensemble(ensemble.sizes, {**ensemble.parameters, "output": np.zeros((3, 4))})
    x = np.random.default_rng(1).normal(size=(6, 3))
    np.testing.assert_allclose(plain.score(x), x @ ensemble.parameters["linear"].mean(axis=0))


def test_refuses_lists_that_are_too_long(monkeypatch):
    ensemble = random_ensemble(TransformerSizes(1, 0, 2, 4, 2, 1))
    monkeypatch.setattr(networks, "MAX_ATTENTION_WEIGHTS", 10 * 10 * 3 * 2 * 2)
    ensemble.score(np.zeros((10, 1)))
    with pytest.raises(LimitExceeded, match="over 11 hypotheses has 1,452 attention weights"):
        ensemble.score(np.zeros((11, 1)))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 0, 1, 4, 2, 1), "0 features; expected 1 to 256"),
        ((1, 33, 1, 4, 2, 1), "33 encoding; expected 0 to 32"),
        ((1, 0, 5, 4, 2, 1), "5 layers; expected 1 to 4"),
        ((1, 0, 1, 132, 2, 1), "132 width; expected 1 to 128"),
        ((1, 0, 1, 9, 9, 1), "9 heads; expected 1 to 8"),
        ((1, 0, 1, 9, 2, 1), "width 9 with 2 heads"),
        ((1, 0, 1, 4, 2, 0), "0 units; expected 1 to 512"),
    ],
)
def test_refuses_sizes(sizes, message):
    with pytest.raises(ConfigError, match=message):
        TransformerSizes(*sizes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linear": None}, "'linear' is missing"),
        ({"input": None}, r"expected linear, input, "),
        ({"more": np.zeros(1)}, "more; expected linear"),
        ({"output": np.zeros((3, 5))}, r"output has the shape \(3, 5\); expected \(3, 4\)"),
        ({"output": np.full((3, 4), np.nan)}, "output has a parameter that is not finite"),
    ],
)
def test_refuses_parameters(change, message):
    ensemble = random_ensemble(TransformerSizes(1, 0, 1, 4, 2, 1))
    parameters = {
        name: values for name, values in (ensemble.parameters | change).items() if values is not None
    }
    with pytest.raises(ConfigError, match=message):
        Ensemble(ensemble.sizes, parameters)


def test_refuses_too_many_parameters():
    sizes = TransformerSizes(1, 0, 4, 128, 8, 512)
    parameters = {name: np.zeros(shape) for name, shape in sizes.parameter_shapes(2).items()}
    with pytest.raises(ConfigError, match="parameters; expected at most 1,048,576"):
        Ensemble(sizes, parameters)

"""Fast matrix products and activations, compared with torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from rescorer.errors import ConfigError
from rescorer.models import kernels
from rescorer.models.kernels import (
    COARSE_STEPS,
    FINE_STEPS,
    MIN_ROWS,
    MIN_SLICE_ROWS,
    int8_linear,
    is_int8_exact,
    is_onednn_exact,
    linear,
    padded_row_count,
    quantise_matrix,
)
from rescorer.models.networks import tanh_
from rescorer.models.neural import NeuralLanguageModel
from rescorer.trie import build_trie
from tests.support.tiny_models import random_network


@pytest.mark.parametrize("rows", [1, MIN_SLICE_ROWS, 301])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_equals_torch_linear(rows, with_bias):
    x, weight, bias = torch.randn(rows, 200), torch.randn(70, 200), torch.randn(70) if with_bias else None
    with torch.inference_mode():
        whole = linear(x, weight, bias)
        part = linear(x[:, 20:120], weight[:, 20:120])  # not contiguous
        sequences = linear(torch.stack([x, x + 1]), weight, bias)
    torch.testing.assert_close(whole, functional.linear(x, weight, bias), atol=1e-4, rtol=0)
    torch.testing.assert_close(sequences[1], functional.linear(x + 1, weight, bias), atol=1e-3, rtol=0)
    torch.testing.assert_close(part, functional.linear(x[:, 20:120], weight[:, 20:120]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_rows_give_no_rows(dtype):
    """Multiply an empty batch: the cache may have all contexts of a chunk."""
    weight = nn.Parameter(torch.randn(70, 200).to(dtype), requires_grad=False)
    with torch.inference_mode():
        assert linear(torch.empty(0, 200), weight).shape == (0, 70)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_reorders_a_parameter_once_per_version(rows, monkeypatch):
    monkeypatch.setattr(kernels, "MIN_MULTIPLICATIONS", 0)
    x, weight = torch.randn(rows, 200), nn.Parameter(torch.randn(70, 200), requires_grad=False)
    for _ in range(2):
        with torch.inference_mode():
            torch.testing.assert_close(linear(x, weight), functional.linear(x, weight), atol=1e-4, rtol=0)
            assert kernels.reorder_weight(weight) is kernels.reorder_weight(weight)
        with torch.no_grad():
            weight.add_(1)


def test_does_not_reorder_parameters_in_training(monkeypatch):
    """Fused optimisers change parameters without changing their version."""
    monkeypatch.setattr(kernels, "MIN_MULTIPLICATIONS", 0)
    x, weight = torch.randn(40, 200), nn.Parameter(torch.randn(70, 200))
    optimiser = torch.optim.AdamW([weight], fused=True)
    for _ in range(3):
        linear(x, weight).sum().backward()
        optimiser.step()
        with torch.no_grad():
            torch.testing.assert_close(linear(x, weight), functional.linear(x, weight), atol=1e-4, rtol=0)


def test_leaves_gradients_and_other_types_to_torch():
    x, weight = torch.randn(MIN_SLICE_ROWS, 8, requires_grad=True), torch.randn(3, 8)
    linear(x, weight).sum().backward()
    assert x.grad is not None
    with torch.inference_mode():
        assert linear(x.double(), weight.double()).dtype == torch.float64


@pytest.mark.parametrize("inexact", [lambda x, w, b: functional.linear(x.bfloat16(), w.bfloat16()), None])
def test_falls_back_to_torch_if_onednn_is_inexact_or_missing(inexact, monkeypatch):
    def missing(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise AttributeError

    monkeypatch.setattr(kernels, "_onednn_linear", inexact or missing)
    is_onednn_exact.cache_clear()
    try:
        assert not is_onednn_exact()
        x, weight = torch.randn(MIN_SLICE_ROWS, 8), torch.randn(3, 8)
        with torch.inference_mode():
            torch.testing.assert_close(linear(x, weight), functional.linear(x, weight))
    finally:
        is_onednn_exact.cache_clear()


def test_tanh_equals_torch_tanh():
    values = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([1e-8, -1e-4, 100.0, -100.0])])
    torch.testing.assert_close(tanh_(values.clone()), values.tanh(), atol=2.5e-7, rtol=0)


@pytest.mark.parametrize("kind", ["lstm", "gru", "elman"])
def test_step_equals_forward_for_many_rows(kind):
    """With enough rows for oneDNN's products."""
    model, vocabulary = random_network(kind=kind, layers=2)
    network, ids = model.network, torch.randint(0, len(vocabulary), (2 * MIN_SLICE_ROWS, 5))
    with torch.no_grad():
        whole, _ = network(ids)
        state = network.initial_state(len(ids))
        for t in range(ids.shape[1]):
            vectors, state = network.step(network.inputs(ids[:, t]), state)
            torch.testing.assert_close(vectors, whole[:, t], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["lstm", "gru", "elman", "feedforward"])
@pytest.mark.parametrize("output", ["classes", "full", "tree"])
def test_bfloat16_changes_scores_slightly(kind, output):
    """By a few hundredths of a nat per word; a model without bfloat16 matrices does not change."""
    settings = {"kind": kind, "output": output, "window": 2 if kind == "feedforward" else 0}
    settings |= {} if output == "classes" else {"class_sizes": ()}
    exact = NeuralLanguageModel(*random_network(**settings))
    rounded = NeuralLanguageModel(*random_network(**settings), dtype="bfloat16")
    trie = build_trie([("the", "cat", "sat"), ("the", "dog"), ("fast",), ()])
    difference = np.abs(exact.score(trie).log_probs - rounded.score(trie).log_probs)
    assert difference.max() < 0.2
    assert (difference.max() > 1e-6) == (kind != "feedforward" or output != "tree")
    biases = [name for name, parameter in rounded.model.named_parameters() if parameter.dim() < 2]
    assert all(rounded.model.get_parameter(name).dtype == torch.float32 for name in biases)


needs_int8 = pytest.mark.skipif(not is_int8_exact(), reason="this CPU has no exact 8-bit products")


@needs_int8
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_int8_product_is_close_and_independent_of_other_rows(rows):
    x, weight, bias = torch.tanh(torch.randn(rows, 200)), torch.randn(70, 200), torch.randn(70)
    x[0], weight[1] = 0, 0  # rows whose largest magnitude is 0
    matrix = quantise_matrix(weight)
    exact, found = functional.linear(x, weight, bias), int8_linear(x, matrix, bias)
    assert (found - exact).norm() < 0.015 * (exact - bias).norm() + 1e-6
    for row in range(0, rows, 50):
        torch.testing.assert_close(int8_linear(x[row : row + 1], matrix, bias)[0], found[row], atol=0, rtol=0)
    weight_steps = torch.round(weight / weight.abs().amax(1, keepdim=True).clamp_min(1e-20) * 127)
    x_steps = torch.floor(x / x.abs().amax(1, keepdim=True).clamp_min(1e-20) * 127 + 0.5)
    scales = x.abs().amax(1, keepdim=True) * weight.abs().amax(1) / 127**2
    torch.testing.assert_close(found, x_steps @ weight_steps.t() * scales + bias, atol=1e-4, rtol=1e-5)


@needs_int8
@pytest.mark.parametrize("bound", [1.0, 0.25, 40.0])
def test_inputs_with_a_known_bound_are_rounded_to_steps_of_it(bound):
    x, weight, bias = bound * torch.tanh(torch.randn(30, 200)), torch.randn(70, 200), torch.randn(70)
    x[0], x[1], x[2] = 0, bound, -bound
    matrix = quantise_matrix(weight, bound)
    weight_steps = torch.round(weight / weight.abs().amax(1, keepdim=True) * 127)
    x_steps = torch.floor(x / bound * 127 + 0.5)
    expected = x_steps @ weight_steps.t() * (bound / 127) * (weight.abs().amax(1) / 127)
    found = int8_linear(x, matrix, bias)
    torch.testing.assert_close(found, expected + bias, atol=2e-4 * bound, rtol=1e-5)
    torch.testing.assert_close(int8_linear(x[5:6], matrix, bias)[0], found[5], atol=0, rtol=0)
    torch.testing.assert_close(int8_linear(x, matrix), expected, atol=2e-4 * bound, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({"kind": "lstm"}, None),
        ({"kind": "gru", "gru_reset": "before", "layers": 2}, 1.0),
        ({"kind": "gru", "layers": 3, "residual": True}, None),
        ({"kind": "elman"}, 1.0),
        ({"kind": "elman", "activation": "relu"}, None),
    ],
)
def test_states_have_a_bound_unless_they_are_sums_or_stay_far_below_it(settings, bound):
    model, _ = random_network(**settings)
    assert model.network.step_bound == bound


@needs_int8
@pytest.mark.parametrize("kind", ["lstm", "gru", "elman", "feedforward"])
def test_int8_changes_scores_slightly(kind):
    settings = {"kind": kind, "window": 2 if kind == "feedforward" else 0, "layers": 2}
    exact = NeuralLanguageModel(*random_network(**settings))
    rounded = NeuralLanguageModel(*random_network(**settings), dtype="int8")
    trie = build_trie([("the", "cat", "sat"), ("the", "dog"), ("fast",), ()])
    difference = np.abs(exact.score(trie).log_probs - rounded.score(trie).log_probs)
    assert difference.max() < 0.2
    assert difference.max() > 1e-6


def test_rejects_int8_on_a_processor_whose_products_overflow(monkeypatch):
    monkeypatch.setattr("rescorer.models.kernels.is_int8_exact", lambda: False)
    with pytest.raises(ConfigError, match="dtype int8 needs a CPU with 8-bit dot products"):
        NeuralLanguageModel(*random_network(), dtype="int8")


def test_rejects_unknown_dtype():
    with pytest.raises(ConfigError, match="dtype is 'int3'; expected float32, bfloat16 or int8"):
        NeuralLanguageModel(*random_network(), dtype="int3")


@given(st.integers(0, 1 << 20), st.sampled_from([FINE_STEPS, COARSE_STEPS]))
def test_pads_to_few_row_counts_by_less_than_half(rows, steps_per_octave):
    padded = padded_row_count(rows, steps_per_octave)
    assert rows <= padded < max(MIN_ROWS + 1, (1 + 1 / steps_per_octave) * rows + 1)
    assert padded == padded_row_count(padded, steps_per_octave)
    assert padded.bit_count() <= steps_per_octave.bit_length()

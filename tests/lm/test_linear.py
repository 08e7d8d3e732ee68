"""Fast products and functions against torch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from rescorer.errors import ConfigError
from rescorer.lm import linear as products
from rescorer.lm.int8 import int8_is_sound, int8_matrix, int8_product
from rescorer.lm.linear import FEWEST_ROWS_OF_SLICES, linear, onednn_is_exact
from rescorer.lm.networks.layers import tanh_
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.row_padding import COARSE, FEWEST_ROWS, FINE, rows_to_fill
from rescorer.trie import build_trie
from tests.support.tiny_models import random_network


@pytest.mark.parametrize("rows", [1, FEWEST_ROWS_OF_SLICES, 301])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_is_torchs(rows, with_bias):
    x, weight, bias = torch.randn(rows, 200), torch.randn(70, 200), torch.randn(70) if with_bias else None
    with torch.inference_mode():
        whole = linear(x, weight, bias)
        part = linear(x[:, 20:120], weight[:, 20:120])  # not in one piece
        sequences = linear(torch.stack([x, x + 1]), weight, bias)
    torch.testing.assert_close(whole, functional.linear(x, weight, bias), atol=1e-4, rtol=0)
    torch.testing.assert_close(sequences[1], functional.linear(x + 1, weight, bias), atol=1e-3, rtol=0)
    torch.testing.assert_close(part, functional.linear(x[:, 20:120], weight[:, 20:120]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_parameter_is_put_in_order_once_and_again_when_it_changes(rows, monkeypatch):
    monkeypatch.setattr(products, "LEAST_WORK", 0)
    x, weight = torch.randn(rows, 200), nn.Parameter(torch.randn(70, 200), requires_grad=False)
    for _ in range(2):
        with torch.inference_mode():
            torch.testing.assert_close(linear(x, weight), functional.linear(x, weight), atol=1e-4, rtol=0)
            assert products.in_order(weight) is products.in_order(weight)
        with torch.no_grad():
            weight.add_(1)


def test_a_parameter_in_training_is_read_as_it_is(monkeypatch):
    """Fused optimisers change parameters without a new version."""
    monkeypatch.setattr(products, "LEAST_WORK", 0)
    x, weight = torch.randn(40, 200), nn.Parameter(torch.randn(70, 200))
    optimiser = torch.optim.AdamW([weight], fused=True)
    for _ in range(3):
        linear(x, weight).sum().backward()
        optimiser.step()
        with torch.no_grad():
            torch.testing.assert_close(linear(x, weight), functional.linear(x, weight), atol=1e-4, rtol=0)


def test_gradients_and_other_types_are_torchs():
    x, weight = torch.randn(FEWEST_ROWS_OF_SLICES, 8, requires_grad=True), torch.randn(3, 8)
    linear(x, weight).sum().backward()
    assert x.grad is not None
    with torch.inference_mode():
        assert linear(x.double(), weight.double()).dtype == torch.float64


@pytest.mark.parametrize("wrong", [lambda x, w, b: functional.linear(x.bfloat16(), w.bfloat16()), None])
def test_a_product_that_rounds_or_is_not_there_is_left_alone(wrong, monkeypatch):
    def missing(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        raise AttributeError

    monkeypatch.setattr(products, "_onednn", wrong or missing)
    onednn_is_exact.cache_clear()
    try:
        assert not onednn_is_exact()
        x, weight = torch.randn(FEWEST_ROWS_OF_SLICES, 8), torch.randn(3, 8)
        with torch.inference_mode():
            torch.testing.assert_close(linear(x, weight), functional.linear(x, weight))
    finally:
        onednn_is_exact.cache_clear()


def test_tanh_by_the_sigmoid():
    values = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([1e-8, -1e-4, 100.0, -100.0])])
    torch.testing.assert_close(tanh_(values.clone()), values.tanh(), atol=2.5e-7, rtol=0)


@pytest.mark.parametrize("kind", ["lstm", "gru", "elman"])
def test_many_rows_step_as_sequences_do(kind):
    """So many that the fast product is used."""
    model, vocabulary = random_network(kind=kind, layers=2)
    network, ids = model.network, torch.randint(0, len(vocabulary), (2 * FEWEST_ROWS_OF_SLICES, 5))
    with torch.no_grad():
        whole, _ = network(ids)
        state = network.start(len(ids))
        for t in range(ids.shape[1]):
            vectors, state = network.step(network.inputs(ids[:, t]), state)
            torch.testing.assert_close(vectors, whole[:, t], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["lstm", "gru", "elman", "feedforward"])
@pytest.mark.parametrize("output", ["classes", "full", "tree"])
def test_bfloat16_products_change_scores_a_little(kind, output):
    """By some hundredths of a nat a word; what stays in float32 not at all."""
    settings = {"kind": kind, "output": output, "window": 2 if kind == "feedforward" else 0}
    settings |= {} if output == "classes" else {"class_sizes": ()}
    settings |= {"tied": False} if output == "tree" else {}
    exact = NeuralLanguageModel(*random_network(**settings))
    narrowed = NeuralLanguageModel(*random_network(**settings), dtype="bfloat16")
    trie = build_trie([("the", "cat", "sat"), ("the", "dog"), ("fast",), ()])
    difference = np.abs(exact.score(trie).log_probs - narrowed.score(trie).log_probs)
    assert difference.max() < 0.2
    assert (difference.max() > 1e-6) == (kind != "feedforward" or output != "tree")
    biases = [name for name, each in narrowed.model.named_parameters() if each.dim() < 2]
    assert all(narrowed.model.get_parameter(name).dtype == torch.float32 for name in biases)


needs_int8 = pytest.mark.skipif(not int8_is_sound(), reason="this CPU has no exact 8-bit products")


@needs_int8
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_int8_products_are_near_and_the_same_beside_any_other_rows(rows):
    x, weight, bias = torch.tanh(torch.randn(rows, 200)), torch.randn(70, 200), torch.randn(70)
    x[0], weight[1] = 0, 0  # rows without a largest value
    matrix = int8_matrix(weight)
    exact, found = functional.linear(x, weight, bias), int8_product(x, matrix, bias)
    assert (found - exact).norm() < 0.015 * (exact - bias).norm() + 1e-6
    for row in range(0, rows, 50):
        torch.testing.assert_close(
            int8_product(x[row : row + 1], matrix, bias)[0], found[row], atol=0, rtol=0
        )
    plain = torch.round(weight / weight.abs().amax(1, keepdim=True).clamp_min(1e-20) * 127)
    steps = torch.floor(x / x.abs().amax(1, keepdim=True).clamp_min(1e-20) * 127 + 0.5)
    scales = x.abs().amax(1, keepdim=True) * weight.abs().amax(1) / 127**2
    torch.testing.assert_close(found, steps @ plain.t() * scales + bias, atol=1e-4, rtol=1e-5)


@needs_int8
@pytest.mark.parametrize("kind", ["lstm", "gru", "elman", "feedforward"])
def test_int8_changes_scores_a_little(kind):
    settings = {"kind": kind, "window": 2 if kind == "feedforward" else 0, "layers": 2}
    exact = NeuralLanguageModel(*random_network(**settings))
    rounded = NeuralLanguageModel(*random_network(**settings), dtype="int8")
    trie = build_trie([("the", "cat", "sat"), ("the", "dog"), ("fast",), ()])
    difference = np.abs(exact.score(trie).log_probs - rounded.score(trie).log_probs)
    assert difference.max() < 0.2
    assert difference.max() > 1e-6


def test_a_processor_that_overflows_is_told(monkeypatch):
    monkeypatch.setattr("rescorer.lm.int8.int8_is_sound", lambda: False)
    with pytest.raises(ConfigError, match="dtype int8 needs a CPU with 8-bit dot products"):
        NeuralLanguageModel(*random_network(), dtype="int8")


def test_an_unknown_dtype_is_refused():
    with pytest.raises(ConfigError, match="dtype is 'int3'; expected float32, bfloat16 or int8"):
        NeuralLanguageModel(*random_network(), dtype="int3")


@given(st.integers(1, 1 << 20), st.sampled_from([FINE, COARSE]))
def test_rows_are_filled_up_to_few_numbers_and_by_less_than_half(rows, an_octave):
    filled = rows_to_fill(rows, an_octave)
    assert rows <= filled < max(FEWEST_ROWS + 1, (1 + 1 / an_octave) * rows + 1)
    assert filled == rows_to_fill(filled, an_octave)
    assert filled.bit_count() <= an_octave.bit_length()

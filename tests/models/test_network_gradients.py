"""Recurrences and windows with their own gradients equal those of autograd."""

from __future__ import annotations

import pytest
import torch

from rescorer.models.networks import (
    ElmanRecurrence,
    GruRecurrence,
    GruResetFirstRecurrence,
    LstmRecurrence,
)
from tests.support.tiny_models import stable_network


def assert_same_gradients(fast, slow, inputs):
    """Compare values and gradients of two functions of the same tensors."""
    factors = torch.randn_like(slow(*inputs))
    found, expected = fast(*inputs), slow(*inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * factors).sum(), inputs),
        torch.autograd.grad((expected * factors).sum(), inputs),
    )


def random_doubles(*shapes):
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", "linear"])
@pytest.mark.parametrize("length", [1, 2, 6])
def test_elman_gradients_equal_autograd(activation, length):
    activate = {"linear": lambda x: x}.get(activation) or getattr(torch, activation)

    def slow(gates, hidden, weight):
        out = []
        for gates_t in gates:
            hidden = activate(gates_t + hidden @ weight.t())
            out.append(hidden)
        return torch.stack(out)

    def fast(gates, hidden, weight):
        return ElmanRecurrence.apply(gates, hidden, weight, activation)

    assert_same_gradients(fast, slow, random_doubles((length, 3, 5), (3, 5), (5, 5)))


@pytest.mark.parametrize("length", [1, 2, 6])
def test_lstm_equals_torch_lstm_with_gradients(length):
    def fast(gates, hidden, cell, weight):
        return torch.cat([part.flatten() for part in LstmRecurrence.apply(gates, hidden, cell, weight)])

    def slow(gates, hidden, cell, weight):
        identity, zeros = torch.eye(20, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
        before, parameters = [hidden.unsqueeze(0), cell.unsqueeze(0)], [identity, weight, zeros, zeros]
        found, _, last = torch.lstm(gates, before, parameters, True, 1, 0.0, True, False, False)
        return torch.cat([found.flatten(), last.flatten()])

    assert_same_gradients(fast, slow, random_doubles((length, 3, 20), (3, 5), (3, 5), (20, 5)))


def test_lstm_in_bfloat16_is_near_float32_with_gradients():
    model, vocabulary = stable_network(kind="lstm", embedding_size=40, hidden_size=60, layers=2)
    model.train()
    words = torch.randint(0, len(vocabulary), (4, 12))
    found, expected = (model.context_vectors(words, bfloat16=bfloat16)[0] for bfloat16 in (True, False))
    parameters = list(model.network.parameters())
    gradients = (torch.autograd.grad(vectors.square().sum(), parameters) for vectors in (found, expected))
    for value, exact in zip((found, *next(gradients)), (expected, *next(gradients)), strict=True):
        assert (value - exact).norm() <= 0.1 * exact.norm()


@pytest.mark.parametrize("length", [1, 2, 6])
def test_gru_equals_torch_gru_with_gradients(length):
    def slow(gates, hidden, weight, bias):
        identity = torch.eye(15, dtype=torch.float64)
        parameters = [identity, weight, torch.zeros(15, dtype=torch.float64), bias]
        return torch.gru(gates, hidden.unsqueeze(0), parameters, True, 1, 0.0, True, False, False)[0]

    inputs = random_doubles((length, 3, 15), (3, 5), (15, 5), (15,))
    assert_same_gradients(GruRecurrence.apply, slow, inputs)


@pytest.mark.parametrize("length", [1, 2, 6])
def test_gru_that_resets_first_equals_autograd(length):
    def slow(gates, hidden, weight):
        out = []
        for gates_t in gates:
            r, z = torch.sigmoid(gates_t[:, :10] + hidden @ weight[:10].t()).chunk(2, dim=1)
            new = torch.tanh(gates_t[:, 10:] + (r * hidden) @ weight[10:].t())
            hidden = z * hidden + (1 - z) * new
            out.append(hidden)
        return torch.stack(out)

    inputs = random_doubles((length, 3, 15), (3, 5), (15, 5))
    assert_same_gradients(GruResetFirstRecurrence.apply, slow, inputs)


def test_a_single_position_does_not_change_the_bias():
    model, _ = stable_network(kind="feedforward", window=3)
    before = model.network.bias.clone()
    with torch.no_grad():
        model.network(torch.tensor([[2]]))
    assert torch.equal(model.network.bias, before)


@pytest.mark.parametrize("kind", [{"kind": "feedforward", "layers": 2}, {"kind": "lbl"}])
def test_windowed_gradients_equal_autograd_over_unfolded_words(kind):
    model, vocabulary = stable_network(**kind, window=3)
    network = model.double().network
    words = torch.randint(0, len(vocabulary), (2, 5))

    def slow():
        seen = torch.cat([words[:, :1].expand(-1, 2), words], dim=1).unfold(1, 3, 1)  # (B, T, 3)
        summed = torch.einsum("btne,nhe->bth", network.embedding(seen), network.positions) + network.bias
        return network._vectors(summed)

    parameters = list(network.parameters())
    factors = torch.randn(2, 5, 6, dtype=torch.float64)
    found, expected = network(words)[0], slow()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad((found * factors).sum(), parameters),
        torch.autograd.grad((expected * factors).sum(), parameters),
    )

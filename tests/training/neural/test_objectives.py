"""Training objectives against their formulas, written out word by word, and their theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import ConfigError
from rescorer.models.network_files import NetworkConfig
from rescorer.models.neural import NeuralModel
from rescorer.models.outputs import ClassFactoredSoftmax, FullSoftmax
from rescorer_training.batches import Sentences
from rescorer_training.neural.optimisation import (
    MaximumLikelihood,
    NegativeSampling,
    Noise,
    NoiseContrastive,
    SampledSoftmax,
    measure_normaliser_error,
)

SAMPLED = (NoiseContrastive, NegativeSampling, SampledSoftmax)


class FixedNoise(Noise):
    """Noise that draws the given ids."""

    def __init__(self, counts, ids, power=1.0):
        super().__init__(counts, power)
        self.ids = ids

    def draw(self, *shape):
        return self.ids.view(shape)


def make_batch(n_words=7, size=5, rows=6, seed=0, scale=1.0):
    """Make an output layer tied to a larger matrix, context vectors, targets and counts, in float64."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.nn.Parameter(scale * torch.randn(n_words + 1, size, generator=generator).double())
    layer = FullSoftmax(size, n_words, weight).double()
    with torch.no_grad():
        layer.word_bias.copy_(torch.randn(n_words, generator=generator))
    hidden = torch.randn(rows, size, generator=generator).double().requires_grad_()
    words = torch.randint(n_words, (rows,), generator=generator)
    counts = torch.randint(1, 100, (n_words,), generator=generator)
    return layer, hidden, words, counts


def compute_gradients(loss, layer, hidden):
    return torch.autograd.grad(loss, [layer.word_weight, layer.word_bias, hidden])


def score(layer, hidden, row, word):
    return hidden[row] @ layer.word_weight[word] + layer.word_bias[word]


def sigmoid_loss(x):
    return -torch.log(torch.sigmoid(x))


def compute_word_by_word(kind, layer, hidden, words, noise, log_q, k, constant):
    """Compute the objective as in its paper, one position and one noise word after the other."""
    total = torch.zeros((), dtype=torch.float64)
    for row, word in enumerate(words.tolist()):
        target = score(layer, hidden, row, word)
        noise_words = noise[row].tolist()
        if kind is NoiseContrastive:
            total = total + sigmoid_loss(target - constant - (math.log(k) + log_q[word]))
            for other in noise_words:
                delta = score(layer, hidden, row, other) - constant - (math.log(k) + log_q[other])
                total = total + sigmoid_loss(-delta)
        elif kind is NegativeSampling:
            total = total + sigmoid_loss(target)
            for other in noise_words:
                if other != word:
                    total = total + sigmoid_loss(-score(layer, hidden, row, other))
        else:
            z = torch.exp(target)
            for other in noise_words:
                if other != word:
                    z = z + torch.exp(score(layer, hidden, row, other)) / (k * torch.exp(log_q[other]))
            total = total + torch.log(z) - target
    return total


@given(
    st.sampled_from(SAMPLED),
    st.booleans(),
    st.integers(1, 9),
    st.sampled_from((0.0, 0.75, 1.0)),
    st.integers(0, 999),
)
def test_loss_and_gradient_follow_the_formula(kind, per_word, k, power, seed):
    layer, hidden, words, counts = make_batch(seed=seed)
    shape = (len(words), k) if per_word else (k,)
    ids = torch.randint(len(counts), shape, generator=torch.Generator().manual_seed(seed))
    noise = FixedNoise(counts, ids, power)
    constant = {"log_normaliser": 0.7} if kind is NoiseContrastive else {}
    objective = kind(noise, k, per_word, **constant)
    loss = objective.loss(layer, hidden, words)
    noise_words = ids if per_word else ids.expand(len(words), k)
    expected = compute_word_by_word(kind, layer, hidden, words, noise_words, noise.log_probs.double(), k, 0.7)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for actual, reference in zip(
        compute_gradients(loss, layer, hidden), compute_gradients(expected, layer, hidden), strict=True
    ):
        assert torch.allclose(actual, reference, rtol=1e-5, atol=1e-7)


def test_maximum_likelihood_in_bfloat16_is_near_float32():
    layer, hidden, words, _ = make_batch()
    expected = MaximumLikelihood().loss(layer, hidden, words)
    found = MaximumLikelihood(bfloat16=True).loss(layer, hidden, words)
    assert found.item() == pytest.approx(expected.item(), rel=0.01)
    gradients = (compute_gradients(loss, layer, hidden) for loss in (found, expected))
    for value, exact in zip(*gradients, strict=True):
        assert value.dtype == exact.dtype
        assert (value - exact).norm() <= 0.05 * exact.norm()


def normalise(layer, hidden):
    """Repeat the first context vector in all rows and change the layer so that its ln Z is 0."""
    hidden = hidden.detach()[:1].expand(len(hidden), -1).clone().requires_grad_()
    with torch.no_grad():
        logits = hidden[0] @ layer.word_weight[: layer.n_words].t() + layer.word_bias
        layer.word_bias -= logits.logsumexp(0)
    return hidden


def test_noise_contrastive_gradient_approaches_maximum_likelihood():
    """Uniform noise that draws every word equally often equals its expectation."""
    layer, hidden, words, counts = make_batch()
    hidden = normalise(layer, hidden)
    exact = compute_gradients(MaximumLikelihood().loss(layer, hidden, words), layer, hidden)
    errors = []
    for times in (1, 10, 100, 1000):
        ids = torch.arange(len(counts)).repeat(times)
        objective = NoiseContrastive(FixedNoise(counts, ids, power=0.0), len(ids))
        approximate = compute_gradients(objective.loss(layer, hidden, words), layer, hidden)
        errors.append(max(float((a - b).abs().max()) for a, b in zip(approximate, exact, strict=True)))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 5e-3 < 0.5 < errors[0]
    assert errors[-2] / errors[-1] == pytest.approx(10, rel=0.1)  # the error falls as 1 / k


@pytest.mark.slow
def test_mean_loss_of_drawn_noise_equals_its_expectation():
    torch.manual_seed(1)
    layer, hidden, words, counts = make_batch()
    noise, k = Noise(counts), 4
    q = noise.log_probs.double().exp()
    scores = hidden @ layer.word_weight[: layer.n_words].t() + layer.word_bias  # (N, V)
    delta = scores - torch.log(k * q)
    target = delta.gather(1, words.unsqueeze(1))
    expected = sigmoid_loss(target).sum() + (k * q * sigmoid_loss(-delta)).sum()
    drawn = torch.stack([NoiseContrastive(noise, k).loss(layer, hidden, words) for _ in range(4000)])
    assert drawn.mean().item() == pytest.approx(expected.item(), abs=4 * drawn.std().item() / 4000**0.5)


def test_sampled_softmax_is_unbiased_and_approaches_the_softmax():
    torch.manual_seed(1)
    layer, hidden, words, counts = make_batch(rows=1)
    noise = Noise(counts)
    scores = hidden[0] @ layer.word_weight[: layer.n_words].t() + layer.word_bias
    exact = MaximumLikelihood().loss(layer, hidden, words).item()
    losses = [
        SampledSoftmax(FixedNoise(counts, torch.tensor([w])), 1).loss(layer, hidden, words).item()
        for w in range(len(counts))
    ]
    q = noise.log_probs.double().exp()
    z = ((q * torch.tensor(losses).double().exp()).sum() * scores[words[0]].exp()).item()
    assert math.log(z) == pytest.approx(scores.logsumexp(0).item(), abs=1e-6)  # E[Ẑ] = Z, k = 1 enumerated
    means = []
    for k in (1, 10, 1000):
        drawn = torch.stack([SampledSoftmax(noise, k).loss(layer, hidden, words) for _ in range(500)])
        means.append(drawn.mean().item())
    assert means == sorted(means)  # a lower bound that tightens with k
    assert means[-1] == pytest.approx(exact, abs=0.01)


def test_noise_contrastive_estimation_learns_distribution_and_normaliser():
    torch.manual_seed(1)
    counts = torch.tensor([50.0, 30.0, 15.0, 5.0])
    layer = FullSoftmax(1, 4)
    hidden, words = torch.zeros(100, 1), torch.repeat_interleave(torch.arange(4), counts.long())
    objective = NoiseContrastive(Noise(counts, power=0.5), samples=50)
    for _ in range(800):
        (gradient,) = torch.autograd.grad(objective.loss(layer, hidden, words), layer.word_bias)
        with torch.no_grad():
            layer.word_bias -= 0.005 * gradient
    assert torch.allclose(layer.word_bias.exp(), counts / 100, atol=0.03)
    assert layer.word_bias.logsumexp(0).item() == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("kind", SAMPLED)
@pytest.mark.parametrize("scale", [1e3, 1e18])
def test_extreme_scores_stay_finite(kind, scale):
    layer, hidden, words, counts = make_batch(scale=scale)
    layer, hidden = layer.float(), hidden.detach().float().requires_grad_()
    loss = kind(Noise(counts), 8).loss(layer, hidden, words)
    assert torch.isfinite(loss)
    assert all(torch.isfinite(gradient).all() for gradient in compute_gradients(loss, layer, hidden))


def test_noise_equal_to_the_target():
    layer, hidden, _, counts = make_batch(rows=3)
    words, noise = torch.full((3,), 2), FixedNoise(counts, torch.tensor([2, 2]))
    log_kq = math.log(2) + noise.log_probs[2]
    target = torch.stack([score(layer, hidden, row, 2) for row in range(3)])
    assert SampledSoftmax(noise, 2).loss(layer, hidden, words).item() == pytest.approx(0.0)
    assert torch.allclose(NegativeSampling(noise, 2).loss(layer, hidden, words), sigmoid_loss(target).sum())
    both = sigmoid_loss(target - log_kq).sum() + 2 * sigmoid_loss(log_kq - target).sum()
    assert torch.allclose(NoiseContrastive(noise, 2).loss(layer, hidden, words), both)


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
def test_noise_follows_the_counts(power):
    torch.manual_seed(3)
    counts = torch.tensor([0, 1, 5, 10, 40, 200, 1000, 3, 3, 7])
    noise, n = Noise(counts, power), 200_000
    mass = np.maximum(counts.numpy(), 0.5) ** power
    expected = n * mass / mass.sum()
    assert torch.allclose(noise.log_probs.double(), torch.from_numpy(np.log(expected / n)), atol=1e-6)
    drawn = torch.bincount(noise.draw(n // 10, 10).flatten(), minlength=len(counts)).numpy()
    assert ((drawn - expected) ** 2 / expected).sum() < 27.9  # χ², 9 degrees of freedom, 0.1 %


def test_noise_depends_on_the_global_generator_only():
    noise = Noise(torch.arange(1, 1000))
    state = torch.get_rng_state()
    first = noise.draw(50)
    torch.set_rng_state(state)
    assert torch.equal(noise.draw(50), first)


def test_rejects_invalid_noise():
    for counts in (torch.tensor([]), torch.tensor([1.0, -1.0]), torch.tensor([1.0, math.nan]), torch.eye(2)):
        with pytest.raises(ConfigError, match="count of every word"):
            Noise(counts)
    with pytest.raises(ConfigError, match="noise_power is 2"):
        Noise(torch.ones(3), power=2.0)


@pytest.mark.parametrize("kind", SAMPLED)
def test_sampled_objectives_reject_unsuitable_models(kind):
    layer, hidden, words, counts = make_batch()
    with pytest.raises(ConfigError, match="noise_samples is 0"):
        kind(Noise(counts), 0)
    with pytest.raises(ConfigError, match="noise has 3 words, but the model predicts 7"):
        kind(Noise(counts[:3])).loss(layer, hidden, words)
    classes = ClassFactoredSoftmax(5, (3, 4)).double()
    with pytest.raises(ConfigError, match="full softmax; the model has ClassFactoredSoftmax"):
        kind(Noise(counts)).loss(classes, hidden, words)


def test_normaliser_error_sums_over_all_words():
    torch.manual_seed(0)
    ids = np.array([3, 4, 5, 0, 7, 0, 9, 3, 4, 8, 2, 0], dtype=np.int32)
    text = Sentences.from_ids(ids, start_id=11, end_id=0, max_words=100)
    model = NeuralModel(NetworkConfig(12, (4, 7), embedding_size=4, hidden_size=4, dropout=0.5))
    with pytest.raises(ConfigError, match="full softmax; the model has ClassFactoredSoftmax"):
        measure_normaliser_error(model, text)
    model.output = FullSoftmax(4, 11, model.network.embedding.weight)
    with torch.no_grad():
        model.output.word_bias.normal_()
    error = measure_normaliser_error(model, text, log_normaliser=0.3)
    assert model.training  # as it was before
    model.eval()
    expected = []
    with torch.no_grad():
        for begin, length in zip(text.starts, text.lengths, strict=True):
            words = [11, *ids[begin : begin + length - 1]]
            hidden, _ = model.context_vectors(torch.tensor([words]))
            for vector in hidden[0]:
                scores = [
                    float(vector @ model.output.word_weight[w] + model.output.word_bias[w]) for w in range(11)
                ]
                expected.append(math.log(sum(math.exp(s) for s in scores)) - 0.3)
    assert error.n_words == len(expected) == 12
    assert error.mean == pytest.approx(np.mean(expected), abs=1e-5)
    assert error.deviation == pytest.approx(np.std(expected), abs=1e-5)

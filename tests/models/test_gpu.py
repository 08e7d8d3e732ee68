"""CUDA devices give the same scores as the CPU."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from rescorer.bench.models import ModelSpec, build_vocabulary
from rescorer.models.neural import NeuralLanguageModel, NeuralModel
from rescorer.pipeline import Rescorer
from rescorer.trie import Words, build_trie
from rescorer.types import Hypothesis, NBestList
from tests.support.tiny_models import NETWORK_WORDS

pytestmark = pytest.mark.gpu
KINDS = [
    ("lstm", "classes"), ("lstm", "full"), ("lstm", "tree"),
    ("gru", "classes"), ("elman", "classes"), ("feedforward", "classes"), ("lbl", "classes"),
    ("transformer", "classes"),
]  # fmt: skip


def sentences(n: int, n_words: int = 400) -> list[Words]:
    rng = np.random.default_rng(3)
    return [tuple(f"w{word}" for word in rng.integers(0, n_words, rng.integers(0, 20))) for _ in range(n)]


@pytest.mark.parametrize(("network", "output"), KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-3), ("bfloat16", 0.2)])
def test_log_probs_equal_those_of_the_cpu(network, output, dtype, tolerance):
    layers = 1 if network == "lbl" else 2
    spec = ModelSpec(network, hidden=64, layers=layers, output=output, vocabulary=500)
    words = sentences(300)
    contexts = [words[i % 5] for i in range(300)]
    torch.manual_seed(1)
    model, vocabulary = NeuralModel(spec.config()), build_vocabulary(spec, words)
    trie = build_trie(words, contexts)
    projections = {"all": np.eye(64)}
    on_cpu = NeuralLanguageModel(copy.deepcopy(model), vocabulary).score(trie, projections)
    on_gpu = NeuralLanguageModel(model, vocabulary, device="cuda", dtype=dtype)
    for _ in range(2):  # the second time with cached contexts
        found = on_gpu.score(trie, projections)
        np.testing.assert_allclose(found.encodings["all"], on_cpu.encodings["all"], atol=tolerance)
        np.testing.assert_allclose(found.log_probs, on_cpu.log_probs, atol=tolerance)
        np.testing.assert_array_equal(found.unknown, on_cpu.unknown)


def train_once(model: NeuralModel, inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
    """The loss of a batch and its gradients, copied to the CPU."""
    loss = model.loss(inputs, targets)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return [tensor.cpu() for tensor in (loss.detach(), *gradients)]


@pytest.mark.parametrize(("network", "output"), KINDS)
def test_gradients_equal_those_of_the_cpu(network, output):
    layers = 1 if network == "lbl" else 2
    spec = ModelSpec(network, hidden=64, layers=layers, output=output, vocabulary=500)
    torch.manual_seed(1)
    model = NeuralModel(spec.config())
    inputs, targets = torch.randint(0, 499, (8, 30)), torch.randint(-1, 499, (8, 30))
    expected = train_once(model, inputs, targets)
    on_gpu = train_once(copy.deepcopy(model).cuda(), inputs.cuda(), targets.cuda())
    for found, exact in zip(on_gpu, expected, strict=True):  # cuDNN multiplies with ten bits of mantissa
        assert (found - exact).norm() <= 0.01 * exact.norm()


def test_ranking_equals_that_of_the_cpu(bundle):
    texts = [" ".join(NETWORK_WORDS[: n + 1]) for n in range(8)]
    nbest = NBestList("u1", tuple(Hypothesis(text) for text in texts), {"acoustic": tuple(range(-8, 0))})
    (expected,) = Rescorer.load(bundle).rescore([nbest])
    (found,) = Rescorer.load(bundle, "cuda").rescore([nbest])
    assert [hypothesis.text for hypothesis in found.hypotheses] == [
        hypothesis.text for hypothesis in expected.hypotheses
    ]
    for on_gpu, on_cpu in zip(found.hypotheses, expected.hypotheses, strict=True):
        assert on_gpu.total == pytest.approx(on_cpu.total, abs=1e-3)

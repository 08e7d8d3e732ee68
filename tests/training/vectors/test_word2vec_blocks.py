"""Blocks of words against the original program's pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer_training.vectors import word2vec
from rescorer_training.vectors.word2vec import (
    Block,
    Chunks,
    ExactSoftmax,
    HierarchicalSoftmax,
    NegativeSampling,
    NoiseSampler,
    train_block,
)
from tests.support.word2vec_twin import Target, noise_targets, path_targets, train_cbow, train_skip_gram

N_WORDS, DIMENSIONS, STRIDE, WINDOW, NEGATIVES, NOISE_WORDS = 7, 4, 3, 2, 2, 3
COUNTS = np.array([40, 20, 9, 8, 3, 2, 1])
RATE = 0.05


class FixedNoise(NoiseSampler):
    """Noise words that the test chooses."""

    def __init__(self, words: np.ndarray) -> None:
        self.words = words

    def draw(self, n: int, random: torch.Generator) -> torch.Tensor:
        assert n == self.words.size
        return torch.from_numpy(self.words.ravel())


class Problem:
    """A block with vectors, and the noise words of each chunk."""

    def __init__(self, n_chunks: int, seed: int, density: float = 0.5) -> None:
        random = np.random.default_rng(seed)
        self.chunks = Chunks(n_chunks, STRIDE, STRIDE + 2 * WINDOW)
        self.words = random.integers(N_WORDS, size=self.chunks.n_rows)
        self.mask = random.random((n_chunks, STRIDE, STRIDE + 2 * WINDOW)) < density
        self.inputs, self.outputs = random.normal(size=(2, N_WORDS + 1, DIMENSIONS))
        self.inputs[-1] = self.outputs[-1] = 0
        self.noise = random.integers(N_WORDS, size=(n_chunks, NOISE_WORDS))
        self.noise_weight = NEGATIVES / NOISE_WORDS

    def train(self, layer: str, cbow: bool, divided: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """The vectors after one step of the package."""
        inputs, outputs = (torch.tensor(m, dtype=torch.float32) for m in (self.inputs, self.outputs))
        output: Any
        if layer == "negative":
            output = NegativeSampling(outputs, FixedNoise(self.noise), NEGATIVES, NOISE_WORDS)
            output.noise_weight = self.noise_weight
        elif layer == "full":
            output = ExactSoftmax(outputs)
        else:
            output = HierarchicalSoftmax(outputs, COUNTS)
        block = Block(torch.from_numpy(self.words), self.chunks, torch.from_numpy(self.mask).float())
        train_block(inputs, output, block, RATE, torch.Generator(), cbow=cbow, divided=divided)
        return inputs.numpy(), outputs.numpy()

    def windows(self, layer: str) -> list[tuple[list[int], list[Target]]]:
        """Context and targets of each centre word."""
        windows = []
        for chunk, mask in enumerate(self.mask):
            words = self.words[chunk * STRIDE :][: self.chunks.width]
            for place in range(STRIDE):
                centre = int(words[WINDOW + place])
                negative = noise_targets(centre, self.noise[chunk], self.noise_weight)
                targets = negative if layer == "negative" else path_targets(centre, COUNTS)
                windows.append(([int(word) for word in words[mask[place]]], targets))
        return windows


LAYERS = pytest.mark.parametrize("layer", ["negative", "hierarchical"])
MODELS = pytest.mark.parametrize("cbow", [False, True], ids=["skip-gram", "cbow"])


@LAYERS
@MODELS
@pytest.mark.parametrize("n_top", [1, 3, 32])
@given(n_chunks=st.integers(1, 4), seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_a_block_takes_the_sum_of_the_steps_of_all_pairs(
    layer: str, cbow: bool, n_top: int, n_chunks: int, seed: int
) -> None:
    problem = Problem(n_chunks, seed)
    expected_inputs, expected_outputs = problem.inputs.copy(), problem.outputs.copy()
    train = train_cbow if cbow else train_skip_gram
    for context, targets in problem.windows(layer):
        # each target alone, from the same start, so that steps do not depend on the order
        for word in [context] if cbow else [[word] for word in context]:
            for target in targets:
                inputs, outputs = problem.inputs.copy(), problem.outputs.copy()
                train(inputs, outputs, word, [target], RATE)
                expected_inputs += inputs - problem.inputs
                expected_outputs += outputs - problem.outputs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word2vec, "N_TOP_NODES", n_top)
        inputs, outputs = problem.train(layer, cbow)
    np.testing.assert_allclose(inputs, expected_inputs, atol=2e-5)
    np.testing.assert_allclose(outputs[:N_WORDS], expected_outputs[:N_WORDS], atol=2e-5)


@LAYERS
@MODELS
@given(seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_block_of_one_word_equals_the_original_program(layer: str, cbow: bool, seed: int) -> None:
    problem = Problem(1, seed, density=0)
    if cbow:  # distinct words in any number; with skip-gram, one pair
        problem.words = np.random.default_rng(seed).permutation(N_WORDS)[: problem.chunks.n_rows]
        problem.mask[0, 1, [1, 2, 4]] = True
    else:
        problem.mask[0, 1, 2] = True
    problem.noise = np.random.default_rng(seed).permutation(N_WORDS)[:NOISE_WORDS][None]
    problem.noise_weight = 1.0
    inputs, outputs = problem.inputs.copy(), problem.outputs.copy()
    train = train_cbow if cbow else train_skip_gram
    for context, targets in problem.windows(layer):
        train(inputs, outputs, context, targets, RATE)
    own_inputs, own_outputs = problem.train(layer, cbow)
    np.testing.assert_allclose(own_inputs, inputs, atol=1e-6)
    np.testing.assert_allclose(own_outputs[:N_WORDS], outputs[:N_WORDS], atol=1e-6)


@given(n=st.integers(1, 5), stride=st.integers(1, 4), extra=st.integers(0, 9), seed=st.integers(0, 99))
@settings(deadline=None)
def test_folding_is_the_transpose_of_unfolding(n: int, stride: int, extra: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    chunks = Chunks(n, stride, stride + extra)
    rows = torch.rand(chunks.n_rows, 2, generator=random, dtype=torch.float64)
    parts = torch.rand(n, chunks.width, 2, generator=random, dtype=torch.float64)
    unfolded = torch.stack([rows[i * stride :][: chunks.width] for i in range(n)])
    assert torch.equal(chunks.unfold(rows), unfolded)
    torch.testing.assert_close((unfolded * parts).sum(), (rows * chunks.fold(parts)).sum())


def test_the_step_of_the_root_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(4, seed=1, density=1)
    n_pairs = problem.mask.sum()
    before = problem.outputs[0]
    _, free = problem.train("hierarchical", cbow=False)
    monkeypatch.setattr(word2vec, "MAX_NODE_STEPS", 10.0)
    _, bounded = problem.train("hierarchical", cbow=False)
    np.testing.assert_allclose(bounded[0] - before, (free[0] - before) * 10 / n_pairs, atol=1e-6)


@MODELS
def test_the_steps_of_looked_up_nodes_are_bounded_like_those_of_frequent_ones(
    monkeypatch: pytest.MonkeyPatch, cbow: bool
) -> None:
    problem = Problem(4, seed=2, density=1)
    monkeypatch.setattr(word2vec, "MAX_NODE_STEPS", 4.0)
    expected = problem.train("hierarchical", cbow)
    monkeypatch.setattr(word2vec, "N_TOP_NODES", 1)
    for vectors, expected_vectors in zip(problem.train("hierarchical", cbow), expected, strict=True):
        np.testing.assert_allclose(vectors, expected_vectors, atol=1e-6)


def softmax_gradients(inputs: np.ndarray, outputs: np.ndarray, context: list[int], word: int):
    """The gradients of E = -ln P(word | h), h the mean of the context, as Rong (2014) derives them.

    Returns:
        dE/dh = EH, of which each of the C vectors of the context has a C-th part, and dE/dW'.
    """
    h = inputs[context].mean(axis=0)
    u = outputs[:-1] @ h
    y = np.exp(u) / np.exp(u).sum()
    e = y - np.eye(N_WORDS)[word]
    return e @ outputs[:-1], np.outer(e, h)


@pytest.mark.parametrize("model", ["skip-gram", "undivided", "divided"])
@given(n_chunks=st.integers(1, 3), seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_a_full_softmax_takes_the_derived_steps(model: str, n_chunks: int, seed: int) -> None:
    problem = Problem(n_chunks, seed)
    expected_inputs, expected_outputs = problem.inputs.copy(), problem.outputs.copy()
    for context, targets in problem.windows("negative"):
        word = targets[0][0]
        for words in [[one] for one in context] if model == "skip-gram" else [context] if context else []:
            hidden, outputs = softmax_gradients(problem.inputs, problem.outputs, words, word)
            expected_outputs[:-1] -= RATE * outputs
            for one in words:
                expected_inputs[one] -= RATE * hidden / (1 if model == "undivided" else len(words))
    inputs, outputs = problem.train("full", model != "skip-gram", model == "divided")
    np.testing.assert_allclose(inputs, expected_inputs, atol=2e-5)
    np.testing.assert_allclose(outputs, expected_outputs, atol=2e-5)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_the_derived_gradients_are_those_of_differences(seed: int) -> None:
    random = np.random.default_rng(seed)
    inputs, outputs = random.normal(size=(2, N_WORDS + 1, DIMENSIONS))
    context, word = random.permutation(N_WORDS)[:3].tolist(), int(random.integers(N_WORDS))

    def loss() -> float:
        u = outputs[:-1] @ inputs[context].mean(axis=0)
        return float(np.log(np.exp(u).sum()) - u[word])

    hidden, of_outputs = softmax_gradients(inputs, outputs, context, word)
    for matrix, row, column, expected in (
        (inputs, context[0], 2, hidden[2] / 3),
        (outputs, word, 1, of_outputs[word, 1]),
        (outputs, (word + 1) % N_WORDS, 0, of_outputs[(word + 1) % N_WORDS, 0]),
    ):
        losses = []
        for change in (1e-5, -2e-5):
            matrix[row, column] += change
            losses.append(loss())
        assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(expected, abs=1e-6)
        matrix[row, column] += 1e-5

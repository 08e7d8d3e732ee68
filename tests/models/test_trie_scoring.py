"""Tries and their scores: structure, agreement with the reference scorer, normalisation, batch invariance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.models.kernels import is_int8_exact, is_multiplied_in_int8
from rescorer.models.language_model import mix_scores
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.ngram_files import read_ngram
from rescorer.models.ngrams import align_vocabularies
from rescorer.trie import build_trie
from tests.support.reference_scorer import reference_log_probs, reference_mixture
from tests.support.tiny_models import NETWORK_WORDS, random_network, write_arpa

WORDS = (*NETWORK_WORDS, "zebra", "nobody", "knows", "<unk>", "<s>", "</s>")
sentences = st.lists(st.sampled_from(WORDS), max_size=7).map(tuple)
batch_of = st.lists(
    st.tuples(sentences, st.sampled_from([(), ("the",), ("the", "cat"), ("nobody", "ran")])),
    min_size=1,
    max_size=12,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    ngram = read_ngram(write_arpa(tmp_path_factory.mktemp("arpa")))
    neural = NeuralLanguageModel(*random_network())
    align_vocabularies([ngram, neural])
    return {"ngram": ngram, "neural": neural}


@given(batch_of)
def test_trie_contains_every_prefix_once_and_every_hypothesis(batch):
    hypotheses, contexts = zip(*batch, strict=True)
    trie = build_trie(hypotheses, contexts)
    prefixes = {(c, h[:n]) for h, c in batch for n in range(len(h) + 1)} | {(c, ()) for c in contexts}
    assert trie.n_nodes == len(prefixes)
    assert trie.n_edges == len(prefixes) - len(set(contexts)) + len(set(batch))
    words = (*trie.words, "END")
    for i, (hypothesis, path) in enumerate(zip(hypotheses, trie.paths, strict=True)):
        assert tuple(words[trie.edge_word[edge]] for edge in trie.path_edges(i)) == (*hypothesis, "END")
        assert trie.edge_parent[path[1:]].tolist() == [edge + trie.n_roots for edge in path[:-1]]


@given(batch_of, st.randoms())
def test_sum_paths_adds_edge_values_along_paths(batch, random):
    trie = build_trie(*zip(*batch, strict=True))
    values = np.array([random.uniform(-9, 0) for _ in range(trie.n_edges)])
    expected = [values[trie.path_edges(i)].sum() for i in range(len(batch))]
    np.testing.assert_allclose(trie.sum_paths(values), expected, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(batch_of, st.sampled_from([0.0, 0.3, 1.0]))
def test_models_and_mixture_agree_with_reference(models, batch, share):
    trie = build_trie(*zip(*batch, strict=True))
    scores = {name: model.score(trie) for name, model in models.items()}
    weights = {"ngram": 1 - share, "neural": share}
    mixed = mix_scores(scores, weights).log_probs
    for i, (words, context) in enumerate(batch):
        edges = trie.path_edges(i)
        for name, model in models.items():
            np.testing.assert_allclose(
                scores[name].log_probs[edges], reference_log_probs(model, words, context), atol=1e-4
            )
        np.testing.assert_allclose(
            mixed[edges], reference_mixture(models, weights, words, context), atol=1e-4
        )


@pytest.mark.skipif(not is_int8_exact(), reason="this CPU has no exact 8-bit products")
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("reset", ["after", "before"])
def test_a_gru_in_8_bits_is_close_wherever_its_reset_gate_stands(reset, layers):
    draw, found = np.random.default_rng(1), []
    trie = build_trie([tuple(draw.choice(WORDS, size=12).tolist()) for _ in range(50)])
    for dtype in ("float32", "int8"):
        model, vocabulary = random_network(kind="gru", gru_reset=reset, layers=layers, hidden_size=64)
        with torch.no_grad():
            for weight in model.network.parameters():
                weight.div_(3)  # of the size that training starts with
        found.append(NeuralLanguageModel(model, vocabulary, dtype=dtype).score(trie).log_probs)
    assert all(map(is_multiplied_in_int8, model.network.step_matrices()))
    assert 0 < np.abs(found[1] - found[0]).mean() < 0.05
    assert np.abs(found[1] - found[0]).max() < 0.2


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_forward_equals_step(layers, tied):
    model, vocabulary = random_network(layers=layers, tied=tied)
    network, ids = model.network, torch.randint(0, len(vocabulary), (4, 9))
    with torch.no_grad():
        whole, _ = network(ids)
        state = network.initial_state(4)
        for t in range(9):
            vectors, state = network.step(network.inputs(ids[:, t]), state)
            torch.testing.assert_close(vectors, whole[:, t], atol=1e-5, rtol=0)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.randoms())
def test_edge_log_probs_equal_the_distribution(words, random):
    model, _ = random_network()
    hidden = torch.randn(5, 6)
    rows = torch.tensor([random.randrange(5) for _ in words])
    expected = model.output.distribution(hidden)[rows, torch.tensor(words)]
    torch.testing.assert_close(model.output.log_probs(hidden, rows, torch.tensor(words)), expected)


def test_output_layer_is_normalised():
    model, vocabulary = random_network()
    total = model.output.distribution(torch.randn(7, 6)).exp().sum(dim=1)
    torch.testing.assert_close(total, torch.ones(7), atol=1e-5, rtol=0)
    assert model.output.n_words == len(vocabulary) - 1  # <s> is never predicted


def test_loss_gradients_equal_autograd():
    model, _ = random_network()
    model.double()
    hidden = torch.randn(40, 6, dtype=torch.float64, requires_grad=True)
    words = torch.randint(0, model.output.n_words, (40,))
    parameters = [hidden, model.output.word_weight, model.output.word_bias, model.output.class_layer.weight]
    fast = torch.autograd.grad(model.output.loss(hidden, words), parameters)
    with torch.enable_grad():
        distribution = type(model.output).distribution.__wrapped__(model.output, hidden)
        slow = torch.autograd.grad(-distribution[torch.arange(40), words].sum(), parameters)
    for a, b in zip(fast, slow, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("context", [(), ("the",), ("zebra", "cat"), ("nobody",)])
def test_models_with_different_vocabularies_are_normalised(models, context):
    """Over the union of the vocabularies, the unknown word and the end of the sentence."""
    union = sorted(models["ngram"].vocabulary() | models["neural"].vocabulary())
    trie = build_trie([(word,) for word in (*union, "unheard")] + [()], [context] * (len(union) + 2))
    first_words = [trie.path_edges(i)[0] for i in range(len(union) + 2)]
    neural = models["neural"].score(trie).log_probs[first_words]
    assert math.isclose(np.exp(neural).sum(), 1.0, abs_tol=1e-5)
    # The hand-written n-gram is not normalised, so this checks only its shares of <unk>.
    ngram = models["ngram"]
    missing = [word for word in (*union, "unheard") if word not in ngram.vocabulary()]
    assert math.isclose(sum(math.exp(ngram.log_share(word)) for word in missing), 1.0, abs_tol=1e-9)


def test_scores_do_not_depend_on_the_batch(models):
    """Hypotheses alone, in a batch, and in another order score the same within 1e-4 nats."""
    generator = np.random.default_rng(0)
    batch = [tuple(generator.choice(WORDS, size=generator.integers(0, 30)).tolist()) for _ in range(200)]
    together = build_trie(batch)
    shuffled = generator.permutation(len(batch))
    in_other_order = build_trie([batch[i] for i in shuffled])
    for model in models.values():
        total = together.sum_paths(model.score(together).log_probs)
        other = in_other_order.sum_paths(model.score(in_other_order).log_probs)
        np.testing.assert_allclose(total[shuffled], other, atol=1e-4)
        for i in range(0, len(batch), 20):
            alone = build_trie([batch[i]])
            np.testing.assert_allclose(alone.sum_paths(model.score(alone).log_probs), total[i], atol=1e-4)

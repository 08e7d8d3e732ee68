"""Parts of speech of the words so far: the filter, and networks that read it, over tries and one by one."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rescorer.errors import BundleError
from rescorer.models.contexts import TagFilter
from rescorer.models.network_files import NetworkConfig, parameter_shapes
from rescorer.models.neural import (
    NeuralLanguageModel,
    NeuralModel,
    deduplicated_state,
    load_model,
    save_model,
)
from rescorer.trie import SENTENCE_END, build_trie
from tests.support.reference_scorer import reference_log_probs
from tests.support.tiny_models import NETWORK_WORDS, stable_network
from tests.support.trie_checks import assert_scores_equal_reference

KINDS = [
    {"kind": "lstm", "layers": 2},
    {"kind": "gru", "output": "full", "class_sizes": ()},
    {"kind": "elman", "activation": "tanh", "softmaxes": 2},
    {"kind": "feedforward", "window": 3, "layers": 2},
    {"kind": "lbl", "window": 2, "activation": "linear", "output": "tree", "class_sizes": ()},
]
N_TAGS = 3
WORDS = (*NETWORK_WORDS, "nobody")
sentences = st.lists(st.sampled_from(WORDS), max_size=6).map(tuple)
contexts = st.lists(st.sampled_from((*WORDS, SENTENCE_END)), max_size=12).map(tuple)


def draw_tags(tags: TagFilter) -> None:
    """Set a filter to a random model, in which the first word and the last one have no tags."""
    tags.start.copy_(torch.rand(tags.n_tags).softmax(0))
    tags.transitions.copy_((4 * torch.rand(tags.n_tags, tags.n_tags)).softmax(1))
    tags.words.copy_((4 * torch.rand(tags.words.shape)).softmax(1))
    tags.words[0] = tags.words[-1] = 0.0


def network_with_tags(**config):
    model, vocabulary = stable_network(pos_tags=N_TAGS, **config)
    assert model.tags is not None
    draw_tags(model.tags)
    return model, vocabulary


@pytest.fixture(scope="module", params=KINDS, ids=str)
def model(request):
    return NeuralLanguageModel(*network_with_tags(**request.param))


def posterior_by_enumeration(tags: TagFilter, words: list[int]) -> np.ndarray:
    """P(tag of the last word | words): the sum over all sequences of tags."""
    start, transitions, emissions = (
        part.double().numpy() for part in (tags.start, tags.transitions, tags.words)
    )
    mass = np.zeros(tags.n_tags)
    for path in itertools.product(range(tags.n_tags), repeat=len(words)):
        prob = start[path[0]] * emissions[words[0], path[0]]
        for before, tag, word in zip(path, path[1:], words[1:], strict=False):
            prob *= transitions[before, tag] * emissions[word, tag]
        mass[path[-1]] += prob
    return mass / mass.sum()


@settings(deadline=None)
@given(st.integers(0, 999), st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_filter_equals_a_sum_over_all_sequences_of_tags(seed, words):
    torch.manual_seed(seed)
    tags = TagFilter(N_TAGS, 8)
    draw_tags(tags)
    text = torch.tensor([[7, *words, 0, *words]])  # <s> words </s> words
    features, _ = tags.read_texts(text)
    for n in range(1, len(words) + 1):
        expected = posterior_by_enumeration(tags, words[:n]) - 1 / N_TAGS
        np.testing.assert_allclose(features[0, n], expected, atol=1e-5)
    assert not features[0, 0].any()
    assert not features[0, len(words) + 1].any()
    torch.testing.assert_close(features[:, -len(words) :], features[:, 1 : len(words) + 1])


def test_impossible_words_begin_a_sentence():
    tags = TagFilter(2, 4)
    tags.start.copy_(torch.tensor([1.0, 0.0]))
    tags.transitions.copy_(torch.eye(2))
    tags.words.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    features, expected = tags.read_texts(torch.tensor([[1, 2, 1]]))
    assert features[0].tolist() == [[0.5, -0.5], [0.0, 0.0], [0.5, -0.5]]
    assert expected.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("config", KINDS, ids=str)
def test_a_text_can_be_read_in_parts_and_ignores_later_words(config):
    model, vocabulary = network_with_tags(**config)
    ids = torch.randint(0, len(vocabulary), (4, 9))
    with torch.no_grad():
        whole, _ = model.context_vectors(ids)
        first, state = model.context_vectors(ids[:, :4])
        second, _ = model.context_vectors(ids[:, 4:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole, atol=1e-5, rtol=1e-5)


def test_trie_equals_the_reference(model):
    @settings(max_examples=20, deadline=None)
    @given(st.lists(st.tuples(sentences, contexts), min_size=1, max_size=5))
    def check(batch):
        assert_scores_equal_reference(model, batch)

    check()


def test_scores_do_not_depend_on_the_batch_or_the_cache(model):
    texts = [(), WORDS[:2], WORDS[:5], (*WORDS[:5], "cat", "ran"), (*WORDS[3:], SENTENCE_END, "the")]
    batch = [(words, context) for context in texts for words in (WORDS[:3], WORDS[2:7], ())]
    trie = build_trie(*zip(*batch, strict=True))
    together, again = model.score(trie).log_probs, model.score(trie).log_probs
    np.testing.assert_allclose(again, together, atol=1e-4)
    uncached = NeuralLanguageModel(model.model, model.words, context_cache_bytes=0)
    for i, (words, context) in enumerate(batch):
        alone = build_trie([words], [context])
        expected = uncached.score(alone).log_probs[alone.path_edges(0)]
        np.testing.assert_allclose(together[trie.path_edges(i)], expected, atol=1e-4)


def test_tags_reach_beyond_the_window():
    model = NeuralLanguageModel(*network_with_tags(kind="lbl", window=2, activation="linear"))
    first, second = (
        model.score(build_trie([(word, "on", "the", "mat")])).log_probs[3] for word in ("cat", "fast")
    )
    assert abs(first - second) > 1e-5


@pytest.mark.parametrize("config", KINDS, ids=str)
def test_shapes_follow_from_the_configuration(config):
    model, _ = network_with_tags(**config)
    shapes = {name: tuple(tensor.shape) for name, tensor in deduplicated_state(model).items()}
    assert parameter_shapes(model.config) == shapes


def test_new_tags_change_nothing():
    for config in KINDS:
        torch.manual_seed(0)
        sizes = {"class_sizes": (1, 9), "embedding_size": 6, "hidden_size": 8, **config}
        model = NeuralModel(NetworkConfig(11, pos_tags=3, **sizes)).eval()
        words = torch.randint(0, 10, (2, 5))
        with torch.no_grad():
            without, _ = model.context_vectors(words)  # no word has tags
            draw_tags(model.tags)
            with_tags, _ = model.context_vectors(words)
        torch.testing.assert_close(with_tags, without)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"pos_tags": -1}, "pos_tags is -1"),
        ({"pos_tags": 2000}, "at most 1,024"),
        ({"pos_tags": True}, "pos_tags is True; expected an integer"),
        ({"pos_tags": 3, "kind": "transformer", "window": 4}, "pos_tags is 3 for transformer"),
        ({"pos_tags": 3, "backward": True}, "pos_tags is 3 for a backward network"),
        ({"pos_tags": 3, "carried": True}, "pos_tags is 3 for a network with carried state"),
        ({"pos_tags": 3, "topics": 3, "topic_decay": 0.5}, "pos_tags is 3 for a network with topics"),
    ],
)
def test_rejects_impossible_configurations(settings_, message):
    with pytest.raises(BundleError, match=message):
        NetworkConfig(11, class_sizes=(1, 9), **settings_)


@pytest.fixture
def saved(tmp_path):
    save_model(*network_with_tags(kind="lstm"), tmp_path)
    return tmp_path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8], ids=str)
def test_saved_tags_are_loaded(tmp_path, dtype):
    model, vocabulary = network_with_tags(kind="lbl", window=2, activation="linear")
    save_model(model, vocabulary, tmp_path, dtype)
    loaded, _ = load_model(tmp_path)
    torch.testing.assert_close(loaded.tags.words, model.tags.words, atol=0.01, rtol=0)
    torch.testing.assert_close(loaded.tags.transitions, model.tags.transitions, atol=0.01, rtol=0)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tags.words", lambda t: t - 2, "tags.words has values outside 0 … 1; expected probabilities"),
        ("tags.transitions", lambda t: t * 1e6, "tags.transitions has values outside 0 … 1"),
        ("tags.start", lambda t: t * float("nan"), "tags.start has values that are not finite"),
        ("tags.words", lambda t: t[:, :2], "tags.words has the shape"),
        ("tags.transitions", lambda t: t[:2], "tags.transitions has the shape"),
        ("tags.start", lambda t: t.to(torch.int32), "tags.start has the type I32"),
        ("tags.start", lambda t: None, "tags.start is missing"),
    ],
)
def test_damaged_tags_are_refused(saved, name, change, message):
    tensors = load_file(saved / "model.safetensors")
    changed = change(tensors.pop(name))
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, saved / "model.safetensors")
    with pytest.raises(BundleError, match=message):
        load_model(saved)


def test_a_configuration_that_the_weights_do_not_have_is_refused(saved):
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"pos_tags": 1000}))
    with pytest.raises(BundleError, match="the weights do not fit the network"):
        load_model(saved)


def test_impossible_tags_are_scored_as_no_tags(saved):
    tensors = load_file(saved / "model.safetensors")
    for name in ("tags.start", "tags.transitions", "tags.words"):
        tensors[name].zero_()
    save_file(tensors, saved / "model.safetensors")
    scorer = NeuralLanguageModel(*load_model(saved))
    scores = scorer.score(build_trie([WORDS[:4]]))
    np.testing.assert_allclose(scores.log_probs, reference_log_probs(scorer, WORDS[:4]), atol=1e-4)

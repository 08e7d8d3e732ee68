"""Topics of the text before a sentence: inference, and networks that read them, over tries and one by one."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file, save_file
from scipy.special import digamma

from rescorer.errors import BundleError
from rescorer.models.contexts import CONTEXT_BLOCK, UPDATES, TopicReader, infer_mixtures
from rescorer.models.network_files import NetworkConfig, parameter_shapes
from rescorer.models.networks import RecurrentNetwork
from rescorer.models.neural import (
    NeuralLanguageModel,
    NeuralModel,
    deduplicated_state,
    load_model,
    save_model,
)
from rescorer.trie import SENTENCE_END, build_trie
from tests.support.tiny_models import NETWORK_WORDS, stable_network
from tests.support.trie_checks import assert_scores_equal_reference

KINDS = [
    {"kind": "lstm", "layers": 2},
    {"kind": "lstm", "carried": True, "hidden_size": 6},
    {"kind": "gru", "output": "full", "class_sizes": ()},
    {"kind": "elman", "activation": "tanh", "softmaxes": 2},
    {"kind": "feedforward", "window": 3, "layers": 2},
    {"kind": "feedforward", "window": 3, "carried": True},
    {"kind": "lbl", "window": 2, "activation": "linear", "output": "tree", "class_sizes": ()},
]
N_TOPICS = 4
WORDS = (*NETWORK_WORDS, "nobody")
sentences = st.lists(st.sampled_from(WORDS), max_size=6).map(tuple)
contexts = st.lists(st.sampled_from((*WORDS, SENTENCE_END)), max_size=3 * CONTEXT_BLOCK).map(tuple)


def network_with_topics(**config):
    """A network in which every third word is not topical."""
    model, vocabulary = stable_network(topics=N_TOPICS, topic_decay=0.9, **config)
    words = torch.rand(len(vocabulary), N_TOPICS) ** 4
    words[::3] = 0.0
    model.topic_words.copy_(words / words.sum(dim=1, keepdim=True).clamp(min=1e-9))
    return model, vocabulary


def language_model(**config):
    return NeuralLanguageModel(*network_with_topics(**config))


@pytest.fixture(scope="module", params=KINDS, ids=str)
def model(request):
    return language_model(**request.param)


def plain_mixture(word_topics: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Update the mixture of one text word by word, in float64."""
    gamma = np.ones(word_topics.shape[1])
    for _ in range(UPDATES):
        new = np.full_like(gamma, 1 / len(gamma))
        for topics, count in zip(word_topics, counts, strict=True):
            posterior = topics * np.exp(digamma(gamma) - digamma(gamma.sum()))
            if posterior.sum() > 0:
                new += count * posterior / posterior.sum()
        gamma = new
    return gamma / gamma.sum()


texts = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        arrays.arrays(np.float64, (n, 3), elements=st.sampled_from([0.0, 0.1, 0.5, 1.0])),
        arrays.arrays(np.float64, n, elements=st.floats(0, 3, width=16)),
    )
)


@given(texts)
def test_mixtures_equal_the_plain_updates(text):
    word_topics, counts = text
    mixture = infer_mixtures(torch.from_numpy(word_topics)[None], torch.from_numpy(counts)[None])[0]
    np.testing.assert_allclose(mixture.numpy(), plain_mixture(word_topics, counts), atol=1e-9)
    assert mixture.sum() == pytest.approx(1)


def test_mixtures_equal_those_of_scikit_learn():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    from sklearn.decomposition import LatentDirichletAllocation

    counts = np.random.default_rng(0).poisson(0.5, (40, 30)).astype(float)
    lda = LatentDirichletAllocation(
        N_TOPICS, max_iter=3, random_state=0, max_doc_update_iter=UPDATES, mean_change_tol=0
    ).fit(counts)
    by_word = torch.from_numpy(lda.exp_dirichlet_component_.T)
    by_word /= by_word.sum(dim=1, keepdim=True)
    mixtures = infer_mixtures(by_word.expand(40, -1, -1), torch.from_numpy(counts))
    np.testing.assert_allclose(mixtures, lda.transform(counts), atol=1e-6)


@given(st.lists(st.integers(0, 10), max_size=60), st.integers(0, 3))
def test_reader_decays_the_topical_words(text, seed):
    word_topics = torch.rand(11, N_TOPICS, generator=torch.Generator().manual_seed(seed))
    word_topics[::3] = 0.0
    reader = TopicReader(word_topics, 0.9)
    ids = np.array(text, dtype=np.int64)
    topical = [i for i in reversed(text) if i % 3][: reader.n_read]
    weights = 0.9 ** np.arange(len(topical))
    expected = plain_mixture(word_topics[topical].numpy().astype(float), weights) - 1 / N_TOPICS
    for _ in range(2):  # the second time from the cache
        np.testing.assert_allclose(reader.features([ids, ids[:0]])[0], expected, atol=1e-5)
        assert not reader.features([ids[:0]]).any()


@pytest.mark.parametrize("config", KINDS, ids=str)
def test_forward_equals_step(config):
    model, vocabulary = network_with_topics(**config)
    network, ids = model.network, torch.randint(0, len(vocabulary), (4, 9))
    topics = torch.randn(4, 9, N_TOPICS)
    with torch.no_grad():
        whole, _ = network(ids, None, topics)
        first, carried = network(ids[:, :4], None, topics[:, :4])
        second, _ = network(ids[:, 4:], carried, topics[:, 4:])
        torch.testing.assert_close(torch.cat([first, second], dim=1), whole, atol=1e-5, rtol=1e-5)
        constant, zeros = topics[:, :1], torch.zeros(4, 1, N_TOPICS)
        torch.testing.assert_close(
            network(ids, None, constant)[0], network(ids, None, constant.expand(-1, 9, -1))[0]
        )
        torch.testing.assert_close(network(ids, None, zeros), network(ids))
        if isinstance(network, RecurrentNetwork):
            state = network.initial_state(4)
            for t in range(9):
                inputs = network.inputs(ids[:, t]) + network.topic_inputs(topics[:, t])
                vectors, state = network.step(inputs, state)
                torch.testing.assert_close(vectors, whole[:, t], atol=1e-5, rtol=1e-5)


def test_trie_equals_the_reference(model):
    @settings(max_examples=20)
    @given(st.lists(st.tuples(sentences, contexts), min_size=1, max_size=5))
    def check(batch):
        assert_scores_equal_reference(model, batch)

    check()


def test_scores_do_not_depend_on_the_batch_or_the_cache(model):
    generator = np.random.default_rng(0)
    units = (*WORDS, SENTENCE_END)
    texts = [tuple(generator.choice(units, size=n).tolist()) for n in (0, 1, 5, 40, 41, 100, 130)]
    grown = [(*texts[4], *texts[1]), (*texts[5], *texts[3])]
    hypotheses = [WORDS[:3], WORDS[2:7], ()]
    batch = [(words, context) for context in (*texts, *grown) for words in hypotheses]
    trie = build_trie(*zip(*batch, strict=True))
    together, again = model.score(trie).log_probs, model.score(trie).log_probs
    np.testing.assert_allclose(again, together, atol=1e-4)
    for i, (words, context) in enumerate(batch):
        alone = build_trie([words], [context])
        uncached = NeuralLanguageModel(model.model, model.words, context_cache_bytes=0)
        for scorer in (model, uncached):
            expected = scorer.score(alone).log_probs
            np.testing.assert_allclose(together[trie.path_edges(i)], expected[alone.path_edges(0)], atol=1e-4)


def test_topics_of_the_context_change_scores(model):
    window = model.model.config.window or 1
    recent = ("the",) * window
    a, b = (model.score(build_trie([("cat",)], [(word,) * 40 + recent])).log_probs for word in ("on", "fast"))
    assert np.abs(a - b).max() > 1e-3


def test_a_network_without_carried_state_reads_only_topics_of_previous_sentences(model):
    previous = tuple(
        word for word in NETWORK_WORDS if not model.topics.topical(model.words.encode((word,)))[0]
    )
    assert previous
    after, alone = (
        model.score(build_trie([WORDS[:3]], [words])).log_probs for words in ((*previous, SENTENCE_END), ())
    )
    assert np.allclose(after, alone, atol=1e-5) != model.model.config.carried


@pytest.mark.parametrize("config", KINDS, ids=str)
def test_shapes_follow_from_the_configuration(config):
    model, _ = network_with_topics(**config)
    shapes = {name: tuple(tensor.shape) for name, tensor in deduplicated_state(model).items()}
    assert parameter_shapes(model.config) == shapes


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_low_precision_is_close(dtype):
    trie = build_trie([WORDS[:4]], [WORDS * 6])
    expected = language_model(kind="lstm").score(trie).log_probs
    model, vocabulary = network_with_topics(kind="lstm")
    scores = NeuralLanguageModel(model, vocabulary, dtype=dtype).score(trie).log_probs
    np.testing.assert_allclose(scores, expected, atol=0.5)


def test_new_topics_change_nothing():
    for config in KINDS:
        torch.manual_seed(0)
        sizes = {"class_sizes": (1, 9), "embedding_size": 6, "hidden_size": 8, **config}
        model = NeuralModel(NetworkConfig(11, topics=3, topic_decay=0.5, **sizes)).eval()
        words = torch.randint(0, 10, (2, 5))
        with torch.no_grad():
            without, _ = model.context_vectors(words)
            with_topics, _ = model.context_vectors(words, None, torch.randn(2, 1, 3))
        torch.testing.assert_close(with_topics, without)


WRONG = [
    ({"topics": 3}, "topic_decay is 0.0; expected more than 0"),
    ({"topics": 3, "topic_decay": 1.0}, "at most 0.999"),
    ({"topics": 3, "topic_decay": float("nan")}, "topic_decay is nan"),
    ({"topic_decay": 0.5}, "without topics"),
    ({"topics": -1}, "topics is -1"),
    ({"topics": 5000, "topic_decay": 0.5}, "at most 4,096"),
    ({"topics": True, "topic_decay": 0.5}, "topics is True; expected an integer"),
    ({"topics": 3, "topic_decay": 0.5, "kind": "transformer", "window": 4}, "topics is 3 for transformer"),
    ({"topics": 3, "topic_decay": 0.5, "backward": True}, "topics is 3 for a backward network"),
]


@pytest.mark.parametrize(("config", "message"), WRONG, ids=str)
def test_refuses_wrong_configurations(config, message):
    with pytest.raises(BundleError, match=message):
        NetworkConfig(11, (1, 9), **config)


def test_older_files_have_no_topics():
    values = NetworkConfig(11, (1, 9)).to_dict()
    del values["topics"], values["topic_decay"]
    assert NetworkConfig.from_dict(values).topics == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("topic_words"), "topic_words is missing"),
        (lambda tensors: tensors.update(topic_words=torch.zeros(3, N_TOPICS)), "topic_words has the shape"),
        (lambda tensors: tensors["topic_words"].fill_(np.nan), "topic_words has values that are not finite"),
        (lambda tensors: tensors["topic_words"].fill_(-1.0), "topic_words has values outside"),
        (lambda tensors: tensors["topic_words"].fill_(1e30), "topic_words has values outside"),
        (
            lambda tensors: tensors.update(topic_words=torch.zeros(11, N_TOPICS, dtype=torch.int32)),
            "the type I32",
        ),
        (lambda tensors: tensors["topic_output.weight"].fill_(np.inf), "values that are not finite"),
    ],
)
def test_refuses_hostile_weights(tmp_path, change, message):
    save_model(*network_with_topics(kind="lstm"), tmp_path)
    loaded, _ = load_model(tmp_path)
    assert loaded.config.topics == N_TOPICS
    assert json.loads((tmp_path / "config.json").read_text())["topic_decay"] == 0.9
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BundleError, match=message):
        load_model(tmp_path)

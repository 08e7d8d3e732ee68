"""Classifiers: equal to a slow twin without padding, independent of the batch, and never language models."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rescorer.errors import BundleError
from rescorer.models.network_files import Vocabulary
from rescorer.models.neural import NeuralModel, load_model, save_model
from rescorer_training.batches import Sentences
from rescorer_training.classification import encode_sentences, load_classifier, predict
from rescorer_training.cli import main
from tests.support.toy_classifiers import make_classifier

VOCABULARY = Vocabulary(("</s>", "<unk>", "a", "b", "c", "d", "e", "f", "<s>"))
KINDS = {
    "lstm": {"layers": 2},
    "gru": {},
    "elman": {"residual": True, "layers": 2},
    "lbl": {"window": 3},
    "feedforward": {"window": 3},
    "transformer": {"window": 2, "heads": 2, "layers": 2},
}
SENTENCES = st.lists(st.lists(st.sampled_from("abcdefx"), max_size=9), min_size=1, max_size=6)


def read_slowly(network, words: list[int]) -> list[torch.Tensor]:
    """The vectors of one direction, word by word."""
    state, vectors = network.initial_state(1), []
    for word in words:
        vector, state = network.step(network.inputs(torch.tensor([word])), state)
        vectors.append(vector[0])
    return vectors


@torch.no_grad()
def classify_slowly(model, words: list[int]) -> np.ndarray:
    """The probabilities of one sentence, (P, C): with ``step``, and without padding."""
    directions = [read_slowly(model.network, words)]
    if model.config.bidirectional:
        directions.append(read_slowly(model.reverse, words[::-1])[::-1])
    pooling = model.config.pooling
    if pooling == "mean":
        parts = [[sum(vectors) / len(vectors)] for vectors in directions]
    elif pooling == "last":
        parts = [[directions[0][-1]], *([vectors[0]] for vectors in directions[1:])]
    else:
        parts = directions
    scores = [
        model.output.word_weight @ torch.cat(pieces) + model.output.word_bias
        for pieces in zip(*parts, strict=True)
    ]
    return torch.stack(scores).softmax(1).numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("bidirectional", [False, True])
@settings(max_examples=5, deadline=None)
@given(sentences=SENTENCES)
def test_batches_equal_single_sentences(kind, pooling, bidirectional, sentences):
    model = make_classifier(kind=kind, pooling=pooling, bidirectional=bidirectional, **KINDS[kind])
    probs = predict(model, encode_sentences(sentences, [0] * len(sentences), VOCABULARY))
    for row, words in zip(probs, sentences, strict=True):
        ids = [*VOCABULARY.encode(words).tolist(), VOCABULARY.end]
        np.testing.assert_allclose(row, classify_slowly(model, ids)[0], atol=1e-5)
    assert probs.sum(axis=1) == pytest.approx(1)


@settings(max_examples=20, deadline=None)
@given(sentences=SENTENCES, seed=st.integers(0, 9))
def test_predictions_do_not_depend_on_the_batch(sentences, seed):
    model = make_classifier(kind="gru", layers=2)
    together = predict(model, encode_sentences(sentences, [0] * len(sentences), VOCABULARY))
    order = np.random.default_rng(seed).permutation(len(sentences))
    shuffled = predict(model, encode_sentences([sentences[i] for i in order], [0] * len(order), VOCABULARY))
    np.testing.assert_allclose(shuffled, together[order], atol=1e-6)
    alone = [predict(model, encode_sentences([words], [0], VOCABULARY))[0] for words in sentences]
    np.testing.assert_allclose(alone, together, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(sentences=SENTENCES, bidirectional=st.booleans())
def test_a_label_per_word_equals_single_sentences(sentences, bidirectional):
    model = make_classifier(pooling="none", bidirectional=bidirectional, layers=2)
    text = encode_sentences(sentences, [0] * len(sentences), VOCABULARY)
    inputs, _ = text.pad_rows(np.arange(len(sentences)))
    with torch.no_grad():
        vectors, _ = model.context_vectors(torch.from_numpy(inputs))
        probs = model.output.distribution(vectors.flatten(0, 1)).exp().view(*inputs.shape, -1)
    for row, words in zip(probs.numpy(), sentences, strict=True):
        ids = [*VOCABULARY.encode(words).tolist(), VOCABULARY.end]
        np.testing.assert_allclose(row[: len(ids)], classify_slowly(model, ids), atol=1e-5)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_saves_and_loads_every_parameter(tmp_path, bidirectional):
    model = make_classifier(bidirectional=bidirectional, layers=2, hidden_size=6)
    save_model(model, VOCABULARY, tmp_path)
    loaded, vocabulary = load_classifier(tmp_path)
    assert vocabulary == VOCABULARY
    assert loaded.config == model.config
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value)
    if bidirectional:
        assert loaded.reverse.embedding.weight is loaded.network.embedding.weight


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_classifier_cannot_become_a_language_model(tmp_path, capsys, bidirectional):
    model = make_classifier(bidirectional=bidirectional)
    assert not isinstance(model, NeuralModel)
    save_model(model, VOCABULARY, tmp_path / "run" / "best")
    with pytest.raises(BundleError, match="is a classifier, made by rescorer-train classify"):
        load_model(tmp_path / "run" / "best")
    (tmp_path / "text.txt").write_text("a b\n")
    arguments = ["bundle", str(tmp_path / "models/it/1"), "--neural", str(tmp_path / "run")]
    arguments += ["--validation", str(tmp_path / "text.txt")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["rescorer-train", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
    assert exit_.value.code == 2
    assert "is a classifier" in capsys.readouterr().err
    assert not (tmp_path / "models/it/1").exists()


def test_a_language_model_is_not_a_classifier(tmp_path):
    save_model(NeuralModel(make_classifier().config.network), VOCABULARY, tmp_path)
    with pytest.raises(BundleError, match="not the configuration of a classifier"):
        load_classifier(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pooling": "max"}, "pooling is 'max'"),
        ({"pooling": []}, "pooling is"),
        ({"bidirectional": 1}, "bidirectional is 1"),
        ({"bidirectional": False}, "output.word_weight has the shape"),
        ({"labels": ["sea"]}, "1 labels; expected 2"),
        ({"labels": ["sea", "farm"]}, "output.word_weight has the shape"),
        ({"labels": ["sea", "farm", "sea"]}, "'sea' occurs twice"),
        ({"labels": ["sea", "farm", "a\tb"]}, "printable"),
        ({"labels": ["sea", "farm", 3]}, "printable"),
        ({"labels": "abc"}, "labels a list"),
        ({"network": None}, "network must be a JSON object"),
        ({"more": 1}, "not the configuration of a classifier"),
    ],
)
def test_refuses_hostile_configurations(tmp_path, change, message):
    save_model(make_classifier(), VOCABULARY, tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(BundleError, match=message) as caught:
        load_classifier(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 16_384}, "the weights do not fit"),
        ({"hidden_size": 10**9}, "hidden_size is"),
        ({"tied": True}, "output layer, the state or the topics of a"),
        ({"backward": True}, "output layer, the state or the topics of a"),
        ({"topics": 4, "topic_decay": 0.98}, "output layer, the state or the topics of a"),
        ({"vocabulary_size": 10}, "the weights do not fit"),
    ],
)
def test_refuses_hostile_networks(tmp_path, change, message):
    save_model(make_classifier(), VOCABULARY, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"network": config["network"] | change}))
    with pytest.raises(BundleError, match=message):
        load_classifier(tmp_path)


def test_refuses_damaged_weights(tmp_path):
    save_model(make_classifier(), VOCABULARY, tmp_path)
    path = tmp_path / "model.safetensors"
    weights, data = load_file(path), path.read_bytes()
    save_file({**weights, "output.word_bias": torch.tensor([0.0, float("nan"), 0.0])}, path)
    with pytest.raises(BundleError, match=r"output.word_bias has values that are not finite"):
        load_classifier(tmp_path)
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(BundleError, match="safetensors"):
        load_classifier(tmp_path)
    save_file({name: value for name, value in weights.items() if name != "output.word_bias"}, path)
    with pytest.raises(BundleError, match=r"output.word_bias is missing"):
        load_classifier(tmp_path)


def test_words_like_markers_are_unknown_words():
    """A text may contain ``<s>``, with which rows are padded."""
    text = encode_sentences([("a", "<s>", "</s>", "b")], [0], VOCABULARY)
    assert isinstance(text, Sentences)
    assert text.lengths.tolist() == [5]
    assert (text.pad_rows(np.array([0]))[0] != VOCABULARY.start).all()

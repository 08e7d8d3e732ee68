"""Training of classifiers: the texts and their split, learning, resuming, embeddings, labels of words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from rescorer.errors import BundleError, ConfigError, FormatError
from rescorer.models.network_files import Vocabulary
from rescorer.text import Normaliser
from rescorer_training.batches import TaggedSentences, label, tag
from rescorer_training.classification import (
    Classifier,
    ClassifierOptions,
    ClassifierTraining,
    RunInputs,
    load_classifier,
    load_prepared,
    make_classifier,
    predict,
    predict_lines,
    prepare_text,
    read_labelled,
    train,
)
from rescorer_training.neural.checkpoint import start_folder
from rescorer_training.neural.options import RunOptions, TrainingOptions
from rescorer_training.neural.prepare import perplexity
from rescorer_training.neural.train import Trainer, TrainingRun
from tests.support.toy_classifiers import WORDS, make_config, write_texts

NETWORK = ClassifierOptions(embedding_size=8, hidden_size=8)
OPTIONS = ClassifierTraining(epochs=8, batch_words=64, warmup_steps=5, learning_rate=0.02)


def make_inputs(folder, texts, validation=None) -> RunInputs:
    return RunInputs(folder, texts, validation or {}, Normaliser())


def run_training(folder, texts, network=NETWORK, options=OPTIONS, **settings) -> dict:
    inputs = make_inputs(folder, texts)
    start_folder(inputs.folder, inputs.normaliser)
    return train(inputs, prepare_text(folder, texts, {}, inputs.normaliser), network, options, **settings)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def run(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("runs") / "toy"
    run_training(folder, texts)
    return folder


def test_learns_the_classes(run, texts):
    facts = json.loads((run / "best" / "training.json").read_text())
    # a sixth of the sentences has only words of all classes
    assert facts["validation_accuracy"] >= 0.8
    assert facts["validation_sentences"] == 18
    assert facts["validation"] == "the last 10 % of the sentences of each class"
    model, vocabulary = load_classifier(run / "best")
    lines = ["ship sail", "the cow", "tram"]
    found = predict_lines(model, vocabulary, Normaliser(), lines)
    assert [prediction.label for prediction in found] == ["sea", "farm", "town"]


@pytest.mark.parametrize("kind", ["gru", "elman", "lbl", "nlbl", "feedforward", "transformer"])
def test_other_networks_learn_the_classes(tmp_path, texts, kind):
    network = replace(NETWORK, kind=kind, heads=2 if kind == "transformer" else None, pooling="mean")
    facts = run_training(tmp_path / kind, texts, network)
    assert facts["validation_accuracy"] >= 0.8


def test_splits_the_last_sentences_off(tmp_path, texts):
    prepared = prepare_text(tmp_path, texts, {}, Normaliser(), validation_share=0.25)
    assert prepared.labels == tuple(WORDS)
    assert np.bincount(prepared.train.labels).tolist() == [45] * 3
    assert np.bincount(prepared.validation.labels).tolist() == [15] * 3
    words = prepared.vocabulary.words
    for number, path in enumerate(texts.values()):
        lines = path.read_text().splitlines()
        for part, expected in ((prepared.train, lines[:45]), (prepared.validation, lines[45:])):
            chosen = np.flatnonzero(part.labels == number)
            rows, labels = part.pad_rows(chosen)
            decoded = [" ".join(words[i] for i in row if words[i] not in ("</s>", "<s>")) for row in rows]
            assert decoded == expected
            assert (labels == number).all()
    again = load_prepared(tmp_path)
    assert (again.train.starts == prepared.train.starts).all()


def test_takes_validation_texts_in_any_order(tmp_path, texts):
    validation = {name: texts[name] for name in reversed(texts)}
    prepared = prepare_text(tmp_path, texts, validation, Normaliser())
    assert (prepared.train.labels == prepared.validation.labels).all()
    assert (prepared.train.lengths == prepared.validation.lengths).all()


def test_words_of_validation_text_and_rare_words_are_unknown(tmp_path):
    for name, text in (("x", "a a b c\na d\nz z z z\n"), ("y", "e e e\ne f\nf z\n")):
        (tmp_path / f"{name}.txt").write_text(text)
    texts = {name: tmp_path / f"{name}.txt" for name in "xy"}
    prepared = prepare_text(tmp_path, texts, {}, Normaliser(), validation_share=0.3)
    assert set(prepared.vocabulary.words) == {"</s>", "<unk>", "<s>", "a", "e"}


def test_a_class_without_sentences_is_named(tmp_path, texts):
    empty = tmp_path / "empty.txt"
    empty.write_text("\n  \n")
    with pytest.raises(FormatError, match=r"empty\.txt.*no words in the text"):
        prepare_text(tmp_path, {**texts, "empty": empty}, {}, Normaliser())
    empty.write_text("one sentence\n")
    with pytest.raises(FormatError, match=r"empty\.txt.*single sentence"):
        prepare_text(tmp_path, {**texts, "empty": empty}, {}, Normaliser())
    with pytest.raises(ConfigError, match="different classes: empty"):
        prepare_text(tmp_path, {**texts, "empty": empty}, texts, Normaliser())


def test_refuses_test_texts_of_other_classes(run, texts):
    model, vocabulary = load_classifier(run / "best")
    with pytest.raises(ConfigError, match="no class 'sky'; it has sea, farm, town"):
        read_labelled({"sky": texts["sea"]}, model.config, Normaliser(), vocabulary)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, texts, run, monkeypatch):
    calls = []

    def stop(self, *arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return validate(self, *arguments)

    validate = Trainer._validate
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_validate", stop)
        with pytest.raises(KeyboardInterrupt):
            run_training(tmp_path / "run", texts)
    inputs, prepared = make_inputs(tmp_path / "run", texts), load_prepared(tmp_path / "run")
    with pytest.raises(ConfigError, match="hidden_size was 8, is 9"):
        train(inputs, prepared, replace(NETWORK, hidden_size=9), OPTIONS, RunOptions(resume=True))
    train(inputs, prepared, NETWORK, OPTIONS, RunOptions(resume=True))
    (model, _), (expected, _) = load_classifier(tmp_path / "run" / "best"), load_classifier(run / "best")
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)
    with pytest.raises(ConfigError, match="already has a training run"):
        start_folder(inputs.folder, inputs.normaliser)


def test_embeddings_are_loaded_and_may_be_frozen(tmp_path, texts):
    file = tmp_path / "vectors.txt"
    file.write_text("ship " + " ".join(["1"] * 8) + "\ncow " + " ".join(["-1"] * 8) + "\n")
    weights = {}
    for frozen in (False, True):
        network = replace(NETWORK, embeddings=str(file), freeze_embeddings=frozen)
        prepared = prepare_text(tmp_path, texts, {}, Normaliser())
        torch.manual_seed(OPTIONS.seed)
        start = make_classifier(prepared, network).network.embedding.weight.detach().clone()
        run_training(tmp_path / f"frozen-{frozen}", texts, network, replace(OPTIONS, epochs=1))
        model, vocabulary = load_classifier(tmp_path / f"frozen-{frozen}" / "best")
        weights[frozen] = (start, model.network.embedding.weight)
        ids = vocabulary.encode(["ship", "cow"]).tolist()
        assert torch.equal(start[ids[0]], -start[ids[1]])
        assert model.reverse.embedding.weight is model.network.embedding.weight
    assert torch.equal(*weights[True])
    assert not torch.equal(*weights[False])


@pytest.mark.parametrize(
    ("network", "error", "message"),
    [
        (replace(NETWORK, freeze_embeddings=True), ConfigError, "needs the vectors"),
        (replace(NETWORK, pooling="none"), ConfigError, "labels of words"),
        (replace(NETWORK, pooling="max"), BundleError, "pooling is 'max'"),
        (replace(NETWORK, kind="cnn"), BundleError, "unknown kind 'cnn'"),
    ],
)
def test_refuses_options_that_do_not_fit(tmp_path, texts, network, error, message):
    with pytest.raises(error, match=message):
        make_classifier(prepare_text(tmp_path, texts, {}, Normaliser()), network)


def test_unknown_words_only_and_empty_lines_have_predictions(run):
    model, vocabulary = load_classifier(run / "best")
    lines = ["", "qwerty asdf", "ship qwerty"]
    predictions = list(predict_lines(model, vocabulary, Normaliser(), lines))
    assert [(found.n_words, found.n_unknown) for found in predictions] == [(0, 0), (2, 2), (2, 1)]
    for found in predictions:
        assert sum(found.probabilities.values()) == pytest.approx(1)
        assert found.label == max(found.probabilities, key=found.probabilities.__getitem__)


TAG_WORDS = Vocabulary(("</s>", "<unk>", "a", "b", "c", "d", "<s>"))


def make_tagged(n_sentences: int, seed: int) -> TaggedSentences:
    """Random words; the label of a word is whether the next one is ``a``, which only the right side tells."""
    random = np.random.default_rng(seed)
    sentences = []
    for _ in range(n_sentences):
        words = random.choice(list("abcd"), random.integers(2, 8)).tolist()
        sentences.append(
            [(word, "ny"[after == "a"]) for word, after in zip(words, [*words[1:], ""], strict=True)]
        )
    return tag(sentences, "ny", TAG_WORDS)


def test_labels_of_words_need_both_directions(tmp_path):
    """Many-to-many: the same loop, with a label at every position."""
    options = TrainingOptions(epochs=6, batch_words=64, warmup_steps=5, learning_rate=0.05)
    train_text, valid = make_tagged(300, 1), make_tagged(40, 2)
    found = {}
    for bidirectional in (False, True):
        torch.manual_seed(1)
        config = make_config(7, pooling="none", labels=("no", "yes"), bidirectional=bidirectional)
        training_run = TrainingRun(tmp_path / str(bidirectional))
        trainer = Trainer(training_run, Classifier(config), TAG_WORDS, options)
        progress = trainer.train(train_text, valid)
        found[bidirectional] = progress.best_perplexity
        model, _ = load_classifier(tmp_path / str(bidirectional) / "best")
        assert perplexity(model, valid) == pytest.approx(progress.best_perplexity, rel=1e-5)
    assert progress.words == options.epochs * len(train_text.targets)
    assert found[True] < 1.05
    assert found[False] > 1.4


def test_long_sentences_are_not_read_in_parts():
    """Validation reads causal networks in chunks of columns, which would break the backward direction."""
    config = make_config(7, pooling="mean", labels=("no", "yes"))
    torch.manual_seed(1)
    model = Classifier(config).eval()
    random = np.random.default_rng(0)
    ids = np.concatenate([[*random.integers(2, 6, n), 0] for n in (150, 3)])
    text = label(ids, np.array([0, 1]), TAG_WORDS)
    expected = -np.log(predict(model, text)[[0, 1], [0, 1]]).mean()
    assert np.log(perplexity(model, text)) == pytest.approx(expected, rel=1e-5)


def test_refuses_unknown_labels_of_words():
    with pytest.raises(ConfigError, match="sentence 2: 'b' has the label 'x'; expected one of n, y"):
        tag([[("a", "n")], [("b", "x")]], "ny", TAG_WORDS)

"""Class inputs: a folded model is the trained one, and a killed run resumes exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.models.neural import NeuralLanguageModel, load_model, save_model
from rescorer.trie import build_trie
from rescorer_training.cli import app
from rescorer_training.features import ClassEmbedding, add_class_inputs, fold_class_inputs
from rescorer_training.neural.build import CLASS_INPUTS_FILE, parse_depths
from rescorer_training.neural.prepare import load_prepared, perplexity
from tests.support.tiny_models import NETWORK_WORDS, random_network
from tests.support.toy_training import write_text

KINDS = [
    {"kind": "lstm"},
    {"kind": "lstm", "tied": False},
    {"kind": "gru", "output": "full", "class_sizes": ()},
    {"kind": "feedforward", "window": 3},
    {"kind": "lbl", "window": 2, "hidden_size": 6},
    {"kind": "transformer", "window": 4},
    {"kind": "elman", "output": "tree", "class_sizes": (), "tied": False},
]


def network_with_classes(**settings):
    model, vocabulary = random_network(**settings)
    classes = torch.randint(0, 5, (len(vocabulary), 3))
    classes[0] = torch.tensor([0, 1, 4])
    add_class_inputs(model, classes)
    torch.nn.init.normal_(model.network.embedding.class_vectors)
    return model.eval(), vocabulary


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_a_folded_model_computes_the_same(settings, tmp_path):
    model, vocabulary = network_with_classes(**settings)
    words, targets = torch.randint(0, len(vocabulary), (3, 7)), torch.randint(0, len(vocabulary) - 1, (3, 7))
    with torch.no_grad():
        expected = model.loss(words, targets)
        folded = fold_class_inputs(model)
        assert not isinstance(folded.network.embedding, ClassEmbedding)
        assert folded.loss(words, targets) == pytest.approx(float(expected), rel=1e-6)
    save_model(folded, vocabulary, tmp_path)
    loaded, _ = load_model(tmp_path)
    trie = build_trie([NETWORK_WORDS[:3], NETWORK_WORDS[1:5], ()])
    scores = [NeuralLanguageModel(m, vocabulary).score(trie).log_probs for m in (model, loaded)]
    np.testing.assert_allclose(*scores, atol=1e-5)


def test_starts_as_the_same_function_and_learns_classes():
    plain, vocabulary = random_network()
    model, _ = random_network()
    add_class_inputs(model, torch.zeros(len(vocabulary), 1, dtype=torch.int64))
    words = torch.randint(0, len(vocabulary) - 1, (2, 5))
    loss = model.loss(words, words)
    assert loss.item() == plain.loss(words, words).item()
    assert model.output.word_weight is model.network.embedding.weight
    loss.backward()
    assert model.network.embedding.class_vectors.grad.abs().sum() > 0
    assert fold_class_inputs(plain) is plain


def test_refuses_a_tied_tree():
    model, vocabulary = random_network(output="tree", class_sizes=())
    with pytest.raises(ConfigError, match="--untied"):
        add_class_inputs(model, torch.zeros(len(vocabulary), 1, dtype=torch.int64))


def test_depths():
    assert parse_depths(None) == []
    assert parse_depths("4, 8,16") == [4, 8, 16]
    for wrong in ("0", "4,,8", "a", "65", "-1", " "):
        with pytest.raises(ConfigError, match="separated by commas"):
            parse_depths(wrong)


def test_trains_folds_and_resumes_exactly(tmp_path):
    train, validation = write_text(tmp_path)
    options = [
        *("neural", str(train), "--validation", str(validation), "--embedding", "8", "--hidden", "8"),
        *("--batch-words", "256", "--warmup-steps", "5", "--learning-rate", "0.02", "--schedule", "constant"),
        *("--class-inputs", "1,2,8"),
    ]

    def run(folder, *more):
        return CliRunner().invoke(app, [*options, "-o", str(tmp_path / folder), *more])

    for arguments in (
        ["whole", "--epochs", "4"],
        ["killed", "--epochs", "2"],
        ["killed", "--epochs", "4", "--resume"],
    ):
        assert run(*arguments).exit_code == 0
    (model, vocabulary), (resumed, _) = (load_model(tmp_path / name / "best") for name in ("whole", "killed"))
    assert not model.config.tied
    for name, value in model.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0)
    classes = np.load(tmp_path / "whole" / CLASS_INPUTS_FILE)
    assert classes.shape == (len(vocabulary), 3)
    assert classes[vocabulary.start].tolist() == classes[vocabulary.end].tolist()
    best = json.loads((tmp_path / "whole" / "best" / "training.json").read_text())["validation_perplexity"]
    text = load_prepared(tmp_path / "whole", 50)
    assert perplexity(model, text.validation) == pytest.approx(best, abs=1e-2)
    assert best < text.unigram_perplexity() / 2
    (tmp_path / "killed" / "class_inputs.npy").unlink()
    result = run("killed", "--epochs", "5", "--resume")
    assert isinstance(result.exception, ConfigError)
    assert "class_inputs.npy is missing" in str(result.exception)

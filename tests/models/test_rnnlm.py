"""Networks of Mikolov's rnnlm toolkit: its own probabilities, and errors about what is not read."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rescorer import Rescorer
from rescorer.errors import BundleError, ConfigError
from rescorer.models.neural import NeuralLanguageModel
from rescorer.models.rnnlm import read_rnnlm
from rescorer.trie import build_trie
from rescorer_training.cli import app

MODELS = Path(__file__).parents[1] / "golden" / "rnnlm"
PEER = json.loads((MODELS / "scores.json").read_text())
TEXTS = [tuple(text.split()) for text in PEER["texts"]]


def peer_probabilities(kind):
    """The toolkit's probabilities of each text's words and end; None for unknown words."""
    found = iter(PEER["probabilities"][kind])
    return [[next(found) for _ in range(len(words) + 1)] for words in TEXTS]


@pytest.mark.parametrize("kind", PEER["probabilities"])
def test_probabilities_are_those_of_the_toolkit(kind):
    scorer = NeuralLanguageModel(*read_rnnlm(MODELS / f"{kind}.rnn"))
    trie = build_trie(TEXTS)
    log_probs = scorer.score(trie).log_probs
    # the toolkit carries the state of the third network from sentence to sentence
    for number, expected in list(enumerate(peer_probabilities(kind)))[: 1 if kind == "carried" else None]:
        for edge, probability in zip(trie.path_edges(number), expected, strict=True):
            if probability is None:
                assert -14 < log_probs[edge] < -9  # about 1e-5
            else:
                assert log_probs[edge] == pytest.approx(math.log(probability), abs=1e-4)


@pytest.mark.parametrize("kind", PEER["probabilities"])
def test_scores_of_a_trie_are_those_of_one_sentence_at_a_time(kind):
    model, vocabulary = read_rnnlm(MODELS / f"{kind}.rnn")
    trie = build_trie(TEXTS)
    found = NeuralLanguageModel(copy.deepcopy(model), vocabulary).score(trie).sum_paths(trie)
    exact = model.double()
    for words, score in zip(TEXTS, found, strict=True):
        ids = torch.tensor([vocabulary.start, *vocabulary.encode(words), vocabulary.end])
        vectors, _ = exact.network(ids[:-1].unsqueeze(0))
        expected = exact.output.distribution(vectors[0]).gather(1, ids[1:].unsqueeze(1)).sum()
        assert score == pytest.approx(float(expected), abs=1e-5)


def test_classes_without_words_keep_their_share(tmp_path):
    data = (MODELS / "text.rnn").read_text().replace("class size: 5", "class size: 6").rstrip("\n")
    head, _, _ = data.partition("\nDirect connections:")
    path = tmp_path / "empty.rnn"
    path.write_text(head + "\n0.0000" * 6 + "\n\nDirect connections:\n")
    model, vocabulary = read_rnnlm(path)
    assert "<class 5>" in vocabulary.words
    log_probs = model.output.distribution(torch.zeros(1, 6))[0]
    assert log_probs[vocabulary.ids["<class 5>"]] == pytest.approx(math.log(1 / 6), abs=1e-4)


def test_an_unknown_word_of_its_own_is_kept(tmp_path):
    path = tmp_path / "unk.rnn"
    path.write_text((MODELS / "text.rnn").read_text().replace("\tmat\t", "\t<unk>\t"))
    model, vocabulary = read_rnnlm(path)
    trie = build_trie([("the", "zebra")])
    scores = NeuralLanguageModel(model, vocabulary).score(trie)
    assert len(vocabulary) == 11
    assert scores.unknown.tolist() == [False, True, False]
    assert np.exp(scores.log_probs[1]) > 1e-4


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 10", "version: 6", "version 6; expected 10"),
        ("direct connections: 0", "direct connections: 1000", "maximum-entropy features.*1,000"),
        ("compression layer size: 0", "compression layer size: 5", "a compression layer"),
        ("hidden layer size: 6", "hidden layer size: 99999999", "hidden layer size is '99999999'"),
        ("hidden layer size: 6", "hidden layer size: 7", "the weights do not fit the sizes"),
        ("hidden layer size: 6", "hidden layer size: 16000", "the weights do not fit the sizes"),
        ("class size: 5", "class size: 3", "classes of words are not in ascending order below 3"),
        ("class size: 5", "class size: 50", "50 classes of 10 words"),
        ("Vocabulary:", "Words", "is not a file of the rnnlm toolkit"),
        ("\tcat\t", "\tthe\t", "the words are not </s> and others"),
        ("\tcat\t", "\t<s>\t", "none of them <s>"),
        ("\tcat\t", " cat ", "word 2 cannot be read"),
        ("Weights 0->1:\n", "Weights 0->1:\nx\n", "a weight cannot be read"),
        ("Weights 0->1:\n", "Weights 0->1:\nnan\n", "do not fit"),
    ],
)
def test_refuses_files_that_it_cannot_read_exactly(tmp_path, old, new, message):
    data = (MODELS / "text.rnn").read_text()
    assert old in data
    path = tmp_path / "changed.rnn"
    path.write_text(data.replace(old, new, 1))
    with pytest.raises(BundleError, match=message):
        read_rnnlm(path)


def test_refuses_damaged_binary_files(tmp_path):
    path = tmp_path / "short.rnn"
    path.write_bytes((MODELS / "binary.rnn").read_bytes()[:-1])
    with pytest.raises(BundleError, match="bytes of weights; expected"):
        read_rnnlm(path)
    path.write_bytes((MODELS / "binary.rnn").read_bytes()[:-4] + np.float32("inf").tobytes())
    with pytest.raises(BundleError, match="weights that are not finite"):
        read_rnnlm(path)


def test_the_command_writes_a_network_for_a_bundle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("The cat sat.\nA dog ran on the zebra.\n")
    arguments = ["import", "rnnlm", str(MODELS / "binary.rnn"), "-o", "words", "--validation", "text"]
    with pytest.raises(ConfigError, match="are not for rnnlm"):
        CliRunner().invoke(app, [*arguments, "--text", "upper"], catch_exceptions=False)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "275 parameters, 12 words" in result.output
    assert "1 of 9 words are unknown to it" in result.output
    bundle = ["bundle", "toy/1", "--neural", "words", "--validation", "text"]
    assert CliRunner().invoke(app, bundle, catch_exceptions=False).exit_code == 0
    (text,) = Rescorer.load(tmp_path / "toy" / "1").score_text("the cat sat")
    expected = np.log(peer_probabilities("binary")[0])
    assert text.log_probs["neural"] == pytest.approx(expected, abs=1e-4)


def test_refuses_text_of_which_no_word_is_known(tmp_path):
    (tmp_path / "text").write_text("zebra\n")
    options = ["-o", str(tmp_path / "o"), "--validation", str(tmp_path / "text")]
    with pytest.raises(ConfigError, match="no word of the text is known"):
        CliRunner().invoke(
            app, ["import", "rnnlm", str(MODELS / "text.rnn"), *options], catch_exceptions=False
        )
    assert not (tmp_path / "o").exists()

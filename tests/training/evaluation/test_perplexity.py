"""Perplexity: treatments of unknown words, carried state, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rescorer.errors import FormatError, ScoringError
from rescorer.models.neural import NeuralLanguageModel, save_model
from rescorer.weights import MIXTURE
from rescorer_training.cli import app
from rescorer_training.evaluation import past_text
from rescorer_training.evaluation.perplexity import load_models, measure, score_tokens
from tests.support.tiny_models import random_network, write_arpa

SENTENCES = [("the", "cat", "sat"), ("the", "dog", "ran"), ("zebra", "unheard"), ("on", "the", "mat")]


@pytest.fixture
def folder(tmp_path):
    write_arpa(tmp_path)
    save_model(*random_network(), tmp_path / "run" / "best")
    (tmp_path / "text.txt").write_text("".join(" ".join(words) + "\n" for words in SENTENCES))
    return tmp_path


def make_carried_network():
    model, vocabulary = random_network()
    model.config = replace(model.config, carried=True)
    return NeuralLanguageModel(model, vocabulary)


def test_treatments_of_unknown_words(folder):
    models = load_models(
        None, [folder / "model.arpa"], [folder / "run"], shares={"ngram": 0.25, "neural": 0.75}
    )
    scores = score_tokens(models.models, SENTENCES)
    measured = measure(scores, models.shares)
    assert (measured.n_sentences, measured.n_tokens, measured.n_excluded) == (
        4,
        15,
        4,
    )  # dog, ran, zebra, unheard
    unknown = {name: perplexity.n_unknown for name, perplexity in measured.models.items()}
    assert unknown == {"ngram": 3, "neural": 2, MIXTURE: 1}
    alone = score_tokens({"alone": NeuralLanguageModel(*random_network())}, SENTENCES)
    counted = math.exp(-alone.log_probs["alone"].mean())
    assert measured.models["neural"].counted == pytest.approx(counted, rel=1e-6)
    assert measured.models["neural"].shared > counted  # an unknown word gets only a share of <unk>
    assert measured.models[MIXTURE].counted is None
    known = ~(scores.unknown["ngram"] | scores.unknown["neural"])
    for name in models.models:
        expected = math.exp(-scores.log_probs[name][known].mean())
        assert measured.models[name].excluded == pytest.approx(expected)


def test_treatments_agree_for_models_of_one_vocabulary(folder):
    models = load_models(None, [folder / "model.arpa"] * 2)
    measured = measure(score_tokens(models.models, SENTENCES), models.shares).models
    assert set(measured) == {"ngram", "ngram2", MIXTURE}
    for perplexity in measured.values():
        assert perplexity.shared == perplexity.counted == pytest.approx(measured["ngram"].shared)


@pytest.mark.parametrize("max_chunk_tokens", [1, 4, 1000])
def test_state_is_carried_across_sentences(max_chunk_tokens, monkeypatch):
    monkeypatch.setattr(past_text, "MAX_CARRIED_TOKENS", max_chunk_tokens)
    model = make_carried_network()
    scores = score_tokens({"neural": model}, SENTENCES, in_order=True)
    ids = [i for words in SENTENCES for i in (*model.words.encode(words).tolist(), model.words.end)]
    state, expected = model.model.network.initial_state(1), []  # reference: one step per word
    with torch.no_grad():
        for previous, word in zip([model.words.end, *ids[:-1]], ids, strict=True):
            vectors, state = model.model.network.step(
                model.model.network.inputs(torch.tensor([previous])), state
            )
            expected.append(float(model.model.output.distribution(vectors)[0, word]))
    np.testing.assert_allclose(scores.log_probs["neural"], expected, atol=1e-5)
    reset = score_tokens({"neural": model}, SENTENCES)
    first = len(SENTENCES[0]) + 1
    np.testing.assert_allclose(
        scores.log_probs["neural"][:first], reset.log_probs["neural"][:first], atol=1e-5
    )
    assert abs(scores.log_probs["neural"][first:] - reset.log_probs["neural"][first:]).max() > 1e-3


def test_in_order_is_ignored_for_networks_that_reset_their_state():
    model = NeuralLanguageModel(*random_network())
    in_order = score_tokens({"neural": model}, SENTENCES, in_order=True)
    assert np.array_equal(
        in_order.log_probs["neural"], score_tokens({"neural": model}, SENTENCES).log_probs["neural"]
    )


def test_raises_for_empty_text_and_non_finite_scores():
    model = NeuralLanguageModel(*random_network())
    with pytest.raises(FormatError, match="no words"):
        score_tokens({"neural": model}, [])
    with torch.no_grad():
        model.model.output.word_bias.fill_(math.nan)
    with pytest.raises(ScoringError, match="'neural' gave a score that is not finite"):
        score_tokens({"neural": model}, SENTENCES)


@pytest.mark.parametrize("empty", ["text", "validation"])
def test_command_names_the_text_without_words(folder, empty):
    paths = {"text": folder / "text.txt", "validation": folder / "text.txt"} | {empty: folder / "empty.txt"}
    (folder / "empty.txt").write_text("\n")
    (folder / "text.txt").write_text("the cat sat\n")
    arguments = ["perplexity", str(paths["text"]), "--ngram", str(folder / "model.arpa")]
    with pytest.raises(FormatError, match=r"empty.txt: no words in the text"):
        CliRunner().invoke(
            app, [*arguments, "--validation", str(paths["validation"])], catch_exceptions=False
        )


def test_command_fits_and_prints_interpolation_weights(folder):
    text = str(folder / "text.txt")
    arguments = ["perplexity", text, "--ngram", str(folder / "model.arpa"), "--neural", str(folder / "run")]
    result = CliRunner().invoke(app, [*arguments, "--validation", text, "--json"], catch_exceptions=False)
    facts = json.loads(result.stdout)
    models = facts["texts"][text]["models"]
    assert sum(facts["shares"].values()) == pytest.approx(1)
    assert models["mixture"]["shared"] <= min(models["ngram"]["shared"], models["neural"]["shared"]) + 1e-9
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "λ: ngram 0.500, neural 0.500" in result.stdout


def test_says_how_many_words_have_no_probability(folder):
    """A model without <unk> gives unknown words none: with them, perplexity is a number of many digits."""
    arpa = folder / "model.arpa"
    arpa.write_text(arpa.read_text().replace("ngram 1=9", "ngram 1=8").replace("-1.2\t<unk>\t0\n", ""))
    arguments = ["perplexity", str(folder / "text.txt"), "--ngram", str(arpa), "--normaliser", "raw"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    figures = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    (model,) = figures["texts"][str(folder / "text.txt")]["models"].values()
    assert model["n_impossible"] == model["n_unknown"] == 3
    assert model["possible"] < 100 < model["counted"]
    assert (
        f"3 unknown words have no probability, as it has none for <unk>: perplexity {model['counted']:.3g}"
        in shown
    )
    assert f"with them, {model['possible']:.2f} without" in shown
    assert max(map(len, shown.splitlines()[2].split())) <= 12
    arpa.write_text(arpa.read_text().replace("-1.0\t</s>", "-1e30\t</s>"))
    figures = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    (model,) = figures["texts"][str(folder / "text.txt")]["models"].values()
    assert model["counted"] is None  # too large for a number

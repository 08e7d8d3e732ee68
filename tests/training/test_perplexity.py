"""Perplexity of any models: the treatments of unknown words, state that goes on, and the command."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rescorer.errors import FormatError, ScoringError
from rescorer.lm.checkpoint import save_model
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.score_combination import MIXTURE
from rescorer_training.cli import app
from rescorer_training.evaluation import token_scores
from rescorer_training.evaluation.model_set import load_models
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import score_tokens
from tests.support.tiny_models import random_network, write_arpa

SENTENCES = [("the", "cat", "sat"), ("the", "dog", "ran"), ("zebra", "unheard"), ("on", "the", "mat")]


@pytest.fixture
def folder(tmp_path):
    write_arpa(tmp_path)
    save_model(*random_network(), tmp_path / "run" / "best")
    (tmp_path / "text.txt").write_text("".join(" ".join(words) + "\n" for words in SENTENCES))
    return tmp_path


def carried_network():
    model, vocabulary = random_network()
    model.config = replace(model.config, carried=True)
    return NeuralLanguageModel(model, vocabulary)


def test_unknown_words_are_shared_counted_and_excluded(folder):
    models = load_models(
        None, [folder / "model.arpa"], [folder / "run"], shares={"ngram": 0.25, "neural": 0.75}
    )
    scores = score_tokens(models.models, SENTENCES)
    found = measure(scores, models.shares)
    assert (found.n_sentences, found.n_tokens, found.n_excluded) == (4, 15, 4)  # dog, ran, zebra, unheard
    unknown = {name: each.n_unknown for name, each in found.models.items()}
    assert unknown == {"ngram": 3, "neural": 2, MIXTURE: 1}
    alone = score_tokens({"alone": NeuralLanguageModel(*random_network())}, SENTENCES)
    counted = math.exp(-alone.log_probs["alone"].mean())
    assert found.models["neural"].counted == pytest.approx(counted, rel=1e-6)
    assert found.models["neural"].shared > counted  # each unknown word has but a part of <unk>
    assert found.models[MIXTURE].counted is None
    known = ~(scores.unknown["ngram"] | scores.unknown["neural"])
    for name in models.models:
        expected = math.exp(-scores.log_probs[name][known].mean())
        assert found.models[name].excluded == pytest.approx(expected)


def test_models_of_one_vocabulary_have_one_figure(folder):
    models = load_models(None, [folder / "model.arpa"] * 2)
    found = measure(score_tokens(models.models, SENTENCES), models.shares).models
    assert set(found) == {"ngram", "ngram2", MIXTURE}
    for each in found.values():
        assert each.shared == each.counted == pytest.approx(found["ngram"].shared)


@pytest.mark.parametrize("tokens_a_step", [1, 4, 1000])
def test_carried_state_goes_on_over_sentences(tokens_a_step, monkeypatch):
    monkeypatch.setattr(token_scores, "TOKENS_A_STEP", tokens_a_step)
    model = carried_network()
    scores = score_tokens({"neural": model}, SENTENCES, in_order=True)
    ids = [i for words in SENTENCES for i in (*model.words.encode(words).tolist(), model.words.end)]
    state, expected = model.model.network.start(1), []  # the plain twin: one step a word
    with torch.no_grad():
        for before, word in zip([model.words.end, *ids[:-1]], ids, strict=True):
            vectors, state = model.model.network.step(
                model.model.network.inputs(torch.tensor([before])), state
            )
            expected.append(float(model.model.output.distribution(vectors)[0, word]))
    np.testing.assert_allclose(scores.log_probs["neural"], expected, atol=1e-5)
    anew = score_tokens({"neural": model}, SENTENCES)
    first = len(SENTENCES[0]) + 1
    np.testing.assert_allclose(
        scores.log_probs["neural"][:first], anew.log_probs["neural"][:first], atol=1e-5
    )
    assert abs(scores.log_probs["neural"][first:] - anew.log_probs["neural"][first:]).max() > 1e-3


def test_a_network_that_starts_anew_is_not_asked_in_order():
    model = NeuralLanguageModel(*random_network())
    in_order = score_tokens({"neural": model}, SENTENCES, in_order=True)
    assert np.array_equal(
        in_order.log_probs["neural"], score_tokens({"neural": model}, SENTENCES).log_probs["neural"]
    )


def test_faults_are_told():
    model = NeuralLanguageModel(*random_network())
    with pytest.raises(FormatError, match="no words"):
        score_tokens({"neural": model}, [])
    with torch.no_grad():
        model.model.output.word_bias.fill_(math.nan)
    with pytest.raises(ScoringError, match="'neural' gave a score that is not finite"):
        score_tokens({"neural": model}, SENTENCES)


def test_the_command_fits_and_tells(folder):
    text = str(folder / "text.txt")
    arguments = ["perplexity", text, "--ngram", str(folder / "model.arpa"), "--neural", str(folder / "run")]
    done = CliRunner().invoke(app, [*arguments, "--validation", text, "--json"], catch_exceptions=False)
    facts = json.loads(done.stdout)
    found = facts["texts"][text]["models"]
    assert sum(facts["shares"].values()) == pytest.approx(1)
    assert found["mixture"]["shared"] <= min(found["ngram"]["shared"], found["neural"]["shared"]) + 1e-9
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "λ: ngram 0.500, neural 0.500" in done.stdout

"""Neural cache and dynamic evaluation: their formulas, and that they learn from the past of a text."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer import progress
from rescorer.errors import ConfigError
from rescorer.models.neural import NeuralLanguageModel, save_model
from rescorer_training.cli import app
from rescorer_training.evaluation import past_text
from rescorer_training.evaluation.past_text import (
    DECAYS,
    RATES,
    DynamicSettings,
    TextReading,
    add_cache,
    cache_log_probs,
    fit_cache,
    fit_dynamic,
    measure_gradients,
    mix_with_cache,
    read_dynamically,
    score_past_texts,
    score_with_carried_state,
)
from rescorer_training.evaluation.perplexity import fit_mixture, perplexity, score_tokens
from tests.support.tiny_models import random_network

SENTENCES = [("the", "cat", "sat"), ("on", "the", "mat"), ("the", "cat", "ran")] * 12


def carry_state():
    model, vocabulary = random_network()
    model.config = replace(model.config, carried=True)
    return model, vocabulary


@pytest.fixture
def network():
    return NeuralLanguageModel(*carry_state())


def cache_log_prob(vectors, words, t, n_words, flatness):
    """The slow twin: the cache's ln P of one token, word by word."""
    past = range(max(0, t - n_words), t)
    weights = [math.exp(flatness * float(vectors[t] @ vectors[i])) for i in past]
    equal = sum(weight for weight, i in zip(weights, past, strict=True) if words[i] == words[t])
    return math.log(equal / sum(weights)) if equal else -math.inf


@given(
    words=st.lists(st.integers(0, 3), min_size=1, max_size=25),
    n_words=st.integers(1, 30),
    flatness=st.floats(0, 3),
    chunk=st.integers(1, 30),
)
def test_cache_equals_a_sum_over_the_past(words, n_words, flatness, chunk):
    vectors = torch.randn(len(words), 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(past_text, "MAX_CHUNK_TOKENS", chunk)
        found = cache_log_probs(vectors, torch.tensor(words), n_words, flatness)
    expected = [cache_log_prob(vectors, words, t, n_words, flatness) for t in range(len(words))]
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_mixture_with_cache_counts_the_network_alone_at_the_first_token():
    mixed = mix_with_cache(np.log([0.5, 0.5, 0.1]), np.array([-np.inf, -np.inf, 0.0]), 0.2)
    np.testing.assert_allclose(np.exp(mixed), [0.5, 0.4, 0.28])


def test_fitted_cache_lowers_the_perplexity_of_a_repetitive_text():
    random = torch.Generator().manual_seed(2)
    words = torch.randint(0, 50, (20,), generator=random).repeat(10)
    vectors = torch.randn(20, 8, generator=random).repeat(10, 1)
    log_probs = np.full(200, -math.log(50))
    reading = TextReading(vectors, words, log_probs)
    settings = fit_cache(reading, n_words=60)
    assert add_cache(reading, settings).mean() > log_probs.mean() + 1
    assert settings.share == max(past_text.SHARE_GRID)


def test_dynamic_evaluation_without_steps_scores_as_the_network_does(network):
    root_mean_squares = measure_gradients(network, SENTENCES)
    found = read_dynamically(network, SENTENCES, DynamicSettings(rate=0.0), root_mean_squares).log_probs
    np.testing.assert_allclose(found, score_with_carried_state(network, SENTENCES), atol=1e-5)


def test_dynamic_evaluation_learns_and_leaves_the_network_as_it_was(network):
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    root_mean_squares = measure_gradients(network, SENTENCES)
    found = read_dynamically(network, SENTENCES, DynamicSettings(rate=0.01), root_mean_squares).log_probs
    assert found[-40:].mean() > score_with_carried_state(network, SENTENCES)[-40:].mean() + 0.2
    kept = read_dynamically(network, SENTENCES, DynamicSettings(0.01, decay=1e9), root_mean_squares).log_probs
    assert kept[-40:].mean() < found[-40:].mean() - 0.1  # it returns to the trained parameters each time
    assert all(torch.equal(value, before[name]) for name, value in network.model.state_dict().items())


def test_words_that_the_statistics_lack_do_not_make_the_network_diverge(network):
    root_mean_squares = measure_gradients(network, [("a", "b")] * 40)
    for rms in root_mean_squares:
        rms[rms < rms.mean()] *= 1e-6  # as after thousands of words
    settings = DynamicSettings(RATES[-1], segment_words=2)
    unseen = [("c", "d")] * 40
    found = read_dynamically(network, unseen, settings, root_mean_squares).log_probs
    still = read_dynamically(network, unseen, DynamicSettings(0.0), root_mean_squares).log_probs
    assert found.sum() > still.sum()


def test_rates_with_which_a_network_diverges_are_not_chosen(network, monkeypatch):
    root_mean_squares = measure_gradients(network, SENTENCES)
    module = "rescorer_training.evaluation.past_text"
    monkeypatch.setattr(f"{module}.RATES", (1e-4, 1e38))
    assert fit_dynamic(network, SENTENCES, root_mean_squares).rate == 1e-4
    monkeypatch.setattr(f"{module}.RATES", (1e38,))
    with pytest.raises(ConfigError, match="diverges with every learning rate; give a longer --validation"):
        fit_dynamic(network, SENTENCES, root_mean_squares)


def test_the_decay_is_fitted_with_the_best_rate_and_every_reading_shows_its_progress(network, monkeypatch):
    advanced: dict[str, int] = {}

    @contextmanager
    def count(description, unit, total):
        assert (unit, total) == ("words", sum(len(words) + 1 for words in SENTENCES))
        advanced[description] = 0

        class Task:
            def advance(self, amount=1):
                advanced[description] += amount

        yield Task()

    monkeypatch.setattr(progress, "_display", count)
    root_mean_squares = measure_gradients(network, SENTENCES)
    rate = fit_dynamic(network, SENTENCES, root_mean_squares).rate
    pairs = [*((rate, DECAYS[0]) for rate in RATES), *((rate, decay) for decay in DECAYS[1:])]
    assert list(advanced) == [
        "dynamic evaluation, measuring gradients",
        *(f"dynamic evaluation, trying rate {rate:g} and decay {decay:g}" for rate, decay in pairs),
    ]
    assert set(advanced.values()) == {sum(len(words) + 1 for words in SENTENCES)}


def test_needs_a_network_that_carries_its_state():
    models = {"neural": NeuralLanguageModel(*random_network())}
    with pytest.raises(ConfigError, match="train one with --carried"):
        score_past_texts(models, {"text": SENTENCES}, "text", cache_words=10, dynamic=False)


def test_command_reports_them_apart(tmp_path):
    save_model(*carry_state(), tmp_path / "run" / "best")
    text = tmp_path / "text.txt"
    text.write_text("".join(" ".join(words) + "\n" for words in SENTENCES))
    arguments = [
        "perplexity",
        str(text),
        "--neural",
        str(tmp_path / "run"),
        "--cache-words",
        "20",
        "--dynamic",
    ]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert "need --validation" in str(result.exception)
    arguments += ["--validation", str(text)]
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    facts = json.loads(result.stdout)
    alone = facts["texts"][str(text)]["models"]["neural"]["counted"]
    past = {name: figures["perplexity"][str(text)] for name, figures in facts["past_text"].items()}
    assert list(past) == ["neural, cache of 20", "neural, dynamic", "neural, dynamic, cache of 20"]
    assert past["neural, cache of 20"] < 0.8 * alone
    assert past["neural, dynamic"] < alone
    assert past["neural, dynamic, cache of 20"] < past["neural, dynamic"]
    assert not any(figures["mixture"] for figures in facts["past_text"].values())  # there is no other model
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "networks that learn from the past of the text" in " ".join(result.stdout.split())


def test_mixture_with_other_models_is_that_of_rescoring(network):
    texts = {"text": SENTENCES, "other": SENTENCES[:5]}
    models = {"neural": network, "other": NeuralLanguageModel(*random_network(seed=5))}
    scores = {name: score_tokens(models, words, in_order=True) for name, words in texts.items()}
    (past,) = score_past_texts({"neural": network}, texts, "text", cache_words=20, dynamic=False)
    measured = past.mix_with(scores, "text")
    changed = {
        name: replace(found, log_probs={**found.log_probs, "neural": past.log_probs[name]})
        for name, found in scores.items()
    }
    shares = fit_mixture(changed["text"].log_probs)
    assert measured == {name: perplexity(found.mix(shares)) for name, found in changed.items()}

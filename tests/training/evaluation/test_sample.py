"""Sampling: choosing a word, sampling from a mixture, seeds, and the command."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.models.network_files import UNKNOWN
from rescorer.models.neural import save_model
from rescorer_training.cli import app
from rescorer_training.evaluation.perplexity import load_models
from rescorer_training.evaluation.sample import Sampler, SamplingOptions, choose_word
from tests.support.reference_scorer import reference_mixture
from tests.support.tiny_models import random_network, write_arpa

pytestmark = pytest.mark.slow

PROBS = np.array([0.1, 0.4, 0.05, 0.3, 0.15])


def sample_frequencies(options: SamplingOptions, n: int = 20_000) -> np.ndarray:
    """Relative frequency of each index among ``n`` samples."""
    random = np.random.default_rng(3)
    samples = [choose_word(np.log(PROBS), options, random) for _ in range(n)]
    return np.bincount(samples, minlength=len(PROBS)) / n


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (SamplingOptions(), PROBS),
        (SamplingOptions(temperature=0), [0, 1, 0, 0, 0]),
        (SamplingOptions(top_k=1), [0, 1, 0, 0, 0]),
        (SamplingOptions(top_k=2), [0, 4 / 7, 0, 3 / 7, 0]),
        (SamplingOptions(top_k=100), PROBS),
        (SamplingOptions(top_p=0.4), [0, 1, 0, 0, 0]),
        (SamplingOptions(top_p=0.41), [0, 4 / 7, 0, 3 / 7, 0]),
        (SamplingOptions(top_p=1e-9), [0, 1, 0, 0, 0]),
        (SamplingOptions(temperature=0.5), PROBS**2 / (PROBS**2).sum()),
        (SamplingOptions(temperature=0.5, top_k=2, top_p=0.9), [0, 16 / 25, 0, 9 / 25, 0]),
    ],
)
def test_word_frequencies_follow_the_options(options, expected):
    np.testing.assert_allclose(sample_frequencies(options), expected, atol=0.015)


@pytest.fixture
def folder(tmp_path):
    write_arpa(tmp_path)
    save_model(*random_network(), tmp_path / "run" / "best")
    return tmp_path


@pytest.mark.parametrize("shares", [{"ngram": 0.4, "neural": 0.6}, {"ngram": 1.0}, {"neural": 1.0}])
def test_sentence_frequencies_follow_the_mixture(folder, shares):
    models = load_models(None, [folder / "model.arpa"], [folder / "run"], shares=shares)
    random = np.random.default_rng(5)
    sampler = Sampler(models.models, models.shares, SamplingOptions(longest=1, unknown=True))
    n = 2000
    frequencies = Counter(sampler.sample_sentence(random, ("the",)) for _ in range(n))
    words = [*frozenset().union(*(model.vocabulary() for model in models.models.values())), UNKNOWN]
    # ln P after "the" is the second value of the reference scorer; the handwritten n-gram does not sum to 1.
    expected = {
        sentence: np.exp(reference_mixture(models.models, models.shares, ("the", *sentence))[1])
        for sentence in [(), *((word,) for word in words)]
    }
    for sentence, prob in expected.items():
        relative = frequencies[sentence] / n
        assert relative == pytest.approx(prob / sum(expected.values()), abs=0.05), sentence


def test_same_seed_gives_same_sentences_without_unknown_words(folder):
    arguments = ["sample", "--ngram", str(folder / "model.arpa"), "--neural", str(folder / "run"), "-n", "6"]
    outputs = [
        CliRunner().invoke(app, [*arguments, "--seed", seed], catch_exceptions=False).stdout for seed in "112"
    ]
    assert outputs[0] == outputs[1] != outputs[2]
    assert len(outputs[0].splitlines()) == 6
    assert UNKNOWN not in outputs[0]
    result = CliRunner().invoke(app, [*arguments, "--prompt", "The CAT", "--json"], catch_exceptions=False)
    assert all(json.loads(line)["text"].startswith("the cat") for line in result.stdout.splitlines())


def test_temperature_zero_chooses_the_most_probable_words(folder):
    models = load_models(None, [folder / "model.arpa"])
    options = SamplingOptions(temperature=0, longest=4)
    sentence = Sampler(models.models, models.shares, options).sample_sentence(np.random.default_rng(1))
    assert sentence == ("the", "cat", "sat", "on")


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"longest": 0}]
)
def test_rejects_invalid_options(options):
    with pytest.raises(ConfigError, match="expected"):
        SamplingOptions(**options)

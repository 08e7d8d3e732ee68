"""Sampling: each way to choose a word, the mixture that is drawn from, seeds, and the command."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.lm.checkpoint import save_model
from rescorer.lm.reference_scorer import plain_mixture
from rescorer.vocabulary import UNKNOWN
from rescorer_training.cli import app
from rescorer_training.evaluation.model_set import load_models
from rescorer_training.evaluation.sample import Sampler, SamplingOptions, choose
from tests.support.tiny_models import random_network, write_arpa

PROBS = np.array([0.1, 0.4, 0.05, 0.3, 0.15])


def drawn(options: SamplingOptions, n: int = 20_000) -> np.ndarray:
    """How often each place is chosen, as shares."""
    random = np.random.default_rng(3)
    found = [choose(np.log(PROBS), options, random) for _ in range(n)]
    return np.bincount(found, minlength=len(PROBS)) / n


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
def test_words_come_as_often_as_they_should(options, expected):
    np.testing.assert_allclose(drawn(options), expected, atol=0.015)


@pytest.fixture
def folder(tmp_path):
    write_arpa(tmp_path)
    save_model(*random_network(), tmp_path / "run" / "best")
    return tmp_path


@pytest.mark.parametrize("shares", [{"ngram": 0.4, "neural": 0.6}, {"ngram": 1.0}, {"neural": 1.0}])
def test_sentences_come_as_often_as_the_mixture_says(folder, shares):
    models = load_models(None, [folder / "model.arpa"], [folder / "run"], shares=shares)
    random = np.random.default_rng(5)
    sampler = Sampler(models.models, models.shares, SamplingOptions(longest=1, unknown=True))
    n = 2000
    found = Counter(sampler.sentence(random, ("the",)) for _ in range(n))
    words = [*frozenset().union(*(model.vocabulary() for model in models.models.values())), UNKNOWN]
    # ln P after "the": the second of the plain scorer's values; the n-gram made by hand does not sum to 1.
    expected = {
        said: np.exp(plain_mixture(models.models, models.shares, ("the", *said))[1])
        for said in [(), *((word,) for word in words)]
    }
    for said, prob in expected.items():
        assert found[said] / n == pytest.approx(prob / sum(expected.values()), abs=0.05), said


def test_a_seed_settles_the_sentences_and_unknown_words_stay_out(folder):
    arguments = ["sample", "--ngram", str(folder / "model.arpa"), "--neural", str(folder / "run"), "-n", "6"]
    made = [
        CliRunner().invoke(app, [*arguments, "--seed", seed], catch_exceptions=False).stdout for seed in "112"
    ]
    assert made[0] == made[1] != made[2]
    assert len(made[0].splitlines()) == 6
    assert UNKNOWN not in made[0]
    done = CliRunner().invoke(app, [*arguments, "--prompt", "The CAT", "--json"], catch_exceptions=False)
    assert all(json.loads(line)["text"].startswith("the cat") for line in done.stdout.splitlines())


def test_greedy_takes_the_likeliest_path(folder):
    models = load_models(None, [folder / "model.arpa"])
    options = SamplingOptions(temperature=0, longest=4)
    found = Sampler(models.models, models.shares, options).sentence(np.random.default_rng(1))
    assert found == ("the", "cat", "sat", "on")


@pytest.mark.parametrize(
    "options", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"longest": 0}]
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError, match="expected"):
        SamplingOptions(**options)

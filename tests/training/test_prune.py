"""Pruning: the loss of an n-gram, the histories that weigh it, and what is left, each beside a slow twin."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.vocabulary import END, START
from rescorer_training.cli import app
from rescorer_training.data.corpus import encode, sentences
from rescorer_training.evaluation.model_set import open_ngram
from rescorer_training.evaluation.perplexity import perplexity
from rescorer_training.evaluation.token_scores import score_tokens
from rescorer_training.ngram.arpa import read_arpa
from rescorer_training.ngram.backoff_model import BackoffModel, load_backoff
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.ngram.prune import (
    count_history,
    model_history,
    perplexity_changes,
    prune,
    stationary_history,
    survivors,
)
from tests.support.backoff_models import (
    FIRST_TEXT,
    SECOND_TEXT,
    map_ngrams_to_rows,
    reference_total,
    train_small_model,
)


@pytest.fixture
def model(tmp_path) -> BackoffModel:
    return load_backoff(train_small_model(tmp_path, FIRST_TEXT + SECOND_TEXT, 4))


def distribution(model: BackoffModel, row: int) -> np.ndarray:
    """P(w | row) of every word, (V,); ``<s>``'s is 0."""
    words = np.arange(len(model.trie.words))
    return model.follow(np.full(len(words), row), words)[0]


def without(model: BackoffModel, row: int) -> BackoffModel:
    """The model less one n-gram, its context's back-off weight made anew, everything else untouched."""
    context, word = int(model.trie.prefix[row]), int(model.trie.word[row])
    full = distribution(model, context)
    lower = distribution(model, int(model.trie.suffix[context]))
    children = model.trie.word[1:][model.trie.prefix[1:] == context]
    others = [child for child in children if child != word]
    backoff = model.backoff.copy()
    backoff[context] = (1 - full[others].sum()) / (1 - lower[others].sum())
    prob = model.prob.copy()
    prob[row] = backoff[context] * lower[word]
    return BackoffModel(model.trie, prob, backoff)


def test_the_loss_of_an_ngram_is_the_divergence_it_causes(model):
    changes, _ = perplexity_changes(model, np.full(len(model.prob), 0.25))
    n_words = len(model.trie.words)
    assert np.isinf(changes[1 : n_words + 1]).all()
    for row in range(n_words + 1, len(model.prob)):
        context = int(model.trie.prefix[row])
        before, after = distribution(model, context), distribution(without(model, row), context)
        assert after.sum() == pytest.approx(1, abs=1e-4)
        real = before > 0
        divergence = 0.25 * np.sum(before[real] * np.log(before[real] / after[real]))
        assert changes[row] == pytest.approx(math.expm1(divergence), abs=3e-6, rel=1e-4)


def test_what_survives_has_its_parts(model):
    random = np.random.default_rng(1)
    changes = np.where(
        np.arange(len(model.prob)) <= len(model.trie.words), np.inf, random.random(len(model.prob))
    )
    kept = survivors(model, changes, 0.7)
    rows = map_ngrams_to_rows(model)
    above = {ngram for ngram, row in rows.items() if changes[row] >= 0.7}
    expected = {ngram[i:n] for ngram in above for n in range(len(ngram) + 1) for i in range(n + 1)}
    assert {ngram for ngram, row in rows.items() if kept[row]} == expected


@pytest.mark.parametrize("keep", [15, 40, 80])
def test_a_pruned_model_is_normalised_and_as_large_as_asked(keep, model, tmp_path):
    small, done = prune(model, stationary_history(model), keep=keep)
    small.save(tmp_path / "small.arpa")
    orders = read_arpa(tmp_path / "small.arpa")
    assert tuple(len(order) for order in orders) == done.kept
    assert keep - 10 <= sum(done.kept) <= keep
    before = {ngram: model.prob[row] for ngram, row in map_ngrams_to_rows(model).items()}
    for ngram, row in map_ngrams_to_rows(small).items():
        assert small.prob[row] == before[ngram]
    for ngram in [()] + [ngram for order in orders[:-1] for ngram in order if END not in ngram]:
        assert reference_total(orders, ngram) == pytest.approx(1, abs=1e-4), ngram


def test_nothing_is_lost_that_costs_nothing_to_keep(model):
    same, done = prune(model, model_history(model), threshold=1e-300)
    assert sum(done.kept) >= 0.9 * (len(model.prob) - 1)  # n-grams that say nothing new may go
    np.testing.assert_allclose(distribution(same, 0), distribution(model, 0))


def test_counts_are_those_of_the_text(model, tmp_path):
    ids = {word: i for i, word in enumerate(model.trie.words)}
    raw = Normaliser(NormaliserSettings.raw())
    encoded = encode([tmp_path / "model.txt"], raw, ids, unknown=ids["<unk>"], end=ids[END])
    history = count_history(model, encoded)
    lines = [(START, *line.split(), END) for line in (FIRST_TEXT + SECOND_TEXT).splitlines()]
    n_tokens = sum(len(line) - 1 for line in lines)
    for ngram, row in map_ngrams_to_rows(model).items():
        if 0 < len(ngram) < model.trie.order:
            places = [line[i : i + len(ngram)] for line in lines for i in range(len(line))]
            assert history[row] == pytest.approx(places.count(ngram) / n_tokens)


def test_the_stationary_distribution_is_that_of_a_long_walk(model):
    """The twin moves the probability of every state along every word, state by state."""
    n_rows, n_words = len(model.prob), len(model.trie.words)
    start, end = (model.trie.words.index(mark) for mark in (START, END))
    moves = np.zeros((n_rows, n_rows))
    for row in range(n_rows):
        probs, after = model.follow(np.full(n_words, row), np.arange(n_words))
        for word in range(n_words):
            moves[row, 1 + start if word == end else after[word]] += probs[word]
    states = np.full(n_rows, 1 / n_rows)
    for _ in range(2000):
        states = states @ moves
        states /= states.sum()
    rows = map_ngrams_to_rows(model)
    spelled = {row: ngram for ngram, row in rows.items()}
    expected = {
        ngram: sum(
            mass for row, mass in enumerate(states) if spelled[row][len(spelled[row]) - len(ngram) :] == ngram
        )
        for ngram in rows
        if 0 < len(ngram) < model.trie.order and END not in ngram
    }
    found = stationary_history(model)
    for ngram, mass in expected.items():
        assert found[rows[ngram]] == pytest.approx(mass, abs=2e-4), ngram


def test_the_models_own_chain(model):
    rows, history = map_ngrams_to_rows(model), model_history(model)
    expected = model.prob[rows[("the",)]] * model.prob[rows[("the", "cat")]]
    assert history[rows[("the", "cat")]] == pytest.approx(expected)
    assert history[rows[(START,)]] == history[rows[(END,)]]


def test_too_few_ngrams_are_refused(model):
    with pytest.raises(ConfigError, match="expected at least its"):
        prune(model, model_history(model), keep=3)
    with pytest.raises(ConfigError, match="either a threshold"):
        prune(model, model_history(model))


def test_the_command_prunes_and_tells(tmp_path):
    path = train_small_model(tmp_path, FIRST_TEXT + SECOND_TEXT, 3)
    arguments = ["prune", str(path), "-o", str(tmp_path / "small.arpa.gz"), "--keep", "30"]
    arguments += ["--text", str(tmp_path / "model.txt"), "--test", str(tmp_path / "model.txt")]
    facts = json.loads(CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False).stdout)
    assert facts["history"] == "counts"
    assert sum(facts["kept"]) <= 30 < sum(facts["before"])
    assert facts["perplexity"] > facts["perplexity_before"]
    assert "perplexity" in CliRunner().invoke(app, arguments, catch_exceptions=False).stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--keep", "30", "--history", "guess"], "expected one of stationary, counts, model"),
        (["--keep", "30", "--history", "counts"], "needs the training text"),
        ([], "either --threshold or --keep"),
        (["--threshold", "-1"], "expected a positive number"),
        (["--threshold", "1e-7"], "no ARPA file"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, tmp_path):
    done = CliRunner().invoke(
        app, ["prune", str(tmp_path / "no.arpa"), "-o", str(tmp_path / "x.arpa"), *options]
    )
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)


@pytest.mark.data
@pytest.mark.slow
def test_histories_for_kneser_ney_beat_the_chain(data_dir, tmp_path):
    """Penn Treebank, Kneser-Ney trigram pruned to a tenth: the chain of lower orders loses by a margin."""
    raw, folder = Normaliser(NormaliserSettings.raw()), data_dir / "text" / "ptb"
    train_ngram([folder / "ptb.train.txt"], raw, tmp_path / "kn.arpa", NGramOptions(3, count_unknown=True))
    model = load_backoff(tmp_path / "kn.arpa")
    ids = {word: i for i, word in enumerate(model.trie.words)}
    train = encode([folder / "ptb.train.txt"], raw, ids, unknown=ids["<unk>"], end=ids[END])
    held_out = list(sentences([folder / "ptb.valid.txt"], raw))
    found = {}
    histories = {"model": model_history(model), "counts": count_history(model, train)}
    for name, history in (histories | {"stationary": stationary_history(model)}).items():
        prune(model, history, keep=80_000)[0].save(tmp_path / f"{name}.arpa")
        scores = score_tokens({name: open_ngram(tmp_path / f"{name}.arpa")}, held_out)
        found[name] = perplexity(scores.log_probs[name])
    assert found["counts"] < 0.95 * found["model"]
    assert found["stationary"] < 0.95 * found["model"]

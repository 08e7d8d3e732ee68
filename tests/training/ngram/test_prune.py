"""Relative-entropy pruning, compared with slow reference computations."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from rescorer.errors import BundleError, ConfigError
from rescorer.models.network_files import END, START
from rescorer.text import Normaliser, NormaliserSettings
from rescorer_training.cli import app
from rescorer_training.corpus import encode_text, read_sentences
from rescorer_training.evaluation.perplexity import open_ngram, perplexity, score_tokens
from rescorer_training.ngram.backoff_model import BackoffModel, load_backoff_model
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.ngram.prune import (
    compute_count_history,
    compute_model_history,
    compute_perplexity_changes,
    compute_stationary_history,
    prune,
    select_survivors,
)
from tests.support.arpa_dicts import read_arpa
from tests.support.backoff_models import (
    FIRST_TEXT,
    SECOND_TEXT,
    map_ngrams_to_rows,
    reference_total,
    train_small_model,
)


@pytest.fixture
def model(tmp_path) -> BackoffModel:
    return load_backoff_model(train_small_model(tmp_path, FIRST_TEXT + SECOND_TEXT, 4))


def word_probs(model: BackoffModel, row: int) -> np.ndarray:
    """Compute P(w | row) of every word, (V,); that of ``<s>`` is 0."""
    words = np.arange(len(model.trie.words))
    return model.follow(np.full(len(words), row), words)[0]


def remove_ngram(model: BackoffModel, row: int) -> BackoffModel:
    """Remove one n-gram and recompute the back-off weight of its context, with everything else unchanged."""
    context, word = int(model.trie.prefix[row]), int(model.trie.word[row])
    full = word_probs(model, context)
    lower = word_probs(model, int(model.trie.suffix[context]))
    children = model.trie.word[1:][model.trie.prefix[1:] == context]
    others = [child for child in children if child != word]
    backoff = model.backoff.copy()
    backoff[context] = (1 - full[others].sum()) / (1 - lower[others].sum())
    prob = model.prob.copy()
    prob[row] = backoff[context] * lower[word]
    return BackoffModel(model.trie, prob, backoff)


def test_perplexity_change_is_the_divergence_without_the_ngram(model):
    changes, _ = compute_perplexity_changes(model, np.full(len(model.prob), 0.25))
    n_words = len(model.trie.words)
    assert np.isinf(changes[1 : n_words + 1]).all()
    for row in range(n_words + 1, len(model.prob)):
        context = int(model.trie.prefix[row])
        before, after = word_probs(model, context), word_probs(remove_ngram(model, row), context)
        assert after.sum() == pytest.approx(1, abs=1e-4)
        possible = before > 0
        divergence = 0.25 * np.sum(before[possible] * np.log(before[possible] / after[possible]))
        assert changes[row] == pytest.approx(math.expm1(divergence), abs=3e-6, rel=1e-4)


def test_survivors_include_their_prefixes_and_suffixes(model):
    random = np.random.default_rng(1)
    changes = np.where(
        np.arange(len(model.prob)) <= len(model.trie.words), np.inf, random.random(len(model.prob))
    )
    kept = select_survivors(model, changes, 0.7)
    rows = map_ngrams_to_rows(model)
    above = {ngram for ngram, row in rows.items() if changes[row] >= 0.7}
    expected = {ngram[i:n] for ngram in above for n in range(len(ngram) + 1) for i in range(n + 1)}
    assert {ngram for ngram, row in rows.items() if kept[row]} == expected


@pytest.mark.parametrize("keep", [15, 40, 80])
def test_pruned_model_is_normalised_and_has_the_requested_size(keep, model, tmp_path):
    small, result = prune(model, compute_stationary_history(model), keep=keep)
    small.save(tmp_path / "small.arpa")
    orders = read_arpa(tmp_path / "small.arpa")
    assert tuple(len(order) for order in orders) == result.kept
    assert keep - 10 <= sum(result.kept) <= keep
    before = {ngram: model.prob[row] for ngram, row in map_ngrams_to_rows(model).items()}
    for ngram, row in map_ngrams_to_rows(small).items():
        assert small.prob[row] == before[ngram]
    for ngram in [()] + [ngram for order in orders[:-1] for ngram in order if END not in ngram]:
        assert reference_total(orders, ngram) == pytest.approx(1, abs=1e-4), ngram


def test_tiny_threshold_changes_no_probability(model):
    same, result = prune(model, compute_model_history(model), threshold=1e-300)
    assert sum(result.kept) >= 0.9 * (len(model.prob) - 1)  # redundant n-grams may be pruned
    np.testing.assert_allclose(word_probs(same, 0), word_probs(model, 0))


def test_count_history_has_relative_frequencies_of_the_text(model, tmp_path):
    ids = {word: i for i, word in enumerate(model.trie.words)}
    raw = Normaliser(NormaliserSettings.raw())
    encoded = encode_text([tmp_path / "model.txt"], raw, ids, unknown_id=ids["<unk>"], end_id=ids[END])
    history = compute_count_history(model, encoded)
    lines = [(START, *line.split(), END) for line in (FIRST_TEXT + SECOND_TEXT).splitlines()]
    n_tokens = sum(len(line) - 1 for line in lines)
    for ngram, row in map_ngrams_to_rows(model).items():
        if 0 < len(ngram) < model.trie.order:
            places = [line[i : i + len(ngram)] for line in lines for i in range(len(line))]
            assert history[row] == pytest.approx(places.count(ngram) / n_tokens)


def test_stationary_history_agrees_with_power_iteration(model):
    """The reference multiplies the states with their full transition matrix."""
    n_rows, n_words = len(model.prob), len(model.trie.words)
    start, end = (model.trie.words.index(mark) for mark in (START, END))
    transitions = np.zeros((n_rows, n_rows))
    for row in range(n_rows):
        probs, after = model.follow(np.full(n_words, row), np.arange(n_words))
        for word in range(n_words):
            transitions[row, 1 + start if word == end else after[word]] += probs[word]
    states = np.full(n_rows, 1 / n_rows)
    for _ in range(2000):
        states = states @ transitions
        states /= states.sum()
    rows = map_ngrams_to_rows(model)
    ngrams = {row: ngram for ngram, row in rows.items()}
    expected = {
        ngram: sum(
            mass for row, mass in enumerate(states) if ngrams[row][len(ngrams[row]) - len(ngram) :] == ngram
        )
        for ngram in rows
        if 0 < len(ngram) < model.trie.order and END not in ngram
    }
    found = compute_stationary_history(model)
    for ngram, mass in expected.items():
        assert found[rows[ngram]] == pytest.approx(mass, abs=2e-4), ngram


def test_model_history_is_the_product_of_probabilities(model):
    rows, history = map_ngrams_to_rows(model), compute_model_history(model)
    expected = model.prob[rows[("the",)]] * model.prob[rows[("the", "cat")]]
    assert history[rows[("the", "cat")]] == pytest.approx(expected)
    assert history[rows[(START,)]] == history[rows[(END,)]]


def test_rejects_sizes_below_the_number_of_words(model):
    with pytest.raises(ConfigError, match="expected at least one for each of the"):
        prune(model, compute_model_history(model), keep=3)
    with pytest.raises(ConfigError, match="either a threshold"):
        prune(model, compute_model_history(model))


def test_prune_command_reports_sizes_and_perplexities(tmp_path):
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
        (["--threshold", "1e-7"], "no.arpa: is missing"),
    ],
)
def test_rejects_contradictory_options(options, message, tmp_path):
    done = CliRunner().invoke(
        app, ["prune", str(tmp_path / "no.arpa"), "-o", str(tmp_path / "x.arpa"), *options]
    )
    assert isinstance(done.exception, (ConfigError, BundleError))
    assert message in str(done.exception)


@pytest.mark.data
@pytest.mark.slow
def test_counts_and_stationary_histories_suit_kneser_ney_models(data_dir, tmp_path):
    """Prune a trigram model of Penn Treebank to a tenth; the model's own history does clearly worse."""
    raw, folder = Normaliser(NormaliserSettings.raw()), data_dir / "text" / "ptb"
    train_ngram([folder / "ptb.train.txt"], raw, tmp_path / "kn.arpa", NGramOptions(3, count_unknown=True))
    model = load_backoff_model(tmp_path / "kn.arpa")
    ids = {word: i for i, word in enumerate(model.trie.words)}
    train = encode_text([folder / "ptb.train.txt"], raw, ids, unknown_id=ids["<unk>"], end_id=ids[END])
    held_out = list(read_sentences([folder / "ptb.valid.txt"], raw))
    found = {}
    histories = {"model": compute_model_history(model), "counts": compute_count_history(model, train)}
    for name, history in (histories | {"stationary": compute_stationary_history(model)}).items():
        prune(model, history, keep=80_000)[0].save(tmp_path / f"{name}.arpa")
        scores = score_tokens({name: open_ngram(tmp_path / f"{name}.arpa")}, held_out)
        found[name] = perplexity(scores.log_probs[name])
    assert found["counts"] < 0.95 * found["model"]
    assert found["stationary"] < 0.95 * found["model"]

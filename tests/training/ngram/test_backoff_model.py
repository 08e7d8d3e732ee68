"""Back-off models as arrays: reading, following, renormalising and interpolating them."""

from __future__ import annotations

import gzip
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.errors import BundleError, FormatError
from rescorer.models import arpa
from rescorer.models.network_files import END, START, UNKNOWN
from rescorer.models.ngrams import align_vocabularies
from rescorer_training.cli import app
from rescorer_training.evaluation.perplexity import open_ngram
from rescorer_training.ngram.backoff_model import load_backoff_model
from rescorer_training.ngram.prune import compute_unknown_log_shares, interpolate
from tests.support.arpa_dicts import read_arpa
from tests.support.backoff_models import (
    FIRST_TEXT,
    SECOND_TEXT,
    map_ngrams_to_rows,
    reference_prob,
    reference_total,
    train_small_model,
)
from tests.support.reference_scorer import reference_log_probs
from tests.support.tiny_models import ARPA, write_arpa


def test_both_arpa_readers_agree(tmp_path):
    for path in (write_arpa(tmp_path), train_small_model(tmp_path, FIRST_TEXT)):
        model = load_backoff_model(path)
        rows, orders = map_ngrams_to_rows(model), read_arpa(path)
        assert set(rows) == {(), *(ngram for order in orders for ngram in order)}
        for ngram, (log10_prob, log10_backoff) in (item for order in orders for item in order.items()):
            assert model.backoff[rows[ngram]] == pytest.approx(10**log10_backoff)
            assert model.prob[rows[ngram]] == pytest.approx(0 if ngram == (START,) else 10**log10_prob)


@settings(max_examples=30)
@given(data=st.data())
def test_follow_agrees_with_katz_recursion(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    words = st.sampled_from(["a", "b", "c", "d"])
    text = data.draw(st.lists(st.lists(words, min_size=1, max_size=6), min_size=2, max_size=8))
    path = train_small_model(
        folder, "".join(" ".join(line) + "\n" for line in text), data.draw(st.integers(2, 4))
    )
    model, orders = load_backoff_model(path), read_arpa(path)
    rows, ids = map_ngrams_to_rows(model), {word: i for i, word in enumerate(model.trie.words)}
    contexts = [ngram for ngram in rows if END not in ngram]
    for context in data.draw(st.lists(st.sampled_from(contexts), min_size=1, max_size=5)):
        for word in set(ids) - {START}:
            prob, row = model.follow(np.array([rows[context]]), np.array([ids[word]]))
            assert prob[0] == pytest.approx(reference_prob(orders, context, word))
            longest = next(s for i in range(len(context) + 1) if (s := (*context, word)[i:]) in rows)
            assert row[0] == rows[longest]


@pytest.mark.parametrize("read_size_bytes", [40, 1 << 24])
def test_reads_arpa_files_of_other_toolkits(read_size_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr(arpa, "BLOCK_BYTES", read_size_bytes)
    expected = load_backoff_model(write_arpa(tmp_path))
    lines = ARPA.replace("\\end\\", "").replace("\t0\n", "\n").splitlines()  # SRILM omits weights of 0
    text = "comment before the header\n" + "\r\n".join(lines) + "\r\n\\end\\"
    (tmp_path / "odd.arpa.gz").write_bytes(gzip.compress(text.encode()))
    found = load_backoff_model(tmp_path / "odd.arpa.gz")
    for name in ("prob", "backoff"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name))
    assert np.array_equal(found.trie.keys, expected.trie.keys)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-0.5\tthe cat\t-0.1", "-0.5\tthe", ":19: 2-gram 2: expected a log-probability"),
        ("-0.5\tthe cat", "x\tthe cat", ":19: 2-gram 2: expected a log-probability"),
        ("-0.5\tthe cat", "-0.5\tthe cow", ":19: 2-gram 2: expected .* 2 words that are unigrams"),
        ("-1.1\tsat", "-1.1\tcat", "one of its unigrams occurs twice"),
        ("-0.7\tthe mat", "-0.7\tthe cat", "one of its 2-grams occurs twice"),
        ("\\end\\", "", r"without the line \\end\\"),
        ("\\2-grams:", "\\two:", r":17: expected \\2-grams: or"),
        ("-0.4\t<s> the\t-0.2\n", "", "has 5 2-grams; its header says 6: write 'ngram 2=5' there if"),
        ("-0.4\t<s> the\t-0.2", "-0.4\t<s> mat\t-0.2", "begins with '<s> the', but '<s> the' is missing"),
        ("\t<unk>", "\tunknown", "no unigram <unk>"),
    ],
)
def test_rejects_damaged_arpa_files(old, new, message, tmp_path):
    assert old in ARPA
    (tmp_path / "bad.arpa").write_text(ARPA.replace(old, new, 1))
    with pytest.raises((FormatError, BundleError), match=message):
        load_backoff_model(tmp_path / "bad.arpa")
    with pytest.raises(BundleError, match="missing"):
        load_backoff_model(tmp_path / "missing.arpa")


def test_renormalise_keeps_a_normalised_model(tmp_path):
    model = load_backoff_model(train_small_model(tmp_path, FIRST_TEXT))
    np.testing.assert_allclose(model.renormalise().backoff, model.backoff, atol=2e-5)


@pytest.fixture
def mixed(tmp_path):
    paths = [
        train_small_model(tmp_path, FIRST_TEXT, 3, "first"),
        train_small_model(tmp_path, SECOND_TEXT, 2, "second"),
    ]
    ngrams = [open_ngram(path) for path in paths]
    align_vocabularies(ngrams)
    models = [load_backoff_model(path) for path in paths]
    words = {word for model in models for word in model.trie.words}
    log_shares = [compute_unknown_log_shares(model, words) for model in ngrams]
    return ngrams, interpolate(models, [0.3, 0.7], log_shares), tmp_path


def test_interpolated_model_is_normalised(mixed):
    _, model, folder = mixed
    model.save(folder / "mixed.arpa")
    orders = read_arpa(folder / "mixed.arpa")
    contexts = {ngram for order in orders for ngram in order if END not in ngram}
    contexts |= {(a, b, c) for a, b in list(contexts & set(orders[1])) for c in ("the", "road")} | {()}
    assert len(contexts) > 40
    for context in contexts:
        assert reference_total(orders, context) == pytest.approx(1, abs=1e-4)


def test_interpolated_model_equals_the_mixture_for_stored_ngrams(mixed):
    ngrams, model, _ = mixed
    for ngram, row in map_ngrams_to_rows(model).items():
        if not ngram or ngram[-1] in (START, UNKNOWN):
            continue
        if ngram[0] != START:
            continue  # the mixture is computed for whole sentences
        words = ngram[1:] if ngram[-1] != END else ngram[1:-1]
        last = len(ngram) - 2
        expected = sum(
            share * math.exp(reference_log_probs(ngram_model, words)[last])
            for share, ngram_model in zip((0.3, 0.7), ngrams, strict=True)
        )
        assert model.prob[row] == pytest.approx(expected, rel=1e-4), ngram


def test_interpolate_command_fits_weights_and_writes_a_model(tmp_path):
    first, second = (
        train_small_model(tmp_path, FIRST_TEXT, 3, "first"),
        train_small_model(tmp_path, SECOND_TEXT, 3, "second"),
    )
    (tmp_path / "valid.txt").write_text("the cat ran on the road\na dog sat\n")
    out = tmp_path / "mixed.arpa.gz"
    arguments = ["interpolate", str(tmp_path / "valid.txt"), "--ngram", str(first), "--ngram", str(second)]
    arguments += ["--test", str(tmp_path / "first.txt"), "--write", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    facts = json.loads(done.stdout)
    assert set(facts["models"]) == {"ngram", "ngram2"}
    assert sum(member["share"] for member in facts["models"].values()) == pytest.approx(1)
    assert facts["perplexity"] <= min(member["alone"] for member in facts["models"].values())
    assert facts["models"]["ngram"]["without"] == pytest.approx(facts["models"]["ngram2"]["alone"])
    assert facts["written"]["file"] == str(out)
    # Stored n-grams have the mixture's probability; the others back off, so that it is close, not equal.
    assert facts["written"]["perplexity"] == pytest.approx(facts["perplexity"], rel=0.05)
    assert "test" in json.dumps(facts)
    assert "λ" in CliRunner().invoke(app, [*arguments[:-2]], catch_exceptions=False).stdout


def test_write_needs_two_ngram_models(tmp_path):
    path = train_small_model(tmp_path, FIRST_TEXT)
    arguments = ["interpolate", str(tmp_path / "model.txt"), "--ngram", str(path), "--write", "x.arpa"]
    done = CliRunner().invoke(app, arguments)
    assert "at least two" in str(done.exception)

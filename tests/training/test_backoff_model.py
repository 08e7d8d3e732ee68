"""Back-off models as arrays: read, followed, normalised, mixed into one."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.errors import FormatError
from rescorer.lm.mixture import align_vocabularies
from rescorer.lm.reference_scorer import plain_log_probs
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.vocabulary import END, START, UNKNOWN
from rescorer_training.cli import app
from rescorer_training.evaluation.model_set import open_ngram
from rescorer_training.ngram import arpa
from rescorer_training.ngram.arpa import read_arpa
from rescorer_training.ngram.backoff_model import BackoffModel, load_backoff
from rescorer_training.ngram.estimate import NGramOptions, train_ngram
from rescorer_training.ngram.interpolate import interpolate, unknown_shares
from tests.support.tiny_models import ARPA, write_arpa

FIRST = "the cat sat on the mat\nthe cat ran\na dog sat on the cat\non the mat the dog sat\nthe mat\n"
SECOND = "a dog ran on the road\nthe road ran\nthe dog sat\na cat on a road\nthe cat on the road sat\n"


def small_model(folder: Path, text: str, order: int = 3, name: str = "model") -> Path:
    (folder / f"{name}.txt").write_text(text)
    path = folder / f"{name}.arpa.gz"
    train_ngram([folder / f"{name}.txt"], Normaliser(NormaliserSettings.raw()), path, NGramOptions(order))
    return path


def rows_of(model: BackoffModel) -> dict[tuple[str, ...], int]:
    """Row of each n-gram, spelled out."""
    spelled: dict[int, tuple[str, ...]] = {0: ()}
    for row in range(1, len(model.trie.word)):
        spelled[row] = (*spelled[int(model.trie.prefix[row])], model.trie.words[model.trie.word[row]])
    return {ngram: row for row, ngram in spelled.items()}


def plain_prob(orders: list[dict], context: tuple[str, ...], word: str) -> float:
    """P(word | context) by Katz's recursion over dictionaries: the slow twin."""
    if len(context) < len(orders) and (*context, word) in orders[len(context)]:
        return 10 ** orders[len(context)][(*context, word)][0]
    weight = 10 ** orders[len(context) - 1].get(context, (0, 0))[1] if len(context) < len(orders) else 1.0
    return weight * plain_prob(orders, context[1:], word)


def plain_total(orders: list[dict], context: tuple[str, ...]) -> float:
    """Σ P(w | context) over everything that can follow."""
    return sum(plain_prob(orders, context, word) for (word,) in orders[0] if word != START)


def test_an_arpa_file_is_read_as_the_plain_reader_reads_it(tmp_path):
    for path in (write_arpa(tmp_path), small_model(tmp_path, FIRST)):
        model = load_backoff(path)
        rows, orders = rows_of(model), read_arpa(path)
        assert set(rows) == {(), *(ngram for order in orders for ngram in order)}
        for ngram, (log10_prob, log10_backoff) in (item for order in orders for item in order.items()):
            assert model.backoff[rows[ngram]] == pytest.approx(10**log10_backoff)
            assert model.prob[rows[ngram]] == pytest.approx(0 if ngram == (START,) else 10**log10_prob)


@settings(max_examples=30)
@given(data=st.data())
def test_following_is_katz_recursion(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("twin")
    words = st.sampled_from(["a", "b", "c", "d"])
    text = data.draw(st.lists(st.lists(words, min_size=1, max_size=6), min_size=2, max_size=8))
    path = small_model(folder, "".join(" ".join(line) + "\n" for line in text), data.draw(st.integers(2, 4)))
    model, orders = load_backoff(path), read_arpa(path)
    rows, ids = rows_of(model), {word: i for i, word in enumerate(model.trie.words)}
    contexts = [ngram for ngram in rows if END not in ngram]
    for context in data.draw(st.lists(st.sampled_from(contexts), min_size=1, max_size=5)):
        for word in set(ids) - {START}:
            prob, row = model.follow(np.array([rows[context]]), np.array([ids[word]]))
            assert prob[0] == pytest.approx(plain_prob(orders, context, word))
            longest = next(s for i in range(len(context) + 1) if (s := (*context, word)[i:]) in rows)
            assert row[0] == rows[longest]


@pytest.mark.parametrize("bytes_at_once", [40, 1 << 24])
def test_any_layout_of_an_arpa_file_is_read(bytes_at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(arpa, "BYTES_AT_ONCE", bytes_at_once)
    expected = load_backoff(write_arpa(tmp_path))
    lines = ARPA.replace("\\end\\", "").replace("\t0\n", "\n").splitlines()  # as SRILM, a 0 is not written
    text = "made by hand\n" + "\r\n".join(lines) + "\r\n\\end\\"
    (tmp_path / "odd.arpa.gz").write_bytes(gzip.compress(text.encode()))
    found = load_backoff(tmp_path / "odd.arpa.gz")
    for name in ("prob", "backoff"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name))
    assert np.array_equal(found.trie.keys, expected.trie.keys)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-0.5\tthe cat\t-0.1", "-0.5\tthe", r":19: '-0.5\\tthe' is no 2-gram"),
        ("-0.5\tthe cat", "x\tthe cat", r":19: 'x\\tthe cat\\t-0.1' is no 2-gram"),
        ("-0.5\tthe cat", "-0.5\tthe cow", "is no 2-gram of this file's words"),
        ("-1.1\tsat", "-1.1\tcat", "1-gram stands in it twice"),
        ("\\end\\", "", r"no \\end\\"),
        ("\\2-grams:", "\\two:", "cannot be read as an ARPA file"),
        ("-0.4\t<s> the\t-0.2\n", "", "begins with '<s> the', which is not in it"),
        ("\t<unk>", "\tunknown", "no unigram <unk>"),
    ],
)
def test_damage_is_told(old, new, message, tmp_path):
    assert old in ARPA
    (tmp_path / "bad.arpa").write_text(ARPA.replace(old, new, 1))
    with pytest.raises(FormatError, match=message):
        load_backoff(tmp_path / "bad.arpa")
    with pytest.raises(FormatError, match="missing"):
        load_backoff(tmp_path / "missing.arpa")


def test_renormalising_a_normalised_model_changes_nothing(tmp_path):
    model = load_backoff(small_model(tmp_path, FIRST))
    np.testing.assert_allclose(model.renormalised().backoff, model.backoff, atol=2e-5)


@pytest.fixture
def mixed(tmp_path):
    paths = [small_model(tmp_path, FIRST, 3, "first"), small_model(tmp_path, SECOND, 2, "second")]
    dynamic = [open_ngram(path) for path in paths]
    align_vocabularies(dynamic)
    models = [load_backoff(path) for path in paths]
    words = {word for model in models for word in model.trie.words}
    parts = [unknown_shares(each, words) for each in dynamic]
    return dynamic, interpolate(models, [0.3, 0.7], parts), tmp_path


def test_a_static_mixture_is_normalised(mixed):
    _, model, folder = mixed
    model.save(folder / "mixed.arpa")
    orders = read_arpa(folder / "mixed.arpa")
    contexts = {ngram for order in orders for ngram in order if END not in ngram}
    contexts |= {(a, b, c) for a, b in list(contexts & set(orders[1])) for c in ("the", "road")} | {()}
    assert len(contexts) > 40
    for context in contexts:
        assert plain_total(orders, context) == pytest.approx(1, abs=1e-4)


def test_a_static_mixture_is_the_mixture_where_it_is_stored(mixed):
    dynamic, model, _ = mixed
    for ngram, row in rows_of(model).items():
        if not ngram or ngram[-1] in (START, UNKNOWN):
            continue
        if ngram[0] != START:
            continue  # KenLM is asked for whole sentences
        words = ngram[1:] if ngram[-1] != END else ngram[1:-1]
        last = len(ngram) - 2
        expected = sum(
            share * math.exp(plain_log_probs(each, words)[last])
            for share, each in zip((0.3, 0.7), dynamic, strict=True)
        )
        assert model.prob[row] == pytest.approx(expected, rel=1e-4), ngram


def test_the_command_weighs_writes_and_tells(tmp_path):
    first, second = small_model(tmp_path, FIRST, 3, "first"), small_model(tmp_path, SECOND, 3, "second")
    (tmp_path / "valid.txt").write_text("the cat ran on the road\na dog sat\n")
    out = tmp_path / "mixed.arpa.gz"
    arguments = ["interpolate", str(tmp_path / "valid.txt"), "--ngram", str(first), "--ngram", str(second)]
    arguments += ["--test", str(tmp_path / "first.txt"), "--write", str(out)]
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    facts = json.loads(done.stdout)
    assert set(facts["models"]) == {"ngram", "ngram2"}
    assert sum(each["share"] for each in facts["models"].values()) == pytest.approx(1)
    assert facts["perplexity"] <= min(each["alone"] for each in facts["models"].values())
    assert facts["models"]["ngram"]["without"] == pytest.approx(facts["models"]["ngram2"]["alone"])
    assert facts["written"]["file"] == str(out)
    # A stored n-gram has the mixture's probability; others back off: close, not equal.
    assert facts["written"]["perplexity"] == pytest.approx(facts["perplexity"], rel=0.05)
    assert "test" in json.dumps(facts)
    assert "λ" in CliRunner().invoke(app, [*arguments[:-2]], catch_exceptions=False).stdout


def test_writing_takes_two_ngrams(tmp_path):
    path = small_model(tmp_path, FIRST)
    arguments = ["interpolate", str(tmp_path / "model.txt"), "--ngram", str(path), "--write", "x.arpa"]
    done = CliRunner().invoke(app, arguments)
    assert "at least two" in str(done.exception)

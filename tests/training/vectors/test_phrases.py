"""Phrases are found by the published score, and joined in texts that vectors and n-grams are trained from."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.errors import ConfigError, FormatError
from rescorer_training.cli import app
from rescorer_training.vectors.phrases import (
    PhraseOptions,
    find_phrases,
    join_phrases,
    read_phrases,
    write_phrases,
)

sentences = st.lists(st.lists(st.sampled_from("abcde"), max_size=7), max_size=12)


@settings(max_examples=50)
@given(sentences, st.integers(1, 2), st.sampled_from([0.3, 0.9, 2.0]))
def test_pairs_have_the_published_score(text, min_count, threshold):
    words = Counter(word for sentence in text for word in sentence)
    pairs = Counter(pair for sentence in text for pair in pairwise(sentence))
    scores = {
        (a, b): (count - min_count) * words.total() / (words[a] * words[b]) for (a, b), count in pairs.items()
    }
    expected = {pair: score for pair, score in scores.items() if score > threshold}
    found = find_phrases(lambda: text, PhraseOptions(min_count, threshold, passes=1))
    assert (found[0] if found else {}) == pytest.approx(expected)


@given(sentences, st.lists(st.dictionaries(st.tuples(*[st.sampled_from("abcde")] * 2), st.just(1.0))))
def test_joining_changes_only_spaces(text, phrases):
    for sentence in text:
        assert "_".join(join_phrases(sentence, phrases)) == "_".join(sentence)


def test_two_passes_join_three_words_and_files_keep_them(tmp_path):
    text = [["the", "new", "york", "times"], ["new", "york"], ["the", "times"]] + [["a"], ["the", "a"]] * 20
    found = find_phrases(lambda: text, PhraseOptions(1, 1.0))
    assert join_phrases(text[0], found)[-1] == "new_york_times" or len(found) == 1
    write_phrases(tmp_path / "p.tsv", found)
    assert [list(pairs) for pairs in read_phrases(tmp_path / "p.tsv")] == [list(pairs) for pairs in found]


@pytest.mark.parametrize("line", ["1\tx\ta\tb", "2\t1.5\ta\tb", "1\t1.5\ta", "0\t1.5\ta\tb", "new york"])
def test_names_the_line_that_is_not_a_phrase(tmp_path, line):
    (tmp_path / "p.tsv").write_text(f"{line}\n")
    with pytest.raises(FormatError, match=r"expected the number of a pass") as caught:
        read_phrases(tmp_path / "p.tsv")
    assert caught.value.line == 1


def test_options_are_checked():
    for given_options in ({"min_count": 0}, {"threshold": 0.0}, {"passes": 11}):
        with pytest.raises(ConfigError, match="expected"):
            PhraseOptions(**given_options)


def test_vectors_and_ngrams_are_trained_with_phrases(tmp_path):
    lines = ["she saw new york today", "he left new york today", "they saw it today", "she left it"] * 10
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in lines))

    def call(*arguments):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    out, found = tmp_path / "joined.txt", tmp_path / "phrases.tsv"
    options = ["--threshold", "7", "--min-count", "2", "--passes", "1", "--found", found]
    assert "1 phrase, such as new_york" in call("vectors", "phrases", tmp_path / "text", "-o", out, *options)
    assert out.read_text().splitlines()[:2] == ["she saw new_york today", "he left new_york today"]
    call("vectors", "phrases", tmp_path / "text", "-o", tmp_path / "again.txt", "--known", found)
    assert (tmp_path / "again.txt").read_text() == out.read_text()
    raw = ["--normaliser", "raw"]
    call("ngram", out, "-o", tmp_path / "m.arpa", "--order", "2", *raw)
    assert "new_york today" in (tmp_path / "m.arpa").read_text()
    run = ["--run", tmp_path / "run", "--dimensions", "4", "--epochs", "1", "--output-layer", "full"]
    call(
        "vectors",
        "train",
        out,
        "-o",
        tmp_path / "v.txt",
        *run,
        "--model",
        "cbow",
        "--cbow-step",
        "divided",
        *raw,
    )
    assert "new_york" in (tmp_path / "v.txt").read_text()

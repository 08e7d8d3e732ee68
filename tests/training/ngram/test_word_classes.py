"""N-grams of classes: equal to n-grams over a text of class names, times P(word | class)."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rescorer.errors import BundleError, ConfigError, FormatError
from rescorer.models.ngram_files import read_ngram
from rescorer.text import Normaliser, NormaliserSettings
from rescorer.trie import build_trie
from rescorer_training.ngram.backoff_model import load_backoff_model
from rescorer_training.ngram.estimate import NGramOptions, learn_classes, read_class_file, train_ngram

RAW = Normaliser(NormaliserSettings.raw())
CLASS_OF = {"a": "X", "b": "X", "c": "Y", "d": "Y", "e": "Z"}
GOLDEN = Path(__file__).parents[2] / "golden" / "kneser-ney"
corpora = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=7), min_size=1, max_size=10)
histories = st.lists(st.sampled_from("abcdef"), max_size=4).map(tuple)


def train(folder: Path, corpus: list[list[str]], **options) -> Path:
    """Train a model on a corpus; returns its path."""
    (folder / "text").write_text("".join(" ".join(words) + "\n" for words in corpus))
    train_ngram([folder / "text"], RAW, folder / "m.ngram", NGramOptions(3, **options))
    return folder / "m.ngram"


@settings(max_examples=20, deadline=None)
@given(corpora, histories)
def test_equals_an_ngram_of_class_names_times_the_share_of_the_class(tmp_path_factory, corpus, history):
    folder = tmp_path_factory.mktemp("classes")
    (folder / "classes.txt").write_text("".join(f"{word} {name}\n" for word, name in CLASS_OF.items()))
    of_words = read_ngram(train(folder, corpus, class_file=folder / "classes.txt"))
    of_names = read_ngram(train(folder, [[CLASS_OF[word] for word in words] for words in corpus]))
    counts = Counter(word for words in corpus for word in words)
    words = sorted(counts)
    totals = Counter({name: sum(counts[word] for word in words if CLASS_OF[word] == name) for name in "XYZ"})
    names = tuple(CLASS_OF[word] if word in counts else "<unk>" for word in history)
    expected = of_names.next_log_probs(names, [*(CLASS_OF[word] for word in words), "</s>", "<unk>"])
    expected[: len(words)] += [math.log(counts[word] / totals[CLASS_OF[word]]) for word in words]
    found = of_words.next_log_probs(history, [*words, "</s>", "<unk>"])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.exp(found).sum() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"classes": 3},
        {"classes": 2, "vocabulary_size": 3},
        {"classes": 2, "vocabulary_size": 3, "count_unknown": True},
        {"classes": 3, "skip": 1, "smoothing": "witten-bell"},
        {"classes": 3, "smoothing": "katz", "cutoffs": (0, 0, 1)},
    ],
)
def test_learnt_classes_give_distributions(options, tmp_path):
    model = read_ngram(train(tmp_path, [list("abcabd"), list("eabda"), list("cabe")] * 3, **options))
    assert len(model.vocabulary()) == options.get("vocabulary_size", 5)
    assert len(model.content.unit_names) == 3 + options["classes"]
    for context in ((), ("a",), ("c", "a"), ("nobody", "b"), ("e", "e", "e")):
        log_probs = model.next_log_probs(context, [*model.vocabulary(), "</s>", "<unk>"])
        assert np.exp(log_probs).sum() == pytest.approx(1.0, abs=1e-4)
    scores = model.score(build_trie([("a", "c", "b"), ("f",)]))
    assert np.isfinite(scores.log_probs).all()


def test_words_that_occur_alike_share_a_class():
    """Nouns follow a determiner, verbs a noun: two classes separate them."""
    words = ["<unk>", "<s>", "</s>", "the", "dog", "cat", "runs", "sits"]
    draw = np.random.default_rng(1)
    text = [[3, draw.choice([4, 5]), draw.choice([6, 7]), 2] for _ in range(200)]
    ids = np.array(text, dtype=np.int32).ravel()
    classes = learn_classes(ids, len(words), 3, unknown_id=0, end_id=2, n_classes=3)
    the, dog, cat, runs, sits = classes.tolist()
    assert (dog, runs) == (cat, sits)
    assert len({the, dog, runs}) == 3


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        ("a X\nb\n", FormatError, ":2: expected a word and its class"),
        ("a X Y\n", FormatError, ":1: expected a word and its class"),
        ("a X\n", ConfigError, "2 words of the text have no class, such as 'b'"),
    ],
)
def test_refuses_class_files_that_do_not_cover_the_text(lines, error, message, tmp_path):
    (tmp_path / "classes").write_text(lines)
    with pytest.raises(error, match=message):
        read_class_file(tmp_path / "classes", ["a", "b", "c"])


def test_reads_class_files(tmp_path):
    (tmp_path / "classes").write_text("b\t7\n\na 7\nunused 9\nc x\n")
    assert read_class_file(tmp_path / "classes", ["a", "b", "c"]).tolist() == [0, 0, 2]


@pytest.mark.parametrize(
    ("output", "options", "engine", "message"),
    [
        ("m.arpa", {"classes": 5}, "ours", "name that ends in .ngram"),
        ("m.arpa.gz", {"skip": 1}, "ours", "name that ends in .ngram"),
        ("m.ngram", {"classes": 100}, "ours", "100 classes for 28 words; expected 2 to 28"),
        ("m.ngram", {"classes": -1}, "ours", "at least 0"),
        ("m.ngram", {"skip": 11}, "ours", "at most 10"),
        ("m.ngram", {"classes": 2, "class_file": GOLDEN / "text.txt"}, "ours", "expected one of them"),
        ("m.arpa", {"smoothing": "laplace"}, "ours", "expected one of kneser-ney, katz, witten-bell, none"),
        ("m.arpa", {"smoothing": "katz"}, "lmplz", "use --engine ours"),
        ("m.ngram", {}, "lmplz", "use --engine ours"),
    ],
)
def test_refuses_options_that_contradict_one_another(output, options, engine, message, tmp_path, monkeypatch):
    monkeypatch.setattr("rescorer_training.ngram.estimate.find_tool", lambda name: name)
    with pytest.raises(ConfigError, match=message):
        train_ngram(
            [GOLDEN / "text.txt"], Normaliser(), tmp_path / output, NGramOptions(**options), engine=engine
        )


def test_the_summary_counts_ngrams_of_classes(tmp_path):
    options = NGramOptions(3, classes=4)
    summary = train_ngram([GOLDEN / "text.txt"], Normaliser(), tmp_path / "m.ngram", options)
    assert summary.orders[0].n_kept == 4 + 3
    assert summary.vocabulary_size == 28 + 3
    assert json.loads((tmp_path / "m.ngram.text.json").read_text())


@pytest.mark.parametrize("options", [{"classes": 2}, {"skip": 1}])
def test_commands_that_need_ngrams_of_words_refuse_others(options, tmp_path):
    path = train(tmp_path, [list("abcabd"), list("eabda")], **options)
    with pytest.raises(BundleError, match="expected n-grams of words"):
        load_backoff_model(path, "reading")

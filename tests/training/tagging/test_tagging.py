"""Taggers of words: what they learn in each direction, resuming, measuring, and the command."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from rescorer.errors import BundleError, ConfigError, FormatError
from rescorer.models.network_files import Vocabulary
from rescorer.text import Normaliser
from rescorer_training.cli import main
from rescorer_training.features import count_known_tags
from rescorer_training.tagged_text import TaggedSentence, format_tagged, read_tagged
from rescorer_training.tagging import (
    MAX_WORDS,
    MOST_FREQUENT,
    TAGGER,
    Lexicon,
    TagInputs,
    load_lexicon,
    load_tagger,
    measure,
    prepare_text,
)

SMALL = ["--embedding", "8", "--hidden", "8", "--batch-words", "64", "--warmup-steps", "5", "--epochs", "5"]


def make_sentences(n_sentences: int, seed: int) -> list[TaggedSentence]:
    """A letter has the tag Y if an ``a`` follows it, otherwise N: only what comes later decides."""
    draw = random.Random(seed)
    sentences = []
    for _ in range(n_sentences):
        words = draw.choices("abcd", k=draw.randint(2, 7))
        after = [*words[1:], ""]
        sentences.append(TaggedSentence(tuple(words), tuple("NY"[one == "a"] for one in after)))
    return sentences


def write_tagged(file: Path, sentences) -> Path:
    file.write_text("".join(format_tagged(one.words, one.tags, "words") for one in sentences))
    return file


def call(monkeypatch, *arguments) -> int:
    """Run ``rescorer-train tag`` and return its exit code."""
    monkeypatch.setattr("sys.argv", ["rescorer-train", "tag", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return exit_.value.code or 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tag")
    train = write_tagged(folder / "train.txt", make_sentences(300, 1))
    write_tagged(folder / "test.txt", make_sentences(40, 2))
    with pytest.MonkeyPatch.context() as patch:
        for name, more in (("run", ()), ("forward", ("--forward",))):
            options = [*SMALL, "--learning-rate", "0.05", "--threads", "1", *more]
            assert call(patch, "train", train, "-o", folder / name, *options) == 0
    return folder


def test_words_to_come_need_both_directions(folder, monkeypatch, capsys):
    arguments = ["evaluate", folder / "run", folder / "test.txt", "--against", folder / "forward"]
    assert call(monkeypatch, *arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == [str(folder / "run"), MOST_FREQUENT, str(folder / "forward")]
    both, frequent, forward = found.values()
    assert both["accuracy"] > 0.98
    assert forward["accuracy"] < 0.9
    assert frequent["accuracy"] < 0.9
    assert forward["paired_test"]["p_value"] < 0.01
    assert both["tags"]["Y"]["f1"] > 0.97
    assert both["unknown_accuracy"] is None
    monkeypatch.setenv("COLUMNS", "80")
    assert call(monkeypatch, *arguments) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_tags_what_is_written_in_both_layouts(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "asked.txt").write_text("B A ?!\n\nd\n")
    assert call(monkeypatch, "predict", folder / "run", tmp_path / "asked.txt") == 0
    first, empty, last = capsys.readouterr().out.splitlines()
    assert (first[:8], empty, last) == ("B/Y A/N ", "", "d/N")
    assert first.split()[2][:3] == "?!/"
    assert call(monkeypatch, "predict", folder / "run", tmp_path / "asked.txt", "--layout", "columns") == 0
    assert capsys.readouterr().out.startswith("B\tY\nA\tN\n?!\t")
    assert call(monkeypatch, "predict", folder / "run", tmp_path / "asked.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[2]) == {"words": ["d"], "tags": ["N"]}
    assert call(monkeypatch, "predict", folder / "run", tmp_path / "asked.txt", "--layout", "x") == 2


def test_resumes_a_run_on_the_same_text_only(folder, tmp_path, monkeypatch, capsys):
    def train(text, *more):
        options = [*SMALL, "--learning-rate", "0.05", "--threads", "1", *more]
        return call(monkeypatch, "train", text, "-o", tmp_path / "run", *options)

    assert train(folder / "train.txt", "--epochs", "2") == 0
    assert train(folder / "train.txt", "--epochs", "3", "--resume") == 0
    assert json.loads((tmp_path / "run" / "best" / "training.json").read_text())["epochs"] == 3
    write_tagged(tmp_path / "train.txt", make_sentences(299, 3))
    assert train(tmp_path / "train.txt", "--epochs", "4", "--resume") == 2
    assert "texts was" in capsys.readouterr().err


@settings(deadline=None, max_examples=20)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "zebra", "."]), max_size=9), max_size=6))
def test_sentences_are_tagged_as_if_alone(folder, sentences):
    tagger = load_tagger(folder / "run" / "best")
    together = tagger.predict(sentences)
    assert together == [tagger.predict([sentence])[0] for sentence in sentences]
    assert [len(tags) for tags in together] == [len(sentence) for sentence in sentences]


def lstm_states(weights, network, words):
    """The states of an LSTM after each word, one word at a time."""
    w, u, b, c = (
        weights[f"{network}.lstm.{name}_l0"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    h = cell = np.zeros(u.shape[1])
    for word in words:
        i, f, g, o = np.split(w @ weights["network.embedding.weight"][word] + u @ h + b + c, 4)
        cell = cell / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(cell) / (1 + np.exp(-o))
        yield h


@settings(deadline=None, max_examples=20)
@given(st.lists(st.sampled_from(["a", "b", "d", "zebra"]), min_size=1, max_size=9))
def test_probabilities_are_those_of_the_equations(folder, words):
    """softmax(V [forward; backward state] + b) in NumPy; both directions read the end of the sentence."""
    tagger = load_tagger(folder / "run" / "best")
    weights = {
        name: value.astype(np.float64)
        for name, value in load_file(folder / "run" / "best" / "model.safetensors").items()
    }
    vocabulary = (folder / "run" / "best" / "vocabulary.txt").read_text().splitlines()
    read = [*(word if word in vocabulary else "<unk>" for word in words), "</s>"]
    ids = [vocabulary.index(word) for word in read]
    forward = list(lstm_states(weights, "network", ids))
    backward = list(lstm_states(weights, "reverse", ids[::-1]))[::-1]
    states = np.concatenate([forward, backward], axis=1)
    scores = states @ weights["output.word_weight"].T + weights["output.word_bias"]
    expected = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    with torch.no_grad():
        vectors, _ = tagger.model.context_vectors(torch.tensor([ids]))
        found = tagger.model.output.distribution(vectors[0]).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    labels = tagger.model.config.labels
    assert tagger.predict([words]) == [[labels[best] for best in expected[:-1].argmax(axis=1)]]


def test_long_sentences_are_tagged_in_parts(folder):
    tagger = load_tagger(folder / "run" / "best")
    words = random.Random(1).choices("abcd", k=2 * MAX_WORDS + 3)
    parts = [words[:MAX_WORDS], words[MAX_WORDS : 2 * MAX_WORDS], words[2 * MAX_WORDS :]]
    (found,) = tagger.predict([words])
    assert found == [tag for part in tagger.predict(parts) for tag in part]


def test_tags_that_a_tagger_does_not_know_are_errors(folder):
    sentences = [TaggedSentence(("b", "a", "new"), ("Y", "X", "N"))]
    found = measure(load_tagger(folder / "run" / "best"), sentences, load_lexicon(folder / "run"))[TAGGER]
    assert found.by_tag()["X"] == {"words": 1.0, "recall": 0.0, "precision": None, "f1": 0.0}
    assert len(found.unknown.truth) == 1
    assert found.all.share < 1


def test_many_tags_that_a_tagger_does_not_know_take_no_square_of_memory(folder):
    """A table with words as tags, of 30,000 words, took 7 GB."""
    sentences = [TaggedSentence(("a",), (f"tag {number}",)) for number in range(30_000)]
    found = measure(load_tagger(folder / "run" / "best"), sentences)[TAGGER]
    assert len(found.by_tag()) == 30_001


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"": 1}', "[" * 100_000, "\xff"])
def test_a_damaged_lexicon_is_an_error(tmp_path, content):
    (tmp_path / "lexicon.json").write_text(content, encoding="latin-1")
    with pytest.raises(BundleError, match=r"lexicon\.json"):
        load_lexicon(tmp_path)


def test_f1_is_the_harmonic_mean(folder):
    sentences = read_tagged(folder / "test.txt")
    found = measure(load_tagger(folder / "forward" / "best"), sentences)[TAGGER]
    recall, precision, f1 = (found.by_tag()["N"][name] for name in ("recall", "precision", "f1"))
    assert f1 == pytest.approx(2 * recall * precision / (recall + precision))
    mean = np.mean([row["f1"] for row in found.by_tag().values()])
    assert found.macro_f1 == pytest.approx(mean)


def test_a_lexicon_gives_rare_words_the_tag_of_words_seen_once():
    lexicon = Lexicon.count([[("the", "DT"), ("set", "NN"), ("set", "VB"), ("set", "VB"), ("oar", "NN")]])
    assert lexicon.predict(["the", "set", "whale"]) == ["DT", "VB", "DT"]  # a tie goes to the first name


def test_taggers_and_classifiers_are_told_apart(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        "sys.argv", ["rescorer-train", "classify", "predict", str(folder / "run"), str(folder / "test.txt")]
    )
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "tags words; give it to rescorer-train tag" in capsys.readouterr().err
    config = json.loads((folder / "run" / "best" / "config.json").read_text()) | {"pooling": "mean"}
    for file in (folder / "run" / "best").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BundleError, match="give it to rescorer-train classify"):
        load_tagger(tmp_path)


@pytest.mark.parametrize(
    ("text", "share", "error", "message"),
    [
        ("a/N b/N\nc/N\n", 0.1, FormatError, "the only tag is 'N'; expected 2 to 10,000"),
        ("a/N b/Y\n", 0.1, FormatError, "the text has a single sentence"),
        ("a/N b/Y\na/N\n", 1.0, ConfigError, "validation share is 1.0"),
    ],
)
def test_refuses_text_that_nothing_can_be_learnt_from(tmp_path, text, share, error, message):
    (tmp_path / "text").write_text(text)
    inputs = TagInputs(tmp_path, [tmp_path / "text"], [], Normaliser(), validation_share=share)
    with pytest.raises(error, match=message):
        prepare_text(inputs)


def test_a_text_with_words_as_tags_is_refused_at_once(tmp_path):
    """Counting 20,000 tags took minutes before they were refused."""
    (tmp_path / "text").write_text("".join(f"N\tword{number}\n\n" for number in range(20_000)))
    with pytest.raises(FormatError, match="20,000 different tags; expected 2 to 10,000"):
        prepare_text(TagInputs(tmp_path, [tmp_path / "text"], [], Normaliser()))
    with pytest.raises(ConfigError, match="vocabulary size is 0; expected at least 1"):
        prepare_text(TagInputs(tmp_path, [tmp_path / "text"], [], Normaliser(), vocabulary_size=0))


def test_a_run_is_not_compared_with_itself(folder, monkeypatch, capsys):
    run = folder / "run"
    assert call(monkeypatch, "evaluate", run, folder / "test.txt", "--against", f"{run}/.") == 2
    assert "expected other runs" in capsys.readouterr().err


def test_known_tags_are_counted():
    """Relative frequencies, up to the small numbers that smoothing adds."""
    vocabulary = Vocabulary(("</s>", "<unk>", "the", "sea", "oar", "<s>"))
    sentences = [
        [("the", "D"), ("sea", "N")],
        [("sea", "V"), ("the", "D"), ("sea", "N")],
        [],
        [("whale", "N")],
    ]
    model = count_known_tags(sentences, ["D", "N", "V"], vocabulary)
    np.testing.assert_allclose(model.start, [1.1 / 3.3, 1.1 / 3.3, 1.1 / 3.3])
    np.testing.assert_allclose(model.transitions[0], np.array([0.1, 2.1, 0.1]) / 2.3)
    by_word = model.tags_of_words()
    assert by_word[2, 0] > 0.99  # the
    assert by_word[1, 1] > 0.99  # <unk>, for whale
    assert by_word[4].argmax() == 1  # oar is as words are that occur once
    assert not by_word[[0, -1]].any()
    np.testing.assert_allclose(model.words.sum(axis=0), 1)

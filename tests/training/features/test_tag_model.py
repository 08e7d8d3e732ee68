"""Induced parts of speech beside sums over all sequences of tags, and networks that are trained with them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.models.neural import NeuralLanguageModel, load_model
from rescorer_training import features
from rescorer_training.batches import Sentences
from rescorer_training.cli import app
from rescorer_training.features import (
    ExpectedCounts,
    TagModel,
    count_tags,
    fit_tags,
    make_batches,
    reestimate,
    start_from_clusters,
)
from tests.support.reference_scorer import reference_log_probs

N_TAGS, N_WORDS = 3, 6
TEXTS = st.lists(st.lists(st.integers(1, N_WORDS - 2), max_size=4), min_size=1, max_size=4)


def random_model(seed: int) -> TagModel:
    generator = np.random.default_rng(seed)
    words = generator.random((N_WORDS, N_TAGS)) + 0.01
    words[[0, -1]] = 0.0
    transitions = generator.random((N_TAGS, N_TAGS)) + 0.01
    return TagModel(
        generator.dirichlet(np.ones(N_TAGS)),
        transitions / transitions.sum(axis=1, keepdims=True),
        words / words.sum(axis=0),
    )


def encode(sentences) -> Sentences:
    ids = np.array([word for sentence in sentences for word in (*sentence, 0)])
    return Sentences.from_ids(ids, start_id=N_WORDS - 1, end_id=0, max_words=99)


def count_by_enumeration(model: TagModel, sentences) -> ExpectedCounts:
    """Sum over all sequences of tags of each sentence."""
    start, words = np.zeros(N_TAGS), np.zeros((N_WORDS, N_TAGS))
    transitions, log_prob = np.zeros((N_TAGS, N_TAGS)), 0.0
    for sentence in filter(None, sentences):
        masses = {}
        for path in itertools.product(range(N_TAGS), repeat=len(sentence)):
            mass = model.start[path[0]] * model.words[sentence[0], path[0]]
            for before, tag, word in zip(path, path[1:], sentence[1:], strict=False):
                mass *= model.transitions[before, tag] * model.words[word, tag]
            masses[path] = mass
        total = sum(masses.values())
        log_prob += math.log(total)
        for path, mass in masses.items():
            start[path[0]] += mass / total
            for before, tag in itertools.pairwise(path):
                transitions[before, tag] += mass / total
            for word, tag in zip(sentence, path, strict=True):
                words[word, tag] += mass / total
    return ExpectedCounts(start, transitions, words, log_prob)


@settings(deadline=None)
@given(st.integers(0, 999), TEXTS)
def test_expected_counts_equal_sums_over_all_sequences_of_tags(seed, sentences):
    model = random_model(seed)
    parts = [count_tags(model, words) for words in make_batches(encode(sentences), np.arange(len(sentences)))]
    expected = count_by_enumeration(model, sentences)
    for name in ("start", "transitions", "words", "log_prob"):
        found = sum(getattr(part, name) for part in parts)
        np.testing.assert_allclose(found, getattr(expected, name), atol=1e-9)


@settings(deadline=None)
@given(st.integers(0, 999))
def test_iterations_make_the_text_more_probable(seed):
    generator = np.random.default_rng(seed)
    text = encode([generator.integers(1, N_WORDS - 1, 6).tolist() for _ in range(20)])
    (words,) = make_batches(text, np.arange(20))
    model = random_model(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "PRIOR_TRANSITIONS", 0.0)
        patch.setattr(features, "PRIOR_WORDS", 0.0)
        log_probs = []
        for _ in range(5):
            counts = count_tags(model, words)
            log_probs.append(counts.log_prob)
            model = reestimate([counts])
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(log_probs))


def test_distributions_sum_to_one_and_sentence_marks_have_no_tags():
    text = encode([[1, 2, 3], [2, 4], [], [1, 1, 4]] * 5)
    for model in (start_from_clusters(text, N_WORDS, 2), fit_tags(text, N_WORDS, 2)):
        assert model.start.sum() == pytest.approx(1)
        np.testing.assert_allclose(model.transitions.sum(axis=1), 1)
        np.testing.assert_allclose(model.words.sum(axis=0), 1)
        by_word = model.tags_of_words()
        np.testing.assert_allclose(by_word[1:-1].sum(axis=1), 1, atol=1e-6)
        assert not by_word[[0, -1]].any()


def test_training_improves_on_clusters():
    generator = np.random.default_rng(1)
    sentences = [[w for _ in range(4) for w in generator.choice([[1, 2], [3, 4]], axis=1)] for _ in range(60)]
    text = encode(sentences)
    batches = make_batches(text, np.arange(len(sentences)))
    before, after = (
        sum(count_tags(model, words).log_prob for words in batches)
        for model in (start_from_clusters(text, N_WORDS, 2), fit_tags(text, N_WORDS, 2))
    )
    assert after > before + 1


def test_refuses_more_tags_than_words():
    with pytest.raises(ConfigError, match="pos_tags is 5; expected at most 4, the number of words"):
        fit_tags(encode([[1, 2], [3, 4]]), N_WORDS, 5)


def train(folder, *options):
    command = ["neural", str(folder / "train.txt"), "--validation", str(folder / "valid.txt")]
    sizes = ["--network", "lbl", "--embedding", "8", "--hidden", "8", "--batch-words", "64"]
    steps = ["--warmup-steps", "1", "--threads", "1", "-o", str(folder / "run")]
    return CliRunner().invoke(app, [*command, *sizes, *steps, *options])


@pytest.mark.slow
def test_a_network_is_trained_with_tags_resumed_and_scored(tmp_path):
    text = "the cat sat on the mat\na dog ran\nthe dog sat\na cat ran on the mat\n"
    (tmp_path / "train.txt").write_text(text * 10)
    (tmp_path / "valid.txt").write_text(text)
    assert train(tmp_path, "--pos-tags", "3", "--epochs", "1").exit_code == 0
    resumed = train(tmp_path, "--pos-tags", "3", "--epochs", "2", "--resume")
    assert resumed.exit_code == 0, resumed.output
    model, vocabulary = load_model(tmp_path / "run" / "best")
    assert model.config.pos_tags == 3
    assert model.topic_output.weight.any()
    words = model.tags.words
    assert words[1:-1].sum(dim=1).tolist() == pytest.approx([1.0] * (len(words) - 2), abs=1e-5)
    scorer = NeuralLanguageModel(model, vocabulary)
    assert np.isfinite(reference_log_probs(scorer, ("the", "cat", "ran"))).all()
    sampled = CliRunner().invoke(app, ["sample", "--neural", str(tmp_path / "run"), "-n", "2", "--seed", "1"])
    assert sampled.exit_code == 0, sampled.output
    (tmp_path / "run" / "pos_tags.npz").unlink()
    result = train(tmp_path, "--pos-tags", "3", "--epochs", "3", "--resume")
    assert "pos_tags.npz is missing" in str(result.exception)


@pytest.mark.slow
def test_a_network_reads_the_tags_of_a_tagged_text(tmp_path):
    text = "the cat sat on the mat\na dog ran\nthe dog sat\na cat ran on the mat\n"
    (tmp_path / "train.txt").write_text(text * 10)
    (tmp_path / "valid.txt").write_text(text)
    tagged = "The/D cat/N sat/V on/P the/D mat/N\nthe/D dog/N ran/V ./.\n"
    (tmp_path / "tagged.txt").write_text(tagged)
    tags = ("--tags", str(tmp_path / "tagged.txt"))
    result = train(tmp_path, *tags, "--epochs", "1")
    assert result.exit_code == 0, result.output
    assert train(tmp_path, *tags, "--epochs", "2", "--resume").exit_code == 0
    model, vocabulary = load_model(tmp_path / "run" / "best")
    assert model.config.pos_tags == 4  # the full stop is no word
    assert model.tags.words[vocabulary.ids["cat"]].argmax() == 1  # D, N, P, V
    assert np.isfinite(reference_log_probs(NeuralLanguageModel(model, vocabulary), ("the", "cat"))).all()
    tags = (*tags, "-o", str(tmp_path / "other"))
    result = train(tmp_path, *tags, "--pos-tags", "3", "--epochs", "1")
    assert "give one of them" in str(result.exception)
    (tmp_path / "tagged.txt").write_text("la/D mer/N\n")
    assert "0 of 2 words are in the vocabulary" in str(train(tmp_path, *tags, "--epochs", "1").exception)

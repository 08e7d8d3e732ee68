"""Whole runs of CBOW and skip-gram on tiny texts: results, seeds, interruptions, threads, errors."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rescorer.errors import BundleError, ConfigError, FormatError, ScoringError
from rescorer.text import Normaliser
from rescorer_training.vectors import runs, word2vec
from rescorer_training.vectors.files import WordVectors
from rescorer_training.vectors.runs import (
    IDS_FILE,
    VECTORS_STATE_FILE,
    VOCABULARY_FILE,
    EncodedText,
    load_text,
)
from rescorer_training.vectors.word2vec import (
    Word2VecOptions,
    Word2VecTrainer,
    initialise_state,
    load_state,
    save_state,
)

OPTIONS = Word2VecOptions(dimensions=8, window=3, min_count=2, epochs=4, subsample=0)
TOPICS = (["red", "green", "blue", "yellow"], ["one", "two", "three", "four"])


@pytest.fixture
def texts(tmp_path: Path) -> list[Path]:
    """A text whose sentences have the words of one topic each, and one word that occurs once."""
    random = np.random.default_rng(1)
    lines = [" ".join(random.choice(TOPICS[number % 2], size=8)) for number in range(120)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*lines, "red once green"]) + "\n", encoding="utf-8")
    return [path]


@pytest.fixture(autouse=True)
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word2vec, "PART_IDS", 400)
    monkeypatch.setattr(Word2VecTrainer, "parts_per_round", 2)
    monkeypatch.setattr(runs, "SECONDS_BETWEEN_SAVES", 0.0)


def train(
    texts: list[Path], folder: Path, options: Word2VecOptions = OPTIONS, threads: int = 1
) -> WordVectors:
    word2vec.start_run(texts, Normaliser(), folder, options)
    return word2vec.run(folder, options, threads)[0]


@pytest.mark.parametrize(
    ("model", "output_layer", "threads"),
    [
        ("skip-gram", "negative", 1),
        ("cbow", "negative", 2),
        ("skip-gram", "hierarchical", 2),
        ("cbow", "hierarchical", 1),
    ],
)
def test_words_of_a_topic_become_similar(
    texts: list[Path], tmp_path: Path, model: str, output_layer: str, threads: int
) -> None:
    options = replace(
        OPTIONS, model=model, output_layer=output_layer, epochs=10, learning_rate=0.1, negatives=2
    )
    vectors = train(texts, tmp_path / "run", options, threads)
    assert set(vectors.words) == {*TOPICS[0], *TOPICS[1]}
    rows = [[vectors.index[word] for word in topic] for topic in TOPICS]
    similarity = vectors.normalised() @ vectors.normalised().T
    within = np.mean([similarity[np.ix_(topic, topic)].mean() for topic in rows])
    assert within > similarity[np.ix_(*rows)].mean() + 0.3


def test_the_seed_decides_the_result(texts: list[Path], tmp_path: Path) -> None:
    first, again = train(texts, tmp_path / "1"), train(texts, tmp_path / "2")
    other = train(texts, tmp_path / "3", replace(OPTIONS, seed=2))
    np.testing.assert_array_equal(first.matrix, again.matrix)
    assert not np.array_equal(first.matrix, other.matrix)


@pytest.mark.parametrize("output_layer", ["negative", "hierarchical"])
def test_an_interrupted_run_continues_exactly(
    texts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_layer: str
) -> None:
    options = replace(OPTIONS, output_layer=output_layer)
    expected = train(texts, tmp_path / "whole", options)
    n_rounds = 0

    def fail_in_third_round(trainer: Word2VecTrainer, parts: range) -> str:
        nonlocal n_rounds
        n_rounds += 1
        if n_rounds == 3:
            raise KeyboardInterrupt
        return ""

    with monkeypatch.context() as patch:
        patch.setattr(Word2VecTrainer, "finish_round", fail_in_third_round)
        with pytest.raises(KeyboardInterrupt):
            train(texts, tmp_path / "run", options)
    vectors, report = word2vec.run(tmp_path / "run", options, 1)
    np.testing.assert_array_equal(vectors.matrix, expected.matrix)
    assert json.loads((tmp_path / "run" / word2vec.REPORT_FILE).read_text()) == report
    assert report["vocabulary"] == 8


def test_ctrl_c_saves_what_was_trained(
    texts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train(texts, tmp_path / "whole")
    monkeypatch.setattr(runs, "SECONDS_BETWEEN_SAVES", math.inf)

    def press_ctrl_c(*_: object) -> str:
        signal.raise_signal(signal.SIGINT)
        return ""

    with monkeypatch.context() as patch:
        patch.setattr(Word2VecTrainer, "finish_round", press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            train(texts, tmp_path / "run")
    assert load_state(tmp_path / "run", 8, OPTIONS).n_parts == Word2VecTrainer.parts_per_round
    np.testing.assert_array_equal(word2vec.run(tmp_path / "run", OPTIONS, 1)[0].matrix, expected.matrix)


def test_the_learning_rate_falls_linearly() -> None:
    text = EncodedText(("a", "b"), np.array([900, 700]), np.zeros(1600, dtype=np.int32))
    options = replace(OPTIONS, epochs=2, learning_rate=0.9, final_learning_rate=0.1)
    trainer = Word2VecTrainer(text, options, initialise_state(2, options))
    rates = [trainer.learning_rate(part) for part in range(trainer.n_parts)]
    np.testing.assert_allclose(rates, np.linspace(0.9, 0.1, 9)[:-1])


def test_frequent_words_make_blocks_smaller() -> None:
    assert word2vec.limit_block(np.array([1.0] * 1000), 512) == 512
    assert word2vec.limit_block(np.array([1.0] * 100), 512) == 100
    assert word2vec.limit_block(np.array([900.0] + [1.0] * 900), 512) == 32


def test_divergence_is_reported(texts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ScoringError, match=r"diverged.*--learning-rate \(now 1e\+20\)"):
        train(texts, tmp_path / "run", replace(OPTIONS, learning_rate=1e20))


def test_values_far_beyond_those_of_words_are_reported(texts: list[Path], tmp_path: Path) -> None:
    word2vec.start_run(texts, Normaliser(), tmp_path / "run", OPTIONS)
    text = load_text(tmp_path / "run")
    for part in ("inputs", "outputs"):
        state = initialise_state(len(text.words), OPTIONS)
        getattr(state, part)[0, 0] = 10 * word2vec.MAX_VALUE
        with pytest.raises(ScoringError, match=r"diverged.*values of [\d.]+; expected at most 100"):
            Word2VecTrainer(text, OPTIONS, state).train(1, lambda: None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "glove"}, "model 'glove': expected skip-gram or cbow"),
        ({"output_layer": "softmax"}, "output layer 'softmax': expected one of negative, hierarchical, full"),
        ({"dimensions": 0}, "dimensions 0: expected 1 to 4096"),
        ({"window": 51}, "window 51: expected 1 to 50"),
        ({"subsample": -1.0}, "subsample -1.0: expected 0 or more"),
        ({"noise_exponent": 2.0}, "noise exponent 2.0: expected 0 to 1"),
        ({"learning_rate": 0.0}, "learning rates 0.0 to 0.0001"),
        ({"seed": -1}, "seed -1: expected 0 or more"),
        ({"dimensions": 5000}, "dimensions 5000: expected 1 to 4096"),
        ({"negatives": 0}, "negatives 0: expected 1 to 1000"),
    ],
)
def test_rejects_invalid_options(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(OPTIONS, **change)  # type: ignore[arg-type]


def test_rejects_texts_without_frequent_words(texts: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="0 of the text's 9 distinct words occur 9999 times or more"):
        word2vec.start_run(texts, Normaliser(), tmp_path / "run", replace(OPTIONS, min_count=9999))
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    with pytest.raises(FormatError, match="no words in the text"):
        word2vec.start_run([empty], Normaliser(), tmp_path / "run", OPTIONS)


def test_rejects_folders_that_do_not_fit(texts: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match="start one without --resume"):
        word2vec.run(folder, OPTIONS, 1)
    word2vec.start_run(texts, Normaliser(), folder, OPTIONS)
    with pytest.raises(ConfigError, match="has a run already: continue it with --resume"):
        word2vec.start_run(texts, Normaliser(), folder, OPTIONS)
    with pytest.raises(ConfigError, match="window was 3, is 4"):
        word2vec.run(folder, replace(OPTIONS, window=4), 1)
    save_state(folder, initialise_state(5, OPTIONS), OPTIONS)
    with pytest.raises(BundleError, match=r"inputs of shape \(6, 8\) and torch.float32; expected \(9, 8\)"):
        word2vec.run(folder, OPTIONS, 1)
    (folder / VECTORS_STATE_FILE).write_bytes(b"damaged")
    with pytest.raises(BundleError, match=r"is damaged: .* start the run again in another folder"):
        word2vec.run(folder, OPTIONS, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "damaged"),
        ("{}", "expected at least 2 words"),
        ('[["the", 3], [5, 2]]', "expected at least 2 words"),
        ('[["the", 3], ["the", 2]]', "'the' occurs twice"),
        ('[["the", 3], ["cat", 0]]', "'cat' has the count 0, expected a whole number above 0"),
        ('[["the", 3], ["cat", 1e9]]', "'cat' has the count"),
        ('[["the", 3], ["cat", 2]]', "expected 0 to 3|times, expected"),
    ],
)
def test_rejects_damaged_vocabularies(texts: list[Path], tmp_path: Path, content: str, message: str) -> None:
    word2vec.start_run(texts, Normaliser(), tmp_path / "run", OPTIONS)
    (tmp_path / "run" / VOCABULARY_FILE).write_text(content)
    with pytest.raises(BundleError, match=message):
        load_text(tmp_path / "run")


def test_rejects_damaged_texts(texts: list[Path], tmp_path: Path) -> None:
    word2vec.start_run(texts, Normaliser(), tmp_path / "run", OPTIONS)
    path = tmp_path / "run" / IDS_FILE
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(BundleError, match="are not whole numbers of 4 bytes"):
        load_text(tmp_path / "run")
    path.write_bytes(content[:-40])
    with pytest.raises(BundleError, match="times, expected"):
        load_text(tmp_path / "run")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"n_parts": -1}, "is damaged: n parts is -1"),
        ({"seconds": float("inf")}, "is damaged: seconds is inf"),
        ({"inputs": float("nan")}, "inputs with values that are not finite; restore a copy"),
    ],
)
def test_rejects_damaged_states(
    texts: list[Path], tmp_path: Path, damage: dict[str, float], message: str
) -> None:
    word2vec.start_run(texts, Normaliser(), tmp_path / "run", OPTIONS)
    n_words = len(load_text(tmp_path / "run").words)
    state = initialise_state(n_words, OPTIONS)
    for name, value in damage.items():
        if name == "inputs":
            state.inputs[0, 0] = value
        else:
            setattr(state, name, value)
    save_state(tmp_path / "run", state, OPTIONS)
    with pytest.raises(BundleError, match=message):
        word2vec.run(tmp_path / "run", OPTIONS, 1)


def test_threads_per_product_are_restored(texts: list[Path], tmp_path: Path) -> None:
    before = torch.get_num_threads()
    train(texts, tmp_path / "run")
    assert torch.get_num_threads() == before

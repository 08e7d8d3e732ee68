"""Topic inputs in training: features of sentences and positions, and a bundle that reads its context."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.models.contexts import TopicReader
from rescorer.models.neural import load_model
from rescorer.pipeline import Rescorer
from rescorer.types import Hypothesis, NBestList, Utterance
from rescorer_training.batches import SentenceBatches, Sentences, StreamBatches
from rescorer_training.cli import app
from rescorer_training.features import BLOCK_WORDS, fit_word_topics, write_sentence_topics
from rescorer_training.neural.prepare import load_prepared, perplexity

texts = st.lists(st.lists(st.integers(1, 9), max_size=12), min_size=1, max_size=20)
THEMES = (
    ("ship", "sea", "sailor", "harbour"),
    ("queen", "king", "castle", "crown"),
    ("baker", "bread", "oven", "flour"),
    ("farmer", "field", "cow", "plough"),
)
LINES_PER_THEME = 150
VERBS = ("saw", "left", "found")


def sentences_of(lines: list[list[int]]) -> Sentences:
    ids = np.array([word for line in lines for word in (*line, 0)], dtype=np.int32)
    return Sentences.from_ids(ids, start_id=10, end_id=0, max_words=8)


def reader_of_ten_words() -> TopicReader:
    word_topics = torch.rand(11, 3, generator=torch.Generator().manual_seed(0))
    word_topics[[0, 1, 4, 10]] = 0.0
    return TopicReader(word_topics, 0.8)


@settings(max_examples=25)
@given(texts)
def test_topics_of_a_sentence_are_those_of_the_words_before_it(tmp_path_factory, lines):
    text, reader = sentences_of(lines), reader_of_ten_words()
    path = tmp_path_factory.mktemp("topics") / "topics.npy"
    write_sentence_topics(path, reader, text)
    topics = np.load(path)
    assert topics.shape == (len(lines), 3)
    for number, start in enumerate(text.starts):
        expected = reader.features([text.ids[:start].astype(np.int64)])[0]
        np.testing.assert_allclose(topics[number], expected, atol=1e-6)


def test_batches_have_the_topics_of_their_words():
    lines = np.random.default_rng(0).integers(1, 10, (30, 5)).tolist()
    plain = sentences_of(lines)
    topics = np.random.default_rng(1).random((30, 2)).astype(np.float32)
    text = Sentences.from_ids(plain.ids, start_id=10, end_id=0, max_words=99, topics=topics)
    batches = SentenceBatches.for_epoch(text, 64, 1, 0)
    for number in range(len(batches)):
        np.testing.assert_array_equal(
            batches.make_topics(number, 1, 2)[:, 0], topics[batches.batches[number][1::2]]
        )
    streams = StreamBatches.for_epoch(text.ids, 4, 7, 1, 0, text)
    number_of = np.repeat(np.arange(30), 6)  # sentence of each position
    for number in range(len(streams)):
        positions = (streams._positions(number, slice(None)) + streams.offset) % len(text.ids)
        np.testing.assert_array_equal(streams.make_topics(number), topics[number_of[positions]])
    assert SentenceBatches.for_epoch(plain, 64, 1, 0).make_topics(0) is None
    assert StreamBatches.for_epoch(plain.ids, 4, 7, 1, 0, plain).make_topics(0) is None


def write_themes(folder, name: str, n_lines: int, seed: int) -> str:
    """Write a text that changes its theme every ``LINES_PER_THEME`` lines."""
    random = np.random.default_rng(seed)
    lines = []
    for number in range(n_lines):
        theme = THEMES[number // LINES_PER_THEME % len(THEMES)]
        lines.append(f"the {random.choice(theme)} {random.choice(VERBS)} the {random.choice(theme)}\n")
    (folder / name).write_text("".join(lines))
    return str(folder / name)


@pytest.fixture(scope="module")
def themes(tmp_path_factory):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    folder = tmp_path_factory.mktemp("themes")
    return write_themes(folder, "train.txt", 3000, 0), write_themes(folder, "valid.txt", 600, 1)


def train(themes, folder, *options):
    sizes = [] if "--start-from" in options else ["--embedding", "8", "--hidden", "8"]
    arguments = ["neural", themes[0], "--validation", themes[1], "-o", str(folder), *sizes, *options]
    schedule = ["--batch-words", "256", "--warmup-steps", "5", "--learning-rate", "0.02"]
    result = CliRunner().invoke(app, [*arguments, *schedule])
    if result.exception is not None:
        raise result.exception
    return json.loads((folder / "best" / "training.json").read_text())["validation_perplexity"]


@pytest.mark.parametrize(
    "network",
    [["--network", "lbl", "--window", "2"], ["--network", "gru"], ["--network", "lstm", "--carried"]],
    ids=" ".join,
)
def test_a_bundle_reads_the_topics_of_its_context(themes, tmp_path, network):
    options = [*network, "--epochs", "4", "--batch-rows", "10", "--topics", "4", "--topic-decay", "0.9"]
    with_topics = train(themes, tmp_path / "run", *options)
    if "--carried" not in network:  # which remembers the theme itself
        shuffled = train(themes, tmp_path / "shuffled", *options, "--shuffle-topics")
        assert with_topics < 0.9 * shuffled
    model, _ = load_model(tmp_path / "run" / "best")
    assert model.config.topics == 4
    text = load_prepared(tmp_path / "run", 200)
    assert perplexity(model, text.validation) == pytest.approx(with_topics, abs=1e-2)
    bundle = str(tmp_path / "bundles" / "themes" / "1")
    arguments = ["bundle", bundle, "--neural", str(tmp_path / "run"), "--validation", themes[1]]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    rescorer = Rescorer.load(Path(bundle))
    hypotheses = ["the ship left the harbour", "the queen left the castle"]
    at_sea, at_court = (" ".join(f"the {word} saw" for word in theme * 4) for theme in THEMES[:2])
    margins = {}
    for context in (at_sea, "", at_court):
        ship, queen = rescorer.score_text(hypotheses, context)
        margins[context] = sum(ship.log_probs["neural"]) - sum(queen.log_probs["neural"])
    assert margins[at_sea] > margins[""] > margins[at_court]
    assert rescorer.bundle.reads_previous == {"neural"}
    sent = NBestList("1", tuple(map(Hypothesis, hypotheses)), {"acoustic": (0.0, 0.0)})
    for text in (at_sea, at_court):
        nbest = replace(sent, previous=(Utterance(text),))
        answer = rescorer.rescore([nbest])[0]
        ship, queen = sorted(answer.hypotheses, key=lambda hypothesis: hypothesis.original_rank)
        margins[text] = ship.components["neural"] - queen.components["neural"]
    assert margins[at_sea] > margins[at_court]


def test_resumes_exactly_and_continues_from_a_network_with_topics(themes, tmp_path):
    options = ["--network", "lbl", "--schedule", "constant", "--topics", "4"]
    train(themes, tmp_path / "whole", *options, "--epochs", "2")
    train(themes, tmp_path / "killed", *options, "--epochs", "1")
    train(themes, tmp_path / "killed", *options, "--epochs", "2", "--resume")
    with pytest.raises(ConfigError, match="has 4 topics, but --topics is 3"):
        train(themes, tmp_path / "killed", *options[:-1], "3", "--epochs", "2", "--resume")
    (model, _), (resumed, _) = (load_model(tmp_path / name / "best") for name in ("whole", "killed"))
    for name, value in model.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[name], value, rtol=0, atol=0)
    train(themes, tmp_path / "continued", "--start-from", str(tmp_path / "whole"), "--epochs", "1")
    continued, _ = load_model(tmp_path / "continued" / "best")
    torch.testing.assert_close(continued.topic_words, model.topic_words, rtol=0, atol=0)
    assert load_prepared(tmp_path / "continued", 200).train.topics is not None


def test_themes_are_found():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    random = np.random.default_rng(0)
    firsts = [2 + 5 * (block % 3) for block in range(42)]  # three themes of five words
    ids = np.concatenate([random.integers(first, first + 5, BLOCK_WORDS) for first in firsts])
    ids[::9] = 0
    word_topics = fit_word_topics(ids, 19, 3)
    assert not word_topics[[0, 1, 17, 18]].any()
    mostly = word_topics[2:17].argmax(axis=1).reshape(3, 5)
    assert sorted(mostly[:, 0]) == [0, 1, 2]
    assert (mostly == mostly[:, :1]).all()
    with pytest.raises(ConfigError, match="expected at least 50 blocks"):
        fit_word_topics(ids, 19, 50)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--shuffle-topics"], "needs the topics"), (["--topic-decay", "0.5"], "without topics")],
)
def test_refuses_options_without_topics(themes, tmp_path, options, message):
    with pytest.raises(Exception, match=message):
        train(themes, tmp_path, *options)

"""A teacher: what it proposes follows its probabilities, draws follow what it proposes, and a run resumes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from rescorer.errors import ConfigError
from rescorer.models.network_files import END, START, UNKNOWN, Vocabulary
from rescorer.text import Normaliser
from rescorer.units.importing import import_model, read_huggingface
from rescorer_training.batches import SentenceBatches, Sentences, StreamBatches
from rescorer_training.cli import app
from rescorer_training.neural.options import TeacherOptions, TrainingOptions
from rescorer_training.neural.prepare import RunInputs, prepare_text
from rescorer_training.neural.teacher import (
    HEADER_BYTES,
    LESSONS_FILE,
    Lessons,
    Teacher,
    load_lessons,
    record_type,
    write_lessons,
)
from rescorer_training.neural.train import Trainer, TrainingRun
from tests.support.toy_training import make_model, reports_without_seconds
from tests.support.unit_models import unit_model, write_letter_model


def make_teacher(words, n_words=2) -> Teacher:
    """A small random model; after a space, words of at most one letter are one unit of it."""
    return Teacher(unit_model()[0], Vocabulary((END, UNKNOWN, *words, START)), n_words)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "c", "dog", "cat"]), max_size=6).map(tuple), max_size=4))
def test_proposes_the_most_probable_words_of_one_piece(sentences):
    teacher = make_teacher(("a", "b", "c", "d", "dog"))
    model = teacher.model
    pieces = dict(zip("abcd", model.divider.divide("abcd", after_space=True), strict=True))
    assert len(teacher.units) == 4
    for words, records in zip(sentences, teacher.expect(sentences), strict=True):
        assert len(records) == len(words) + 1
        assert not records["probs"][[0, len(words)]].any()
        for n in range(1, len(words)):
            units = [1, *model.divider.divide_text(words[:n])]
            slow = {
                word: model.scorer.decoder.sequence_log_probs([*units, *unit])[-1].exp().item()
                for word, unit in pieces.items()
            }
            best = sorted(slow, key=slow.__getitem__)[-2:]
            row = zip(records[n]["words"].tolist(), records[n]["probs"].tolist(), strict=True)
            assert dict(row) == pytest.approx({2 + "abcd".index(word): slow[word] for word in best}, rel=2e-3)


def test_refuses_to_propose_more_words_than_it_has():
    with pytest.raises(ConfigError, match="only 1 words of the vocabulary are one piece"):
        make_teacher(("a", "dog", "cat"))


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 99))
def test_draws_follow_the_probabilities_and_keep_the_word_otherwise(n_words, seed):
    random = np.random.default_rng(seed)
    records = np.zeros(1, record_type(n_words))
    records["words"] = 10 + np.arange(n_words)
    records["probs"] = random.dirichlet(np.ones(n_words + 1))[:-1]
    n = 4000
    torch.manual_seed(seed)
    drawn = Lessons(records, 0.5).draw(np.zeros(n, dtype=np.int64), torch.full((n,), 3))
    expected = {3: 1 - float(records["probs"].astype(float).sum())}
    expected |= dict(zip(records["words"][0].tolist(), records["probs"][0].tolist(), strict=True))
    found = {word: float((drawn == word).float().mean()) for word in expected}
    assert found == pytest.approx(expected, abs=0.05)
    assert sum(found.values()) == pytest.approx(1.0)


def test_positions_are_those_of_the_targets():
    random = np.random.default_rng(0)
    ids = np.concatenate([[*random.integers(1, 9, random.integers(0, 12)), 0] for _ in range(30)])
    text = Sentences.from_ids(ids, start_id=10, end_id=0, max_words=8)
    for batches in (SentenceBatches.for_epoch(text, 64, 1, 0), StreamBatches.for_epoch(ids, 4, 7, 1, 0)):
        for number in range(len(batches)):
            for part in range(2):
                _, targets = batches.make_rows(number, part, 2)
                positions = batches.find_positions(number, part, 2)
                np.testing.assert_array_equal(ids[positions], targets[targets >= 0])


LINES = ("a b c a", "b xyz c b a", "c", "a a b unseen b", "b c c a")
"""Lines of a text whose word ``unseen`` the vocabulary of the runs lacks."""


@pytest.fixture(scope="module")
def teacher_folder(tmp_path_factory):
    """An imported model whose units are letters, some with the space before them."""
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("teacher")
    file = write_letter_model(folder / "llama") / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["vocab"] |= {"Ġa": 40, "Ġb": 41, "Ġc": 42}
    tokenizer["model"]["merges"] = [["Ġ", letter] for letter in "abc"]
    file.write_text(json.dumps(tokenizer))
    import_model(read_huggingface(folder / "llama"), folder / "units", [("a", "b", "c")])
    return folder / "units"


@pytest.fixture
def options(teacher_folder):
    return TeacherOptions(teacher_folder, 0.5, 2)


def make_inputs(folder, options):
    """Inputs of a run on a text of several chunks, and its prepared text."""
    folder.mkdir()
    for name in ("train.txt", "valid.txt", "words.txt"):
        lines = ["a", "b", "c", "xyz"] if name == "words.txt" else LINES * 16
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    inputs = RunInputs(
        [folder / "train.txt"], folder / "valid.txt", folder, Normaliser(), 50, teacher=options
    )
    return inputs, prepare_text(inputs, folder / "words.txt")


def test_the_file_continues_after_its_last_chunk(options, tmp_path, monkeypatch):
    inputs, text = make_inputs(tmp_path / "run", options)
    write_lessons(inputs, text)
    file = inputs.folder / LESSONS_FILE
    whole, asked = file.read_bytes(), []
    taught, ids = load_lessons(inputs, text).records["probs"].any(axis=1), text.train.ids
    untaught = np.isin(ids, [text.vocabulary.end, text.vocabulary.unknown])
    untaught[text.train.starts] = True
    np.testing.assert_array_equal(taught, ~untaught)
    file.write_bytes(whole[: len(whole) * 9 // 10])
    with pytest.raises(ConfigError, match="missing or incomplete"):
        load_lessons(inputs, text)
    expect = Teacher.expect
    monkeypatch.setattr(
        Teacher, "expect", lambda self, chunk: asked.append(len(chunk)) or expect(self, chunk)
    )
    write_lessons(inputs, text)
    assert file.read_bytes() == whole
    assert sum(asked) == 80 - 64
    write_lessons(inputs, text)  # which asks no more
    assert sum(asked) == 80 - 64
    other = replace(inputs, teacher=replace(options, teacher_words=1))
    with pytest.raises(ConfigError, match="was made from another text, vocabulary or teacher"):
        write_lessons(other, text)


def test_training_follows_the_teacher_and_resumes_exactly(options, tmp_path, monkeypatch):
    inputs, text = make_inputs(tmp_path / "run", options)
    write_lessons(inputs, text)
    lessons = load_lessons(inputs, text)
    schedule = TrainingOptions(epochs=2, batch_words=100, warmup_steps=2, average="ema")

    def train(name, lessons, epochs, *, resume=False):
        (tmp_path / name).mkdir(exist_ok=True)
        run = TrainingRun(tmp_path / name, lessons=lessons)
        trainer = Trainer(run, make_model(text), text.vocabulary, replace(schedule, epochs=epochs))
        if resume:
            trainer.resume()
        trainer.train(text.train, text.validation)
        return trainer

    whole = train("whole", lessons, 2)
    plain = train("plain", None, 2)
    assert reports_without_seconds(whole)[-1]["training_loss"] > 0
    assert "training_perplexity" in reports_without_seconds(plain)[-1]
    weight = whole.model.network.embedding.weight
    assert not torch.equal(weight, plain.model.network.embedding.weight)
    # the schedule of an interrupted run is that of the whole one
    monkeypatch.setattr(Trainer, "_is_finished", lambda self: self.progress.step >= 3)
    train("parts", lessons, 2)._save()
    monkeypatch.undo()
    resumed = train("parts", lessons, 2, resume=True)
    assert torch.equal(weight, resumed.model.network.embedding.weight)


def test_the_command_trains_with_a_teacher(options, tmp_path):
    inputs, _ = make_inputs(tmp_path / "text", options)
    folder, shared = tmp_path / "run", tmp_path / "shared.lessons"
    arguments = [
        "neural", str(inputs.texts[0]), "--validation", str(inputs.validation), "-o", str(folder), "--epochs",
        "2", "--embedding", "4", "--hidden", "4", "--batch-words", "64", "--teacher", str(options.teacher),
        "--teacher-words", "2", "--teacher-file", str(shared),
    ]  # fmt: skip
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    facts = json.loads((folder / "best" / "training.json").read_text())
    assert (facts["teacher_weight"], facts["teacher_words"]) == (0.5, 2)
    assert shared.stat().st_size > HEADER_BYTES
    refused = CliRunner().invoke(app, [*arguments[:5], str(tmp_path / "back"), *arguments[6:], "--backward"])
    assert "cannot teach a backward network" in str(refused.exception)


def test_a_file_of_lessons_needs_a_teacher(tmp_path):
    with pytest.raises(ConfigError, match=r"lessons needs a teacher: give --teacher FOLDER"):
        TeacherOptions(teacher_file=tmp_path / "shared.lessons")

"""The training loop: it learns, it can be killed, and it goes on as if it had not been."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import BundleError, ConfigError, FormatError, ScoringError
from rescorer.lm.checkpoint import load_model
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.neural import NeuralLanguageModel
from rescorer.lm.reference_scorer import reference_log_probs
from rescorer.text import Normaliser
from rescorer_training.classes.partition import bin_by_frequency, order_vocabulary
from rescorer_training.data.corpus import encode_text, read_lines
from rescorer_training.data.sentence_batches import Sentences, cut_into_batches, plan_batches
from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.prepare import prepare
from rescorer_training.neural.trainer import Run
from rescorer_training.neural.validation import perplexity

OPTIONS = TrainingOptions(
    epochs=3, batch_words=64, warmup_steps=5, validations_an_epoch=2, learning_rate=0.01
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A small language that a network can learn: who does what where, in a fixed order."""
    folder = tmp_path_factory.mktemp("text")
    generator = np.random.default_rng(0)
    parts = (
        ["a", "the", "one"],
        ["cat", "dog", "ship", "king"],
        ["sat", "slept", "sank"],
        ["", "here", "there now"],
    )
    for name, n in (("train", 400), ("valid", 60)):
        lines = [" ".join(generator.choice(part) for part in parts) + "\n" for _ in range(n)]
        (folder / f"{name}.txt").write_text("".join(lines))
    return prepare(folder, [folder / "train.txt"], folder / "valid.txt", Normaliser(), size=100, longest=50)


def new_run(folder, text, options=OPTIONS, dropout=0.2):
    torch.manual_seed(1)
    sizes = bin_by_frequency(text.counts(), 4)
    model = NeuralModel(NetworkConfig(len(text.vocabulary), sizes, "lstm", 8, 12, dropout=dropout))
    folder.mkdir(exist_ok=True)
    return Run(folder, model, text.vocabulary, options)


def test_training_learns_and_keeps_the_best_model(tmp_path, text):
    run = new_run(tmp_path, text)
    before = perplexity(run.model, text.validation)
    progress = run.train(text.train, text.validation)
    assert progress.best_perplexity < 0.5 * before
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert min(entry["validation_perplexity"] for entry in log) == round(progress.best_perplexity, 3)
    best, vocabulary = load_model(tmp_path / "best")
    assert perplexity(best, text.validation) == pytest.approx(progress.best_perplexity)
    # Scoring starts a sentence as training did: the served model gives the same perplexity.
    ids, end = text.validation.ids, vocabulary.end
    model, log_prob, words = NeuralLanguageModel(best, vocabulary), 0.0, []
    for i in ids:
        if i == end:
            log_prob += reference_log_probs(model, tuple(words)).sum()
            words = []
        else:
            words.append(vocabulary.words[i])
    assert math.exp(-log_prob / len(ids)) == pytest.approx(progress.best_perplexity, rel=1e-4)


class Killed(Exception):
    pass


@pytest.mark.parametrize("validation_of_death", [1, 3, 4])
def test_a_killed_run_resumes_exactly(tmp_path, text, validation_of_death):
    whole = new_run(tmp_path / "whole", text)
    whole.train(text.train, text.validation)

    killed = new_run(tmp_path / "killed", text)
    seen = []

    def die(entry):
        seen.append(entry)
        if len(seen) == validation_of_death:
            raise Killed

    with pytest.raises(Killed):
        killed.train(text.train, text.validation, die)
    resumed = new_run(tmp_path / "killed", text)
    if validation_of_death == 1:  # killed before anything was saved
        with pytest.raises(ConfigError, match="no training state"):
            resumed.resume()
        return
    resumed.resume()
    resumed.train(text.train, text.validation)
    without_time = [
        [{k: v for k, v in e.items() if k != "seconds"} for e in r.progress.reports] for r in (whole, resumed)
    ]
    assert without_time[0] == without_time[1]
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_early_stopping(tmp_path, text):
    options = TrainingOptions(epochs=50, batch_words=64, learning_rate=1e-9, patience=2)
    progress = new_run(tmp_path, text, options).train(text.train, text.validation)
    assert len(progress.reports) < 10


def test_divergence_says_what_to_change(tmp_path, text):
    run = new_run(tmp_path, text)
    with torch.no_grad():
        run.model.output.word_bias[5] = float("nan")
    with pytest.raises(ScoringError, match="--learning-rate"):
        run.train(text.train, text.validation)


def test_resuming_another_run_or_a_damaged_state_is_refused(tmp_path, text):
    run = new_run(tmp_path, text, TrainingOptions(epochs=1, batch_words=64))
    run.train(text.train, text.validation)
    with pytest.raises(ConfigError, match="learning_rate"):
        new_run(tmp_path, text, TrainingOptions(epochs=1, batch_words=64, learning_rate=1.0)).resume()
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(BundleError, match="damaged"):
        new_run(tmp_path, text, TrainingOptions(epochs=1, batch_words=64)).resume()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=80), st.integers(1, 60), st.integers(0, 5))
def test_batches_hold_every_sentence_once_within_the_budget(lengths, budget, epoch):
    ids = np.concatenate([[7] * (length - 1) + [0] for length in lengths]).astype(np.int32)
    sentences = Sentences.from_ids(ids, start_id=9, end_id=0, max_words=30)
    assert sentences.n_truncated == sum(length > 30 for length in lengths)
    order = plan_batches(sentences, budget, 3, epoch)
    assert sorted(np.concatenate(order)) == list(range(len(lengths)))
    for chosen in order:
        assert len(chosen) == 1 or len(chosen) * sentences.lengths[chosen].max() <= budget
        inputs, targets = sentences.pad_rows(chosen)
        assert (inputs[:, 0] == 9).all()
        assert (targets >= 0).sum() == sentences.lengths[chosen].sum()
        assert (inputs[:, 1:][targets[:, 1:] >= 0] == targets[:, :-1][targets[:, 1:] >= 0]).all()
    again = plan_batches(sentences, budget, 3, epoch)
    assert all((a == b).all() for a, b in zip(order, again, strict=True))


def test_length_order_cuts_nothing_off():
    lengths = np.array([1, 2, 3, 100])
    assert [b.tolist() for b in cut_into_batches(np.arange(4), lengths, 6)] == [[0, 1], [2], [3]]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=200), st.data())
def test_frequency_bins_are_whole_classes(counts, data):
    n_classes = data.draw(st.integers(1, len(counts)))
    sizes = bin_by_frequency(np.array(sorted(counts, reverse=True)), n_classes)
    assert len(sizes) == n_classes
    assert sum(sizes) == len(counts)
    assert min(sizes) >= 1


def test_frequency_bins_have_about_equal_mass():
    counts = (1e7 / np.arange(1, 20_001)).astype(np.int64)
    sizes = bin_by_frequency(counts, 100)
    mass = [part.sum() for part in np.split(np.sqrt(counts), np.cumsum(sizes)[:-1])]
    assert max(mass[20:]) < 1.5 * np.mean(mass)


def test_the_vocabulary_is_ordered_by_count():
    vocabulary = order_vocabulary({"b": 2, "a": 2, "c": 9}, ["a", "b", "c", "unseen"])
    assert vocabulary.words == ("</s>", "<unk>", "c", "a", "b", "unseen", "<s>")


def test_encoding_maps_memory_and_marks_unknown_words(tmp_path):
    with gzip.open(tmp_path / "t.txt.gz", "wt") as file:
        file.write("The cat.\n\n[NOISE]\nzebra cat\n")
    ids = encode_text(
        [tmp_path / "t.txt.gz"],
        Normaliser(),
        {"the": 3, "cat": 4},
        unknown_id=1,
        end_id=0,
        output=tmp_path / "ids",
    )
    assert isinstance(ids, np.memmap)
    assert ids.tolist() == [3, 4, 0, 1, 4, 0]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"ok\n\xff\xfe\n", "a.txt", r"a\.txt:2: not UTF-8"),
        (gzip.compress(b"some words\n" * 1000)[:-30], "a.txt.gz", "damaged gzip"),
        (b"\n\n", "a.txt", "no words"),
    ],
)
def test_bad_text_is_named(tmp_path, content, name, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=message):
        encode_text([tmp_path / name], Normaliser(), {}, unknown_id=1, end_id=0)


def test_a_missing_text_is_named(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        list(read_lines(tmp_path / "none.txt"))


@given(st.integers(1, 3), st.integers(0, 1000))
def test_fitted_shares_are_no_worse_than_any_other(n_models, seed):
    generator = np.random.default_rng(seed)
    columns = {str(m): np.log(generator.uniform(1e-6, 1.0, size=50)) for m in range(n_models)}
    shares = fit_mixture(columns)
    assert sum(shares.values()) == pytest.approx(1.0)

    def likelihood(values):
        return np.mean(np.log(sum(v * np.exp(c) for v, c in zip(values, columns.values(), strict=True))))

    for _ in range(20):
        other = generator.dirichlet(np.ones(n_models))
        assert likelihood(shares.values()) >= likelihood(other) - 1e-3


@pytest.mark.slow
def test_a_process_killed_outright_goes_on_with_the_same_losses(tmp_path):
    """kill -9 in mid-run, then --resume: the log ends as that of a run left alone."""
    generator = np.random.default_rng(0)
    lines = [
        " ".join(generator.choice(["red", "blue", "green", "ships", "sail"], size=8)) for _ in range(3000)
    ]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    (tmp_path / "v.txt").write_text("\n".join(lines[:50]))

    def command(folder, *more):
        tool = Path(sys.executable).parent / "rescorer-train"
        sizes = (
            "--embedding",
            "8",
            "--hidden",
            "8",
            "--epochs",
            "4",
            "--batch-words",
            "256",
            "--dropout",
            "0.1",
        )
        often = ("--validations-an-epoch", "4", "--patience", "99", "--threads", "1")
        texts = (str(tmp_path / "t.txt"), "--validation", str(tmp_path / "v.txt"))
        return [str(tool), "neural", *texts, "-o", str(tmp_path / folder), *sizes, *often, *more]

    def log(folder):
        path = tmp_path / folder / "log.jsonl"
        entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]

    subprocess.run(command("whole"), check=True, capture_output=True)
    process = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(log("killed")) < 3 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -9
    subprocess.run(command("killed", "--resume"), check=True, capture_output=True)
    by_step = {
        entry["step"]: entry for entry in log("killed")
    }  # a validation may have been logged, not saved
    assert list(by_step.values()) == log("whole")

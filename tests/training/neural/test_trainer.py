"""The trainer: learning, early stopping, divergence, and exact resumption of killed runs."""

from __future__ import annotations

import gzip
import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import BundleError, ConfigError, FormatError, ScoringError
from rescorer.models.neural import NeuralLanguageModel, load_model
from rescorer.text import Normaliser
from rescorer_training.batches import Sentences, cut_into_batches, plan_batches
from rescorer_training.classes.partition import bin_by_frequency, order_vocabulary
from rescorer_training.cli import main
from rescorer_training.corpus import encode_text, read_lines
from rescorer_training.evaluation.perplexity import fit_mixture
from rescorer_training.neural import prepare
from rescorer_training.neural.optimisation import GradientClipper
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.prepare import iterate_contexts, perplexity
from tests.support.reference_scorer import reference_log_probs
from tests.support.toy_training import (
    call_after_validations,
    make_text,
    make_trainer,
    reports_without_seconds,
)

OPTIONS = TrainingOptions(
    epochs=3, batch_words=64, warmup_steps=5, validations_an_epoch=2, learning_rate=0.01
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


def test_time_includes_validations_but_no_interruptions(tmp_path, text, monkeypatch):
    now = [1000.0]

    def validate(*args: object, **options: object) -> float:
        now[0] += 10
        return 5.0

    monkeypatch.setattr("rescorer_training.neural.train.time.monotonic", lambda: now[0])
    monkeypatch.setattr("rescorer_training.neural.prepare.perplexity", validate)
    options = replace(OPTIONS, epochs=2, validations_an_epoch=1)
    assert make_trainer(tmp_path, text, options).train(text.train, text.validation).seconds == 20
    now[0] += 500
    resumed = make_trainer(tmp_path, text, options)
    resumed.resume()
    assert [report["seconds"] for report in resumed.progress.reports] == [10, 20]
    assert resumed.train(text.train, text.validation).seconds == 20


def test_learns_and_saves_the_best_model(tmp_path, text):
    trainer = make_trainer(tmp_path, text, OPTIONS)
    before = perplexity(trainer.model, text.validation)
    progress = trainer.train(text.train, text.validation)
    assert progress.best_perplexity < 0.5 * before
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert min(entry["validation_perplexity"] for entry in log) == round(progress.best_perplexity, 3)
    best, vocabulary = load_model(tmp_path / "best")
    assert perplexity(best, text.validation) == pytest.approx(progress.best_perplexity)
    # Scoring starts sentences as training does, so the served model has the same perplexity.
    ids, end = text.validation.ids, vocabulary.end
    model, log_prob, words = NeuralLanguageModel(best, vocabulary), 0.0, []
    for i in ids:
        if i == end:
            log_prob += reference_log_probs(model, tuple(words)).sum()
            words = []
        else:
            words.append(vocabulary.words[i])
    assert math.exp(-log_prob / len(ids)) == pytest.approx(progress.best_perplexity, rel=1e-4)


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_gradients_are_clipped_as_by_torch_and_their_norms_kept(limit):
    torch.manual_seed(1)
    twins = [torch.nn.GRU(3, 4, num_layers=2) for _ in range(2)]
    twins[1].load_state_dict(twins[0].state_dict())
    clipper = GradientClipper(twins[0].named_parameters(), limit)
    norms = []
    for scale in (1.0, 3.0):
        for network in twins:
            network.zero_grad()
            network(scale * torch.ones(5, 1, 3))[0].sum().backward()
        recurrent = [twins[1].weight_hh_l1.grad, twins[1].bias_hh_l1.grad]
        second = float(torch.cat([gradient.flatten() for gradient in recurrent]).norm())
        norms.append((float(torch.nn.utils.clip_grad_norm_(twins[1].parameters(), limit)), second))
        clipper.clip()
        for ours, theirs in zip(*(network.parameters() for network in twins), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    sums, n_steps = clipper.take_sums()
    assert n_steps == 2
    assert sums["all"] == pytest.approx(norms[0][0] + norms[1][0])
    assert sums["layer 2, recurrent"] == pytest.approx(norms[0][1] + norms[1][1])
    assert sums["clipped"] == (2 if limit < 1 else 0)
    assert clipper.take_sums() == ({}, 0)


def test_the_log_has_the_norms_of_gradients_by_part(tmp_path, text):
    options = replace(OPTIONS, epochs=1, gradient_clip=1e-3)
    make_trainer(tmp_path, text, options).train(text.train, text.validation)
    for entry in map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines()):
        norms = entry["gradient_norms"]
        squares = sum(norm**2 for part, norm in norms.items() if part != "all")
        assert squares == pytest.approx(norms["all"] ** 2, rel=0.05)  # means over steps, so not exactly
        assert {"embedding", "layer 1, input", "layer 1, recurrent", "output"} <= norms.keys()
        assert entry["clipped"] == 1


class Killed(Exception):
    pass


TRANSFORMER = {"kind": "transformer", "window": 8, "layers": 2, "heads": 2, "hidden_size": 16}


@pytest.mark.parametrize("carried", [False, True])
def test_transformer_learns_and_resumes_exactly(tmp_path, text, carried):
    """With the keys and values of the last words carried from batch to batch, or without."""
    options = TrainingOptions(
        epochs=3, batch_words=128, batch_rows=12, bptt=10, warmup_steps=5, learning_rate=0.01
    )
    trainer, killed, resumed = (
        make_trainer(tmp_path / name, text, options, **TRANSFORMER, carried=carried, locked_dropout=carried)
        for name in ("whole", "killed", "killed")
    )
    before = perplexity(trainer.model, text.validation)
    torch.manual_seed(1)
    assert trainer.train(text.train, text.validation).best_perplexity < 0.5 * before
    torch.manual_seed(1)

    def kill(entry):
        if entry["epoch"] == 3:
            raise Killed

    call_after_validations(killed, kill)
    with pytest.raises(Killed):
        killed.train(text.train, text.validation)
    resumed.resume()
    resumed.train(text.train, text.validation)
    assert reports_without_seconds(trainer) == reports_without_seconds(resumed)


@pytest.mark.slow
@pytest.mark.parametrize("kill_at_validation", [1, 3, 4])
def test_killed_run_resumes_exactly(tmp_path, text, kill_at_validation):
    uninterrupted = make_trainer(tmp_path / "uninterrupted", text, OPTIONS)
    uninterrupted.train(text.train, text.validation)

    killed = make_trainer(tmp_path / "killed", text, OPTIONS)
    seen = []

    def kill(entry):
        seen.append(entry)
        if len(seen) == kill_at_validation:
            raise Killed

    call_after_validations(killed, kill)
    with pytest.raises(Killed):
        killed.train(text.train, text.validation)
    resumed = make_trainer(tmp_path / "killed", text, OPTIONS)
    if kill_at_validation == 1:  # killed before anything was saved
        with pytest.raises(ConfigError, match="no training state"):
            resumed.resume()
        return
    resumed.resume()
    resumed.train(text.train, text.validation)
    assert reports_without_seconds(uninterrupted) == reports_without_seconds(resumed)
    for a, b in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_network_that_learns_nothing_says_so(run, tmp_path):
    lines = [" ".join(f"w{(7 * i * i + 3 * j) % 97}" for j in range(12)) for i in range(100)]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines))
    options = ("--hidden=8", "--embedding=8", "--epochs=1", "--learning-rate=1e-6", "--threads=1", "--json")
    arguments = ("neural", text, "--validation", text, "-o", tmp_path / "run", *options)
    code, out, err = run(*arguments, command=main)
    assert code == 0
    facts = json.loads(out)
    assert facts["validation_perplexity"] > 0.99 * facts["unigram_perplexity"]
    assert "the network learnt nothing from context" in err
    assert "try more --epochs" in err


def test_unigram_perplexity_is_that_of_smoothed_word_frequencies(text):
    counts = text.counts() + 1.0
    log_probs = [math.log(counts[i] / counts.sum()) for i in text.validation.ids]
    assert text.unigram_perplexity() == pytest.approx(math.exp(-sum(log_probs) / len(log_probs)))


def test_stops_early(tmp_path, text):
    options = TrainingOptions(epochs=50, batch_words=64, learning_rate=1e-9, patience=2)
    progress = make_trainer(tmp_path, text, options).train(text.train, text.validation)
    assert len(progress.reports) < 10


def test_divergence_error_names_the_options_to_change(tmp_path, text):
    trainer = make_trainer(tmp_path, text, OPTIONS)
    with torch.no_grad():
        trainer.model.output.word_bias[5] = float("nan")
    with pytest.raises(ScoringError, match="--learning-rate"):
        trainer.train(text.train, text.validation)


@pytest.mark.parametrize(("place", "carried"), [("a step", False), ("a step", True), ("a validation", False)])
def test_ctrl_c_saves_a_state_that_resumes_exactly(tmp_path, text, monkeypatch, place, carried):
    whole, stopped, resumed = (
        make_trainer(tmp_path / name, text, OPTIONS, carried=carried)
        for name in ("whole", "stopped", "stopped")
    )
    torch.manual_seed(1)
    whole.train(text.train, text.validation)

    def press_ctrl_c(*_: object) -> None:
        if stopped.progress.step >= 7:
            signal.raise_signal(signal.SIGINT)

    def iterate(*arguments):
        press_ctrl_c()
        yield from iterate_contexts(*arguments)

    with monkeypatch.context() as patch:
        if place == "a validation":
            patch.setattr(prepare, "iterate_contexts", iterate)
        else:
            patch.setattr(stopped.monitor, "advance", press_ctrl_c)
        torch.manual_seed(1)
        with pytest.raises(KeyboardInterrupt):
            stopped.train(text.train, text.validation)
    resumed.resume()
    assert 0 < resumed.progress.step < whole.progress.step
    resumed.train(text.train, text.validation)
    assert reports_without_seconds(whole) == reports_without_seconds(resumed)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])


def test_resume_compares_options_in_groups_and_knows_options_that_are_new(tmp_path, text):
    trainer = make_trainer(tmp_path, text, TrainingOptions(epochs=1, batch_words=64))
    trainer.identity["network"] = {"kind": "lstm", "hidden_size": 5}
    trainer.train(text.train, text.validation)
    trainer.identity["network"] = {"kind": "lstm", "hidden_size": 5, "added_later": None}
    trainer.resume()
    trainer.identity["network"] = {"kind": "lstm", "hidden_size": 6, "added_later": True}
    expected = r"other options: added_later was None, is True, hidden_size was 5, is 6$"
    with pytest.raises(ConfigError, match=expected):
        trainer.resume()


def test_resume_rejects_other_options_and_damaged_state(tmp_path, text):
    trainer = make_trainer(tmp_path, text, TrainingOptions(epochs=1, batch_words=64))
    trainer.train(text.train, text.validation)
    with pytest.raises(ConfigError, match="learning_rate"):
        make_trainer(tmp_path, text, TrainingOptions(epochs=1, batch_words=64, learning_rate=1.0)).resume()
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(BundleError, match="damaged"):
        make_trainer(tmp_path, text, TrainingOptions(epochs=1, batch_words=64)).resume()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=80), st.integers(1, 60), st.integers(0, 5))
def test_batches_contain_every_sentence_once_within_the_budget(lengths, budget, epoch):
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


def test_length_order_includes_the_last_sentences():
    lengths = np.array([1, 2, 3, 100])
    assert [b.tolist() for b in cut_into_batches(np.arange(4), lengths, 6)] == [[0, 1], [2], [3]]


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=200), st.data())
def test_frequency_bins_cover_all_words(counts, data):
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


def test_vocabulary_is_ordered_by_count():
    vocabulary = order_vocabulary({"b": 2, "a": 2, "c": 9}, ["a", "b", "c", "unseen"])
    assert vocabulary.words == ("</s>", "<unk>", "c", "a", "b", "unseen", "<s>")


def test_encoding_marks_unknown_words(tmp_path):
    with gzip.open(tmp_path / "t.txt.gz", "wt") as file:
        file.write("The cat.\n\n[NOISE]\nzebra cat\n")
    ids = encode_text([tmp_path / "t.txt.gz"], Normaliser(), {"the": 3, "cat": 4}, unknown_id=1, end_id=0)
    assert ids.tolist() == [3, 4, 0, 1, 4, 0]


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"ok\n\xff\xfe\n", "a.txt", r"a\.txt:2: not UTF-8"),
        (gzip.compress(b"some words\n" * 1000, mtime=0)[:-30], "a.txt.gz", "damaged gzip"),
        (b"\n\n", "a.txt", "no words"),
    ],
)
def test_format_errors_name_the_file(tmp_path, content, name, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=message):
        encode_text([tmp_path / name], Normaliser(), {}, unknown_id=1, end_id=0)


def test_rejects_a_missing_text(tmp_path):
    with pytest.raises(FormatError, match="cannot be read"):
        list(read_lines(tmp_path / "none.txt"))


@given(st.integers(1, 3), st.integers(0, 1000))
def test_fitted_weights_are_at_least_as_good_as_random_ones(n_models, seed):
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
def test_process_killed_by_sigkill_resumes_with_the_same_losses(tmp_path, warm_programs):
    """After kill -9 and --resume, the log ends like that of an uninterrupted run."""
    generator = np.random.default_rng(0)
    lines = [
        " ".join(generator.choice(["red", "blue", "green", "ships", "sail"], size=8)) for _ in range(3000)
    ]
    (tmp_path / "t.txt").write_text("\n".join(lines))
    (tmp_path / "v.txt").write_text("\n".join(lines[:50]))

    def command(folder, *more, programs=warm_programs):
        tool = programs / "rescorer-train"
        network = ["--embedding", "8", "--hidden", "8", "--dropout", "0.1", "--threads", "1"]
        schedule = [
            "--epochs",
            "4",
            "--batch-words",
            "256",
            "--validations-an-epoch",
            "4",
            "--patience",
            "99",
        ]
        texts = (str(tmp_path / "t.txt"), "--validation", str(tmp_path / "v.txt"))
        return [str(tool), "neural", *texts, "-o", str(tmp_path / folder), *network, *schedule, *more]

    def read_log(folder):
        path = tmp_path / folder / "log.jsonl"
        entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]

    subprocess.run(command("uninterrupted"), check=True, capture_output=True)
    raw = "--normaliser", "raw"  # it need not be named again
    killed = command("killed", *raw, programs=Path(sys.executable).parent)
    process = subprocess.Popen(killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(read_log("killed")) < 3 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -9
    subprocess.run(command("killed", "--resume"), check=True, capture_output=True)
    # The process may have been killed after logging a validation, but before saving it.
    by_step = {entry["step"]: entry for entry in read_log("killed")}
    assert list(by_step.values()) == read_log("uninterrupted")

"""What a run can be told: optimisers, schedules, averages, parts, processes, and going on with all of it."""

from __future__ import annotations

import resource
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from rescorer.errors import ConfigError, ScoringError
from rescorer.lm.checkpoint import load_model
from rescorer_training.neural.averaging import WeightAverage
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.schedule import learning_rate
from rescorer_training.neural.validation import perplexity
from tests.support.toy_runs import new_run, toy_text, without_time

OPTIONS = TrainingOptions(
    epochs=3, batch_words=64, batch_rows=8, bptt=6, warmup_steps=5, validations_an_epoch=2, learning_rate=0.01
)
SGD = replace(OPTIONS, optimiser="sgd", learning_rate=2.0, schedule="plateau", plateau_gain=0.5)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return toy_text(tmp_path_factory.mktemp("text"))


class Killed(Exception):
    pass


@pytest.mark.parametrize(
    ("options", "network"),
    [
        (OPTIONS, {"carried": True}),
        (SGD, {}),
        (replace(SGD, momentum=0.5, schedule="constant", learning_rate=0.5), {"carried": True}),
        (replace(OPTIONS, average="ema", average_decay=0.9), {}),
        (replace(OPTIONS, average="uniform", average_from=1, accumulate=3), {"carried": True}),
        (OPTIONS, {"kind": "feedforward", "window": 2, "carried": True}),
    ],
    ids=["carried", "plateau", "momentum", "ema", "uniform in parts", "windows"],
)
def test_every_kind_of_run_resumes_exactly(tmp_path, text, options, network):
    whole = new_run(tmp_path / "whole", text, options, **network)
    whole.train(text.train, text.validation)
    assert whole.progress.reports[-1]["validation_perplexity"] < 9

    def die(entry):
        if killed.progress.step > 60:
            raise Killed

    killed = new_run(tmp_path / "killed", text, options, **network)
    killed.checkpoint_every_s = 0.0  # at every look, in the middle of an epoch
    with pytest.raises(Killed):
        killed.train(text.train, text.validation, die)
    resumed = new_run(tmp_path / "killed", text, options, **network)
    resumed.resume()
    assert resumed.progress.batch > 0
    resumed.train(text.train, text.validation)
    assert without_time(resumed) == without_time(whole)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.progress.reductions == whole.progress.reductions
    assert resumed.average.n_steps == whole.average.n_steps


@pytest.mark.parametrize("carried", [False, True])
def test_a_batch_in_parts_gives_the_losses_of_the_batch(tmp_path, text, carried):
    runs = []
    for parts in (1, 3):
        options = replace(OPTIONS, accumulate=parts)
        runs.append(new_run(tmp_path / str(parts), text, options, dropout=0.0, carried=carried))
        runs[-1].train(text.train, text.validation)
    for one, other in zip(*(run.progress.reports for run in runs), strict=True):
        for name in ("training_perplexity", "validation_perplexity"):
            assert one[name] == pytest.approx(other[name], rel=1e-4)


def test_plateau_halves_when_validation_gains_too_little(tmp_path, text):
    run = new_run(tmp_path, text, SGD)
    run.train(text.train, text.validation)
    history = [entry["validation_perplexity"] for entry in run.progress.reports]
    expected = sum(now > 0.5 * min(history[:i]) for i, now in enumerate(history) if i)
    assert run.progress.reductions == expected > 0
    assert learning_rate(SGD, 1000, 1000, 3) == SGD.learning_rate / 8


def test_averages_are_what_their_formulas_say():
    parameter = torch.nn.Parameter(torch.zeros(2))
    steps = [1.0, 4.0, 7.0]
    averages = {
        kind: WeightAverage([parameter], replace(OPTIONS, average=kind, average_decay=0.3))
        for kind in ("none", "ema", "uniform")
    }
    averages["uniform"].start()
    for value in steps:
        parameter.data.fill_(value)
        for average in averages.values():
            average.update()
    ema = 0.0
    for n, value in enumerate(steps, start=1):
        kept = min(0.3, (1 + n) / (10 + n))
        ema = kept * ema + (1 - kept) * value
    for kind, expected in (("none", 7.0), ("ema", ema), ("uniform", 4.0)):
        with averages[kind].in_place():
            assert parameter[0].item() == pytest.approx(expected)
        assert parameter[0].item() == 7.0


def test_the_kept_model_is_the_averaged_one(tmp_path, text):
    run = new_run(tmp_path, text, replace(OPTIONS, average="ema", average_decay=0.9))
    run.train(text.train, text.validation)
    best, _ = load_model(tmp_path / "best")
    assert perplexity(best, text.validation) == pytest.approx(run.progress.best_perplexity, rel=1e-6)
    assert perplexity(run.model, text.validation) != pytest.approx(run.progress.best_perplexity, rel=1e-6)


def test_the_uniform_average_waits_for_validation_to_stall():
    average = WeightAverage([torch.nn.Parameter(torch.zeros(1))], replace(OPTIONS, average="uniform"))
    average.consider(3, [9.0, 8, 7, 7, 7, 7, 7])
    assert not average.values
    average.consider(3, [9.0, 7, 8, 7, 7, 7, 7])
    assert average.values


def test_a_loss_far_above_the_unigrams_stops_the_run(tmp_path, text):
    options = replace(SGD, learning_rate=1e4, gradient_clip=1e4, warmup_steps=1, epochs=9)
    with pytest.raises(ScoringError, match=r"word frequencies .* lower --learning-rate"):
        new_run(tmp_path, text, options).train(text.train, text.validation)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, text):
    run = new_run(tmp_path, text, OPTIONS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(entry):
        if len(run.progress.reports) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))

    try:
        with pytest.raises(ScoringError, match=r"cannot be written .* --resume"):
            run.train(text.train, text.validation, fill_disk)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("*partial*"))
    load_model(tmp_path / "best")
    whole = new_run(tmp_path / "whole", text, OPTIONS)
    whole.train(text.train, text.validation)
    resumed = new_run(tmp_path, text, OPTIONS)
    resumed.resume()
    assert len(resumed.progress.reports) == 1
    resumed.train(text.train, text.validation)
    assert without_time(resumed) == without_time(whole)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimiser": "adagrad"}, "expected one of adamw, sgd"),
        ({"momentum": 0.9}, "only sgd has one"),
        ({"accumulate": 0}, "at least 1"),
        ({"average_decay": 1.5}, "0 ≤ average_decay < 1"),
        ({"objective": "hinge"}, "expected one of ml"),
    ],
)
def test_impossible_options_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        TrainingOptions(**settings)


def test_tensorboard_is_asked_for_by_name_where_it_is_missing(tmp_path, monkeypatch):
    from rescorer_training.neural.progress import Monitor

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"rescorer\[training\]"):
        Monitor(tmp_path, tensorboard=True)


def test_weights_say_how_often_sentences_are_drawn():
    from rescorer_training.data.sentence_batches import Sentences

    ids = np.tile(np.array([5, 0], dtype=np.int32), 10)
    sentences = Sentences.from_ids(ids, start_id=9, end_id=0, max_words=9, corpora=((4, 0.5), (6, 2.5)))
    drawn = np.bincount(sentences.draw_epoch(np.random.default_rng(1)), minlength=10)
    assert drawn[:4].sum() == 2
    assert drawn[:4].max() == 1
    assert drawn[4:].sum() == 15
    assert set(drawn[4:]) == {2, 3}

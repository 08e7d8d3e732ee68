"""Training options: optimisers, schedules, weight averages, accumulation, and resuming with each of them."""

from __future__ import annotations

import math
import resource
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from rescorer.errors import ConfigError, ScoringError
from rescorer.models.neural import load_model
from rescorer_training.neural.optimisation import WeightAverage, compute_learning_rate
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.prepare import perplexity
from tests.support.toy_training import (
    call_after_validations,
    make_text,
    make_trainer,
    reports_without_seconds,
)

pytestmark = pytest.mark.slow

OPTIONS = TrainingOptions(
    epochs=3, batch_words=64, batch_rows=8, bptt=6, warmup_steps=5, validations_an_epoch=2, learning_rate=0.01
)
SGD = replace(OPTIONS, optimiser="sgd", learning_rate=2.0, schedule="plateau", plateau_gain=0.5)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


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
    ids=["carried", "plateau", "momentum", "ema", "uniform accumulated", "windowed"],
)
def test_resumes_exactly_with_all_options(tmp_path, text, options, network):
    uninterrupted = make_trainer(tmp_path / "uninterrupted", text, options, **network)
    uninterrupted.train(text.train, text.validation)
    assert uninterrupted.progress.reports[-1]["validation_perplexity"] < 9

    def kill(entry):
        if killed.progress.step > 60:
            raise Killed

    killed = make_trainer(tmp_path / "killed", text, options, **network)
    killed.checkpoint_every_s = 0.0  # at every check of the loss, in the middle of an epoch
    call_after_validations(killed, kill)
    with pytest.raises(Killed):
        killed.train(text.train, text.validation)
    resumed = make_trainer(tmp_path / "killed", text, options, **network)
    resumed.resume()
    assert resumed.progress.batch > 0
    resumed.train(text.train, text.validation)
    assert reports_without_seconds(resumed) == reports_without_seconds(uninterrupted)
    for a, b in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.progress.reductions == uninterrupted.progress.reductions
    assert resumed.average.n_steps == uninterrupted.average.n_steps


@pytest.mark.parametrize("carried", [False, True])
def test_accumulated_batches_give_the_same_losses(tmp_path, text, carried):
    trainers = []
    for parts in (1, 3):
        options = replace(OPTIONS, accumulate=parts)
        trainers.append(make_trainer(tmp_path / str(parts), text, options, dropout=0.0, carried=carried))
        trainers[-1].train(text.train, text.validation)
    for one, other in zip(*(trainer.progress.reports for trainer in trainers), strict=True):
        for name in ("training_perplexity", "validation_perplexity"):
            assert one[name] == pytest.approx(other[name], rel=1e-4)


def test_plateau_schedule_halves_the_rate_when_validation_stalls(tmp_path, text):
    trainer = make_trainer(tmp_path, text, SGD)
    trainer.train(text.train, text.validation)
    history = [entry["validation_perplexity"] for entry in trainer.progress.reports]
    expected = sum(now > 0.5 * min(history[:i]) for i, now in enumerate(history) if i)
    assert trainer.progress.reductions == expected > 0
    assert compute_learning_rate(SGD, 1000, 1000, 3) == SGD.learning_rate / 8


def test_weight_averages_follow_their_formulas():
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
        decay = min(0.3, (1 + n) / (10 + n))
        ema = decay * ema + (1 - decay) * value
    for kind, expected in (("none", 7.0), ("ema", ema), ("uniform", 4.0)):
        with averages[kind].swap_in():
            assert parameter[0].item() == pytest.approx(expected)
        assert parameter[0].item() == 7.0


def test_saved_model_has_averaged_weights(tmp_path, text):
    trainer = make_trainer(tmp_path, text, replace(OPTIONS, average="ema", average_decay=0.9))
    trainer.train(text.train, text.validation)
    best, _ = load_model(tmp_path / "best")
    assert perplexity(best, text.validation) == pytest.approx(trainer.progress.best_perplexity, rel=1e-6)
    assert perplexity(trainer.model, text.validation) != pytest.approx(
        trainer.progress.best_perplexity, rel=1e-6
    )


def test_uniform_average_starts_when_validation_stalls():
    average = WeightAverage([torch.nn.Parameter(torch.zeros(1))], replace(OPTIONS, average="uniform"))
    average.start_if_due(3, [9.0, 8, 7, 7, 7, 7, 7])
    assert not average.values
    average.start_if_due(3, [9.0, 7, 8, 7, 7, 7, 7])
    assert average.values


def test_loss_far_above_unigram_entropy_raises(tmp_path, text):
    options = replace(SGD, learning_rate=1e4, gradient_clip=1e4, warmup_steps=1, epochs=9)
    with pytest.raises(ScoringError, match=r"word frequencies .* lower --learning-rate"):
        make_trainer(tmp_path, text, options).train(text.train, text.validation)


def test_full_disk_leaves_the_previous_checkpoint(tmp_path, text):
    trainer = make_trainer(tmp_path, text, OPTIONS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_disk(entry):
        if len(trainer.progress.reports) == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))

    call_after_validations(trainer, fill_disk)
    try:
        with pytest.raises(ScoringError, match=r"cannot be written .* --resume"):
            trainer.train(text.train, text.validation)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("*partial*"))
    load_model(tmp_path / "best")
    uninterrupted = make_trainer(tmp_path / "uninterrupted", text, OPTIONS)
    uninterrupted.train(text.train, text.validation)
    resumed = make_trainer(tmp_path, text, OPTIONS)
    resumed.resume()
    assert len(resumed.progress.reports) == 1
    resumed.train(text.train, text.validation)
    assert reports_without_seconds(resumed) == reports_without_seconds(uninterrupted)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimiser": "adagrad"}, "expected one of adamw, sgd"),
        ({"momentum": 0.9}, "adamw has none; choose optimiser sgd"),
        ({"accumulate": 0}, "at least 1"),
        ({"average_decay": 1.5}, "0 ≤ average_decay < 1"),
        ({"objective": "hinge"}, "expected one of ml"),
        ({"learning_rate": math.inf}, "learning_rate is inf; expected a finite, positive number"),
        ({"gradient_clip": math.nan}, "gradient_clip is nan; expected a positive number"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1; expected a finite number, at least 0"),
        ({"weight_decay": math.nan}, "weight_decay is nan"),
        ({"plateau_gain": math.inf}, "plateau_gain is inf"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
    ],
)
def test_rejects_invalid_options(settings, message):
    with pytest.raises(ConfigError, match=message):
        TrainingOptions(**settings)


def test_missing_tensorboard_error_names_the_extra(tmp_path, monkeypatch):
    from rescorer_training.neural.prepare import Monitor

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"rescorer\[training\]"):
        Monitor(tmp_path, tensorboard=True)


def test_weights_set_how_often_sentences_are_drawn():
    from rescorer_training.batches import Sentences

    ids = np.tile(np.array([5, 0], dtype=np.int32), 10)
    sentences = Sentences.from_ids(ids, start_id=9, end_id=0, max_words=9, corpora=((4, 0.5), (6, 2.5)))
    frequencies = np.bincount(sentences.draw_epoch(np.random.default_rng(1)), minlength=10)
    assert frequencies[:4].sum() == 2
    assert frequencies[:4].max() == 1
    assert frequencies[4:].sum() == 15
    assert set(frequencies[4:]) == {2, 3}

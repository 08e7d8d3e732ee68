"""Networks learn on a GPU, in float32 and bfloat16, and their checkpoints are read there and on a CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rescorer.models.neural import load_model
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.prepare import perplexity
from tests.support.toy_training import make_text, make_trainer

pytestmark = pytest.mark.gpu
OPTIONS = TrainingOptions(
    epochs=3,
    batch_rows=4,
    bptt=8,
    batch_words=64,
    warmup_steps=5,
    validations_an_epoch=2,
    learning_rate=0.01,
    change_penalty=1.0,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return make_text(tmp_path_factory.mktemp("text"))


@pytest.mark.parametrize("settings", [
    {"kind": "lstm", "layers": 2, "residual": True, "weight_dropout": 0.2, "locked_dropout": True},
    {"kind": "gru", "output": "full", "class_sizes": (), "carried": True, "locked_dropout": True},
    {"kind": "transformer", "hidden_size": 8, "heads": 2, "window": 16, "locked_dropout": True},
])  # fmt: skip
@pytest.mark.parametrize("bfloat16", [False, True])
def test_learns_and_restores_its_checkpoint(tmp_path, text, settings, bfloat16):
    options = replace(OPTIONS, bfloat16=bfloat16)
    trainer = make_trainer(tmp_path, text, options, device="cuda", **settings)
    before = perplexity(trainer.model, text.validation)
    progress = trainer.train(text.train, text.validation)
    assert progress.best_perplexity < 0.6 * before
    resumed = make_trainer(tmp_path, text, options, device="cuda", **settings)
    resumed.resume()
    assert resumed.progress.reports == progress.reports
    best, _ = load_model(tmp_path / "best")
    assert perplexity(best, text.validation) == pytest.approx(progress.best_perplexity, rel=1e-3)

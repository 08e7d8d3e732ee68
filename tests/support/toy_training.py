"""A toy language that a small network can learn, and trainers for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rescorer.models.network_files import NetworkConfig
from rescorer.models.neural import NeuralModel
from rescorer.text import Normaliser
from rescorer_training.classes.partition import bin_by_frequency
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.prepare import PreparedText, RunInputs, prepare_text
from rescorer_training.neural.train import Trainer, TrainingRun

WORDS_BY_POSITION = (
    ["a", "the", "one"],
    ["cat", "dog", "ship", "king"],
    ["sat", "slept", "sank"],
    ["", "here", "there now"],
)
"""Every sentence is a random choice for each position, in this order."""


def write_text(folder: Path) -> tuple[Path, Path]:
    """Write training and validation text; return their paths."""
    generator = np.random.default_rng(0)
    for name, n in (("train", 400), ("valid", 60)):
        lines = [" ".join(generator.choice(words) for words in WORDS_BY_POSITION) + "\n" for _ in range(n)]
        (folder / f"{name}.txt").write_text("".join(lines))
    return folder / "train.txt", folder / "valid.txt"


def make_text(folder: Path) -> PreparedText:
    """Write and prepare the toy text."""
    train, validation = write_text(folder)
    return prepare_text(RunInputs([train], validation, folder, Normaliser(), longest=50), size=100)


def make_model(text: PreparedText, **settings) -> NeuralModel:
    """Make a small network; ``settings`` override its configuration."""
    torch.manual_seed(1)
    sizes = {"embedding_size": 8, "hidden_size": 12, "dropout": 0.2}
    classes = {"class_sizes": bin_by_frequency(text.counts(), 4)}
    return NeuralModel(NetworkConfig(len(text.vocabulary), **{**classes, **sizes, **settings}))


def make_trainer(
    folder: Path, text: PreparedText, options: TrainingOptions, device: str = "cpu", **settings
) -> Trainer:
    """Make a trainer of a new network; ``settings`` override the network's configuration."""
    folder.mkdir(exist_ok=True)
    return Trainer(TrainingRun(folder), make_model(text, **settings).to(device), text.vocabulary, options)


def reports_without_seconds(trainer: Trainer) -> list[dict]:
    """Return the validation reports without times, which differ between runs."""
    return [
        {key: value for key, value in report.items() if key != "seconds"}
        for report in trainer.progress.reports
    ]


def call_after_validations(trainer: Trainer, function: Callable[[dict[str, Any]], None]) -> None:
    """Call a function after each validation with its report; an error that it raises ends the training."""
    report_validation = trainer.monitor.report_validation

    def report_and_call(entry: dict[str, Any]) -> None:
        report_validation(entry)
        function(entry)

    trainer.monitor.report_validation = report_and_call  # type: ignore[method-assign]

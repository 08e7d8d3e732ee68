"""A small language that a network can learn, and runs that learn it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.text import Normaliser
from rescorer_training.classes.partition import bin_by_frequency
from rescorer_training.neural.options import TrainingOptions
from rescorer_training.neural.prepare import PreparedText, prepare
from rescorer_training.neural.trainer import Run

PARTS = (
    ["a", "the", "one"],
    ["cat", "dog", "ship", "king"],
    ["sat", "slept", "sank"],
    ["", "here", "there now"],
)
"""Who does what where, in a fixed order."""


def write_text(folder: Path) -> tuple[Path, Path]:
    """Training and validation text."""
    generator = np.random.default_rng(0)
    for name, n in (("train", 400), ("valid", 60)):
        lines = [" ".join(generator.choice(part) for part in PARTS) + "\n" for _ in range(n)]
        (folder / f"{name}.txt").write_text("".join(lines))
    return folder / "train.txt", folder / "valid.txt"


def toy_text(folder: Path) -> PreparedText:
    train, validation = write_text(folder)
    return prepare(folder, [train], validation, Normaliser(), size=100, longest=50)


def toy_model(text: PreparedText, **settings) -> NeuralModel:
    torch.manual_seed(1)
    sizes = {"embedding_size": 8, "hidden_size": 12, "dropout": 0.2}
    classes = bin_by_frequency(text.counts(), 4)
    return NeuralModel(NetworkConfig(len(text.vocabulary), classes, **{**sizes, **settings}))


def new_run(folder: Path, text: PreparedText, options: TrainingOptions, **settings) -> Run:
    """A run of a new network in its folder; ``settings`` are the network's."""
    folder.mkdir(exist_ok=True)
    return Run(folder, toy_model(text, **settings), text.vocabulary, options)


def without_time(run: Run) -> list[dict]:
    """The validations of a run, without what no two runs share."""
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in run.progress.reports]

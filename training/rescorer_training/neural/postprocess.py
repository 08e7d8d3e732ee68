"""Owns what is made of the weights of trained networks: stored in fewer bits, or averaged."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from rescorer.errors import ConfigError
from rescorer.lm.checkpoint import WEIGHTS_FILE, load_model, save_model

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
FACTS = "training.json"
"""What a run wrote beside its model."""


def quantise(folder: Path, output: Path, precision: str) -> tuple[int, int]:
    """Writes a model with weights of another precision; returns the bytes of the weights before and after.

    Raises:
        ConfigError: the precision is unknown, or the output is taken.
        BundleError: the model cannot be read.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    check_free(output)
    save_model(*load_model(folder), output, PRECISIONS[precision])
    if (folder / FACTS).exists():
        shutil.copyfile(folder / FACTS, output / FACTS)
    return (folder / WEIGHTS_FILE).stat().st_size, (output / WEIGHTS_FILE).stat().st_size


def average(folders: Sequence[Path], output: Path) -> None:
    """Writes the model whose weights are the means of several models' weights, summed in float64.

    Of checkpoints of one run, or of runs that started from one model (Izmailov et al. 2018, "Averaging
    weights leads to wider optima"; Wortsman et al. 2022, "Model soups"). Runs that began apart have nothing
    in common that could be averaged.

    Raises:
        ConfigError: fewer than two models are given, they differ in config or vocabulary, or the output is
            taken.
        BundleError: a model cannot be read.
    """
    if len(folders) < 2:
        raise ConfigError("give at least two models to average")
    check_free(output)
    model, vocabulary = load_model(folders[0])
    config = model.config.to_dict()
    sums = {name: value.double() for name, value in model.state_dict().items()}
    for folder in folders[1:]:
        other, words = load_model(folder)
        values = other.config.to_dict()
        differ = [key for key, value in values.items() if value != config[key]]
        if differ:
            key = differ[0]
            raise ConfigError(f"{folder}: {key} is {values[key]!r}, in {folders[0]} {config[key]!r}")
        if words != vocabulary:
            raise ConfigError(f"{folder}: its vocabulary is not that of {folders[0]}")
        for name, value in other.state_dict().items():
            if value.is_floating_point():
                sums[name] += value
            elif not torch.equal(value, sums[name].to(value.dtype)):
                raise ConfigError(f"{folder}: its {name} is not that of {folders[0]}")
    means = {n: v / len(folders) if model.state_dict()[n].is_floating_point() else v for n, v in sums.items()}
    model.load_state_dict(means)
    save_model(model, vocabulary, output)


def check_free(output: Path) -> None:
    """Raises ConfigError where a model is already there."""
    if (output / WEIGHTS_FILE).exists():
        raise ConfigError(f"{output} holds a model; choose another folder")

"""Post-process the weights of trained networks: store them in fewer bits, or average them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from rescorer.errors import ConfigError
from rescorer.formats.io.targets import make_folder
from rescorer.lm.checkpoint import WEIGHTS_FILE, load_model, save_model

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
FACTS_FILE = "training.json"
"""Metadata that the training run saved alongside its model."""


def quantise(folder: Path, output: Path, precision: str) -> tuple[int, int]:
    """Write a model with its weights in another precision; return the size of the weights before and after.

    Sizes are in bytes.

    Raises:
        ConfigError: the precision is unknown, or the output folder already has a model.
        BundleError: the model cannot be read.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    _check_output(output)
    save_model(*load_model(folder), output, PRECISIONS[precision])
    if (folder / FACTS_FILE).exists():
        shutil.copyfile(folder / FACTS_FILE, output / FACTS_FILE)
    return (folder / WEIGHTS_FILE).stat().st_size, (output / WEIGHTS_FILE).stat().st_size


def find_precision(folder: Path) -> str:
    """Find the precision in which a model is stored: a name of ``PRECISIONS``."""
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        stored = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 (not a mapping)
    smallest = ("int8", "float16")
    return next((name for name in smallest if PRECISIONS[name] in stored), "float32")


def average(folders: Sequence[Path], output: Path) -> None:
    """Write a model whose weights are the means of several models' weights, summed in float64.

    Averaging suits checkpoints of one run, and runs that started from the same model (Izmailov et al. 2018,
    "Averaging weights leads to wider optima"; Wortsman et al. 2022, "Model soups"). It does not suit runs
    with different random starts, because their weights do not correspond to each other.

    Raises:
        ConfigError: there are fewer than two models, they differ in config or vocabulary, or the output
            folder already has a model.
        BundleError: a model cannot be read.
    """
    if len(folders) < 2:
        raise ConfigError("give at least two models to average")
    _check_output(output)
    model, vocabulary = load_model(folders[0])
    config = model.config.to_dict()
    sums = {name: value.double() for name, value in model.state_dict().items()}
    for folder in folders[1:]:
        other, other_vocabulary = load_model(folder)
        for key, value in other.config.to_dict().items():
            if value != config[key]:
                raise ConfigError(f"{folder}: {key} is {value!r}, but {config[key]!r} in {folders[0]}")
        if other_vocabulary != vocabulary:
            raise ConfigError(f"{folder}: its vocabulary differs from that of {folders[0]}")
        for name, value in other.state_dict().items():
            if value.is_floating_point():
                sums[name] += value
            elif not torch.equal(value, sums[name].to(value.dtype)):
                raise ConfigError(f"{folder}: its {name} differs from that of {folders[0]}")
    # Integer tensors, such as a softmax tree, are equal in all models and are not averaged.
    means = {
        name: sums[name] / len(folders) if value.is_floating_point() else sums[name]
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(means)
    save_model(model, vocabulary, output)


def _check_output(output: Path) -> None:
    """Make the folder; raises ConfigError if it already has a model, and FormatError if it is no folder."""
    if (output / WEIGHTS_FILE).exists():
        raise ConfigError(f"{output} already has a model; choose another folder")
    make_folder(output)

"""Owns a training run's state on disk: parameters, optimiser moments and random state, so that a killed
run goes on exactly where it stopped; safetensors and JSON, replaced by an atomic rename."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from rescorer.errors import BundleError, ConfigError
from rescorer.lm.checkpoint import own_parameters
from rescorer.lm.networks import NeuralModel

STATE = "state.safetensors"
MAY_CHANGE = {"epochs", "patience"}
"""Options that may differ when a run is resumed; others would not continue the same run."""


def save_state(
    folder: Path,
    model: NeuralModel,
    optimiser: torch.optim.Optimizer,
    options: dict[str, Any],
    progress: dict[str, Any],
) -> None:
    """Writes everything into one file: tensors by name, options and progress as its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": value.detach() for name, value in own_parameters(model).items()}
    for number, moments in optimiser.state_dict()["state"].items():
        for name, value in moments.items():
            tensors[f"optimiser.{number}.{name}"] = torch.as_tensor(value)
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    metadata = {"options": json.dumps(options), "progress": json.dumps(progress)}
    partial = folder / f"{STATE}.partial"
    save_file({name: value.contiguous() for name, value in tensors.items()}, partial, metadata)
    os.replace(partial, folder / STATE)


def load_state(
    folder: Path, model: NeuralModel, optimiser: torch.optim.Optimizer, options: dict[str, Any]
) -> dict[str, Any]:
    """Puts a saved state back and returns the progress saved with it.

    Raises:
        ConfigError: there is no state, or the run was started with other options.
        BundleError: the state is damaged or belongs to another network.
    """
    path = folder / STATE
    if not path.exists():
        raise ConfigError(f"{folder} holds no training state to resume; start without --resume")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (OSError, SafetensorError) as fault:
        raise BundleError(f"{path}: damaged: {fault}") from None
    saved = json.loads(metadata["options"])
    changed = sorted(k for k in saved if saved[k] != options.get(k) and k not in MAY_CHANGE)
    if changed:
        what = ", ".join(f"{k} was {saved[k]}, is {options.get(k)}" for k in changed)
        raise ConfigError(f"{path}: the run was started with other options: {what}")
    parameters = {name.removeprefix("model."): v for name, v in tensors.items() if name.startswith("model.")}
    if model.config.tied:
        parameters["output.word_weight"] = parameters["network.embedding.weight"]
    try:
        model.load_state_dict(parameters)
    except RuntimeError as fault:
        raise BundleError(f"{path}: does not fit the network: {fault}") from None
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, number, moment = name.split(".", 2)
            moments.setdefault(int(number), {})[moment] = value
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return json.loads(metadata["progress"])

"""Owns a training run's state on disk: everything needed to go on exactly where a killed run stopped;
safetensors and JSON, replaced by an atomic rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, ScoringError
from rescorer.lm.checkpoint import deduplicated_state, save_model
from rescorer.lm.networks import NeuralModel, State
from rescorer.vocabulary import Vocabulary
from rescorer_training.neural.averaging import WeightAverage

STATE = "state.safetensors"
MAY_CHANGE = {"epochs", "patience"}
"""Options that may differ when a run is resumed; others would not continue the same run."""


@dataclass
class Parts:
    """What moves in training and is stored: the model, its optimiser and average, and of each process the
    random state and the carried state."""

    model: NeuralModel
    optimiser: torch.optim.Optimizer
    average: WeightAverage
    random: list[dict[str, Tensor]]
    """By rank; ``random_state`` of each process."""
    carried: State | None
    """Of all rows of a batch."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by the name it is stored under."""
        out = {f"model.{name}": value for name, value in deduplicated_state(self.model).items()}
        for number, moments in self.optimiser.state_dict()["state"].items():
            for name, value in moments.items():
                if value is not None:
                    out[f"optimiser.{number}.{name}"] = torch.as_tensor(value)
        out |= {f"average.{number}": value for number, value in enumerate(self.average.values)}
        out |= {f"carried.{number}": value for number, value in enumerate(self.carried or ())}
        for rank, states in enumerate(self.random):
            out |= {f"random.{rank}.{device}": value for device, value in states.items()}
        return out


def random_state() -> dict[str, Tensor]:
    """Torch's random generators of this process, by device."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def save_state(folder: Path, parts: Parts, options: Mapping[str, Any], progress: Mapping[str, Any]) -> None:
    """Writes everything into one file: tensors by name, options and progress as its metadata.

    Raises:
        ScoringError: the disk does not take it; the state written before stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"options": json.dumps(options), "progress": json.dumps(progress)}
    tensors = {name: value.detach().contiguous() for name, value in parts.tensors().items()}
    partial = folder / f"{STATE}.partial"
    try:
        save_file(tensors, partial, metadata)
        os.replace(partial, folder / STATE)
    except (OSError, SafetensorError) as fault:
        partial.unlink(missing_ok=True)
        raise ScoringError(_not_written(folder / STATE, fault, progress)) from None


def save_best(folder: Path, model: NeuralModel, vocabulary: Vocabulary, progress: Mapping[str, Any]) -> None:
    """Writes the model into ``folder``/best, file by file at once, so that a good model is always there.

    Raises:
        ScoringError: the disk does not take it; the model written before stays.
    """
    partial, best = folder / "best.partial", folder / "best"
    try:
        save_model(model, vocabulary, partial)
        best.mkdir(exist_ok=True)
        for path in partial.iterdir():
            os.replace(path, best / path.name)
    except (OSError, SafetensorError) as fault:
        raise ScoringError(_not_written(best, fault, progress)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _not_written(path: Path, fault: Exception, progress: Mapping[str, Any]) -> str:
    return (
        f"{path} cannot be written at step {progress['step']}: {fault}; what was saved before is untouched. "
        f"Make room, then go on from there with --resume"
    )


def load_state(
    folder: Path, model: NeuralModel, optimiser: torch.optim.Optimizer, average: WeightAverage,
    options: Mapping[str, Any], rank: int = 0,
) -> tuple[dict[str, Any], State | None]:  # fmt: skip
    """Puts a saved state back; returns the progress saved with it, and the state carried by all rows.

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
    parameters = _part(tensors, "model.")
    if model.config.tied:
        parameters["output.word_weight"] = parameters["network.embedding.weight"]
    try:
        model.load_state_dict(parameters)
    except RuntimeError as fault:
        raise BundleError(f"{path}: does not fit the network: {fault}") from None
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in _part(tensors, "optimiser.").items():
        number, moment = name.split(".", 1)
        moments.setdefault(int(number), {})[moment] = value
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    place = next(model.parameters()).device
    average.values = [value.to(place) for value in _numbered(tensors, "average.")]
    _set_random_state(_part(tensors, f"random.{rank}."))
    return json.loads(metadata["progress"]), tuple(_numbered(tensors, "carried.")) or None


def interleaved(parts: list[State | None]) -> State | None:
    """The state of all rows, row i from part i modulo the number of parts; None where there is none."""
    if parts[0] is None:
        return None
    n_rows = sum(len(part[0]) for part in parts if part is not None)
    whole = tuple(each.new_empty(n_rows, *each.shape[1:]) for each in parts[0])
    for number, part in enumerate(parts):
        for into, rows in zip(whole, part or (), strict=bool(part)):
            into[number :: len(parts)] = rows
    return whole


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): v for name, v in tensors.items() if name.startswith(prefix)}


def _numbered(tensors: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    part = _part(tensors, prefix)
    return [part[str(number)] for number in range(len(part))]


def _set_random_state(states: Mapping[str, Tensor]) -> None:
    """A process that the run did not have before keeps its own."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])

"""Save and restore a training run exactly, in one safetensors file that is replaced atomically."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from rescorer.errors import BundleError, ConfigError, ScoringError
from rescorer.lm.checkpoint import deduplicated_state, save_model
from rescorer.lm.networks import SequenceModel, State
from rescorer.vocabulary import Vocabulary
from rescorer_training.features.class_inputs import fold_class_inputs
from rescorer_training.neural.optimisation.averaging import WeightAverage
from rescorer_training.state_files import (
    check_options,
    describe_write_error,
    read_state_file,
    write_state_file,
)

STATE_FILE = "state.safetensors"


@dataclass
class Progress:
    """Position and history of a training run, saved with every checkpoint."""

    epoch: int = 0
    batch: int = 0
    """Number of batches of this epoch already trained on."""
    step: int = 0
    best_perplexity: float = math.inf
    validations_without_gain: int = 0
    reductions: int = 0
    """Number of times the plateau schedule has reduced the learning rate."""
    averaged_steps: int = 0
    seconds: float = 0.0
    """Time in training up to the last step or validation, without interruptions."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    """One entry per validation: step, epoch, training and validation perplexity, seconds."""
    loss: float = 0.0
    """Sum of the objective since the last validation, over ``loss_words`` words."""
    loss_words: int = 0
    words: int = 0
    """Number of words trained on, over all epochs."""


@dataclass
class TrainingState:
    """Everything that changes during training, apart from ``Progress``."""

    model: SequenceModel
    optimiser: torch.optim.Optimizer
    average: WeightAverage
    random: list[dict[str, Tensor]]
    """One entry per process, in rank order: the states of its random generators; see ``get_random_state``."""
    carried: State | None
    """State carried across batches, for all rows of a batch."""

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors, keyed by their names in the file."""
        tensors = {f"model.{name}": value for name, value in deduplicated_state(self.model).items()}
        for number, moments in self.optimiser.state_dict()["state"].items():
            for name, value in moments.items():
                if value is not None:
                    tensors[f"optimiser.{number}.{name}"] = torch.as_tensor(value)
        tensors |= {f"average.{number}": value for number, value in enumerate(self.average.values)}
        tensors |= {f"carried.{number}": value for number, value in enumerate(self.carried or ())}
        for rank, states in enumerate(self.random):
            tensors |= {f"random.{rank}.{device}": value for device, value in states.items()}
        return tensors


def get_random_state() -> dict[str, Tensor]:
    """Return the states of torch's random generators in this process, by device."""
    states = {"cpu": torch.get_rng_state()}
    return states | ({"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else {})


def save_state(folder: Path, state: TrainingState, options: Mapping[str, Any], progress: Progress) -> None:
    """Write the state to a single file, with the options and the progress as metadata.

    Raises:
        ScoringError: writing fails, for example because the disk is full; the previous file is unchanged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    metadata = {"options": json.dumps(options), "progress": json.dumps(asdict(progress))}
    write_state_file(folder / STATE_FILE, state.tensors(), metadata, f"step {progress.step}")


def save_best(folder: Path, model: SequenceModel, vocabulary: Vocabulary, step: int) -> None:
    """Write the model to ``folder``/best, one file at a time so that a complete model always exists.

    Raises:
        ScoringError: writing fails, for example because the disk is full; the previous model is unchanged.
    """
    partial, best = folder / "best.partial", folder / "best"
    try:
        save_model(fold_class_inputs(model), vocabulary, partial)
        best.mkdir(exist_ok=True)
        for path in partial.iterdir():
            os.replace(path, best / path.name)
    except (OSError, SafetensorError) as error:
        raise ScoringError(describe_write_error(best, error, f"step {step}")) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def load_state(
    folder: Path, model: SequenceModel, optimiser: torch.optim.Optimizer, average: WeightAverage,
    options: Mapping[str, Any], rank: int = 0,
) -> tuple[Progress, State | None]:  # fmt: skip
    """Restore a saved state; return the progress of the run and the carried state of all rows.

    Raises:
        ConfigError: there is no saved state, or the run was started with other options.
        BundleError: the state is damaged or belongs to a different network.
    """
    path = folder / STATE_FILE
    if not path.exists():
        raise ConfigError(f"{folder} has no training state to resume; start without --resume")
    metadata, tensors = read_state_file(path)
    check_options(path, json.loads(metadata["options"]), options)
    parameters = _select(tensors, "model.")
    if model.config.tied_copy:
        parameters[model.config.tied_copy] = parameters["network.embedding.weight"]
    try:
        model.load_state_dict(parameters)
    except RuntimeError as error:
        raise BundleError(f"{path} does not fit the network: {error}") from None
    moments: dict[int, dict[str, Tensor]] = {}
    for name, value in _select(tensors, "optimiser.").items():
        number, moment = name.split(".", 1)
        moments.setdefault(int(number), {})[moment] = value
    optimiser.load_state_dict({"state": moments, "param_groups": optimiser.state_dict()["param_groups"]})
    device = next(model.parameters()).device
    average.values = [value.to(device) for value in _select_numbered(tensors, "average.")]
    _set_random_state(_select(tensors, f"random.{rank}."))
    progress = Progress(**json.loads(metadata["progress"]))
    return progress, tuple(_select_numbered(tensors, "carried.")) or None


def interleave(parts: list[State | None]) -> State | None:
    """Merge the states of the parts of a batch: row i comes from part number (i mod number of parts).

    Returns:
        None if the parts have no state.
    """
    if parts[0] is None:
        return None
    n_rows = sum(len(part[0]) for part in parts if part is not None)
    whole = tuple(tensor.new_empty(n_rows, *tensor.shape[1:]) for tensor in parts[0])
    for number, part in enumerate(parts):
        for target, rows in zip(whole, part or (), strict=bool(part)):
            target[number :: len(parts)] = rows
    return whole


def _select(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names start with the prefix; the prefix is removed from the names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _select_numbered(tensors: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    selected = _select(tensors, prefix)
    return [selected[str(number)] for number in range(len(selected))]


def _set_random_state(states: Mapping[str, Tensor]) -> None:
    """Restore the random generators; a process that has no saved state keeps its own."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])

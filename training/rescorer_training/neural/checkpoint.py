"""Save and restore training runs exactly, divide a run among processes, and convert trained networks.

``torchrun`` can start several processes for one run. Each process has the whole model and computes some rows
of every batch. The gradients of all processes are summed, so that all apply the same updates.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, distributed

from rescorer.errors import BundleError, ConfigError, ScoringError
from rescorer.formats.io.text_io import make_folder
from rescorer.models.kernels import torch_device
from rescorer.models.network_files import WEIGHTS_FILE, Vocabulary
from rescorer.models.networks import State
from rescorer.models.neural import SequenceModel, deduplicated_state, load_model, save_model
from rescorer.runtime import keep_freed_memory, use_threads
from rescorer.text import Normaliser
from rescorer_training.corpus import record_normaliser
from rescorer_training.features import fold_class_inputs
from rescorer_training.neural.optimisation import WeightAverage
from rescorer_training.neural.options import RunOptions
from rescorer_training.state_files import (
    check_options,
    describe_write_error,
    read_options,
    read_state_file,
    write_state_file,
)

FILE_WAIT_S = 60.0
"""Longest wait for a file that another machine wrote. Network file systems may show it only after a while."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The processes of a run: rank of this one, and their number. A single process exchanges nothing."""

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls) -> ProcessGroup:
        """Join the processes that ``torchrun`` has started. Without ``torchrun``, the group has one process.

        Gloo exchanges tensors on CPUs, and nccl those on GPUs.
        """
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            return cls()
        if not distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            with _name_lost_processes():
                distributed.init_process_group(backend)
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this process validates, writes files and reports progress."""
        return self.rank == 0

    def prepare(self, run: RunOptions, seed: int) -> torch.device:
        """Set threads and random seed, and return the device to compute on.

        If the device is ``cuda``, each process of a machine gets another GPU.

        Raises:
            ConfigError: the device is not available.
        """
        device = torch_device(run.device)
        if self.size > 1 and device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        use_threads(run.threads or 0)
        if device.type == "cpu":
            keep_freed_memory()
        torch.manual_seed(seed)
        return device

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter], loss: Tensor) -> Tensor:
        """Replace the gradients by their sums over all processes; return the sum of the losses.

        The gradients are exchanged as one flat tensor; afterwards, each gradient is a view of this tensor.
        """
        if self.size == 1:
            return loss
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in parameters
        ]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), loss.reshape(1)])
        with _name_lost_processes():
            distributed.all_reduce(flat)
        pieces = flat.split([*(gradient.numel() for gradient in gradients), 1])
        for parameter, piece in zip(parameters, pieces[:-1], strict=True):
            parameter.grad = piece.view_as(parameter)
        return pieces[-1][0].clone()

    def broadcast(self, value: float) -> float:
        """Send the first process's value to all processes, and return it."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        with _name_lost_processes():
            distributed.broadcast(tensor, src=0)
        return float(tensor)

    def max(self, value: float) -> float:
        """Return the largest value of all processes."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        with _name_lost_processes():
            distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return float(tensor)

    def check_same(
        self,
        value: int,
        what: str,
        advice: str = "--output must name the same folder on all machines, on a file system that they share",
    ) -> None:
        """Raise ConfigError in all processes if a value is not the same in all of them."""
        low, high = -self.max(-value), self.max(value)
        if low != high:
            raise ConfigError(f"{what}: {low:,.0f} in one process and {high:,.0f} in another; {advice}")

    def choose_resumption(self, requested: bool, state: Path) -> bool:
        """Decide whether all processes resume: if one is asked to, or if ``torchrun`` has restarted them.

        Args:
            requested: whether this process is asked to resume.
            state: file that exists if there is something to resume. Only the first process looks for it.
        """
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        has_state = bool(self.broadcast(state.exists()))
        return bool(self.max(requested)) or (self.max(restarts) > 0 and has_state)

    def wait_for(self, file: Path) -> None:
        """Wait for the first process. If the first process sees a file, wait until this process sees it too.

        Raises:
            ConfigError: this process still does not see the file after a minute.
        """
        is_written, until = bool(self.broadcast(file.exists())), time.monotonic() + FILE_WAIT_S
        while is_written and not file.exists():
            if time.monotonic() > until:
                raise ConfigError(
                    f"{file.parent}: process {self.rank} does not see {file.name}, which the first process "
                    "wrote; --output must name the same folder on all machines, on a file system that they "
                    "share"
                )
            time.sleep(0.1)

    def gather(self, value: Any) -> list[Any]:
        """Collect the values of all processes in the first one, in rank order. Others get an empty list."""
        if self.size == 1:
            return [value]
        gathered: list[Any] | None = [None] * self.size if self.is_first else None
        with _name_lost_processes():
            distributed.gather_object(value, gathered)
        return gathered or []

    def leave(self) -> None:
        """Leave the group once all processes are ready to.

        If one process ended while another was still writing, ``torchrun`` might kill the other process.
        """
        if self.size > 1:
            # a broadcast would not do: its sender does not wait for the receivers
            with _name_lost_processes():
                distributed.all_reduce(torch.zeros(()))
            distributed.destroy_process_group()


@contextmanager
def _name_lost_processes() -> Iterator[None]:
    """Turn torch's error about a lost connection into a ScoringError: another process has ended."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ScoringError(
            f"another process of this training has ended, or cannot be reached ({reason}); start all of them "
            "again with --resume"
        ) from error


STATE_FILE = "state.safetensors"


@dataclass
class Progress:
    """Position and history of a training run, saved with every checkpoint."""

    epoch: int = 0
    batch: int = 0
    """Number of batches of the current epoch that are done."""
    step: int = 0
    best_perplexity: float = math.inf
    validations_without_gain: int = 0
    reductions: int = 0
    """Number of times the plateau schedule has reduced the learning rate."""
    averaged_steps: int = 0
    seconds: float = 0.0
    """Time in training up to the last step or validation, without interruptions."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    """One entry per validation: step, epoch, training and validation perplexity, gradient norms, seconds."""
    loss: float = 0.0
    """Sum of the objective since the last validation, over ``loss_words`` words."""
    loss_words: int = 0
    words: int = 0
    """Number of words trained on, over all epochs."""
    gradients: dict[str, float] = field(default_factory=dict)
    """Sums of the columns of ``GradientClipper`` over ``gradient_steps`` steps, since the last validation."""
    gradient_steps: int = 0


@dataclass
class TrainingState:
    """Everything besides ``Progress`` that changes during training."""

    model: SequenceModel
    optimiser: torch.optim.Optimizer
    average: WeightAverage
    random: list[dict[str, Tensor]]
    """One entry per process, in rank order: the states of its random generators; see ``get_random_state``."""
    carried: State | None
    """Recurrent state of each row of a batch, which is carried to the next batch; None without one."""

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


def start_folder(folder: Path, normaliser: Normaliser) -> None:
    """Make the folder of a new run; raises ConfigError if the folder already has a run."""
    if (folder / STATE_FILE).exists():
        raise ConfigError(f"{folder} already has a training run; add --resume or choose another folder")
    make_folder(folder)
    record_normaliser(folder, normaliser)


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
    position = f"step {progress.step}"
    write_state_file(folder / STATE_FILE, state.tensors(), options, asdict(progress), position)


def save_best(folder: Path, model: SequenceModel, vocabulary: Vocabulary, step: int) -> None:
    """Write the model to ``folder``/best. Files are replaced one by one, and none is ever incomplete.

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


FORMER_LBL_ACTIVATION = "tanh"


def read_run_options(state: Path) -> dict[str, Any]:
    """Read the options of the state of a run. The activation of a log-bilinear network is always named.

    Raises:
        BundleError: the file is damaged.
    """
    return _name_former_activation(read_options(state))


def _name_former_activation(options: dict[str, Any]) -> dict[str, Any]:
    """Add the activation to options that were saved before 0.2, if it was the default."""
    network = options.get("network")
    if network and network.get("kind") == "lbl" and network.get("activation") is None:
        return options | {"network": network | {"activation": FORMER_LBL_ACTIVATION}}
    return options


def load_state(
    folder: Path, model: SequenceModel, optimiser: torch.optim.Optimizer, average: WeightAverage,
    options: Mapping[str, Any], rank: int = 0,
) -> tuple[Progress, State | None]:  # fmt: skip
    """Restore a saved state; return the progress of the run and the carried recurrent state of all rows.

    Raises:
        ConfigError: there is no saved state, or the run was started with other options.
        BundleError: the state is damaged or belongs to a different network.
    """
    path = folder / STATE_FILE
    if not path.exists():
        raise ConfigError(f"{folder} has no training state to resume; start without --resume")
    metadata, tensors = read_state_file(path)
    check_options(path, _name_former_activation(json.loads(metadata["options"])), options)
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
    states = _select(tensors, f"random.{rank}.")
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    progress = Progress(**json.loads(metadata["progress"]))
    return progress, tuple(_select_numbered(tensors, "carried.")) or None


def interleave(parts: list[State | None]) -> State | None:
    """Merge the recurrent states of the parts of a batch: row i comes from part i mod ``len(parts)``.

    Returns:
        The states of all rows; None if the parts have no state.
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
    """Return the tensors whose names start with a prefix, by their names without the prefix."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _select_numbered(tensors: Mapping[str, Tensor], prefix: str) -> list[Tensor]:
    selected = _select(tensors, prefix)
    return [selected[str(number)] for number in range(len(selected))]


PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}
FACTS_FILE = "training.json"
"""File of metadata that a training run saves with its model."""


def quantise(
    folder: Path, output: Path, precision: str, normaliser: Normaliser | None = None
) -> tuple[int, int]:
    """Write a model with its weights in another precision; return the bytes of the weights before and after.

    Args:
        normaliser: recorded with the model; None: nothing is recorded.

    Raises:
        ConfigError: the precision is unknown, or the output folder already has a model.
        BundleError: the model cannot be read.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    _check_output(output)
    model, vocabulary = load_model(folder)
    if normaliser is not None:
        record_normaliser(output, normaliser)
    if (folder / FACTS_FILE).exists():
        shutil.copyfile(folder / FACTS_FILE, output / FACTS_FILE)
    save_model(model, vocabulary, output, PRECISIONS[precision])  # last: a folder with weights is complete
    return (folder / WEIGHTS_FILE).stat().st_size, (output / WEIGHTS_FILE).stat().st_size


def find_precision(folder: Path) -> str:
    """Return the precision in which a model is stored, by its name in ``PRECISIONS``."""
    with safe_open(folder / WEIGHTS_FILE, framework="pt") as file:
        stored = {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 (not a mapping)
    smallest = ("int8", "float16")
    return next((name for name in smallest if PRECISIONS[name] in stored), "float32")


def average(folders: Sequence[Path], output: Path, normaliser: Normaliser | None = None) -> None:
    """Write a model whose weights are the means of several models' weights, summed in float64.

    Averaging suits checkpoints of one run, and runs that started from the same model (Izmailov et al. 2018,
    "Averaging weights leads to wider optima"; Wortsman et al. 2022, "Model soups"). The weights of runs with
    different random starts do not correspond to each other, so their average is useless.

    Args:
        normaliser: recorded with the model; None: nothing is recorded.

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
    if normaliser is not None:
        record_normaliser(output, normaliser)
    save_model(model, vocabulary, output)  # last: a folder with weights is complete


def _check_output(output: Path) -> None:
    """Make the folder; raises ConfigError if it already has a model, FormatError if it is not a folder."""
    if (output / WEIGHTS_FILE).exists():
        raise ConfigError(f"{output} already has a model; choose another folder")
    make_folder(output)

"""Owns one neural run from its parts: text prepared, network made or inherited, trained, facts recorded."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from tqdm import tqdm

from rescorer.errors import ConfigError
from rescorer.lm.checkpoint import load_model
from rescorer.lm.device import torch_device, use_threads
from rescorer.lm.malloc import keep_freed_memory
from rescorer.lm.networks import NeuralModel
from rescorer.text import Normaliser
from rescorer.vocabulary import Vocabulary
from rescorer_training.data.sentence_batches import Sentences
from rescorer_training.neural.build import make_network, make_objective, order_by_classes
from rescorer_training.neural.checkpoint import STATE
from rescorer_training.neural.distributed import Workers
from rescorer_training.neural.objectives import normaliser_error
from rescorer_training.neural.options import NetworkOptions, TrainingOptions
from rescorer_training.neural.prepare import PreparedText, prepare, prepared
from rescorer_training.neural.progress import Monitor
from rescorer_training.neural.trainer import Progress, Run

STATE_AT_STARTS = {False: "reset at every sentence", True: "carried over sentence ends"}


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What a run takes, and where it leaves what it makes."""

    texts: list[Path]
    validation: Path
    folder: Path
    normaliser: Normaliser
    longest: int
    """Words after which a training sentence is cut."""
    start_from: Path | None
    """Another run, whose best model and vocabulary this one starts from."""
    weights: tuple[float, ...] = ()
    """How often an epoch draws each sentence of each text; none: once."""

    def identity(self) -> dict[str, Any]:
        """What must be the same when the run is resumed, as plain data."""
        return {
            "texts": [[path.name, path.stat().st_size] for path in self.texts],
            "text_weights": list(self.weights),
            "validation_text": [self.validation.name, self.validation.stat().st_size],
            "normaliser": json.loads(self.normaliser.settings.to_json()),
            "longest": self.longest,
            "start_from": str(self.start_from) if self.start_from else None,
        }


def prepare_run(
    inputs: RunInputs,
    vocabulary: Path | None,
    vocabulary_size: int,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 (frozen)
) -> PreparedText:
    """Chooses the vocabulary, encodes the text, and orders the words by the classes of the network to come.

    Raises:
        ConfigError: a run is under way in the folder, or the classes cannot be made.
        FormatError: a text cannot be used.
    """
    folder = inputs.folder
    if (folder / STATE).exists():
        raise ConfigError(f"{folder} already holds a run; go on with --resume, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    inherited = inputs.start_from and Vocabulary.load(inputs.start_from / "best" / "vocabulary.txt")
    text = prepare(
        folder, inputs.texts, inputs.validation, inputs.normaliser, inherited or vocabulary,
        size=vocabulary_size, longest=inputs.longest, weights=inputs.weights,
    )  # fmt: skip
    order_by_classes(folder, text, network)
    return prepared(folder, inputs.longest)


def train(
    inputs: RunInputs,
    text: PreparedText,
    network: NetworkOptions,
    options: TrainingOptions,
    *,
    device: str = "cpu",
    threads: int | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    workers: Workers = Workers(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Trains, telling each validation on stderr; returns the facts it leaves beside the best model.

    Raises:
        ConfigError: torch does not have the device here, or a run does not fit what it is to go on from.
    """
    place = workers.device(torch_device(device))
    use_threads(threads or 0)
    if place.type == "cpu":
        keep_freed_memory()
    torch.manual_seed(options.seed)
    model = make_network(inputs.folder, inputs.start_from, text, network, options.objective, resumed=resume)
    model.to(place)
    identity = inputs.identity() | {"network": asdict(network), "vocabulary": fingerprint(text.vocabulary)}
    monitor = Monitor(inputs.folder, quiet=not workers.first, tensorboard=tensorboard)
    run = Run(
        inputs.folder, model, text.vocabulary, options, inputs=identity, workers=workers, monitor=monitor,
        objective=make_objective(options, text.counts(), place),
    )  # fmt: skip
    if resume:
        run.resume()
    if not workers.first:
        run.train(text.train, text.validation)
        return {}
    typer.echo(describe(model, text), err=True)
    progress = run.train(text.train, text.validation, lambda entry: tqdm.write(line(entry), file=sys.stderr))
    if progress.epoch < options.epochs:
        typer.echo(f"stopped early: {options.patience} validations without a new best", err=True)
    return write_facts(run, progress, inputs, text.validation)


def fingerprint(vocabulary: Vocabulary) -> str:
    """Tells vocabularies of one size apart."""
    return hashlib.sha256("\n".join(vocabulary.words).encode()).hexdigest()[:16]


def describe(model: NeuralModel, text: PreparedText) -> str:
    """What is about to be trained, in one line."""
    config = model.config
    parameters = sum(value.numel() for value in model.parameters())
    classes = f" in {len(config.class_sizes)} classes" if config.class_sizes else ""
    cut = f", {text.train.n_truncated:,} sentences cut" if text.train.n_truncated else ""
    return (
        f"{config.kind} {config.embedding_size}/{config.hidden_size} × {config.layers}, "
        f"{parameters / 1e6:.1f} M parameters, "
        f"{config.vocabulary_size:,} words{classes}, state {STATE_AT_STARTS[config.carried]}, "
        f"{text.train.n_words:,} training words in {len(text.train.starts):,} sentences{cut}"
    )


def line(entry: dict[str, Any]) -> str:
    """One validation for the screen."""
    names = {"training_perplexity": "training perplexity", "training_loss": "training loss"}
    training = next(f"{names[name]} {entry[name]:8.2f}" for name in names if name in entry)
    return (
        f"epoch {entry['epoch']:3d}  step {entry['step']:7,}  {training}  "
        f"validation {entry['validation_perplexity']:8.2f}  {entry['seconds'] / 60:6.1f} min"
    )


def write_facts(run: Run, progress: Progress, inputs: RunInputs, validation: Sentences) -> dict[str, Any]:
    """Records how the model came to be beside it, for the bundle's manifest."""
    facts = {
        "network": run.model.config.to_dict() | {"class_sizes": len(run.model.config.class_sizes)},
        "options": asdict(run.options),
        "texts": [path.name for path in inputs.texts],
        "validation_text": inputs.validation.name,
        "state": STATE_AT_STARTS[run.model.config.carried],
        "validation_perplexity": round(progress.best_perplexity, 3),
        "epochs": progress.epoch,
        "steps": progress.step,
        "words": progress.words,
        "seconds": round(progress.seconds, 1),
        "threads": torch.get_num_threads(),
        "processes": run.workers.count,
        "torch": torch.__version__,
    }
    if run.options.objective != "ml":
        model, _ = load_model(run.folder / "best")
        error = normaliser_error(model, validation, getattr(run.objective, "log_normaliser", 0.0))
        typer.echo(
            f"scores miss their normaliser by {error.mean:+.3f} nats, ± {error.deviation:.3f}; perplexities "
            f"are normalised exactly", err=True,
        )  # fmt: skip
        facts["normaliser_error"] = asdict(error)
    (run.folder / "best" / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts

"""Owns one neural run from its parts: text prepared, network made or inherited, trained, facts recorded."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer
from tqdm import tqdm

from rescorer.errors import ConfigError
from rescorer.lm.checkpoint import load_model
from rescorer.lm.device import torch_device, use_threads
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.text import Normaliser
from rescorer.vocabulary import Vocabulary
from training.classes import default_n_classes, frequency_bins
from training.loop import Progress, Run, TrainingOptions
from training.prepare import PreparedText, choose_vocabulary, prepare
from training.run_state import STATE

DEFAULT_SIZE = 200
"""Of embedding and hidden state; the classic small language model."""


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

    def identity(self) -> dict[str, Any]:
        """What must be the same when the run is resumed, as plain data."""
        return {
            "texts": [[path.name, path.stat().st_size] for path in self.texts],
            "validation_text": [self.validation.name, self.validation.stat().st_size],
            "normaliser": json.loads(self.normaliser.settings.to_json()),
            "longest": self.longest,
            "start_from": str(self.start_from) if self.start_from else None,
        }


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """The network to make. One that is inherited has its own sizes: those given here must be None."""

    embedding_size: int | None = None
    hidden_size: int | None = None
    layers: int | None = None
    n_classes: int | None = None
    """None: √V."""
    tied: bool | None = None
    dropout: float = 0.0


def prepare_run(inputs: RunInputs, vocabulary: Path | None, vocabulary_size: int) -> PreparedText:
    """Chooses the vocabulary and encodes the text; raises ConfigError where a run is under way."""
    folder = inputs.folder
    if (folder / STATE).exists():
        raise ConfigError(f"{folder} already holds a run; go on with --resume, or choose another folder")
    folder.mkdir(parents=True, exist_ok=True)
    if inputs.start_from:
        words = Vocabulary.load(inputs.start_from / "best" / "vocabulary.txt")
    else:
        words = choose_vocabulary(inputs.texts, inputs.normaliser, vocabulary, vocabulary_size)
    return prepare(folder, inputs.texts, inputs.validation, inputs.normaliser, words, inputs.longest)


def make_network(start_from: Path | None, text: PreparedText, network: NetworkOptions) -> NeuralModel:
    """A new network that starts from the unigram distribution, or an inherited one.

    Raises:
        ConfigError: sizes are given for a network that is inherited.
    """
    if start_from:
        sizes = asdict(replace(network, dropout=0.0))
        given = sorted(name for name, value in sizes.items() if value not in (None, 0.0))
        if given:
            raise ConfigError(f"--start-from brings its own network; {', '.join(given)} cannot be given too")
        model, _ = load_model(start_from / "best")
        model.set_dropout(network.dropout)
        return model
    counts = text.counts()
    config = NetworkConfig(
        vocabulary_size=len(text.vocabulary),
        class_sizes=frequency_bins(counts, network.n_classes or default_n_classes(len(counts))),
        embedding_size=network.embedding_size or DEFAULT_SIZE,
        hidden_size=network.hidden_size or DEFAULT_SIZE,
        layers=network.layers or 1,
        tied=network.tied is not False,
        dropout=network.dropout,
    )
    model = NeuralModel(config)
    model.output.start_from_unigrams(torch.from_numpy(counts))
    return model


def train(
    inputs: RunInputs,
    text: PreparedText,
    network: NetworkOptions,
    options: TrainingOptions,
    *,
    device: str,
    threads: int | None,
    resume: bool,
) -> dict[str, Any]:
    """Trains, telling each validation on stderr; returns the facts it leaves beside the best model.

    Raises:
        ConfigError: torch does not have the device here, or a run does not fit what it is to go on from.
    """
    place = torch_device(device)
    use_threads(threads or 0)
    torch.manual_seed(options.seed)
    model = make_network(inputs.start_from, text, network)
    identity = inputs.identity() | {"network": asdict(network)}
    run = Run(inputs.folder, model.to(place), text.vocabulary, options, inputs=identity)
    if resume:
        run.resume()
    typer.echo(describe(model, text), err=True)
    progress = run.train(text.train, text.validation, lambda entry: tqdm.write(line(entry), file=sys.stderr))
    return write_facts(run, progress, inputs)


def describe(model: NeuralModel, text: PreparedText) -> str:
    """What is about to be trained, in one line."""
    config = model.config
    parameters = sum(value.numel() for value in model.parameters())
    cut = f", {text.train.n_cut:,} sentences cut" if text.train.n_cut else ""
    return (
        f"{config.kind} {config.embedding_size}/{config.hidden_size} × {config.layers}, "
        f"{parameters / 1e6:.1f} M parameters, "
        f"{config.vocabulary_size:,} words in {len(config.class_sizes)} classes, "
        f"{text.train.n_words:,} training words in {len(text.train.starts):,} sentences{cut}"
    )


def line(entry: dict[str, Any]) -> str:
    """One validation for the screen."""
    return (
        f"epoch {entry['epoch']:3d}  step {entry['step']:7,}  training perplexity "
        f"{entry['training_perplexity']:8.2f}  validation {entry['validation_perplexity']:8.2f}  "
        f"{entry['seconds'] / 60:6.1f} min"
    )


def write_facts(run: Run, progress: Progress, inputs: RunInputs) -> dict[str, Any]:
    """Records how the model came to be beside it, for the bundle's manifest."""
    facts = {
        "network": run.model.config.to_dict() | {"class_sizes": len(run.model.config.class_sizes)},
        "options": asdict(run.options),
        "texts": [path.name for path in inputs.texts],
        "validation_text": inputs.validation.name,
        "state": "reset at every sentence",
        "validation_perplexity": round(progress.best_perplexity, 3),
        "epochs": progress.epoch,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    (run.folder / "best" / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts

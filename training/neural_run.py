"""Owns one neural run from its parts: text prepared, network made or inherited, trained, facts recorded."""

from __future__ import annotations

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
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.text import Normaliser
from rescorer.vocabulary import Vocabulary
from training.classes import default_n_classes, frequency_bins
from training.loop import Progress, Run, TrainingOptions
from training.prepare import PreparedText, choose_vocabulary, prepare
from training.run_state import STATE


@dataclass(frozen=True, slots=True)
class Places:
    """Where a run takes from and leaves to."""

    texts: list[Path]
    validation: Path
    folder: Path
    start_from: Path | None
    """Another run, whose best model and vocabulary this one starts from."""


@dataclass(frozen=True, slots=True)
class NetworkOptions:
    """The network to make; of an inherited one only the dropout is taken from here."""

    embedding_size: int
    hidden_size: int
    layers: int
    n_classes: int | None
    """None: √V."""
    tied: bool
    dropout: float


def prepare_run(
    places: Places, normaliser: Normaliser, vocabulary: Path | None, vocabulary_size: int, longest: int
) -> PreparedText:
    """Chooses the vocabulary and encodes the text; raises ConfigError where a run is under way."""
    if (places.folder / STATE).exists():
        raise ConfigError(
            f"{places.folder} already holds a run; go on with --resume, or choose another folder"
        )
    places.folder.mkdir(parents=True, exist_ok=True)
    if places.start_from:
        words = Vocabulary.load(places.start_from / "best" / "vocabulary.txt")
    else:
        words = choose_vocabulary(places.texts, normaliser, vocabulary, vocabulary_size)
    return prepare(places.folder, places.texts, places.validation, normaliser, words, longest)


def make_network(places: Places, text: PreparedText, network: NetworkOptions) -> NeuralModel:
    """A new network that starts from the unigram distribution, or an inherited one."""
    if places.start_from:
        model, _ = load_model(places.start_from / "best")
        model.network.dropout.p = network.dropout
        return model
    counts = text.counts()
    sizes = frequency_bins(counts, network.n_classes or default_n_classes(len(counts)))
    config = NetworkConfig(
        vocabulary_size=len(text.vocabulary),
        class_sizes=sizes,
        embedding_size=network.embedding_size,
        hidden_size=network.hidden_size,
        layers=network.layers,
        tied=network.tied,
        dropout=network.dropout,
    )
    model = NeuralModel(config)
    model.output.start_from_unigrams(torch.from_numpy(counts))
    return model


def train(
    places: Places,
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
    model = make_network(places, text, network)
    run = Run(places.folder, model.to(place), text.vocabulary, options)
    if resume:
        run.resume()
    typer.echo(describe(model, text), err=True)
    progress = run.train(text.train, text.validation, lambda entry: tqdm.write(line(entry), file=sys.stderr))
    return write_facts(run, progress, places)


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


def write_facts(run: Run, progress: Progress, places: Places) -> dict[str, Any]:
    """Records how the model came to be beside it, for the bundle's manifest."""
    facts = {
        "network": run.model.config.to_dict() | {"class_sizes": len(run.model.config.class_sizes)},
        "options": asdict(run.options),
        "texts": [path.name for path in places.texts],
        "validation_text": places.validation.name,
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

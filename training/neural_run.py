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
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.networks.config import WINDOWED
from rescorer.text import Normaliser
from rescorer.vocabulary import Vocabulary
from training.classes import default_n_classes, frequency_bins
from training.distributed import Workers
from training.loop import Progress, Run
from training.monitor import Monitor
from training.prepare import PreparedText, choose_vocabulary, prepare
from training.run_options import NetworkOptions, TrainingOptions
from training.run_state import STATE

DEFAULT_WINDOW = 4
"""Words that a feed-forward network sees: a 5-gram's."""
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

    def identity(self) -> dict[str, Any]:
        """What must be the same when the run is resumed, as plain data."""
        return {
            "texts": [[path.name, path.stat().st_size] for path in self.texts],
            "validation_text": [self.validation.name, self.validation.stat().st_size],
            "normaliser": json.loads(self.normaliser.settings.to_json()),
            "longest": self.longest,
            "start_from": str(self.start_from) if self.start_from else None,
        }


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


def make_network(start_from: Path | None, text: PreparedText, options: NetworkOptions) -> NeuralModel:
    """A new network that starts from the unigram distribution, or an inherited one.

    Raises:
        ConfigError: the network is inherited and settings are given that it has already.
    """
    given = {
        name: value for name, value in asdict(options).items() if value is not None and name != "dropout"
    }
    if start_from:
        if given:
            raise ConfigError(
                f"--start-from brings its own network; {', '.join(sorted(given))} cannot be given too"
            )
        model, _ = load_model(start_from / "best")
        model.set_dropout(options.dropout)
        return model
    counts = text.counts()
    n_classes = given.pop("n_classes", default_n_classes(len(counts)))
    with_classes = given.get("output", "classes") == "classes"
    if given.get("kind") in WINDOWED:
        given.setdefault("window", DEFAULT_WINDOW)
    config = NetworkConfig(
        vocabulary_size=len(text.vocabulary),
        class_sizes=frequency_bins(counts, n_classes) if with_classes else (),
        dropout=options.dropout,
        **given,
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
    torch.manual_seed(options.seed)
    model = make_network(inputs.start_from, text, network)
    identity = inputs.identity() | {"network": asdict(network), "vocabulary": fingerprint(text.vocabulary)}
    monitor = Monitor(inputs.folder, quiet=not workers.first, tensorboard=tensorboard)
    run = Run(
        inputs.folder, model.to(place), text.vocabulary, options,
        inputs=identity, workers=workers, monitor=monitor,
    )  # fmt: skip
    if resume:
        run.resume()
    if not workers.first:
        run.train(text.train, text.validation)
        return {}
    typer.echo(describe(model, text), err=True)
    progress = run.train(text.train, text.validation, lambda entry: tqdm.write(line(entry), file=sys.stderr))
    return write_facts(run, progress, inputs)


def fingerprint(vocabulary: Vocabulary) -> str:
    """Tells vocabularies of one size apart."""
    return hashlib.sha256("\n".join(vocabulary.words).encode()).hexdigest()[:16]


def describe(model: NeuralModel, text: PreparedText) -> str:
    """What is about to be trained, in one line."""
    config = model.config
    parameters = sum(value.numel() for value in model.parameters())
    classes = f" in {len(config.class_sizes)} classes" if config.class_sizes else ""
    cut = f", {text.train.n_cut:,} sentences cut" if text.train.n_cut else ""
    return (
        f"{config.kind} {config.embedding_size}/{config.hidden_size} × {config.layers}, "
        f"{parameters / 1e6:.1f} M parameters, "
        f"{config.vocabulary_size:,} words{classes}, state {STATE_AT_STARTS[config.carried]}, "
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
        "state": STATE_AT_STARTS[run.model.config.carried],
        "validation_perplexity": round(progress.best_perplexity, 3),
        "epochs": progress.epoch,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "threads": torch.get_num_threads(),
        "processes": run.workers.count,
        "torch": torch.__version__,
    }
    (run.folder / "best" / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts

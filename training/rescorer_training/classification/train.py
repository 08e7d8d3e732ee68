"""Train a classifier with the loop that trains language models, and save the facts of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rescorer.errors import ConfigError
from rescorer.formats.io.targets import make_folder
from rescorer.lm.device import torch_device
from rescorer.lm.malloc import keep_freed_memory
from rescorer.lm.threads import use_threads
from rescorer.text import Normaliser
from rescorer_training.classification.accuracy import Accuracy
from rescorer_training.classification.config import ClassifierOptions, ClassifierTraining, make_config
from rescorer_training.classification.model import Classifier, load_classifier
from rescorer_training.classification.naive_bayes import NaiveBayes
from rescorer_training.classification.predict import predict
from rescorer_training.classification.prepare import LabelledText
from rescorer_training.data.labelled_sentences import LabelledSentences
from rescorer_training.data.normalisation import record_normaliser
from rescorer_training.data.pipes import find_size
from rescorer_training.neural.checkpoint import STATE_FILE
from rescorer_training.neural.options import RunOptions
from rescorer_training.neural.progress import Monitor, print_status
from rescorer_training.neural.train import compute_fingerprint, format_validation
from rescorer_training.neural.trainer import Trainer, TrainingRun
from rescorer_training.vectors.embeddings import initialise_embedding


@dataclass(frozen=True, slots=True)
class RunInputs:
    """Inputs of a training run and the folder of its results."""

    folder: Path
    texts: Mapping[str, Path]
    """The training text of each class."""
    validation: Mapping[str, Path]
    """The validation text of each class; empty if it is a part of the training text."""
    normaliser: Normaliser

    def identity(self) -> dict[str, Any]:
        """Return the inputs that must not change when the run is resumed, as plain data."""
        return {
            name: [[label, path.name, find_size(path)] for label, path in texts.items()]
            for name, texts in (("texts", self.texts), ("validation_texts", self.validation))
        } | {"normaliser": json.loads(self.normaliser.settings.to_json())}


def start_folder(inputs: RunInputs) -> None:
    """Make the folder of a new run; raises ConfigError if it already has one."""
    folder = inputs.folder
    if (folder / STATE_FILE).exists():
        raise ConfigError(f"{folder} already has a training run; add --resume or choose another folder")
    make_folder(folder)
    record_normaliser(folder, inputs.normaliser)


def make_classifier(text: LabelledText, options: ClassifierOptions) -> Classifier:
    """Make a new classifier, with the embeddings of a file if one is given.

    Raises:
        ConfigError: options contradict each other.
        BundleError: options are out of range.
        FormatError: the file of embeddings is invalid or has no known word.
    """
    if options.pooling == "none":
        raise ConfigError("pooling is 'none', which is for labels of words; expected mean or last")
    if options.freeze_embeddings and not options.embeddings:
        raise ConfigError("--freeze-embeddings needs the vectors of --embeddings; give both")
    model = Classifier(make_config(options, len(text.vocabulary), text.labels))
    if options.embeddings:
        file = Path(options.embeddings)
        coverage = initialise_embedding(model, text.vocabulary, file, bool(options.freeze_embeddings))
        print_status(f"{file}: {coverage}")
    return model


def train(
    inputs: RunInputs,
    text: LabelledText,
    network: ClassifierOptions,
    options: ClassifierTraining,
    run: RunOptions = RunOptions(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Train a classifier, report each validation on stderr, and return the facts saved with the best model.

    Raises:
        ConfigError: the device is not available, or the run does not match the one to resume.
        ScoringError: training diverged, or a checkpoint cannot be written.
    """
    target_device = torch_device(run.device)
    use_threads(run.threads or 0)
    if target_device.type == "cpu":
        keep_freed_memory()
    torch.manual_seed(options.seed)
    model = make_classifier(text, network).to(target_device)
    identity = inputs.identity() | {
        "network": asdict(network),
        "vocabulary": compute_fingerprint(text.vocabulary),
        "split": text.split,
    }
    monitor = Monitor(inputs.folder, unit="sentences")
    training_run = TrainingRun(inputs.folder, identity, monitor=monitor)
    trainer = Trainer(training_run, model, text.vocabulary, options.complete())
    if run.resume:
        trainer.resume()
    print_status(describe_run(model, text))
    trainer.train(text.train, text.validation, lambda entry: print_status(format_validation(entry)))
    return write_facts(trainer, inputs, text, network)


def describe_run(model: Classifier, text: LabelledText) -> str:
    """Return a one-line summary of a run's network and text."""
    network = model.config.network
    parameters = sum(value.numel() for value in model.parameters())
    return (
        f"{network.kind} {network.embedding_size}/{network.hidden_size} × {network.layers}, "
        f"{'both directions' if model.config.bidirectional else 'forward'}, pooling {model.config.pooling}, "
        f"{parameters / 1e6:.1f} M parameters, {network.vocabulary_size:,} words, "
        f"{len(model.config.labels)} classes, {len(text.train.starts):,} sentences for training and "
        f"{len(text.validation.starts):,} for validation: {text.split}"
    )


def measure(text: LabelledSentences, labels: tuple[str, ...], probs: Any) -> Accuracy:
    """Compare the most probable classes, from (S, C) probabilities, with the labels of sentences."""
    n_words = text.lengths - 1  # without </s>; a truncated sentence counts one word less
    return Accuracy(labels, text.labels, probs.argmax(axis=1), n_words)


def fit_baseline(text: LabelledText) -> NaiveBayes:
    """Estimate naive Bayes from the training sentences of a run, with the same vocabulary."""
    return NaiveBayes.fit(text.train, len(text.labels), len(text.vocabulary))


def write_facts(
    trainer: Trainer, inputs: RunInputs, text: LabelledText, network: ClassifierOptions
) -> dict[str, Any]:
    """Write the facts of a run to ``training.json`` in the best model's folder; return them."""
    best, progress = inputs.folder / "best", trainer.progress
    model, _ = load_classifier(best)
    accuracy = measure(text.validation, text.labels, predict(model, text.validation))
    baseline = measure(text.validation, text.labels, fit_baseline(text).predict(text.validation))
    facts = {
        "labels": list(text.labels),
        "network": asdict(network),
        "options": asdict(trainer.options),
        "texts": {name: path.name for name, path in inputs.texts.items()},
        "validation": text.split,
        "training_sentences": len(text.train.starts),
        "validation_sentences": len(text.validation.starts),
        "validation_perplexity": round(progress.best_perplexity, 4),
        "validation_accuracy": round(accuracy.share, 4),
        "naive_bayes_validation_accuracy": round(baseline.share, 4),
        "epochs": progress.epoch,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "torch": torch.__version__,
    }
    record_normaliser(best, inputs.normaliser)
    (best / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts

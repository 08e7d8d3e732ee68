"""Run a training from text files: prepare the text, make or load the network, train it, save metadata."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rescorer.errors import ConfigError
from rescorer.formats.io.targets import make_folder
from rescorer.lm.checkpoint import load_model
from rescorer.lm.device import torch_device
from rescorer.lm.features.topics import TopicReader
from rescorer.lm.files.network_files import read_config, read_vocabulary
from rescorer.lm.malloc import keep_freed_memory
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.threads import use_threads
from rescorer.safe_input.files import Folder
from rescorer.vocabulary import Vocabulary
from rescorer_training.data.normalisation import record_normaliser
from rescorer_training.neural.build import make_network, make_objective, order_by_classes
from rescorer_training.neural.checkpoint import STATE_FILE, Progress
from rescorer_training.neural.distributed import ProcessGroup
from rescorer_training.neural.feature_files import prepare_class_inputs, prepare_tags, prepare_topics
from rescorer_training.neural.optimisation.objectives import measure_normaliser_error
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.prepare import PreparedText, RunInputs, load_prepared, prepare_text
from rescorer_training.neural.progress import Monitor, print_status
from rescorer_training.neural.trainer import Trainer, TrainingRun

LEARNT_SHARE = 0.99
"""A network has learnt something if its perplexity is below this share of that of word frequencies."""
STATE_DESCRIPTIONS = {False: "reset at every sentence", True: "carried over sentence ends"}


def prepare_run(
    inputs: RunInputs,
    vocabulary: Path | None,
    vocabulary_size: int,
    network: NetworkOptions = NetworkOptions(),  # noqa: B008 (frozen)
) -> PreparedText:
    """Choose the vocabulary, encode the text, and order the words by the network's classes.

    Raises:
        ConfigError: the folder already has a run, or the classes cannot be formed.
        FormatError: a text cannot be used.
    """
    folder = inputs.folder
    if (folder / STATE_FILE).exists():
        raise ConfigError(f"{folder} already has a training run; add --resume or choose another folder")
    make_folder(folder)
    record_normaliser(folder, inputs.normaliser)
    inherited, backward, topics = None, bool(network.backward), None
    if inputs.start_from:
        start = Folder(inputs.start_from / "best")
        config = read_config(start)
        inherited, backward = read_vocabulary(start, config), config.backward
        if config.topics:
            topics = TopicReader(load_model(start)[0].topic_words, config.topic_decay)
    text = prepare_text(inputs, inherited or vocabulary, size=vocabulary_size, backward=backward)
    order_by_classes(folder, text, network)
    text = load_prepared(folder, inputs.longest)
    prepare_class_inputs(folder, text, network)
    prepare_tags(folder, text, network)
    prepare_topics(folder, text, network, topics)
    return load_prepared(folder, inputs.longest)


def train(
    inputs: RunInputs,
    text: PreparedText,
    network: NetworkOptions,
    options: TrainingOptions,
    run: RunOptions = RunOptions(),  # noqa: B008 (frozen)
    *,
    tensorboard: bool = False,
    processes: ProcessGroup = ProcessGroup(),  # noqa: B008 (frozen)
) -> dict[str, Any]:
    """Train a network and report each validation on stderr; return the metadata saved with the best model.

    Processes other than the first return an empty dictionary.

    Raises:
        ConfigError: the device is not available, or the run does not match the one to resume.
    """
    target_device = processes.choose_device(torch_device(run.device))
    use_threads(run.threads or 0)
    if target_device.type == "cpu":
        keep_freed_memory()
    torch.manual_seed(options.seed)
    model = make_network(
        inputs.folder, inputs.start_from, text, network, options.objective, resumed=run.resume
    )
    model.to(target_device)
    identity = inputs.identity() | {
        "network": asdict(network),
        "vocabulary": compute_fingerprint(text.vocabulary),
    }
    monitor = Monitor(inputs.folder, quiet=not processes.is_first, tensorboard=tensorboard)
    trainer = Trainer(
        TrainingRun(inputs.folder, identity, processes, monitor), model, text.vocabulary, options,
        make_objective(options, text.counts(), target_device),
    )  # fmt: skip
    fingerprint = zlib.crc32(json.dumps(trainer.identity, sort_keys=True).encode())
    processes.check_same(fingerprint, "checksum of the options", "start all processes with the same ones")
    if run.resume:
        trainer.resume()
    if not processes.is_first:
        trainer.train(text.train, text.validation)
        return {}
    print_status(describe_run(model, text))
    progress = trainer.train(
        text.train, text.validation, lambda entry: print_status(format_validation(entry))
    )
    if progress.epoch < options.epochs:
        print_status(f"stopped early: {options.patience} validations without improvement")
    return write_facts(trainer, model.config, progress, inputs, text)


def compute_fingerprint(vocabulary: Vocabulary) -> str:
    """Return a short hash of the words and their order."""
    return hashlib.sha256("\n".join(vocabulary.words).encode()).hexdigest()[:16]


def describe_run(model: NeuralModel, text: PreparedText) -> str:
    """Return a one-line summary of a run's network and training text."""
    config = model.config
    parameters = sum(value.numel() for value in model.parameters())
    classes = f" in {len(config.class_sizes)} classes" if config.class_sizes else ""
    cut = f", {text.train.n_truncated:,} sentences cut" if text.train.n_truncated else ""
    return (
        f"{config.kind} {config.embedding_size}/{config.hidden_size} × {config.layers}, "
        f"{parameters / 1e6:.1f} M parameters, "
        f"{config.vocabulary_size:,} words{classes}, state {STATE_DESCRIPTIONS[config.carried]}, "
        f"{text.train.n_words:,} training words in {len(text.train.starts):,} sentences{cut}"
    )


def format_validation(entry: dict[str, Any]) -> str:
    """Format a validation's entry of ``Progress.reports`` as one line."""
    labels = {"training_perplexity": "training perplexity", "training_loss": "training loss"}
    training = next(f"{label} {entry[name]:8.2f}" for name, label in labels.items() if name in entry)
    return (
        f"epoch {entry['epoch']:3d}  step {entry['step']:7,}  {training}  "
        f"validation {entry['validation_perplexity']:8.2f}  {entry['seconds'] / 60:6.1f} min"
    )


def describe_failure(progress: Progress, unigram_perplexity: float) -> str:
    """Return a warning that a network is no better than word frequencies, and what to try."""
    return (
        f"WARNING: the network learnt nothing from context. Its validation perplexity is "
        f"{progress.best_perplexity:,.2f}; the frequencies of single words alone give "
        f"{unigram_perplexity:,.2f}. After {progress.step:,} steps, try more --epochs, smaller batches or "
        "another --learning-rate."
    )


def write_facts(
    trainer: Trainer, config: NetworkConfig, progress: Progress, inputs: RunInputs, text: PreparedText
) -> dict[str, Any]:
    """Write metadata for the bundle's manifest to ``training.json`` in the best model's folder; return it."""
    unigram_perplexity = text.unigram_perplexity()
    if progress.best_perplexity > LEARNT_SHARE * unigram_perplexity:
        print_status(describe_failure(progress, unigram_perplexity))
    facts = {
        "network": config.to_dict() | {"class_sizes": len(config.class_sizes)},
        "options": asdict(trainer.options),
        "texts": [path.name for path in inputs.texts],
        "validation_text": inputs.validation.name,
        "state": STATE_DESCRIPTIONS[config.carried],
        "validation_perplexity": round(progress.best_perplexity, 3),
        "unigram_perplexity": round(unigram_perplexity, 3),
        "epochs": progress.epoch,
        "steps": progress.step,
        "words": progress.words,
        "seconds": round(progress.seconds, 1),
        "threads": torch.get_num_threads(),
        "processes": trainer.processes.size,
        "torch": torch.__version__,
    }
    if trainer.options.objective != "ml":
        model, _ = load_model(trainer.folder / "best")
        log_normaliser = getattr(trainer.objective, "log_normaliser", 0.0)
        error = measure_normaliser_error(model, text.validation, log_normaliser)
        print_status(
            f"the scores differ from log-probabilities by {error.mean:+.3f} ± {error.deviation:.3f} nats per "
            f"word; perplexities are normalised exactly"
        )
        facts["normaliser_error"] = asdict(error)
    record_normaliser(trainer.folder / "best", inputs.normaliser)
    path = trainer.folder / "best" / "training.json"
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts

"""Owns the making of what a run trains, from its options: word classes, the network, the objective."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import typer

from rescorer.errors import ConfigError
from rescorer.lm.checkpoint import load_model
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.networks.config import WINDOWED
from rescorer.vocabulary import Vocabulary
from training.classes import (
    ClassOrder,
    brown_classes,
    default_n_classes,
    embedding_classes,
    frequency_bins,
)
from training.noise import Noise
from training.objectives import (
    MaximumLikelihood,
    NegativeSampling,
    NoiseContrastive,
    Objective,
    SampledSoftmax,
)
from training.prepare import PreparedText, reorder
from training.run_options import NetworkOptions, TrainingOptions
from training.vectors import initialise_embedding

CLASSES = "classes.json"
"""Sizes of the classes that the folder's vocabulary is ordered by, where they are not frequency bins."""
CLASS_POWERS = {"sqrt": 0.5, "mass": 1.0}
CLASSES_BY = (*CLASS_POWERS, "brown", "kmeans")
DEFAULT_WINDOW = 4
"""Words that a feed-forward network sees: a 5-gram's."""


def order_by_classes(folder: Path, text: PreparedText, options: NetworkOptions) -> None:
    """Puts the vocabulary and the encoded text of a prepared run into the order of its classes.

    Raises:
        ConfigError: the classes cannot be made; says why.
    """
    (folder / CLASSES).unlink(missing_ok=True)
    if options.class_by not in (None, *CLASSES_BY):
        raise ConfigError(f"class_by is {options.class_by!r}; expected one of {', '.join(CLASSES_BY)}")
    if (options.class_by == "kmeans") != (options.vectors is not None):
        raise ConfigError("--class-by kmeans clusters the --vectors of another run; give both or neither")
    if options.class_by in (None, *CLASS_POWERS):
        return
    made = _classes(text, options, options.n_classes or default_n_classes(len(text.vocabulary) - 1))
    reorder(folder, text.vocabulary, made.order)
    (folder / CLASSES).write_text(json.dumps(made.class_sizes), encoding="utf-8")


def _classes(text: PreparedText, options: NetworkOptions, n_classes: int) -> ClassOrder:
    if options.class_by == "brown":
        return brown_classes(text.train.ids, len(text.vocabulary) - 1, n_classes)
    vectors = run_vectors(Path(options.vectors or ""), text.vocabulary)
    return embedding_classes(vectors[:-1], text.counts(), n_classes)


def run_vectors(run: Path, vocabulary: Vocabulary) -> np.ndarray:
    """(V, D) output vectors that another run's best model has for the words; zeros for those it lacks."""
    model, words = load_model(run / "best")
    known = model.output.word_weight.detach().numpy()
    vectors = np.zeros((len(vocabulary), known.shape[1]), dtype=np.float32)
    for i, word in enumerate(vocabulary.words):
        if words.ids.get(word, len(known)) < len(known):
            vectors[i] = known[words.ids[word]]
    return vectors


def make_network(
    folder: Path, start_from: Path | None, text: PreparedText, options: NetworkOptions, objective: str = "ml"
) -> NeuralModel:
    """A new network that starts from the unigram distribution, or an inherited one.

    Args:
        folder: of the run, which holds the classes that its words are ordered by.
        objective: all but ``ml`` make full softmax the default output layer, the only one that they know.

    Raises:
        ConfigError: the network is inherited and settings are given that it has already, or settings
            contradict one another.
    """
    given = {
        name: value for name, value in asdict(options).items() if value is not None and name != "dropout"
    }
    if start_from:
        if given:
            names = ", ".join(sorted(given))
            raise ConfigError(f"--start-from brings its own network; {names} cannot be given too")
        model, _ = load_model(start_from / "best")
        model.set_dropout(options.dropout)
        return model.train()
    counts = text.counts()
    for name in ("n_classes", "class_by", "vectors", "embeddings", "freeze_embeddings"):
        given.pop(name, None)
    given.setdefault("output", "classes" if objective == "ml" else "full")
    if given.get("kind") in WINDOWED:
        given.setdefault("window", DEFAULT_WINDOW)
    config = NetworkConfig(
        vocabulary_size=len(text.vocabulary),
        class_sizes=_class_sizes(folder, counts, options) if given["output"] == "classes" else (),
        dropout=options.dropout,
        **given,
    )
    model = NeuralModel(config)
    model.output.start_from_unigrams(torch.from_numpy(counts))
    if options.embeddings:
        file, frozen = Path(options.embeddings), bool(options.freeze_embeddings)
        typer.echo(f"{file}: {initialise_embedding(model, text.vocabulary, file, frozen)}", err=True)
    elif options.freeze_embeddings:
        raise ConfigError("--freeze-embeddings freezes the vectors of --embeddings; give both")
    return model


def _class_sizes(folder: Path, counts: np.ndarray, options: NetworkOptions) -> tuple[int, ...]:
    if (folder / CLASSES).exists():
        return tuple(json.loads((folder / CLASSES).read_text(encoding="utf-8")))
    n_classes = options.n_classes or default_n_classes(len(counts))
    return frequency_bins(counts, n_classes, CLASS_POWERS[options.class_by or "sqrt"])


def make_objective(options: TrainingOptions, counts: np.ndarray, device: torch.device) -> Objective:
    """What the run minimises; ``counts``: of the words that can be predicted, which noise is drawn by."""
    if options.objective == "ml":
        return MaximumLikelihood()
    kind = {"nce": NoiseContrastive, "negative": NegativeSampling, "sampled": SampledSoftmax}[
        options.objective
    ]
    noise = Noise(torch.from_numpy(counts), options.noise_power, device)
    return kind(noise, options.noise_samples, options.noise_per == "word")

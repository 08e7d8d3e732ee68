"""Build the network and the objective of a training run from its options."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rescorer.errors import ConfigError
from rescorer.lm.checkpoint import load_model
from rescorer.lm.files.network_config import WINDOWED_KINDS
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.lm.output import TreeSoftmax
from rescorer_training.classes.partition import (
    bin_by_frequency,
    choose_class_count,
    make_brown_classes,
    make_embedding_classes,
)
from rescorer_training.features.class_inputs import add_class_inputs
from rescorer_training.neural.feature_files import (
    DEFAULT_TOPIC_DECAY,
    load_class_inputs,
    load_tags,
    load_word_topics,
    parse_depths,
)
from rescorer_training.neural.optimisation.objectives import (
    MaximumLikelihood,
    NegativeSampling,
    Noise,
    NoiseContrastive,
    Objective,
    SampledSoftmax,
)
from rescorer_training.neural.options import NetworkOptions, TrainingOptions
from rescorer_training.neural.prepare import PreparedText, reorder
from rescorer_training.neural.progress import print_status
from rescorer_training.neural.trees.word_trees import get_word_vectors, load_or_make_tree
from rescorer_training.vectors.embeddings import initialise_embedding

CLASSES_FILE = "classes.json"
"""File of class sizes; only written if the vocabulary is ordered by learned classes, not by frequency."""
CLASS_POWERS = {"sqrt": 0.5, "mass": 1.0}
CLASS_METHODS = (*CLASS_POWERS, "brown", "kmeans")
TREES = ("huffman", "learned")
NOT_IN_CONFIG = (
    "n_classes", "class_by", "tree", "overlap", "vectors", "embeddings", "freeze_embeddings", "class_inputs",
    "shuffle_topics",
)  # fmt: skip
"""Network options that ``NetworkConfig`` does not have, because they only affect how the network is built."""
DEFAULT_WINDOW = 4
"""Default number of context words of networks without recurrence, the same as in a 5-gram model."""
DEFAULT_ATTENTION_WINDOW = 128
"""Default number of words to which each layer of a transformer attends."""
DEFAULT_HEADS = 4
CHANGEABLE = frozenset({"carried", "locked_dropout", "weight_dropout", "embedding_dropout"})
"""Options of a network besides dropout that may change when its training starts from another run: they have
no weights."""
MAX_CLASS_RATIO = 3
"""Maximum size of a learned class, as a multiple of the mean class size. The limit saves time without
increasing perplexity."""


def order_by_classes(folder: Path, text: PreparedText, options: NetworkOptions) -> None:
    """Reorder the vocabulary and the encoded text of a prepared run by class if word classes are learned.

    Raises:
        ConfigError: options contradict each other, or the classes cannot be formed.
    """
    (folder / CLASSES_FILE).unlink(missing_ok=True)
    _check_options(options)
    if options.class_by in (None, *CLASS_POWERS):
        return  # the vocabulary is already ordered by frequency
    n_words = len(text.vocabulary) - 1
    n_classes = options.n_classes or choose_class_count(n_words)
    max_class_size = max(2, MAX_CLASS_RATIO * n_words // n_classes)
    if options.class_by == "brown":
        classes = make_brown_classes(text.train.ids, n_words, n_classes, max_class_size=max_class_size)
    else:
        vectors = get_word_vectors(text, options)
        classes = make_embedding_classes(vectors, text.counts(), n_classes, max_class_size=max_class_size)
    reorder(folder, text.vocabulary, classes.order)
    (folder / CLASSES_FILE).write_text(json.dumps(classes.class_sizes), encoding="utf-8")


def _check_options(options: NetworkOptions) -> None:
    """Raise ConfigError if network options are unknown or contradict each other."""
    choices = (("class_by", options.class_by, CLASS_METHODS), ("tree", options.tree, TREES))
    for name, value, known in choices:
        if value not in (None, *known):
            raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    if options.vectors and options.class_by != "kmeans" and options.tree != "learned":
        raise ConfigError("--vectors is used only by --class-by kmeans and --tree learned; add one of them")
    if options.tree and options.output != "tree":
        raise ConfigError("--tree needs --output-layer tree; give both")
    if options.overlap is not None:
        if options.tree != "learned":
            raise ConfigError("--overlap needs --tree learned; give both")
        if not 0 <= options.overlap < 0.5:
            raise ConfigError(f"overlap is {options.overlap}; expected 0 ≤ overlap < 0.5")
    if options.freeze_embeddings and not options.embeddings:
        raise ConfigError("--freeze-embeddings needs the vectors of --embeddings; give both")
    parse_depths(options.class_inputs)
    if options.shuffle_topics and not options.topics:
        raise ConfigError("--shuffle-topics needs the topics of --topics; give both")


def make_network(
    folder: Path,
    start_from: Path | None,
    text: PreparedText,
    options: NetworkOptions,
    objective: str = "ml",
    *,
    resumed: bool = False,
) -> NeuralModel:
    """Make a network that initially predicts the unigram distribution, or load another run's best model.

    Args:
        folder: folder of the run, which has the class sizes if the word classes are learned.
        start_from: run to load the network from; None makes a new network.
        objective: for any objective other than ``ml``, the default output layer is a full softmax.
        resumed: True if a saved state will replace the weights and the tree, so that no tree is built.

    Raises:
        ConfigError: network options are given for a loaded network, or options contradict each other.
    """
    if start_from:
        _check_none_given(options)
        return _load_network(start_from, options)
    counts = text.counts()
    config = _make_config(folder, len(text.vocabulary), counts, options, objective)
    if config.output == "tree":
        children, places = load_or_make_tree(folder, text, counts, options, load=resumed)
        config = replace(config, leaves=len(children) + 1 if places.max() > 1 else 0)
    model = NeuralModel(config)
    if isinstance(model.output, TreeSoftmax):
        model.output.set_tree(children, places)
    model.output.start_from_unigrams(torch.from_numpy(counts))
    if options.embeddings:
        file, frozen = Path(options.embeddings), bool(options.freeze_embeddings)
        print_status(f"{file}: {initialise_embedding(model, text.vocabulary, file, frozen)}")
    if options.class_inputs:
        add_class_inputs(model, load_class_inputs(folder))
    if config.topics:
        model.topic_words.copy_(load_word_topics(folder, config.topics))
    if model.tags is not None:
        load_tags(folder, model.tags)
    return model


def check_network(
    options: NetworkOptions, objective: str, vocabulary_size: int, *, starts_from_other: bool
) -> None:
    """Check options before any text is read; ``make_network`` repeats these checks.

    Args:
        vocabulary_size: number of words of the network, with ``</s>``, ``<unk>`` and ``<s>``.
        starts_from_other: whether the network is loaded from another run.

    Raises:
        ConfigError: options contradict each other, or there are more classes than words.
        BundleError: options do not fit the kind of network.
    """
    _check_options(options)
    if starts_from_other:
        return _check_none_given(options)
    counts = np.ones(vocabulary_size - 1, dtype=np.int64)
    _make_config(None, vocabulary_size, counts, replace(options, class_by=None), objective)


def _given(options: NetworkOptions) -> dict[str, Any]:
    return {name: value for name, value in asdict(options).items() if value is not None and name != "dropout"}


def _check_none_given(options: NetworkOptions) -> None:
    if given := _given(options).keys() - CHANGEABLE:
        names = ", ".join(sorted(given))
        raise ConfigError(f"--start-from loads an existing network; {names} cannot be given too")


def _load_network(run: Path, options: NetworkOptions) -> NeuralModel:
    """Load the best model of a run, to be trained with the dropout and the carried state of the options."""
    loaded, _ = load_model(run / "best")
    given = {name: value for name, value in _given(options).items() if name in CHANGEABLE}
    model = NeuralModel(replace(loaded.config, dropout=options.dropout, **given))
    model.load_state_dict(loaded.state_dict())
    return model.train()


def _make_config(
    folder: Path | None,
    vocabulary_size: int,
    counts: np.ndarray,
    options: NetworkOptions,
    objective: str,
) -> NetworkConfig:
    """Complete the given options with defaults that depend on other options.

    Args:
        folder: folder of the run; None before there is one.
    """
    settings = {name: value for name, value in _given(options).items() if name not in NOT_IN_CONFIG}
    settings.setdefault("output", "classes" if objective == "ml" else "full")
    set_window_defaults(settings)
    if settings.get("topics"):
        settings.setdefault("topic_decay", DEFAULT_TOPIC_DECAY)
    return NetworkConfig(
        vocabulary_size=vocabulary_size,
        class_sizes=_get_class_sizes(folder, counts, options) if settings["output"] == "classes" else (),
        dropout=options.dropout,
        **settings,
    )


def set_window_defaults(settings: dict[str, Any]) -> None:
    """Add the default window and number of heads to the settings of a network whose kind has them."""
    if settings.get("kind") in WINDOWED_KINDS:
        settings.setdefault("window", DEFAULT_WINDOW)
    if settings.get("kind") == "transformer":
        settings.setdefault("window", DEFAULT_ATTENTION_WINDOW)
        settings.setdefault("heads", DEFAULT_HEADS)


def _get_class_sizes(folder: Path | None, counts: np.ndarray, options: NetworkOptions) -> tuple[int, ...]:
    if folder and (folder / CLASSES_FILE).exists():
        return tuple(json.loads((folder / CLASSES_FILE).read_text(encoding="utf-8")))
    n_classes = options.n_classes or choose_class_count(len(counts))
    return bin_by_frequency(counts, n_classes, CLASS_POWERS[options.class_by or "sqrt"])


def make_objective(options: TrainingOptions, counts: np.ndarray, device: torch.device) -> Objective:
    """Make the objective of a run.

    Args:
        counts: (V - 1,) counts of the words that can be predicted, for the noise distribution.
    """
    if options.objective == "ml":
        return MaximumLikelihood(options.bfloat16)
    kind = {"nce": NoiseContrastive, "negative": NegativeSampling, "sampled": SampledSoftmax}[
        options.objective
    ]
    noise = Noise(torch.from_numpy(counts), options.noise_power, device)
    return kind(noise, options.noise_samples, options.noise_per == "word")

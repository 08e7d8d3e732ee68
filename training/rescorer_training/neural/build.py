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
from rescorer.lm.networks.config import WINDOWED_KINDS
from rescorer.lm.output import TreeSoftmax
from rescorer.vocabulary import Vocabulary
from rescorer_training.classes.brown import compute_neighbour_vectors, find_brown_clusters
from rescorer_training.classes.partition import (
    bin_by_frequency,
    choose_class_count,
    make_brown_classes,
    make_embedding_classes,
)
from rescorer_training.classes.softmax_trees import build_huffman_tree, build_vector_tree
from rescorer_training.classes.word_vectors import initialise_embedding, read_vectors
from rescorer_training.data.corpus import read_lines
from rescorer_training.neural.objectives import (
    MaximumLikelihood,
    NegativeSampling,
    Noise,
    NoiseContrastive,
    Objective,
    SampledSoftmax,
)
from rescorer_training.neural.options import NetworkOptions, TrainingOptions
from rescorer_training.neural.prepare import PreparedText, reorder

CLASSES = "classes.json"
"""Sizes of the classes that the folder's vocabulary is ordered by, where they are not frequency bins."""
CLASS_POWERS = {"sqrt": 0.5, "mass": 1.0}
CLASSES_BY = (*CLASS_POWERS, "brown", "kmeans")
TREES = ("huffman", "learned")
NOT_OF_THE_CONFIG = ("n_classes", "class_by", "tree", "vectors", "embeddings", "freeze_embeddings")
"""Options of the network that say where its parts come from."""
DEFAULT_WINDOW = 4
"""Words that a feed-forward network sees: a 5-gram's."""


LARGEST_CLASS = 3
"""Times the mean size: what a learned class may grow to; costs no perplexity, saves time."""


def order_by_classes(folder: Path, text: PreparedText, options: NetworkOptions) -> None:
    """Puts the vocabulary and the encoded text of a prepared run into the order of its classes.

    Raises:
        ConfigError: options contradict one another, or the classes cannot be made; says why.
    """
    (folder / CLASSES).unlink(missing_ok=True)
    _check(options)
    if options.class_by in (None, *CLASS_POWERS):
        return
    n_classes = options.n_classes or choose_class_count(len(text.vocabulary) - 1)
    n_words = len(text.vocabulary) - 1
    largest = max(2, LARGEST_CLASS * n_words // n_classes)
    if options.class_by == "brown":
        made = make_brown_classes(text.train.ids, n_words, n_classes, max_class_size=largest)
    else:
        made = make_embedding_classes(
            _vectors(text, options), text.counts(), n_classes, max_class_size=largest
        )
    reorder(folder, text.vocabulary, made.order)
    (folder / CLASSES).write_text(json.dumps(made.class_sizes), encoding="utf-8")


def _check(options: NetworkOptions) -> None:
    for name, value, known in (("class_by", options.class_by, CLASSES_BY), ("tree", options.tree, TREES)):
        if value not in (None, *known):
            raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    if options.vectors and options.class_by != "kmeans" and options.tree != "learned":
        raise ConfigError("only --class-by kmeans and --tree learned go by --vectors")
    if options.tree and options.output != "tree":
        raise ConfigError("--tree says which tree --output-layer tree has; give both")
    if options.freeze_embeddings and not options.embeddings:
        raise ConfigError("--freeze-embeddings freezes the vectors of --embeddings; give both")


def _vectors(text: PreparedText, options: NetworkOptions) -> np.ndarray:
    """(V - 1, D) vectors that words are told apart by."""
    if options.vectors:
        return word_vectors(Path(options.vectors), text.vocabulary)
    n_words = len(text.vocabulary) - 1
    classes = find_brown_clusters(text.train.ids, n_words, max(3, choose_class_count(n_words)))
    return compute_neighbour_vectors(text.train.ids, classes)


def word_vectors(source: Path, vocabulary: Vocabulary) -> np.ndarray:
    """(V - 1, D) vectors of the words that can be predicted: of a run's best model, its output layer's where
    it has any, or of a text file as word2vec and GloVe write it; zeros for words that are not there."""
    n_words = len(vocabulary) - 1
    if not source.is_dir():
        found = dict(read_vectors(source, vocabulary.ids, vector_width(source)))
    else:
        model, words = load_model(source / "best")
        trees = model.config.output == "tree"
        known = (model.network.embedding.weight if trees else model.output.word_weight).detach().numpy()
        ids = {i: words.ids[word] for i, word in enumerate(vocabulary.words) if word in words.ids}
        found = {i: known[place] for i, place in ids.items() if place < model.config.n_words}
    if not found:
        raise ConfigError(f"{source} has a vector for none of the vocabulary's {n_words:,} words")
    vectors = np.zeros((n_words, len(next(iter(found.values())))), dtype=np.float32)
    for i, vector in found.items():
        if i < n_words:
            vectors[i] = vector
    return vectors


def vector_width(file: Path) -> int:
    """Values of a vector in the file, told by its first line: word2vec's two numbers, or a word's vector."""
    fields = next(read_lines(file), "").split()
    return int(fields[1]) if len(fields) == 2 and fields[1].isdigit() else max(1, len(fields) - 1)


def make_network(
    folder: Path,
    start_from: Path | None,
    text: PreparedText,
    options: NetworkOptions,
    objective: str = "ml",
    *,
    resumed: bool = False,
) -> NeuralModel:
    """A new network that starts from the unigram distribution, or an inherited one.

    Args:
        folder: of the run, which holds the classes that its words are ordered by.
        resumed: a saved state is about to bring the weights, and the tree with them.
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
    for name in NOT_OF_THE_CONFIG:
        given.pop(name, None)
    given.setdefault("output", "classes" if objective == "ml" else "full")
    if given["output"] == "tree":
        given.setdefault("tied", False)
    if given.get("kind") in WINDOWED_KINDS:
        given.setdefault("window", DEFAULT_WINDOW)
    config = NetworkConfig(
        vocabulary_size=len(text.vocabulary),
        class_sizes=_class_sizes(folder, counts, options) if given["output"] == "classes" else (),
        dropout=options.dropout,
        **given,
    )
    model = NeuralModel(config)
    if isinstance(model.output, TreeSoftmax) and not resumed:
        model.output.set_tree(_tree(text, counts, options))
    model.output.start_from_unigrams(torch.from_numpy(counts))
    if options.embeddings:
        file, frozen = Path(options.embeddings), bool(options.freeze_embeddings)
        typer.echo(f"{file}: {initialise_embedding(model, text.vocabulary, file, frozen)}", err=True)
    return model


def _class_sizes(folder: Path, counts: np.ndarray, options: NetworkOptions) -> tuple[int, ...]:
    if (folder / CLASSES).exists():
        return tuple(json.loads((folder / CLASSES).read_text(encoding="utf-8")))
    n_classes = options.n_classes or choose_class_count(len(counts))
    return bin_by_frequency(counts, n_classes, CLASS_POWERS[options.class_by or "sqrt"])


def _tree(text: PreparedText, counts: np.ndarray, options: NetworkOptions) -> np.ndarray:
    if options.tree == "learned":
        return build_vector_tree(_vectors(text, options), counts)
    return build_huffman_tree(counts)


def make_objective(options: TrainingOptions, counts: np.ndarray, device: torch.device) -> Objective:
    """What the run minimises; ``counts``: of the words that can be predicted, which noise is drawn by."""
    if options.objective == "ml":
        return MaximumLikelihood()
    kind = {"nce": NoiseContrastive, "negative": NegativeSampling, "sampled": SampledSoftmax}[
        options.objective
    ]
    noise = Noise(torch.from_numpy(counts), options.noise_power, device)
    return kind(noise, options.noise_samples, options.noise_per == "word")

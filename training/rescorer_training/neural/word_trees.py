"""Vectors and trees of words for a training run, from other runs, files of vectors, or the text itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rescorer.errors import ConfigError
from rescorer.lm.checkpoint import load_model
from rescorer.vocabulary import Vocabulary
from rescorer_training.classes.brown import compute_neighbour_vectors, find_brown_clusters
from rescorer_training.classes.partition import choose_class_count
from rescorer_training.classes.softmax_trees import build_huffman_tree, build_vector_tree
from rescorer_training.classes.word_vectors import read_vectors
from rescorer_training.data.corpus import read_lines
from rescorer_training.neural.context_vectors import compute_context_vectors
from rescorer_training.neural.options import NetworkOptions
from rescorer_training.neural.prepare import PreparedText

TREE_FILE = "tree.npz"
"""File of a run's tree, which a resumed run reads."""


def load_or_make_tree(
    folder: Path, text: PreparedText, counts: np.ndarray, options: NetworkOptions, *, load: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Make the tree of a run and save it in the run's folder, or load it from there.

    Returns:
        (L-1, 2) children of each decision, and (V,) number of leaves of each word.

    Raises:
        ConfigError: the tree to load is missing, or there are no vectors to make it from.
    """
    file = folder / TREE_FILE
    if load:
        if not file.exists():
            raise ConfigError(f"{file} is missing, so the run cannot be resumed; start a new one")
        with np.load(file) as arrays:
            return arrays["children"], arrays["places"]
    if options.tree == "learned":
        children, places = build_vector_tree(_get_tree_vectors(text, options), counts, options.overlap or 0.0)
    else:
        children, places = build_huffman_tree(counts), np.ones(len(counts), dtype=np.int32)
    np.savez(file, children=children, places=places)
    return children, places


def _get_tree_vectors(text: PreparedText, options: NetworkOptions) -> np.ndarray:
    """Return the vectors from which a tree is learned, (V - 1, D): mean context vectors if a run is given."""
    if options.vectors and (source := Path(options.vectors)).is_dir():
        return compute_context_vectors(*load_model(source / "best"), text.train, text.vocabulary)
    return get_word_vectors(text, options)


def get_word_vectors(text: PreparedText, options: NetworkOptions) -> np.ndarray:
    """Load the vectors of ``--vectors``, or compute them from neighbouring words; returns (V - 1, D)."""
    if options.vectors:
        return load_word_vectors(Path(options.vectors), text.vocabulary)
    n_words = len(text.vocabulary) - 1
    classes = find_brown_clusters(text.train.ids, n_words, max(3, choose_class_count(n_words)))
    return compute_neighbour_vectors(text.train.ids, classes)


def load_word_vectors(source: Path, vocabulary: Vocabulary) -> np.ndarray:
    """Load vectors of the words that can be predicted.

    Args:
        source: the folder of a training run, or a text file in the format of word2vec or GloVe. For a run,
            the vectors are the output weights of its best model, or the embedding if the model has a tree
            softmax.

    Returns:
        (V - 1, D) float32, zeros for words without a vector.

    Raises:
        ConfigError: no word of the vocabulary has a vector.
    """
    n_words = len(vocabulary) - 1
    if not source.is_dir():
        vectors_by_id = dict(read_vectors(source, vocabulary.ids, detect_vector_size(source)))
    else:
        model, words = load_model(source / "best")
        has_tree = model.config.output == "tree"
        weight = model.network.embedding.weight if has_tree else model.output.word_weight
        weights = weight.detach().numpy()
        source_ids = {i: words.ids[word] for i, word in enumerate(vocabulary.words) if word in words.ids}
        vectors_by_id = {
            i: weights[source_id] for i, source_id in source_ids.items() if source_id < model.config.n_words
        }
    if not vectors_by_id:
        raise ConfigError(f"{source} has no vector for any of the vocabulary's {n_words:,} words")
    vectors = np.zeros((n_words, len(next(iter(vectors_by_id.values())))), dtype=np.float32)
    for i, vector in vectors_by_id.items():
        if i < n_words:
            vectors[i] = vector
    return vectors


def detect_vector_size(file: Path) -> int:
    """Detect the number of values per vector from the first line, a word2vec header or a word's vector."""
    fields = next(read_lines(file), "").split()
    return int(fields[1]) if len(fields) == 2 and fields[1].isdigit() else max(1, len(fields) - 1)

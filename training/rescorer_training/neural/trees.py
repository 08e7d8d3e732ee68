"""Make or load the tree of words of a training run, and the word vectors from which trees are learned.

The vector of a word may be the mean of the context vectors from which a trained network predicts it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from rescorer.errors import ConfigError
from rescorer.models.network_files import Vocabulary
from rescorer.models.neural import NeuralModel, load_model
from rescorer_training.batches import Sentences
from rescorer_training.classes.brown import compute_neighbour_vectors, find_brown_clusters
from rescorer_training.classes.partition import choose_class_count
from rescorer_training.classes.trees import build_huffman_tree, build_vector_tree
from rescorer_training.neural.options import NetworkOptions
from rescorer_training.neural.prepare import PreparedText, iterate_contexts
from rescorer_training.vectors.runs import read_known_vectors

PRIOR_OCCURRENCES = 2.0
"""The mean of all context vectors counts in a word's vector like so many occurrences of the word."""


def compute_context_vectors(
    model: NeuralModel, source: Vocabulary, text: Sentences, vocabulary: Vocabulary
) -> np.ndarray:
    """Average a network's context vectors over the occurrences of each word (Mnih & Hinton 2009).

    Words with similar vectors are predicted in similar contexts. A decision between two sets of words is
    therefore easy if their vectors differ. The mean of all vectors is subtracted.

    Args:
        source: vocabulary of the network. All other words count as ``<unk>``.
        text: training text, encoded with ``vocabulary``.
        vocabulary: words for which to compute vectors.

    Returns:
        (V - 1, D) float32.
    """
    source_ids = np.array([source.ids.get(word, source.unknown) for word in vocabulary.words])
    encoded = Sentences(
        source_ids[text.ids], text.starts, text.lengths, int(source_ids[text.start_id]), text.n_truncated
    )
    sums = torch.zeros(len(source), model.network.output_size, dtype=torch.float64)
    counts = torch.zeros(len(source), dtype=torch.float64)
    for hidden, words in iterate_contexts(model, encoded):
        sums.index_add_(0, words.cpu(), hidden.double().cpu())
        counts.index_add_(0, words.cpu(), torch.ones(len(words), dtype=torch.float64))
    sums -= counts[:, None] * sums.sum(dim=0) / counts.sum()
    means = sums / (counts[:, None] + PRIOR_OCCURRENCES)
    return means[source_ids[: len(vocabulary) - 1]].float().numpy()


TREE_FILE = "tree.npz"
"""File of a run's tree, which a resumed run reads."""


def load_or_make_tree(
    folder: Path, text: PreparedText, counts: np.ndarray, options: NetworkOptions, *, load: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Make the tree of a run and save it in the run's folder, or load it from there.

    Returns:
        (L-1, 2) children of each decision, and (V,) number of leaves of each word.

    Raises:
        ConfigError: the tree to load is missing, or there are no vectors to make a tree from.
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
    """Return vectors to learn a tree from, (V - 1, D). From a network, they are mean context vectors."""
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
        source: file of word vectors, see ``read_vectors``; or folder of a training run, for the output
            weights of its best model, or for the embedding if the model has a tree softmax.

    Returns:
        (V - 1, D) float32, zeros for words without a vector.

    Raises:
        FormatError: the file is invalid or has no vector of a word of the vocabulary.
        BundleError: the run has no network.
    """
    n_words = len(vocabulary) - 1
    ids, found = (
        _take_weights(source, vocabulary) if source.is_dir() else read_known_vectors(source, vocabulary)
    )
    vectors = np.zeros((n_words, found.shape[1]), dtype=np.float32)
    vectors[ids[ids < n_words]] = found[ids < n_words]  # without the last id, <s>, which is never predicted
    return vectors


def _take_weights(run: Path, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids, (K,), of the words that a run knows, and the run's vectors of them, (K, D)."""
    model, words = load_model(run / "best")
    has_tree = model.config.output == "tree"
    weight = model.network.embedding.weight if has_tree else model.output.word_weight
    pairs = [(i, words.ids[word]) for i, word in enumerate(vocabulary.words) if word in words.ids]
    ids, sources = np.array([pair for pair in pairs if pair[1] < model.config.n_words]).T
    return ids, weight.detach().numpy()[sources]

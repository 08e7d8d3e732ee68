"""Build binary trees of words for a tree softmax: Huffman trees, and trees learned from word vectors.

The vector of a word may be its mean context in a trained network. ``rescorer.models.tree_softmax`` says how
decisions and leaves are numbered.
"""

from __future__ import annotations

import heapq
from collections import deque
from pathlib import Path

import numpy as np
import torch

from rescorer.errors import ConfigError
from rescorer.models.network_files import Vocabulary
from rescorer.models.neural import NeuralModel, load_model
from rescorer_training.batches import Sentences
from rescorer_training.classes.brown import compute_neighbour_vectors, find_brown_clusters
from rescorer_training.classes.partition import choose_class_count
from rescorer_training.neural.options import NetworkOptions
from rescorer_training.neural.prepare import PreparedText, iterate_contexts
from rescorer_training.vectors.runs import read_known_vectors

MIN_SIDE_SHARE = 0.1
"""Minimum share of a decision's words on either side, which limits the length of paths."""
MOST_PLACES = 8
"""Largest number of leaves that a learned tree gives one word."""
MIN_SHARED_WORDS = 8
"""Smallest set of words in which some may go to both sides."""
SPLIT_ITERATIONS = 5
"""Iterations of power iteration, and of two-means, per decision; few suffice for a good split."""


def build_huffman_tree(counts: np.ndarray) -> np.ndarray:
    """Build the tree with the fewest decisions per word on average (Huffman 1952; Mikolov et al. 2013).

    Args:
        counts: (V,) occurrences of each word; words that never occur count as 0.5.
    """
    n_words = len(counts)
    heap = [(max(float(count), 0.5), n_words - 1 + word) for word, count in enumerate(counts)]
    heapq.heapify(heap)
    children = np.empty((n_words - 1, 2), dtype=np.int64)
    for decision in range(n_words - 2, -1, -1):  # from the leaves to the root, which is decision 0
        (rarest, first), (rare, second) = heapq.heappop(heap), heapq.heappop(heap)
        children[decision] = first, second
        heapq.heappush(heap, (rarest + rare, decision))
    return children


def build_vector_tree(
    vectors: np.ndarray, counts: np.ndarray, overlap: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Build a tree whose decisions separate words with dissimilar vectors (Mnih & Hinton 2009).

    Every set of words is split by weighted two-means that starts from the set's principal axis; the sizes of
    the two sides follow from the data. This is the paper's ADAPTIVE(ε) rule, with two hard means instead of
    two Gaussians, which give a word's responsibilities afterwards.

    Args:
        vectors: (V, D) vectors that are similar for similar words, such as an embedding or the result of
            ``compute_neighbour_vectors`` or ``compute_context_vectors``.
        counts: (V,) occurrences of each word; a word is weighted with the square root of its count.
        overlap: ε; a word whose responsibilities differ from 1/2 by at most ε goes to both sides, if it has
            fewer than ``MOST_PLACES`` leaves. 0 gives every word one leaf.

    Returns:
        (L-1, 2) children of each decision, and (V,) number of leaves of each word.

    Raises:
        ConfigError: the numbers of vectors and counts differ.
    """
    n_words = len(counts)
    if len(vectors) != n_words:
        raise ConfigError(f"{len(vectors)} vectors for {n_words} words; expected one per word")
    weights = np.sqrt(np.maximum(counts, 0.5))
    places = np.ones(n_words, dtype=np.int32)
    sides: list[list[int]] = []  # of each decision: another decision, or -1-w for a leaf of the word w
    pending = deque([np.arange(n_words)] if n_words > 1 else [])
    n_decisions = len(pending)
    while pending:
        words = pending.popleft()
        sides.append([])
        for part in _split(words, vectors, weights, places, overlap):
            if len(part) == 1:
                sides[-1].append(-1 - int(part[0]))
            else:
                sides[-1].append(n_decisions)
                pending.append(part)
                n_decisions += 1
    return _number_leaves(np.array(sides, dtype=np.int64).reshape(-1, 2)), places


def _number_leaves(sides: np.ndarray) -> np.ndarray:
    """Replace each -1-w by the number of the next leaf of the word w."""
    children, flat = sides.copy(), sides.ravel()
    at = np.flatnonzero(flat < 0)
    children.ravel()[at[np.argsort(-flat[at], kind="stable")]] = len(sides) + np.arange(len(at))
    return children


def _split(
    words: np.ndarray, vectors: np.ndarray, weights: np.ndarray, places: np.ndarray, overlap: float
) -> tuple[np.ndarray, np.ndarray]:
    """Split words by two-means of their vectors, with at least ``MIN_SIDE_SHARE`` of them on either side.

    Words that go to both sides get one more of ``places``, which is changed in place.
    """
    w = weights[words] / weights[words].sum()
    x = vectors[words] - w @ vectors[words]  # (n, D)
    axis = x[(x * x).sum(axis=1).argmax()]
    for _ in range(SPLIT_ITERATIONS):
        axis = (w * (x @ axis)) @ x
        axis /= max(float(np.linalg.norm(axis)), 1e-30)
    projection = x @ axis  # (n,)
    for _ in range(SPLIT_ITERATIONS):
        share = w @ (projection > 0)
        if not 0 < share < 1:
            break
        above = (w * (projection > 0)) @ x / share
        below = -above * share / (1 - share)  # the mean of all words is zero
        projection = x @ (above - below) - (above @ above - below @ below) / 2
    min_words = max(1, int(MIN_SIDE_SHARE * len(words)))
    n_first = np.clip(int((projection <= 0).sum()), min_words, len(words) - min_words)
    order = np.argsort(projection, kind="stable")
    first, second = order[:n_first], order[n_first:]
    if overlap and len(words) >= MIN_SHARED_WORDS:
        shared = np.abs(_responsibilities(x, w, first, second) - 0.5) <= overlap
        shared &= places[words] < MOST_PLACES
        places[words[shared]] += 1
        first, second = (np.union1d(side, np.flatnonzero(shared)) for side in (first, second))
    return words[first], words[second]


def _responsibilities(x: np.ndarray, w: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Probability of each vector's belonging to the second side, (n,).

    The sides are two equally probable Gaussians with one variance, the same in all directions.

    Args:
        x: (n, D) vectors.
        w: (n,) weights, which sum to 1.
        first, second: indices of the vectors of either side.
    """
    (first_distances, first_spread), (second_distances, second_spread) = (
        _squared_distances(x, w, side) for side in (first, second)
    )
    variance = max((first_spread + second_spread) / x.shape[1], 1e-30)
    logits = (first_distances - second_distances) / (2 * variance)
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -500, 500))))


def _squared_distances(x: np.ndarray, w: np.ndarray, side: np.ndarray) -> tuple[np.ndarray, float]:
    """Squared distance of each vector from a side's mean, (n,), and their weighted sum over the side."""
    mean = w[side] @ x[side] / w[side].sum()
    distances = ((x - mean) ** 2).sum(axis=1)
    return distances, float(w[side] @ distances[side])


PRIOR_OCCURRENCES = 2.0
"""Number of occurrences, with the mean of all context vectors, that are added to a word's own."""


def compute_context_vectors(
    model: NeuralModel, source: Vocabulary, text: Sentences, vocabulary: Vocabulary
) -> np.ndarray:
    """Average a network's context vectors over the occurrences of each word (Mnih & Hinton 2009).

    Words with similar vectors are predicted in similar contexts, so a decision between two sets of words is
    easy if their vectors differ. Every vector is relative to the mean of all.

    Args:
        source: vocabulary of the network; words that it does not have count as ``<unk>``.
        text: training text, encoded with ``vocabulary``.

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
        source: the folder of a training run, or a file of word vectors, see ``read_vectors``. For a run,
            the vectors are the output weights of its best model, or the embedding if the model has a tree
            softmax.

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
    vectors[ids[ids < n_words]] = found[ids < n_words]  # without <s>, the last id, which is never predicted
    return vectors


def _take_weights(run: Path, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Take the vectors of known words from a run: ids, (K,), and vectors, (K, D)."""
    model, words = load_model(run / "best")
    has_tree = model.config.output == "tree"
    weight = model.network.embedding.weight if has_tree else model.output.word_weight
    pairs = [(i, words.ids[word]) for i, word in enumerate(vocabulary.words) if word in words.ids]
    ids, sources = np.array([pair for pair in pairs if pair[1] < model.config.n_words]).T
    return ids, weight.detach().numpy()[sources]

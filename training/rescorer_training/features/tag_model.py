"""Induce parts of speech: a hidden Markov model of the words of sentences (Baum et al. 1970; Merialdo 1994).

Tags start as Brown clusters, one tag per cluster with a little of all others, and expectation maximisation
lets words have several tags, by the tags around them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer_training.classes.brown import find_brown_clusters
from rescorer_training.data.sentence_batches import Sentences, cut_into_batches
from rescorer_training.progress import track

ITERATIONS = 10
MAX_TRAINING_WORDS = 2_000_000
"""Number of words of the text, from its beginning, on which tags are trained."""
BATCH_WORDS = 50_000
OWN_SHARE = 0.9
"""Share of the tag of its cluster in what a word starts with; all tags share the rest."""
PRIOR_TRANSITIONS, PRIOR_WORDS = 0.1, 1e-3
"""Occurrences that are added to each pair of tags, and to each pair of a tag and a word."""


@dataclass(frozen=True, eq=False)
class TagModel:
    """Probabilities of K tags and of V words, float64."""

    start: np.ndarray
    """(K,) P(tag of the first word)."""
    transitions: np.ndarray
    """(K, K) P(next tag | tag), one row per tag."""
    words: np.ndarray
    """(V, K) P(word | tag), one column per tag; zeros for ``</s>`` and ``<s>``."""

    def tags_of_words(self) -> np.ndarray:
        """P(tag | word) under even tags, (V, K) float32; zeros for words without tags."""
        total = self.words.sum(axis=1, keepdims=True)
        return (self.words / np.where(total > 0, total, 1)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class ExpectedCounts:
    """How often tags are expected to occur in a text."""

    start: np.ndarray
    transitions: np.ndarray
    words: np.ndarray
    log_prob: float
    """ln P(text), in nats."""


def fit_tags(text: Sentences, n_words: int, n_tags: int) -> TagModel:
    """Induce tags from a text.

    Args:
        n_words: V, with ``<s>`` as the last word.

    Raises:
        ConfigError: there are fewer words than tags.
    """
    if n_words - 2 < n_tags:
        raise ConfigError(
            f"pos_tags is {n_tags}; expected at most {n_words - 2:,}, the number of words beside <s> and </s>"
        )
    n_sentences = int(np.searchsorted(np.cumsum(text.lengths), MAX_TRAINING_WORDS, side="right"))
    chosen = np.arange(min(max(n_sentences, 1), len(text.starts)))
    model = start_from_clusters(text, n_words, n_tags)
    batches = make_batches(text, chosen)
    with track("inducing parts of speech", "iterations", ITERATIONS) as task:
        for _ in range(ITERATIONS):
            model = reestimate([count_tags(model, words) for words in batches])
            task.advance(1)
    return model


def start_from_clusters(text: Sentences, n_words: int, n_tags: int) -> TagModel:
    """A model whose tags are Brown clusters, with even transitions."""
    clusters = find_brown_clusters(text.ids, n_words - 1, n_tags + 1) - 1  # without that of </s>
    counts = np.bincount(text.ids, minlength=n_words).astype(np.float64)
    shares = np.full((n_words, n_tags), (1 - OWN_SHARE) / n_tags)
    shares[np.arange(n_words - 1), clusters] += OWN_SHARE
    words = shares * counts[:, None]
    words[[0, -1]] = 0.0  # </s> and <s>
    even = np.full((n_tags, n_tags), 1 / n_tags)
    return TagModel(even[0], even, words / words.sum(axis=0))


def make_batches(text: Sentences, chosen: np.ndarray) -> list[np.ndarray]:
    """The words of some sentences, without ``</s>``: (B, T) ids padded with -1, sentences of equal lengths
    together."""
    order = chosen[np.argsort(text.lengths[chosen], kind="stable")]
    padded = (text.pad(text.ids, rows) for rows in cut_into_batches(order, text.lengths, BATCH_WORDS))
    return [np.where(rows == 0, -1, rows) for rows in padded]


def count_tags(model: TagModel, words: np.ndarray) -> ExpectedCounts:
    """Expect tags under a model by the forward-backward algorithm, normalised at each word.

    Args:
        words: (B, T) ids; -1 pads the ends of rows.

    Returns:
        Counts of first tags (K,), of pairs of tags (K, K) and of words with tags (V, K).
    """
    from scipy.sparse import csr_array

    n_rows, n_columns = words.shape
    exists = words >= 0
    emitted = np.where(exists[:, :, None], model.words[words], 1.0)  # (B, T, K)
    filtered, scales = np.empty_like(emitted), np.ones((n_rows, n_columns))
    expected = np.broadcast_to(model.start, (n_rows, len(model.start)))
    for t in range(n_columns):
        joint = expected * emitted[:, t]
        scales[:, t] = joint.sum(axis=1)
        filtered[:, t] = joint / scales[:, t, None]
        expected = filtered[:, t] @ model.transitions
    pairs = np.zeros_like(model.transitions)
    smoothed = np.empty_like(emitted)
    later = np.ones((n_rows, len(model.start)))  # P(words after t | tag at t), relative to its expectation
    for t in range(n_columns - 1, -1, -1):
        smoothed[:, t] = filtered[:, t] * later * exists[:, t, None]
        if t:
            weights = emitted[:, t] * later / scales[:, t, None]
            pairs += (filtered[:, t - 1] * exists[:, t, None]).T @ weights
            later = np.where(exists[:, t, None], weights @ model.transitions.T, later)
    n = int(exists.sum())
    occurrences = csr_array((np.ones(n), (words[exists], np.arange(n))), shape=(len(model.words), n))
    of_words = occurrences @ smoothed[exists]
    log_prob = float(np.log(scales[exists]).sum())
    return ExpectedCounts(smoothed[:, :1].sum(axis=(0, 1)), pairs * model.transitions, of_words, log_prob)


def reestimate(counts: list[ExpectedCounts]) -> TagModel:
    """The probabilities that expected counts give, with a few occurrences of everything added."""
    start = np.sum([part.start for part in counts], axis=0) + PRIOR_TRANSITIONS
    transitions = np.sum([part.transitions for part in counts], axis=0) + PRIOR_TRANSITIONS
    words = np.sum([part.words for part in counts], axis=0) + PRIOR_WORDS
    words[[0, -1]] = 0.0  # </s> and <s>
    return TagModel(
        start / start.sum(), transitions / transitions.sum(axis=1, keepdims=True), words / words.sum(axis=0)
    )

"""Multinomial naive Bayes over bags of words, the baseline of a classifier (McCallum & Nigam 1998)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer_training.data.labelled_sentences import LabelledSentences

SMOOTHING = 1.0
"""Added to the count of every word in every class (Laplace)."""


@dataclass(frozen=True)
class NaiveBayes:
    """ln P(class) and ln P(word | class), estimated from counts."""

    log_priors: np.ndarray
    """(C,) float64."""
    log_probs: np.ndarray
    """(C, V) float64; ``</s>``, which every sentence has once, is counted like a word, so that a class of
    short sentences is recognised by its ends."""

    @classmethod
    def fit(cls, text: LabelledSentences, n_labels: int, n_words: int) -> NaiveBayes:
        """Count the words of training sentences.

        Args:
            n_words: size of the vocabulary.
        """
        ids, sentence = _flatten(text)
        pairs = text.labels[sentence] * n_words + ids
        counts = np.bincount(pairs, minlength=n_labels * n_words).reshape(n_labels, n_words) + SMOOTHING
        priors = np.bincount(text.labels, minlength=n_labels) + SMOOTHING
        return cls(
            np.log(priors / priors.sum()),
            np.log(counts / counts.sum(axis=1, keepdims=True)),
        )

    def predict(self, text: LabelledSentences) -> np.ndarray:
        """Return the class probabilities of each sentence, (S, C) float64."""
        ids, sentence = _flatten(text)
        scores = np.tile(self.log_priors, (len(text.starts), 1))
        np.add.at(scores, sentence, self.log_probs.T[ids])
        scores -= scores.max(axis=1, keepdims=True)
        probs = np.exp(scores)
        return np.asarray(probs / probs.sum(axis=1, keepdims=True))


def _flatten(text: LabelledSentences) -> tuple[np.ndarray, np.ndarray]:
    """The ids of all sentences, and the number of the sentence of each."""
    sentence = np.repeat(np.arange(len(text.starts)), text.lengths)
    first = np.repeat(np.cumsum(text.lengths) - text.lengths, text.lengths)
    positions = np.repeat(text.starts, text.lengths) + np.arange(len(sentence)) - first
    return np.asarray(text.ids[positions], dtype=np.int64), sentence

"""Apply a classifier to encoded sentences, and to lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from rescorer.text import Normaliser
from rescorer.vocabulary import Vocabulary
from rescorer_training.classification.model import Classifier
from rescorer_training.classification.prepare import encode_sentences
from rescorer_training.data.sentence_batches import Sentences, cut_into_batches

BATCH_WORDS = 8192
"""Number of words per batch, including padding."""
LINES_PER_BATCH = 1000
"""Number of lines that are read before their predictions are made."""


@torch.no_grad()
def predict(model: Classifier, text: Sentences) -> np.ndarray:
    """Return the class probabilities of each sentence, (S, C) float64, in the order of the text."""
    probs = np.empty((len(text.starts), len(model.config.labels)))
    device = next(model.parameters()).device
    model.eval()
    order = np.argsort(text.lengths, kind="stable")
    for numbers in cut_into_batches(order, text.lengths, BATCH_WORDS):
        inputs, _ = text.pad_rows(numbers)
        vectors, _ = model.context_vectors(torch.from_numpy(inputs).to(device))
        probs[numbers] = model.output.distribution(vectors[:, 0]).double().exp().cpu().numpy()
    return probs


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one line of text."""

    label: str
    """The most probable class."""
    probabilities: dict[str, float]
    n_words: int
    n_unknown: int
    """Number of words that the classifier does not know. With only such words, or without any, it can only
    judge by their number."""


def predict_lines(
    model: Classifier, vocabulary: Vocabulary, normaliser: Normaliser, lines: Iterable[str]
) -> Iterator[Prediction]:
    """Yield one prediction per line, also for lines without words."""
    labels = model.config.labels
    remaining = iter(lines)
    while chunk := list(islice(remaining, LINES_PER_BATCH)):
        sentences = [normaliser.normalise(line) for line in chunk]
        probs = predict(model, encode_sentences(sentences, [0] * len(sentences), vocabulary))
        for words, row in zip(sentences, probs.tolist(), strict=True):
            n_unknown = sum(not vocabulary.is_known(word) for word in words)
            best = labels[int(np.argmax(row))]
            yield Prediction(best, dict(zip(labels, row, strict=True)), len(words), n_unknown)

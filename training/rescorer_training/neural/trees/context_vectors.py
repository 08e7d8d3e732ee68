"""A vector for each word from a trained network: the mean of the context vectors before the word."""

from __future__ import annotations

import numpy as np
import torch

from rescorer.lm.networks import NeuralModel
from rescorer.vocabulary import Vocabulary
from rescorer_training.data.sentence_batches import Sentences
from rescorer_training.neural.validation import iterate_contexts

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

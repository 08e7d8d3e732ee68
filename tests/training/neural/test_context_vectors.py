"""Mean context vectors: equal to a loop over the words of the text."""

from __future__ import annotations

import numpy as np
import torch

from rescorer.models.network_files import END, START, UNKNOWN, Vocabulary
from rescorer_training.batches import Sentences
from rescorer_training.neural.trees import PRIOR_OCCURRENCES, compute_context_vectors
from tests.support.tiny_models import random_network


def test_vectors_are_means_over_the_occurrences():
    """With a vocabulary in another order than the network's, and a word that the network does not know."""
    model, source = random_network()
    known = [word for word in source.words if word not in (END, UNKNOWN, START)]
    vocabulary = Vocabulary((END, UNKNOWN, "stranger", *reversed(known), START))
    ids = np.random.default_rng(0).integers(0, len(vocabulary) - 1, 60)
    ids[-1] = vocabulary.end
    text = Sentences.from_ids(ids, start_id=vocabulary.start, end_id=vocabulary.end, max_words=99)
    found = compute_context_vectors(model.eval(), source, text, vocabulary)

    vectors = {word: [] for word in (UNKNOWN, *source.words)}
    for sentence in np.split(ids, np.flatnonzero(ids == vocabulary.end)[:-1] + 1):
        words = [vocabulary.words[i] for i in sentence]
        encoded = [source.ids.get(word, source.unknown) for word in (START, *words)]
        with torch.no_grad():
            hidden = model.context_vectors(torch.tensor([encoded]))[0][0].double().numpy()
        for word, vector in zip(encoded[1:], hidden, strict=False):
            vectors[source.words[word]].append(vector)
    mean = np.mean([vector for group in vectors.values() for vector in group], axis=0)
    for word, vector in zip(vocabulary.words[:-1], found, strict=True):
        own = vectors[word if word in source.ids else UNKNOWN]
        expected = sum((h - mean for h in own), np.zeros_like(mean)) / (len(own) + PRIOR_OCCURRENCES)
        np.testing.assert_allclose(vector, expected, atol=1e-5)

"""Compare the scores of tries with their slow twin."""

from __future__ import annotations

import numpy as np

from rescorer.trie import build_trie
from tests.support.reference_scorer import reference_log_probs

ATOL, RTOL = 1e-5, 1e-6
"""Networks compute in float32: errors grow with the largest logit of an output, and exceed 1e-5 now and then
where ln P is below -20, for networks of every kind."""


def assert_scores_equal_reference(model, batch):
    """Check that a trie of (words, context) pairs has the scores of one hypothesis after another."""
    trie = build_trie(*zip(*batch, strict=True))
    scores = model.score(trie).log_probs
    for i, (words, context) in enumerate(batch):
        expected = reference_log_probs(model, words, context)
        np.testing.assert_allclose(scores[trie.path_edges(i)], expected, atol=ATOL, rtol=RTOL)

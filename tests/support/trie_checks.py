"""Compare the scores of tries with their slow twin."""

from __future__ import annotations

import numpy as np

from rescorer.lm.reference_scorer import reference_log_probs
from rescorer.trie import build_trie


def assert_scores_equal_reference(model, batch):
    """Check that a trie of (words, context) pairs has the scores of one hypothesis after another."""
    trie = build_trie(*zip(*batch, strict=True))
    scores = model.score(trie).log_probs
    for i, (words, context) in enumerate(batch):
        np.testing.assert_allclose(
            scores[trie.path_edges(i)], reference_log_probs(model, words, context), atol=1e-4
        )

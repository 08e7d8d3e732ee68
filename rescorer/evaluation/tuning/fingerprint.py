"""Fingerprint lists, so that weights can record which lists they were tuned on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from rescorer.reranking.reranker import Reranker
from rescorer.types import NBestList, Weights

HEX_DIGITS = 16
"""Length of a fingerprint. With 64 bits, the chance of a collision among a billion lists is a few percent."""


def fingerprint_list(nbest: NBestList) -> str:
    """Hash the id, the texts and the reference; rescaled scores and added fields do not change the hash."""
    content = [nbest.id, nbest.reference, [hypothesis.text for hypothesis in nbest.hypotheses]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:HEX_DIGITS]


def count_tuning_lists(
    weights: Weights, lists: Iterable[NBestList], rerankers: Iterable[Reranker] = ()
) -> int:
    """Count the lists that the weights were tuned on, or that one of the rerankers was trained on."""
    known = set(weights.tuned_on).union(*(reranker.tuned_on for reranker in rerankers))
    return sum(fingerprint_list(nbest) in known for nbest in lists) if known else 0

"""Owns how a list is recognised again, so that weights can say which lists tuned them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from rescorer.types import NBestList, Weights

HEX_DIGITS = 16
"""64 bits: among a billion lists, two would look alike with a chance of a few percent."""


def fingerprint(nbest: NBestList) -> str:
    """Of the id, the texts and the reference; scores may be rescaled and fields added."""
    content = [nbest.id, nbest.reference, [hypothesis.text for hypothesis in nbest.hypotheses]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:HEX_DIGITS]


def tuned_on(weights: Weights, lists: Iterable[NBestList]) -> int:
    """How many of the lists helped to choose the weights."""
    known = set(weights.tuned_on)
    return sum(fingerprint(nbest) in known for nbest in lists) if known else 0

"""Owns the perplexity of an n-gram model on a text, counted as KenLM's ``query`` does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rescorer.errors import FormatError
from rescorer.lm.ngram import LN_10, NgramModel


@dataclass(frozen=True, slots=True)
class NGramPerplexity:
    """What a model gives to a text; log-probabilities in nats."""

    log_prob: float
    """Of every word and every ``</s>``."""
    unknown_log_prob: float
    """The part of it that unknown words have."""
    n_tokens: int
    """Words and ``</s>``."""
    n_unknown: int

    @property
    def including_unknown(self) -> float:
        return math.exp(-self.log_prob / self.n_tokens)

    @property
    def excluding_unknown(self) -> float:
        """Over the known words only, which leaves every hard word out: compare with care."""
        return math.exp(-(self.log_prob - self.unknown_log_prob) / (self.n_tokens - self.n_unknown))


def perplexity(model: Path, sentences: Iterable[Sequence[str]]) -> NGramPerplexity:
    """Scores a text with a model file, ARPA or binary.

    Raises:
        BundleError: KenLM cannot read the model.
        FormatError: there is no sentence.
    """
    scorer = NgramModel(model, words=frozenset()).kenlm
    log_prob = unknown_log_prob = 0.0
    n_tokens = n_unknown = 0
    for words in sentences:
        for log10_prob, _, is_unknown in scorer.full_scores(" ".join(words)):
            log_prob += log10_prob * LN_10
            n_tokens += 1
            if is_unknown:
                unknown_log_prob += log10_prob * LN_10
                n_unknown += 1
    if not n_tokens:
        raise FormatError("no words in the text to measure a perplexity on")
    return NGramPerplexity(log_prob, unknown_log_prob, n_tokens, n_unknown)

"""Sum log-probabilities of texts and compute perplexities, for every model of a bundle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rescorer.errors import FormatError
from rescorer.types import TextScore


@dataclass(frozen=True, slots=True)
class TextTotals:
    """Sums over texts, which can be added with ``+``, unlike perplexities.

    Every word and every ``</s>`` is a token. Words that no model knows count as ``<unk>``, one more word of
    the vocabulary. All models are given the union of their vocabularies, so that their perplexities are
    comparable.
    """

    n_sentences: int = 0
    n_tokens: int = 0
    n_unknown: int = 0
    """Words that the n-gram model of the bundle does not know."""
    log_probs: Mapping[str, float] = field(default_factory=dict)
    """Sum of ln P over all tokens, by model."""

    @classmethod
    def from_score(cls, score: TextScore) -> TextTotals:
        log_probs = {name: math.fsum(values) for name, values in score.log_probs.items()}
        return cls(1, len(score.words) + 1, sum(score.unknown), log_probs)

    def __add__(self, other: TextTotals) -> TextTotals:
        names = {**self.log_probs, **other.log_probs}
        return TextTotals(
            self.n_sentences + other.n_sentences,
            self.n_tokens + other.n_tokens,
            self.n_unknown + other.n_unknown,
            {name: self.log_probs.get(name, 0.0) + other.log_probs.get(name, 0.0) for name in names},
        )

    def perplexity(self, model: str) -> float:
        """exp of the mean -ln P per token; raises FormatError if there are no tokens."""
        if not self.n_tokens:
            raise FormatError("no text to compute the perplexity of")
        return to_perplexity(self.log_probs[model], self.n_tokens)

    def to_dict(self) -> dict[str, Any]:
        return {
            "sentences": self.n_sentences,
            "tokens": self.n_tokens,
            "unknown_words": self.n_unknown,
            "log_prob": {name: round(value, 4) for name, value in self.log_probs.items()},
            "perplexity": {
                name: round(value, 3) if math.isfinite(value := self.perplexity(name)) else None
                for name in self.log_probs
            },
        }


def to_perplexity(log_prob: float, n_tokens: int) -> float:
    """exp of the mean -ln P per token; infinite if it is larger than any number."""
    try:
        return math.exp(-log_prob / n_tokens)
    except OverflowError:
        return math.inf


def sum_scores(scores: Iterable[TextScore]) -> TextTotals:
    """Add up the scores of texts."""
    totals = TextTotals()
    for score in scores:
        totals += TextTotals.from_score(score)
    return totals

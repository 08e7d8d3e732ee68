"""Owns the frozen stages a list passes through: ``NBestList`` in, ``RescoredList`` out; no computation.

All scores are natural-log, higher is better, whatever base and sign they had on their way in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One candidate sentence, as the recogniser wrote it."""

    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the client sent with it; handed back unread."""
    partial: bool = False
    """More words will follow: it is scored without the end of the sentence."""


@dataclass(frozen=True, slots=True)
class NBestList:
    """The candidates for one utterance, best first by the recogniser's own order."""

    id: str
    hypotheses: tuple[Hypothesis, ...]
    streams: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Named score streams, one value a hypothesis, in nats: ``{"acoustic": (-310.2, -311.9)}``."""
    context: str = ""
    """Words spoken before this utterance in the same sentence; every hypothesis continues them."""
    reference: str | None = None
    """What was said, where that is known; only evaluation and tuning read it."""
    group: str = ""
    """Speaker, conversation or fold; only evaluation and tuning read it."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the client sent with the list; handed back unread."""


@dataclass(frozen=True, slots=True)
class Weights:
    """How a total is made: Σ streams·s + Σ lm·log P + word·n_words + oov·n_oov.

    A stream without a weight counts 0 and is reported all the same; a stream with a weight that is not 0
    must be present in every list.
    """

    name: str = "unnamed"
    streams: Mapping[str, float] = field(default_factory=dict)
    lm: Mapping[str, float] = field(default_factory=lambda: {"mixture": 1.0})
    """Weights of the sentence log-probabilities, by LM name; ``mixture`` is the word-level mixture."""
    word: float = 0.0
    """Added once a canonical word (the word insertion penalty, with its sign)."""
    oov: float = 0.0
    """Added once a word that the mixture's n-gram does not know."""
    mixture: Mapping[str, float] = field(default_factory=dict)
    """λ of each component of the word-level mixture; sums to 1. Empty: the bundle's own."""
    tuned_on: tuple[str, ...] = ()
    """Fingerprints of the lists that tuned these weights."""


@dataclass(frozen=True, slots=True)
class RescoredHypothesis:
    """A hypothesis with its new place and everything that led to it."""

    text: str
    """The client's own text, untouched."""
    original_rank: int
    """0-based place in the list as it came, its index there; files and messages count from 1."""
    total: float
    log_posterior: float
    """ln of the total's softmax over the list."""
    components: Mapping[str, float]
    """Unweighted: each stream, each LM's log-probability, and the counts ``words`` and ``oov``."""
    merged_ranks: tuple[int, ...] = ()
    """0-based original places of the hypotheses that were merged into this one, its own among them; empty
    unless merging was asked for."""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RescoredList:
    """A list in its new order, best first."""

    id: str
    hypotheses: tuple[RescoredHypothesis, ...]
    weights: Weights
    model: str
    """Name and version of the bundle that scored it, ``name/version``."""
    reference: str | None = None
    group: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    context: str = ""
    degradation: str = ""
    """Where a service had no time for more and its caller allowed it: ``ngram``, scored by the n-gram alone;
    ``first_pass``, in the order it came. Empty: nothing is missing."""

    @property
    def best(self) -> RescoredHypothesis:
        return self.hypotheses[0]


@dataclass(frozen=True, slots=True)
class TextScore:
    """The language models' view of one text."""

    text: str
    words: tuple[str, ...]
    """Canonical words; the score sequences have one more value, for ``</s>``."""
    log_probs: Mapping[str, tuple[float, ...]]
    """ln P of each word and of the end of the sentence, by LM name."""
    unknown: tuple[bool, ...]
    """True where the mixture's n-gram does not know the word; one value a word."""

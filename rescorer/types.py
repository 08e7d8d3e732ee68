"""Immutable data types of rescoring, from ``NBestList`` to ``RescoredList``.

All scores are natural logarithms and higher is better, whatever their base and sign in the input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, did_you_mean, shorten

DISTANCE_COST = 5.0
"""Cost of one different phone in ``Generated.sound_match``, in which every phone of a phrase counts 1."""

Words = tuple[str, ...]
SENTENCE_END = "\n"
"""Stands for ``</s>`` in a context. No canonical word can equal it, because words contain no white space."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """Something that was said before the utterance of a list, in the same conversation."""

    text: str
    speaker: str = ""
    """The person who spoke, if known."""
    confidence: float = 1.0
    """Confidence that this was said, 0 to 1. Caches count its words in proportion."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """A name or phrase that is more likely than usual, such as a contact or a product."""

    text: str
    weight: float = 1.0
    """Credit per word, above 0, relative to other phrases; ``Weights.phrases`` turns credits into nats."""
    spellings: tuple[str, ...] = ()
    """Other spellings that the recogniser may use for the phrase."""
    slot: str = ""
    """Word such as ``$name`` that stood for such phrases in the training text of an n-gram; empty: none."""


@dataclass(frozen=True, slots=True)
class Generated:
    """Origin of a hypothesis that was made from another one by putting a phrase in place of some words."""

    source: int
    """0-based input rank of the source: the hypothesis that this one was made from, and has the scores of."""
    start: int
    """Index of the first replaced word in the source's text, which is split at white space."""
    end: int
    """Index after the last replaced word."""
    heard: str
    """The replaced words, as written in the source."""
    phrase: str
    """Text of the phrase, as sent."""
    distance: float
    """Distance between the sounds of ``heard`` and ``phrase``: 1 for each different phone, less for similar
    phones."""
    phones: int
    """Number of phones of the phrase."""
    further: tuple[Generated, ...] = ()
    """Replacements of later spans of the same source, which do not overlap."""

    @property
    def parts(self) -> tuple[Generated, ...]:
        """All replacements, in the order of their spans."""
        return (self, *self.further)

    @property
    def sound_match(self) -> float:
        """Sum over all replacements of the number of phones, less ``DISTANCE_COST`` times the distance.

        At the same distance, a long phrase is heard by chance less often than a short one.
        """
        own = self.phones - DISTANCE_COST * self.distance
        return own + sum(part.sound_match for part in self.further)


DecisionKind = Literal["maximum", "minimum_bayes_risk", "confusion_network"]
ErrorUnit = Literal["word", "character", "mixed"]
MAX_KNOTS = 100
"""Largest number of points of a ``ConfidenceMap``."""
MAX_CACHE_SHARE, DEFAULT_FLATNESS, MAX_FLATNESS = 0.5, 0.3, 100.0
"""Largest interpolation weight of a cache; default and largest θ of the neural cache."""
MAX_NUMBER = sys.float_info.max
"""Largest finite number in float64. Files may hold larger integers, which ``math.isfinite`` cannot judge."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One candidate transcription, as output by the recogniser."""

    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the hypothesis, returned unchanged."""
    partial: bool = False
    """Whether more words will follow; if so, the hypothesis is scored without the end of the sentence."""
    generated: Generated | None = None
    """Origin of a generated hypothesis; None if the recogniser made it."""


@dataclass(frozen=True, slots=True)
class NBestList:
    """Hypotheses for one utterance, ordered from best to worst by the recogniser."""

    id: str
    hypotheses: tuple[Hypothesis, ...]
    streams: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Scores in nats by stream name, one value per hypothesis: ``{"acoustic": (-310.2, -311.9)}``."""
    context: str = ""
    """Words that precede this utterance in the same sentence; every hypothesis continues them."""
    reference: str | None = None
    """Reference transcription, if known; used only by evaluation and tuning."""
    group: str = ""
    """Speaker, conversation or fold; used only by evaluation and tuning."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the list, returned unchanged."""
    previous: tuple[Utterance, ...] = ()
    """Whole utterances before this one in the conversation, oldest first. They are read by networks that
    carry their state across sentence boundaries or have topics, by rerankers, and by the caches. If there are
    too many, only the newest are read."""
    phrases: tuple[Phrase, ...] = ()
    """Names and phrases that are more likely in this utterance than usual."""


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """Rule by which the totals of a list decide its order or its text.

    Raises:
        ConfigError: a value is not one of those described.
    """

    kind: DecisionKind = "maximum"
    """``maximum``: largest total first, which gives the fewest wrong sentences; ``minimum_bayes_risk``:
    fewest expected errors first; ``confusion_network``: largest total first, and in addition the consensus of
    all hypotheses, which may be a text that none of them has."""
    unit: ErrorUnit = "word"
    """Errors to minimise, see ``rescorer.text.units`` (``minimum_bayes_risk`` only)."""
    temperature: float = 1.0
    """Temperature of the rule's posteriors, above 0: they are the softmax of total / temperature. At high
    temperatures all hypotheses count alike. The rule ``maximum`` does not depend on the temperature."""

    def __post_init__(self) -> None:
        for name, value, known in (
            ("kind", self.kind, get_args(DecisionKind)),
            ("unit", self.unit, get_args(ErrorUnit)),
        ):
            if value not in known:
                text = shorten(str(value), MAX_QUOTED_CHARS)
                choices = ", ".join(known)
                raise ConfigError(
                    f"decision.{name} is {text!r}; expected one of {choices}{did_you_mean(text, known)}"
                )
        number = isinstance(self.temperature, (int, float)) and not isinstance(self.temperature, bool)
        if not (number and 0 < self.temperature <= MAX_NUMBER):
            raise ConfigError(
                f"decision.temperature is {shorten(repr(self.temperature), MAX_QUOTED_CHARS)}; expected a "
                "finite number above 0"
            )
        if self.kind == "confusion_network" and self.unit != "word":
            raise ConfigError(
                f"decision.unit is {self.unit!r}, but a confusion network decides word by word; expected "
                "'word', or decision.kind 'minimum_bayes_risk'"
            )


MAXIMUM = DecisionRule()
"""The default rule: the hypothesis with the largest total."""


@dataclass(frozen=True, slots=True)
class ConfidenceMap:
    """Turns posteriors into confidences: a temperature, then a monotone piecewise-linear function.

    The function is constant before its first point and after its last one.

    Raises:
        ConfigError: a value is not one of those described.
    """

    temperature: float
    """Temperature of the posteriors, above 0: they are the softmax of total / temperature over a list."""
    posteriors: tuple[float, ...]
    """Posteriors at the points of the function, 0 to 1, ascending; at most ``MAX_KNOTS``."""
    confidences: tuple[float, ...]
    """Confidences at these points, above 0 and below 1, nowhere descending."""

    def __post_init__(self) -> None:
        for problem in self._find_problems():
            raise ConfigError(problem)

    def _find_problems(self) -> Iterator[str]:
        posteriors, confidences = self.posteriors, self.confidences
        for name, values in (("posteriors", posteriors), ("confidences", confidences)):
            if not 1 <= len(values) <= MAX_KNOTS:
                yield f"{name} has {len(values)} values; expected 1 to {MAX_KNOTS}"
        if len(posteriors) != len(confidences):
            counts = f"{len(posteriors)} posteriors for {len(confidences)} confidences"
            yield f"{counts}; expected as many of either"
        if not 0 < self.temperature <= MAX_NUMBER:
            yield f"temperature is {self.temperature!r}; expected a finite number above 0"
        given = [shorten(str(list(values)), MAX_QUOTED_CHARS) for values in (posteriors, confidences)]
        if not all(0 <= value <= 1 for value in posteriors):
            yield f"posteriors are {given[0]}; expected numbers from 0 to 1"
        if not all(0 < value < 1 for value in confidences):
            yield f"confidences are {given[1]}; expected numbers above 0 and below 1"
        if any(after <= before for before, after in pairwise(posteriors)):
            yield f"posteriors are {given[0]}; expected each to be larger than the one before"
        if any(after < before for before, after in pairwise(confidences)):
            yield f"confidences are {given[1]}; expected none smaller than the one before"


@dataclass(frozen=True, slots=True)
class Calibration:
    """Maps of posteriors to the probability that the best hypothesis, or one of its words, is right."""

    utterance: ConfidenceMap | None = None
    """Map for whole hypotheses; None: these weights give them no confidence."""
    word: ConfidenceMap | None = None
    """Map for words; None: these weights give them no confidence."""


@dataclass(frozen=True, slots=True)
class WordConfidence:
    """A word of a hypothesis, as written in its text, and the probability that it is right."""

    word: str
    confidence: float | None
    """None if the normaliser drops the word, such as a filler."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the components of a total.

    The total is Σ streams·score + Σ lm·log P + word·n_words + oov·n_oov + Σ rerankers·score, plus ``empty``
    for hypotheses without words. Every list must have all streams whose weight is not 0. Streams without a
    weight are still reported.
    """

    name: str = "unnamed"
    streams: Mapping[str, float] = field(default_factory=dict)
    lm: Mapping[str, float] = field(default_factory=lambda: {"mixture": 1.0})
    """Weights of sentence log-probabilities, by LM name; ``mixture`` is the word-level mixture of all LMs."""
    word: float = 0.0
    """Word insertion penalty, added once per canonical word; negative values favour short hypotheses."""
    oov: float = 0.0
    """Added once per word that is unknown to the bundle's n-gram model."""
    mixture: Mapping[str, float] = field(default_factory=dict)
    """Interpolation weights of the word-level mixture, with sum 1; if empty, those of the bundle apply."""
    tuned_on: tuple[str, ...] = ()
    """Fingerprints of the lists on which these weights were tuned."""
    decision: DecisionRule = MAXIMUM
    """Rule by which the totals decide, unless a request has its own."""
    calibration: Calibration | None = None
    """Maps totals under these weights to confidences; None for weights that were not calibrated."""
    empty: float = 0.0
    """Added if the hypothesis has no canonical words; language models like such hypotheses too much."""
    tuned_with: Mapping[str, bool] = field(default_factory=dict)
    """Whether equal hypotheses were merged (``merge``) and empty ones dropped (``drop_empty``) in tuning."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """Error rates in percent on lists that were not used for tuning. ``wer``: that of these weights;
    ``wer_low``, ``wer_high``: its interval; ``start_wer``: that of the weights before tuning; ``gain``: the
    difference of the two; ``gain_low``: one-sided lower bound of the gain at 97.5 %; ``p``: its p-value."""
    phrases: float | None = None
    """Weight of the credits of phrases, at least 0, in totals of lists that have any. None: a credit of 1
    counts as much as one nat of all language models, Σ lm."""
    generated: float | None = None
    """Added to the total of a generated hypothesis for each replaced span; the lower it is, the fewer
    generated hypotheses win. None: ``weights.DEFAULT_GENERATED`` times Σ lm."""
    sound_match: float | None = None
    """Weight of ``Generated.sound_match``, at least 0. None: ``weights.DEFAULT_SOUND_MATCH`` times
    Σ lm."""
    rerankers: Mapping[str, float] = field(default_factory=dict)
    """Weights of the scores of the bundle's rerankers, by name. Every list must have the streams that these
    rerankers need, and the λ must be those with which they were trained."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Weights of further columns, by the names that their components give them."""
    cache: float = 0.0
    """Interpolation weight of the cache of the session in the mixture, 0 (off) to ``MAX_CACHE_SHARE``."""
    neural_cache: float = 0.0
    """Interpolation weight of the neural cache in the mixture, 0 (off) to ``MAX_CACHE_SHARE``."""
    flatness: float = DEFAULT_FLATNESS
    """θ of the neural cache, above 0, at most ``MAX_FLATNESS``. The larger θ, the more similar an earlier
    state of the network must be for its word to count; see ``models.contexts``."""


@dataclass(frozen=True, slots=True)
class RescoredHypothesis:
    """A re-ranked hypothesis with its total and the components of the total."""

    text: str
    """Text of the hypothesis as it was in the input."""
    original_rank: int
    """0-based rank in the input list; files and messages count from 1."""
    total: float
    """Weighted sum of the components, by which the list is ranked."""
    log_posterior: float
    """Natural logarithm of the softmax of the totals over the list, at temperature 1.

    This is not a calibrated confidence. It depends on how far the totals are apart, and totals of long
    utterances are far apart even if all hypotheses are wrong."""
    components: Mapping[str, float]
    """Unweighted scores of each stream and each LM, the counts ``words`` and ``oov``, and ``reranker:NAME``
    for each reranker with a weight. ``cache`` and ``neural_cache`` are the changes that these caches made to
    ``mixture``."""
    merged_ranks: tuple[int, ...] = ()
    """0-based input ranks of the hypotheses merged into this one, including itself; empty without merging."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    expected_errors: float | None = None
    """Expected number of wrong words or characters, by which minimum Bayes risk ranks; None under other
    rules."""
    confidence: float | None = None
    """Probability that all words are right, if the weights are calibrated; only for the best hypothesis."""
    word_confidences: tuple[WordConfidence, ...] = ()
    """The probability that each word of the text is right; only for the best hypothesis, and if the weights
    are calibrated for words."""
    generated: Generated | None = None
    """Origin of a hypothesis that was not in the input. Original ranks of such hypotheses follow those of the
    input."""


@dataclass(frozen=True, slots=True)
class ConsensusWord:
    """A word of the consensus of a list."""

    word: str
    """Canonical word."""
    posterior: float
    """Sum of the posteriors of the hypotheses with this word at this place, above 0, at most 1; not
    calibrated."""
    start_s: float | None = None
    """Mean start in seconds over the hypotheses with the word here, weighted by their posteriors; None if
    none of them has times."""
    duration_s: float | None = None
    """Mean duration in seconds over the same hypotheses; None if none of them has times."""
    text: str = ""
    """Spelling of the word in the first hypothesis that has it here; empty: that of the canonical word."""

    @property
    def surface(self) -> str:
        """The word as it is written in a text."""
        return self.text or self.word


@dataclass(frozen=True, slots=True)
class RescoredList:
    """A re-ranked list, best hypothesis first."""

    id: str
    hypotheses: tuple[RescoredHypothesis, ...]
    weights: Weights
    model: str
    """Bundle that scored the list, as ``name/version``."""
    reference: str | None = None
    group: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    context: str = ""
    degradation: str = ""
    """Simplification of the scoring by a busy service, with the caller's permission.

    ``ngram``: scored only by the n-gram model; ``first_pass``: in input order. Empty: fully scored.
    """
    dropped_ranks: tuple[int, ...] = ()
    """0-based input ranks of the empty hypotheses that were dropped on request. Every hypothesis of the input
    is in these ranks, or in ``original_rank`` or ``merged_ranks`` of an answered hypothesis."""
    decision: DecisionRule | None = MAXIMUM
    """Rule that was applied; None if the list is in input order because a busy service did not score it."""
    consensus: tuple[ConsensusWord, ...] = ()
    """Words that a confusion network decided for, which may be a text that no hypothesis has; empty under
    other rules."""
    consensus_rank: int | None = None
    """0-based input rank of the best hypothesis with the canonical words of the consensus; None if no
    hypothesis has them, or under other rules."""
    previous: tuple[Utterance, ...] = ()

    @property
    def best(self) -> RescoredHypothesis:
        return self.hypotheses[0]


@dataclass(frozen=True, slots=True)
class TextScore:
    """Language model scores of one text, word by word."""

    text: str
    words: tuple[str, ...]
    """Canonical words of the text."""
    log_probs: Mapping[str, tuple[float, ...]]
    """Log-probabilities in nats, by LM name: one per word, then one for the end of the sentence."""
    unknown: tuple[bool, ...]
    """Whether each word is unknown to the bundle's n-gram model."""

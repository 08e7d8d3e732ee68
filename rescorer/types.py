"""Immutable data types of rescoring, from ``NBestList`` to ``RescoredList``.

All scores are natural logarithms and higher is better, whatever their base and sign in the input.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args, overload

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, did_you_mean, pluralise, quote, shorten
from rescorer.notebook import Shown, Table, document_fields, format_short, list_names, rename_equal

DISTANCE_COST = 5.0
"""Cost of one different phone in ``Generated.sound_match``, to which each phone of a phrase adds 1."""

Words = tuple[str, ...]
SENTENCE_END = "\n"
"""Marks the end of a sentence, ``</s>``, in a context. Canonical words have no white space, so none equals
it."""


@document_fields
@dataclass(frozen=True, slots=True)
class Utterance:
    """Something that was said before the utterance of a list, in the same conversation."""

    text: str
    speaker: str = ""
    """The person who spoke, if known."""
    confidence: float = 1.0
    """Confidence that this was said, 0 to 1. Caches count each of its words as this fraction of a word."""


@document_fields
@dataclass(frozen=True, slots=True)
class Phrase:
    """A name or phrase that is more likely than usual, such as a contact or a product."""

    text: str
    weight: float = 1.0
    """Credit for each word of the phrase, above 0: how likely the phrase is, compared with other phrases.
    ``Weights.phrases`` converts credits to nats."""
    spellings: tuple[str, ...] = ()
    """Other spellings that the recogniser may use for the phrase."""
    slot: str = ""
    """Word such as ``$name`` that replaced such phrases in the training text of an n-gram; empty: none."""


@document_fields
@dataclass(frozen=True, slots=True)
class Generated:
    """Origin of a generated hypothesis: another hypothesis, in which a phrase has replaced some words."""

    source: int
    """0-based input rank of the source: this hypothesis was made from it, and has its scores."""
    start: int
    """Index of the first replaced word in the source's text, which is split at white space."""
    end: int
    """Index after the last replaced word."""
    heard: str
    """The replaced words, as written in the source."""
    phrase: str
    """Text of the phrase, as sent."""
    distance: float
    """Distance between the sounds of ``heard`` and ``phrase``: about 1 for each phone that differs, or less
    if a phone is replaced by a similar one."""
    phones: int
    """Number of phones of the phrase."""
    further: tuple[Generated, ...] = ()
    """Other replacements in the same hypothesis, of later spans of the source. Spans do not overlap."""

    @property
    def parts(self) -> tuple[Generated, ...]:
        """All replacements, in the order of their spans."""
        return (self, *self.further)

    @property
    def sound_match(self) -> float:
        """Measure of how well all replacements match what was heard, the higher the better.

        It sums, over the replacements, the phones of the phrase minus ``DISTANCE_COST`` times the distance.
        Phones count because a long phrase is less often heard by chance than a short one at the same
        distance.
        """
        own = self.phones - DISTANCE_COST * self.distance
        return own + sum(part.sound_match for part in self.further)


MAX_SHOWN_CHARS = 60
"""Longest text that the line about an object quotes in full."""
DecisionKind = Literal["maximum", "minimum_bayes_risk", "confusion_network"]
ErrorUnit = Literal["word", "character", "mixed"]
MAX_KNOTS = 100
"""Largest number of points of a ``ConfidenceMap``."""
MAX_CACHE_SHARE, DEFAULT_FLATNESS, MAX_FLATNESS = 0.5, 0.3, 100.0
"""Largest interpolation weight of a cache; default θ of the neural cache; and its largest θ."""
LENGTH = "length"
"""Degradation of a list with a hypothesis that is too long for the table of positions of a model."""
MAX_NUMBER = sys.float_info.max
"""Largest finite float64. ``math.isfinite`` raises OverflowError for larger integers, as files may hold."""


@document_fields
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


class PlainHypotheses(Sequence[Hypothesis]):
    """Hypotheses that have nothing but texts. They equal a tuple of ``Hypothesis``, which is made only when
    one of them is asked for."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    @cached_property
    def _made(self) -> tuple[Hypothesis, ...]:
        return tuple(map(Hypothesis, self.texts))

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[Hypothesis]:
        return iter(self._made)

    @overload
    def __getitem__(self, index: int) -> Hypothesis: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hypothesis, ...]: ...
    def __getitem__(self, index: int | slice) -> Hypothesis | tuple[Hypothesis, ...]:
        return self._made[index]

    def __eq__(self, other: object) -> bool:
        return self._made == (other._made if isinstance(other, PlainHypotheses) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._made)


@document_fields
@dataclass(frozen=True, slots=True, repr=False)
class NBestList(Shown):
    """Hypotheses for one utterance, ordered from best to worst by the recogniser."""

    id: str
    """Name of the list, which answers and errors repeat. It need not be unique."""
    hypotheses: Sequence[Hypothesis]
    """The candidate transcriptions, best first."""
    streams: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Scores in nats by stream name, one value per hypothesis: ``{"acoustic": (-310.2, -311.9)}``."""
    context: str = ""
    """Words that precede this utterance in the same sentence; every hypothesis continues them."""
    reference: str | None = None
    """Reference transcription, if known; used only by evaluation and tuning."""
    group: str = ""
    """Name of the list's speaker, conversation or fold; used only by evaluation and tuning."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the list, returned unchanged."""
    previous: tuple[Utterance, ...] = ()
    """Whole utterances before this one in the conversation, oldest first. Readers are: networks that carry
    their state across sentence boundaries, networks with topics, rerankers, and the caches. If there are too
    many utterances, only the newest are read."""
    phrases: tuple[Phrase, ...] = ()
    """Names and phrases that are more likely in this utterance than usual."""

    @property
    def is_plain(self) -> bool:
        """Whether it is known without a look at each hypothesis that all have nothing but texts."""
        return isinstance(self.hypotheses, PlainHypotheses)

    @property
    def texts(self) -> Sequence[str]:
        """Text of each hypothesis."""
        if isinstance(self.hypotheses, PlainHypotheses):
            return self.hypotheses.texts
        return [hypothesis.text for hypothesis in self.hypotheses]

    def _summary(self) -> str:
        count = pluralise(len(self.hypotheses), "hypothesis", "hypotheses")
        first = f" from {quote(self.hypotheses[0].text, MAX_SHOWN_CHARS)}" if self.hypotheses else ""
        streams = f", streams {list_names(self.streams)}" if self.streams else ", no scores"
        return f"{quote(self.id, MAX_SHOWN_CHARS)}, {count}{first}{streams}"

    def _table(self) -> Table:
        texts = self.texts
        columns: dict[str, Sequence[Any]] = {"rank": range(1, len(texts) + 1), "text": texts}
        return Table(repr(self), columns | rename_equal(self.streams, columns, "streams"))


@document_fields
@dataclass(frozen=True, slots=True)
class DecisionRule:
    """Rule that turns the totals of a list into an order of its hypotheses, or into a text.

    Raises:
        ConfigError: a value is not one of those described.
    """

    kind: DecisionKind = "maximum"
    """``maximum``: largest total first, which gives the fewest wrong sentences; ``minimum_bayes_risk``:
    fewest expected errors first; ``confusion_network``: largest total first, and in addition the consensus of
    all hypotheses, which may be a text that none of them has."""
    unit: ErrorUnit = "word"
    """Unit of the errors to minimise, see ``rescorer.text.units``; used only by ``minimum_bayes_risk``."""
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


@document_fields
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
    """Posterior at each point of the function, 0 to 1, ascending; at most ``MAX_KNOTS`` points."""
    confidences: tuple[float, ...]
    """Confidence at each of these points, above 0 and below 1; it never falls from one point to the next."""

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


@document_fields
@dataclass(frozen=True, slots=True)
class Calibration:
    """Maps of posteriors to the probability that the best hypothesis, or one of its words, is right."""

    utterance: ConfidenceMap | None = None
    """Map for whole hypotheses; None: whole hypotheses get no confidence under these weights."""
    word: ConfidenceMap | None = None
    """Map for words; None: words get no confidence under these weights."""


@document_fields
@dataclass(frozen=True, slots=True)
class WordConfidence:
    """A word of a hypothesis, as written in its text, and the probability that it is right."""

    word: str
    confidence: float | None
    """Probability that the word is right; None if the normaliser drops the word, such as a filler."""


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """Identifies a language model of another toolkit, and how it scores sentences."""

    source: str
    """SHA-256 of its configuration, parameters and tokenizer as the toolkit wrote them, in hexadecimal."""
    start: int | None
    """Number of the unit before every sentence; None: there is none."""
    end: int | None = None
    """Number of the unit that ends a sentence; None: ends are not scored."""
    text: str = "canonical"
    """How words are written: as the normaliser writes them (``canonical``), or in upper case (``upper``)."""
    whole: bool | None = None
    """Whether texts are divided into pieces as a whole, because words by themselves are divided otherwise.
    Weights of versions that did not record it have None."""

    def fits(self, recorded: ImportedModel) -> bool:
        """Whether this is the model that weights record."""
        return recorded == (self if recorded.whole is not None else replace(self, whole=None))


@document_fields
@dataclass(frozen=True, slots=True, repr=False)
class Weights(Shown):
    """Weights of the components of a total.

    The total is Σ streams·score + Σ lm·log P + word·n_words + oov·n_oov + Σ rerankers·score, plus ``empty``
    for hypotheses without words. Every list must have all streams whose weight is not 0. Streams without a
    weight are still reported.
    """

    name: str = "unnamed"
    """Name of the set, by which answers and messages refer to it."""
    streams: Mapping[str, float] = field(default_factory=dict)
    """Weights of the scores that the recogniser gave, by name of the stream."""
    lm: Mapping[str, float] = field(default_factory=lambda: {"mixture": 1.0})
    """Weights of the log-probabilities of a sentence, by LM name; ``mixture`` mixes all LMs word by word."""
    word: float = 0.0
    """Word insertion penalty, added once per canonical word; negative values favour short hypotheses."""
    oov: float = 0.0
    """Added once per word that is unknown to the bundle's n-gram model."""
    mixture: Mapping[str, float] = field(default_factory=dict)
    """Interpolation weights of the word-level mixture, with sum 1; if empty, those of the bundle apply."""
    tuned_on: tuple[str, ...] = ()
    """Fingerprints of the lists on which these weights were tuned."""
    decision: DecisionRule = MAXIMUM
    """Rule that turns totals into a decision, unless a request gives another rule."""
    calibration: Calibration | None = None
    """Maps from posteriors under these weights to confidences; None if the weights were not calibrated."""
    empty: float = 0.0
    """Added to hypotheses without canonical words, because language models score these too high."""
    tuned_with: Mapping[str, bool] = field(default_factory=dict)
    """Options of tuning: whether equal hypotheses were merged (``merge``), and empty ones dropped
    (``drop_empty``)."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """Error rates in percent on lists that were not used for tuning. ``wer``: that of these weights;
    ``wer_low``, ``wer_high``: its interval; ``start_wer``: that of the weights before tuning; ``gain``: the
    ``start_wer`` minus ``wer``; ``gain_low``: one-sided lower bound of the gain at 97.5 %; ``p``: p-value of
    the gain."""
    phrases: float | None = None
    """Weight of the component ``phrases``, at least 0. It counts only in lists in which phrases were found.
    None: Σ lm, so that a credit of 1 counts as much as one nat of all language models."""
    generated: float | None = None
    """Added to the total of a generated hypothesis for each replaced span, and usually negative: the lower
    the number, the fewer generated hypotheses win. None: ``weights.DEFAULT_GENERATED`` times Σ lm."""
    sound_match: float | None = None
    """Weight of ``Generated.sound_match``, at least 0. None: ``weights.DEFAULT_SOUND_MATCH`` times
    Σ lm."""
    rerankers: Mapping[str, float] = field(default_factory=dict)
    """Weights of the scores of the bundle's rerankers, by name. Every list must have the streams that these
    rerankers need, and ``mixture`` and the caches must have the λ with which the rerankers were trained."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Weights of columns that further components add, by the name of the column."""
    cache: float = 0.0
    """Interpolation weight of the cache of words in the mixture, 0 (off) to ``MAX_CACHE_SHARE``."""
    neural_cache: float = 0.0
    """Interpolation weight of the neural cache in the mixture, 0 (off) to ``MAX_CACHE_SHARE``."""
    flatness: float = DEFAULT_FLATNESS
    """Parameter θ of the neural cache, above 0, at most ``MAX_FLATNESS``. The larger θ is, the more an
    earlier state of the network must resemble the present one for its word to count; see
    ``models.contexts``."""
    imported: Mapping[str, ImportedModel] = field(default_factory=dict)
    """The models of other toolkits with which these weights were tuned, by name; see ``--lm`` of `rescorer
    tune`."""

    def by_option(self) -> dict[str, float]:
        """Return the weights of the total by their names in the option ``-w``, such as ``lm:mixture``."""
        models = {f"lm:{name}": value for name, value in self.lm.items()}
        counts = {"word": self.word, "oov": self.oov, "empty": self.empty}
        rerankers = {f"reranker:{name}": value for name, value in self.rerankers.items()}
        return {**self.streams, **models, **counts, **rerankers, **self.components}

    def _summary(self) -> str:
        used = (f"{name}={value:g}" for name, value in self.by_option().items() if value)
        return f"{quote(self.name, MAX_SHOWN_CHARS)}, {list_names(used) or 'all 0'}"

    def _table(self) -> Table:
        shares = {f"mix:{name}": value for name, value in self.mixture.items()}
        caches = {"mix:cache": self.cache, "mix:neural_cache": self.neural_cache}
        values = {**self.by_option(), **shares, **{name: value for name, value in caches.items() if value}}
        heading = repr(self)
        if {"wer", "start_wer"} <= self.held_out.keys():
            rates = (format_short(self.held_out[name]) for name in ("wer", "start_wer"))
            heading += ": {} % errors on held-out lists, {} % before tuning".format(*rates)
        return Table(heading, {"weight": list(values), "value": list(values.values())})


@document_fields
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
    """Unweighted values by name: the score of each stream and each LM, the counts ``words`` and ``oov``, and
    ``reranker:NAME`` for each reranker with a weight. ``cache`` and ``neural_cache`` are the changes of
    ``mixture`` by these caches, which it includes."""
    merged_ranks: tuple[int, ...] = ()
    """0-based input ranks of the hypotheses merged into this one, including itself; empty without merging."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the hypothesis, as they were in the input."""
    expected_errors: float | None = None
    """Expected number of wrong words or characters, by which minimum Bayes risk ranks; None under other
    rules."""
    confidence: float | None = None
    """Probability that all words are right; only for the best hypothesis, and under calibrated weights."""
    word_confidences: tuple[WordConfidence, ...] = ()
    """Words of the text, each with the probability that it is right. Empty unless this is the best hypothesis
    and the weights are calibrated for words."""
    generated: Generated | None = None
    """Origin of a hypothesis that was not in the input; None for others. The ``original_rank`` of such a
    hypothesis comes after those of all hypotheses of the input."""


@document_fields
@dataclass(frozen=True, slots=True)
class ConsensusWord:
    """A word of the consensus of a list."""

    word: str
    """Canonical word."""
    posterior: float
    """Sum of the posteriors of all hypotheses that have this word at this place: above 0, at most 1, not
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


@document_fields
@dataclass(frozen=True, slots=True, repr=False)
class RescoredList(Shown):
    """A re-ranked list, best hypothesis first."""

    id: str
    """Name of the list, as it was in the input."""
    hypotheses: tuple[RescoredHypothesis, ...]
    """All hypotheses, best first."""
    weights: Weights
    """The weights by which the totals were made."""
    model: str
    """Bundle that scored the list, as ``name/version``."""
    reference: str | None = None
    """Reference transcription, if the input had it."""
    group: str = ""
    """Speaker, conversation or fold, as it was in the input."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of the list, as they were in the input."""
    context: str = ""
    """Words that precede the utterance in the same sentence, as they were in the input."""
    degradation: str = ""
    """Why the list was not fully scored; empty if it was.

    A busy service used simpler scoring, as the caller had permitted: ``ngram``: scored only by the n-gram
    model; ``first_pass``: in input order. ``length``: a hypothesis is too long for the positions of a model,
    whose scores are 0 for the whole list.
    """
    dropped_ranks: tuple[int, ...] = ()
    """0-based input ranks of the empty hypotheses that were dropped on request. The rank of every other
    hypothesis is the ``original_rank``, or one of the ``merged_ranks``, of a hypothesis of the answer."""
    decision: DecisionRule | None = MAXIMUM
    """Rule that was applied; None if the list is in input order because a busy service did not score it."""
    consensus: tuple[ConsensusWord, ...] = ()
    """Words that a confusion network decided for, which may be a text that no hypothesis has; empty under
    other rules."""
    consensus_rank: int | None = None
    """0-based input rank of the best hypothesis with the canonical words of the consensus; None if no
    hypothesis has them, or under other rules."""
    previous: tuple[Utterance, ...] = ()
    """Utterances before this one in the conversation, as they were in the input."""
    previous_unread_by: tuple[str, ...] = ()
    """Language models in pieces of words that have a weight, but did not read ``previous``."""

    @property
    def best(self) -> RescoredHypothesis:
        """The hypothesis that the decision rule ranks first."""
        return self.hypotheses[0]

    def _summary(self) -> str:
        count = pluralise(len(self.hypotheses), "hypothesis", "hypotheses")
        best = f"{quote(self.best.text, MAX_SHOWN_CHARS)} of {count}, total {format_short(self.best.total)}"
        by = f"weights {quote(self.weights.name, MAX_SHOWN_CHARS)}"
        return f"{quote(self.id, MAX_SHOWN_CHARS)}, {best}, {by}"

    def _table(self) -> Table:
        found, names = self.hypotheses, {name: None for one in self.hypotheses for name in one.components}
        columns: dict[str, Sequence[Any]] = {
            "rank": range(1, len(found) + 1),
            "was": [one.original_rank + 1 for one in found],
            "text": [one.text for one in found],
            "total": [one.total for one in found],
        }
        for name in ("confidence", "expected_errors"):
            if any(getattr(one, name) is not None for one in found):
                columns[name] = [getattr(one, name) for one in found]
        components = {name: [one.components.get(name) for one in found] for name in names}
        return Table(repr(self), columns | rename_equal(components, columns, "components"))


@document_fields
@dataclass(frozen=True, slots=True)
class TextScore:
    """Language model scores of one text, word by word."""

    text: str
    words: tuple[str, ...]
    """Canonical words of the text."""
    log_probs: Mapping[str, tuple[float, ...]]
    """Log-probabilities in nats, by LM name: one per word, then one for the end of the sentence. Models that
    score no words, and models for which the text is too long, are left out."""
    unknown: tuple[bool, ...]
    """Whether each word is unknown to the bundle's n-gram model."""

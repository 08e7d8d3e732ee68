"""Components: each adds a number to every hypothesis, such as a stream's score, a log-probability or a count.

``batch`` and ``ranker`` prepare, score and rank lists by going through the components of a request, and know
no feature by name. A component defines everything about a feature: which fields ask for it, how it prepares
a list, which scores it asks for, its columns, and upper bounds of its bytes and steps. This module has the
components that every list may have; ``rescorer.extensions`` adds those that only some requests use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from rescorer.errors import ConfigError, quote
from rescorer.list_checks import SpokenWords, check_lengths, join_history, normalise_previous
from rescorer.models.bundle import Bundle
from rescorer.models.language_model import mix_scores
from rescorer.scoring.options import RescoreOptions
from rescorer.trie import EdgeScores, Words, text_lengths
from rescorer.types import DecisionRule, NBestList, PlainHypotheses, Weights
from rescorer.units.tokens import NO_WORD_STARTS, UNREADABLE, UnitCounter, WordDivider, read_divider
from rescorer.weights import EMPTY, MIXTURE, OOV, WORDS

if TYPE_CHECKING:
    from rescorer.scoring.batch import Batch, ScoredPart, ScoreRequest
    from rescorer.trie import WordEncoder

Columns = dict[str, np.ndarray]
"""One number per hypothesis of a list, (H,) float64, by the name of the column."""
EdgeScoresByModel = Mapping[str, EdgeScores]
Asked = Generator["ScoreRequest", EdgeScoresByModel, None]
"""A generator that yields requests for scores, and is sent the scores that answer each."""


class Interpolation(Protocol):
    """Scores that are interpolated with those of the mixture, word by word, such as the scores of a cache."""

    def interpolate(self, log_probs: np.ndarray, edges: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the log-probabilities of some edges after interpolation, (n,)."""


class AskedBy(NamedTuple):
    """Names of the fields that ask for a component. A field asks if its value is neither empty nor 0."""

    options: tuple[str, ...] = ()
    """Fields of ``RescoreOptions``."""
    weights: tuple[str, ...] = ()
    """Fields of ``Weights``."""
    lists: tuple[str, ...] = ()
    """Fields of ``NBestList``. Each list that sets one of them has the component."""
    hypotheses: tuple[str, ...] = ()
    """Fields of ``Hypothesis``. Each list whose last hypothesis sets one of them has the component."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundOptions:
    """Options of a request that were checked against a bundle, with complete weights and components."""

    weights: Weights
    decision: DecisionRule
    components: tuple[Component, ...]
    """Components that lists of the request may have, in the order of their columns."""
    optional: frozenset[str] = frozenset()
    """Names of the components that a list has only if it asks for them."""
    merge: bool = False
    drop_empty: bool = False
    keep_order: bool = False
    """Leave lists in input order, because they were not scored."""

    @property
    def compares_texts(self) -> bool:
        """Whether answers depend on which hypotheses have the same words."""
        is_calibrated = self.weights.calibration is not None
        return self.merge or self.drop_empty or is_calibrated or self.decision.kind != "maximum"

    def components_of(self, nbest: NBestList) -> tuple[Component, ...]:
        """Return the components that a list has under these options."""
        if not self.optional:
            return self.components
        of_list = (c for c in self.components if c.name not in self.optional or c.is_asked_by_list(nbest))
        return tuple(of_list)


@dataclass(frozen=True, slots=True)
class PreparedList:
    """A list that was checked and normalised, ready to be scored."""

    nbest: NBestList
    words: Sequence[Words]
    """Canonical words of each hypothesis, as models read them; equal texts share one object. They may be
    ``NumberedTexts``, of which a trie is built fast."""
    context: Words
    """Words before the hypotheses in the same sentence."""
    options: BoundOptions
    components: tuple[Component, ...]
    """Components that the list has under these options."""
    spoken: tuple[SpokenWords, ...] = ()
    """Previous utterances of the conversation, oldest first."""
    history: Words = ()
    """All words that models read before the hypotheses; see ``list_checks.join_history``."""
    confidences: tuple[float, ...] = ()
    """Confidence of each previous utterance of the history; empty: all are certain."""
    flatness: float = 0.0
    """θ of the neural cache; 0: the list has no neural cache."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Data that each component kept when it prepared the list, by the component's name."""
    surfaces: tuple[Words, ...] = ()
    """Words of each hypothesis as its text is written. Empty if no model of the bundle reads these."""
    surface_history: Words = ()
    """``history`` in words as texts are written, for the same models."""
    n_units: int = 0
    """Number of pieces of words that models of the bundle score; a prefix of words that hypotheses share
    counts once for each model."""
    unread: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Indices of the hypotheses that are too long for a model, by the name of the model. All its scores of
    the list are 0."""
    word_models: frozenset[str] = frozenset()
    """Names of the models in pieces of words of which the list needs probabilities of words, besides those
    that its mixture needs."""
    compared: Sequence[Words] = ()
    """Words of each hypothesis by which merging and decision rules compare it with others. See
    ``ListRanker.text_normaliser``. Empty if the options compare no hypotheses."""

    @property
    def word_counts(self) -> np.ndarray:
        """(H,) int64, number of canonical words of each hypothesis."""
        return text_lengths(self.words)

    def without_previous(self) -> PreparedList:
        """This list without its previous utterances."""
        surface_history = split_text(self.nbest.context) if self.surfaces else ()
        return replace(self, spoken=(), history=self.context, surface_history=surface_history)


def split_text(text: str) -> Words:
    """The words of a text as they are written."""
    return tuple(text.split())


class Outline(NamedTuple):
    """A list with its weights and options, not checked yet, from which upper bounds are computed.

    Each may be an object of this package or a protobuf message, since both have fields of the same names.
    """

    nbest: Any
    weights: Any
    """Weights, of which some may be missing."""
    options: Any


class Growth(NamedTuple):
    """An upper bound of the hypotheses that a component adds to a list."""

    n_hypotheses: int
    bytes_each: int
    """Upper bound of the size of one such hypothesis in an answer, without its columns."""
    text: str
    """A text as long as the longest such hypothesis can be."""


class ScoredList(NamedTuple):
    """A list, and the parts of scored batches with its scores. Components make columns from these scores."""

    prepared: PreparedList
    parts: Sequence[ScoredPart]
    """Parts that together have all hypotheses of the list; empty: the list was not scored."""
    options: BoundOptions
    """Options by which the list is ranked. It was prepared with others if a busy service uses a fallback."""

    @property
    def weights(self) -> Weights:
        return self.options.weights

    def gather(self, sums: Callable[[Batch], Mapping[str, np.ndarray]]) -> Columns:
        """Collect the rows of this list from arrays that have a row for every hypothesis of a batch.

        Args:
            sums: returns such arrays by name.

        Returns:
            (H, …) arrays by name, one row per hypothesis of the list.
        """
        n, columns = len(self.prepared.words), Columns()
        for part in self.parts:
            for name, values in sums(part.batch).items():
                if part.indices == range(n):  # the usual case
                    columns[name] = values[part.rows].copy()
                else:
                    column = columns.setdefault(name, np.empty((n, *values.shape[1:])))
                    column[np.array(part.indices)] = values[part.rows]
        return columns


class Component:
    """Adds a number to every hypothesis; see the head of this module.

    A component is made once for a bundle and used from any thread. Every method has a default that does
    nothing, so that a subclass defines only the methods that it needs.

    Args:
        normalise: returns the canonical words of a text.
    """

    name: ClassVar[str]
    """Name of the component, and key of its notes."""
    asked_by: ClassVar[AskedBy | None] = None
    """Fields that ask for the component. None: it is asked for by a weight of one of its columns in
    ``Weights.components``."""
    columns: tuple[str, ...] = ()
    """Names that its columns can have. Streams of lists must not have these names."""
    always: bool = False
    """Whether all lists have the component."""
    joins_lists: ClassVar[bool] = False
    """Whether it makes the columns of many lists at once, joined to one, as it would make them of each list:
    from the scores of a hypothesis, its words and its streams alone."""
    needs_scores: ClassVar[bool] = False
    """Whether its columns need scores of models. If so, lists that were not scored are ranked without it."""

    def __init__(self, bundle: Bundle, normalise: Callable[[str], Words]) -> None:
        self.bundle, self.normalise = bundle, normalise

    # For a request

    def is_asked(self, options: RescoreOptions, weights: Weights) -> bool:
        """Whether all lists of a request have the component."""
        return (
            self.always
            or self.is_weighted(weights)
            or (self.asked_by is not None and any(getattr(options, name) for name in self.asked_by.options))
        )

    def is_weighted(self, weights: Weights) -> bool:
        """Whether weights ask for the component."""
        if self.asked_by is None:
            return any(weights.components.get(name) for name in self.columns)
        return any(getattr(weights, name) for name in self.asked_by.weights)

    def is_asked_by_list(self, nbest: NBestList) -> bool:
        """Whether a list itself asks for the component. This matters only if its request does not."""
        if self.asked_by is None:
            return False
        is_plain = isinstance(nbest.hypotheses, PlainHypotheses)
        last = nbest.hypotheses[-1] if nbest.hypotheses and not is_plain else None
        return any(getattr(nbest, name) for name in self.asked_by.lists) or any(
            getattr(last, name, None) for name in self.asked_by.hypotheses
        )

    def complete(self, weights: Weights) -> Weights:
        """Return weights in which this component has filled in the values that were left out."""
        return weights

    def without_models(self, weights: Weights, models: Collection[str] | None) -> Weights:
        """Return weights that do without this component's columns, if these need scores that are missing.

        Args:
            models: names of the models that have scored a list; None: it was not scored at all.
        """
        return weights

    def bind(self, options: RescoreOptions, weights: Weights) -> Component:
        """Return the component for the lists of a request that asks for it, set up by the request's options.

        Raises:
            ConfigError, LimitExceeded: the options do not fit the bundle or the limits.
        """
        return self

    # For a list, before scoring

    def extend(self, prepared: PreparedList) -> PreparedList:
        """Return the list with the hypotheses that this component adds.

        Raises:
            InvalidList: the list cannot be scored under these options; ``prepare`` and ``add_columns`` raise
                it too.
        """
        return prepared

    def prepare(self, prepared: PreparedList) -> PreparedList:
        """Check a list after all components have extended it, and return it with this component's notes."""
        return prepared

    # For a batch

    def encoders(self, weights: Weights) -> Mapping[str, WordEncoder]:
        """Return the word encoders that the component needs, by the names that their encodings shall have."""
        return {}

    def word_models(self, weights: Weights) -> Collection[str]:
        """Return the names of the models in pieces of words whose probabilities of words it needs."""
        return ()

    def ask(self, batch: Batch) -> Asked:
        """Ask for scores in addition to those of the batch's trie.

        If several lists of a batch have a component of this name, it asks once, for all of these lists.
        """
        yield from ()

    def interpolations(self, batch: Batch, weights: Weights) -> Mapping[str, Interpolation]:
        """Return interpolations of the mixture. The key of each is the name of the column with its change."""
        return {}

    def mixture_key(self, weights: Weights) -> Hashable:
        """Return the weights on which ``interpolations`` depends, apart from the λ of the mixture."""
        return None

    # For a scored list

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        """Add this component's columns to ``columns``. It may read and change those of earlier components."""

    # Upper bounds, before anything is made

    def column_names(self, outline: Outline) -> Iterable[str]:
        """Return the names of those columns of this component that the answer to a list may have."""
        nbest, weights, options = outline
        return self.columns if self.is_asked(options, weights) or self.is_asked_by_list(nbest) else ()

    def growth(self, outline: Outline) -> Growth | None:
        """Return an upper bound of the hypotheses that ``extend`` may add to a list; None: it adds none."""
        return None

    def steps_by_size(self, request: Any) -> int:
        """Return an upper bound of the steps of ``extend`` and ``prepare`` for all lists of a request.

        It follows from the sizes of texts alone: nothing has been checked or normalised yet.

        Args:
            request: a message with ``lists`` and the fields of ``RescoreOptions``.
        """
        return 0

    def steps_to_extend(self, prepared: PreparedList) -> int:
        """Return an upper bound of the steps of ``extend``, such as comparisons of two words or phones.

        Raises the same errors as ``extend``.
        """
        return 0

    def steps_to_prepare(self, prepared: PreparedList) -> int:
        """Return an upper bound of the steps of ``prepare``; raises the same errors as ``prepare``."""
        return 0

    def steps_to_rank(self, prepared: PreparedList, weights: Weights) -> int:
        """Return an upper bound of the steps of ``add_columns``, in the unit of ``decision.count_steps``."""
        return 0

    def tokens(self, prepared: PreparedList) -> int:
        """Return an upper bound of the tokens of a list for which ``ask`` requests scores."""
        return 0


class Streams(Component):
    """The score streams of a list."""

    name = "streams"
    asked_by = AskedBy()
    always = True
    joins_lists = True

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        streams = scored.prepared.nbest.streams.items()
        columns |= {name: np.array(values, dtype=np.float64) for name, values in streams}

    def column_names(self, outline: Outline) -> Iterable[str]:
        streams = outline.nbest.streams
        return streams if isinstance(streams, Mapping) else [stream.name for stream in streams]


class LanguageModels(Component):
    """The log-probability of each hypothesis by each language model."""

    name = "models"
    asked_by = AskedBy()
    always = True
    joins_lists = True
    needs_scores = True

    def __init__(self, bundle: Bundle, normalise: Callable[[str], Words]) -> None:
        super().__init__(bundle, normalise)
        self.columns = tuple(bundle.model_kinds)
        self._counters = {name: UnitCounter.read(bundle.files, facts) for name, facts in bundle.units.items()}

    def prepare(self, prepared: PreparedList) -> PreparedList:
        """Divide texts as they are written into words, if models of the bundle read these, and count pieces.

        If a model in pieces of words can read the list, but not after its previous utterances, all models
        score it without these.

        Raises:
            InvalidList: a text as it is written has too many words.
        """
        nbest, bundle = prepared.nbest, self.bundle
        if bundle.surface:
            surfaces, context = (
                tuple(split_text(one.text) for one in nbest.hypotheses),
                split_text(nbest.context),
            )
            check_lengths(nbest.id, [*map(len, surfaces)], context)
            is_read = not bundle.surface.isdisjoint(bundle.reads_previous)
            said = normalise_previous(nbest.previous, split_text) if is_read else ()
            history = join_history((one.words for one in said), context)
            prepared = replace(prepared, surfaces=surfaces, surface_history=history)
        prepared = self._count(prepared)
        if prepared.unread and prepared.spoken:  # rather without what was said before than not at all
            alone = self._count(prepared.without_previous())
            prepared = alone if len(alone.unread) < len(prepared.unread) else prepared
        return prepared

    def _count(self, prepared: PreparedList) -> PreparedList:
        """Count the pieces of texts and histories, and find the models for which some are too long."""
        n_units, unread = 0, dict[str, Collection[int]]()
        for name, counter in self._counters.items():
            texts, history = prepared.words, prepared.history
            if name in self.bundle.surface:
                texts, history = prepared.surfaces, prepared.surface_history
            counted = counter.count(texts, history)
            n_units += counted.total
            limit = self.bundle.units[name].n_positions or UNREADABLE - 1
            if max(counted.lengths.values(), default=0) > limit:
                unread[name] = {i for i, text in enumerate(texts) if counted.lengths[text] > limit}
        return replace(prepared, n_units=n_units, unread=unread)

    def ask(self, batch: Batch) -> Asked:
        """Ask the models that read texts as they are written for their scores."""
        if self.bundle.surface.intersection(batch.models or self.bundle.surface):
            from rescorer.scoring.batch import ScoreRequest

            encoders = batch.find_encoders()
            batch.surface_scores = yield ScoreRequest(
                batch.surface_trie, batch.models, encoders, surface=True
            )

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        """Add the log-probabilities. Those of models that cannot read the list are 0."""
        columns |= scored.gather(lambda batch: batch.once("models", lambda: self._sum(batch)))
        for name in scored.prepared.unread.keys() & columns.keys():
            columns[name] = np.zeros(len(scored.prepared.words))

    def _sum(self, batch: Batch) -> Columns:
        found = {name: part.sum_paths(batch.trie, batch.partial) for name, part in batch.scores.items()}
        for name, part in batch.surface_scores.items():
            found[name] = part.sum_paths(batch.surface_trie, batch.partial)
        return {name: found[name] for name in self.columns if name in found}


class Mixture(Component):
    """The log-probability of each hypothesis by the word-level mixture of the language models."""

    name = MIXTURE
    asked_by = AskedBy()
    always = True
    joins_lists = True
    needs_scores = True
    columns = (MIXTURE,)

    def __init__(self, bundle: Bundle, normalise: Callable[[str], Words]) -> None:
        super().__init__(bundle, normalise)
        self._dividers: dict[str, WordDivider] = {}

    def bind(self, options: RescoreOptions, weights: Weights) -> Component:
        """Raise ConfigError if the mixture has a model in pieces of words that do not say where words end."""
        for name in self.word_models(weights):
            if name not in self._dividers:
                facts = self.bundle.units[name]
                folder = self.bundle.files.subfolder(facts.folder)
                self._dividers[name] = read_divider(folder, facts.text, facts.units, whole=facts.is_whole)
            if self._dividers[name].word_starts is None:
                raise ConfigError(f"mixture names the model {quote(name)}, {NO_WORD_STARTS}")
        return self

    def word_models(self, weights: Weights) -> Collection[str]:
        return {name for name, share in weights.mixture.items() if share and name in self.bundle.units}

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        if not scored.weights.mixture:  # there are only models in pieces of words
            if scored.prepared.options.weights.mixture:  # for which the list is too long
                columns[MIXTURE] = np.zeros(len(scored.prepared.words))
            return
        if found := scored.gather(lambda batch: sum_mixture(batch, scored.options)):
            columns[MIXTURE] = found[MIXTURE]


def interpolate_mixture(batch: Batch, options: BoundOptions) -> Mapping[str, Interpolation]:
    """Return the interpolations of a batch's mixture under some options, in the order in which they apply.

    The key of each is the name of the column with its change.
    """

    def compute() -> Mapping[str, Interpolation]:
        return {
            name: interpolation
            for component in options.components
            for name, interpolation in component.interpolations(batch, options.weights).items()
        }

    return batch.once(("interpolations", _mixture_key(options)), compute)


def sum_mixture(batch: Batch, options: BoundOptions) -> Columns:
    """Return two kinds of columns for all hypotheses of a batch: the log-probability by the mixture, and the
    change that each interpolation makes to it.

    Lists with the same mixture share one computation.
    """

    def compute() -> Columns:
        mixed = mix_scores(batch.scores, options.weights.mixture)
        sums = {MIXTURE: mixed.sum_paths(batch.trie, batch.partial)}
        for name, interpolation in interpolate_mixture(batch, options).items():
            mixed = replace(mixed, log_probs=interpolation.interpolate(mixed.log_probs))
            changed = mixed.sum_paths(batch.trie, batch.partial)
            sums |= {MIXTURE: changed, name: changed - sums[MIXTURE]}
        return sums

    return batch.once((MIXTURE, _mixture_key(options)), compute)


def _mixture_key(options: BoundOptions) -> Hashable:
    """Return the options on which the mixture of a batch depends."""
    shares = tuple(options.weights.mixture.items())
    return shares, tuple(component.mixture_key(options.weights) for component in options.components)


class UnknownWords(Component):
    """The number of words of each hypothesis that the bundle's n-gram does not know."""

    name = OOV
    asked_by = AskedBy()
    always = True
    joins_lists = True
    needs_scores = True
    columns = (OOV,)

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        columns |= scored.gather(lambda batch: batch.once(OOV, lambda: self._count(batch)))

    def _count(self, batch: Batch) -> Columns:
        if self.bundle.ngram in self.bundle.open_vocabulary:
            return {OOV: np.zeros(len(batch.trie.hypothesis_node))}
        return {OOV: batch.scores[self.bundle.ngram].count_unknown(batch.trie)}


class WordCount(Component):
    """The number of canonical words of each hypothesis. The component ``empty`` follows from this number."""

    name = WORDS
    asked_by = AskedBy()
    always = True
    joins_lists = True
    columns = (WORDS, EMPTY)

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        columns[WORDS] = scored.prepared.word_counts.astype(np.float64)

    def column_names(self, outline: Outline) -> Iterable[str]:
        return (WORDS,)


def reserved_names(components: Iterable[Component]) -> frozenset[str]:
    """Return the names of all columns. Streams of lists must not have these names."""
    return frozenset(name for component in components for name in component.columns)


def weighted_columns(kinds: Iterable[type[Component]]) -> tuple[str, ...]:
    """Return the names of the columns whose weights are in ``Weights.components``."""
    return tuple(name for kind in kinds if kind.asked_by is None for name in kind.columns)


def find_by_name(components: Collection[Component]) -> dict[str, Component]:
    """Return the components by name, in their order. Of several with the same name, the last is kept."""
    return {component.name: component for component in components}

"""Components: what adds a number to a hypothesis, such as a score stream, a language model or a count.

Lists are prepared, scored, summed and ranked by going through the components of a request; nothing here or in
``batch`` and ``ranker`` knows a feature by name. What belongs to a feature stands in its component: what it
needs from a list, what it asks to be scored, its columns, and upper bounds of the bytes and steps that it
takes. ``rescorer.extensions`` lists the components beyond those of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from rescorer.combination import EMPTY, MIXTURE, OOV, WORDS
from rescorer.list_checks import SpokenWords
from rescorer.models.bundle import Bundle
from rescorer.models.language_model import mix_scores
from rescorer.scoring.options import RescoreOptions
from rescorer.trie import EdgeScores, Words
from rescorer.types import DecisionRule, NBestList, Weights

if TYPE_CHECKING:
    from rescorer.scoring.batch import Batch, ScoredPart, ScoreRequest
    from rescorer.trie import WordEncoder

Columns = dict[str, np.ndarray]
"""Numbers of the hypotheses of a list by name, (H,) float64 each."""
EdgeScoresByModel = Mapping[str, EdgeScores]
Asked = Generator["ScoreRequest", EdgeScoresByModel, None]
"""Yields what is to be scored, and is sent the scores of each."""


class Interpolation(Protocol):
    """Scores with which a mixture is interpolated word by word."""

    def interpolate(self, log_probs: np.ndarray, edges: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Interpolate scores of some edges, (n,)."""


class AskedBy(NamedTuple):
    """Names of fields that ask for a component where they are not empty or 0."""

    options: tuple[str, ...] = ()
    """Fields of ``RescoreOptions``."""
    weights: tuple[str, ...] = ()
    """Fields of ``Weights``."""
    lists: tuple[str, ...] = ()
    """Fields of ``NBestList``; other lists of the same request do without the component."""
    hypotheses: tuple[str, ...] = ()
    """Fields of the last hypothesis of a list, likewise."""


@dataclass(frozen=True, slots=True, eq=False)
class BoundOptions:
    """Options that fit a bundle: complete weights, and the components of a request."""

    weights: Weights
    decision: DecisionRule
    components: tuple[Component, ...]
    """Those that lists may have, in the order of their columns."""
    optional: frozenset[str] = frozenset()
    """Names of those that only lists which ask for them have."""
    merge: bool = False
    drop_empty: bool = False
    keep_order: bool = False
    """Leave lists in input order, because they were not scored."""

    @property
    def compares_texts(self) -> bool:
        """Whether answers depend on which texts have the same words, besides the models' scores."""
        is_calibrated = self.weights.calibration is not None
        return self.merge or self.drop_empty or is_calibrated or self.decision.kind != "maximum"

    def components_of(self, nbest: NBestList) -> tuple[Component, ...]:
        """The components that a list has."""
        if not self.optional:
            return self.components
        of_list = (c for c in self.components if c.name not in self.optional or c.is_asked_by_list(nbest))
        return tuple(of_list)


@dataclass(frozen=True, slots=True)
class PreparedList:
    """A checked list in canonical words, ready to be scored."""

    nbest: NBestList
    words: tuple[Words, ...]
    """Words of each hypothesis as models read them; equal texts share one object."""
    context: Words
    """Words before the hypotheses in the same sentence."""
    options: BoundOptions
    components: tuple[Component, ...]
    """Those that the list has under these options."""
    spoken: tuple[SpokenWords, ...] = ()
    """Utterances before the sentence, oldest first."""
    history: Words = ()
    """All words that models read before the hypotheses; see ``list_checks.join_history``."""
    confidences: tuple[float, ...] = ()
    """Confidence of each previous utterance of the history; empty: all are certain."""
    flatness: float = 0.0
    """θ of the neural cache; 0: there is none."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Kept by components of the list, by the name of the component."""
    compared: tuple[Words, ...] = ()
    """Words of each hypothesis as texts are compared, where the options compare any; see
    ``ListRanker.text_normaliser``."""


class Outline(NamedTuple):
    """A list before anything is made of it, for upper bounds: objects, or the messages of
    these, whose fields have the same names."""

    nbest: Any
    weights: Any
    """They need not be complete."""
    options: Any


class Growth(NamedTuple):
    """An upper bound of the hypotheses that a component adds to a list."""

    n_hypotheses: int
    bytes_each: int
    """Largest size of each in an answer, besides its columns."""
    text: str
    """A text as long as the longest of them can become."""


class ScoredList(NamedTuple):
    """A list and the batches that have its scores, for components to make columns from."""

    prepared: PreparedList
    parts: Sequence[ScoredPart]
    """Together all hypotheses of the list; empty: the list was not scored."""
    options: BoundOptions
    """Those by which it is ranked, which may differ from those by which it was prepared."""

    @property
    def weights(self) -> Weights:
        return self.options.weights

    def gather(self, sums: Callable[[Batch], Mapping[str, np.ndarray]]) -> Columns:
        """Collect the rows of this list from arrays over all hypotheses of its batches, (H, …) by name."""
        n, columns = len(self.prepared.words), Columns()
        for part in self.parts:
            for name, values in sums(part.batch).items():
                if part.indices == range(n):  # the usual case
                    columns[name] = values[part.rows].copy()
                else:
                    column = columns.setdefault(name, np.empty((n, *values.shape[1:])))
                    column[list(part.indices)] = values[part.rows]
        return columns


class Component:
    """A number that hypotheses get: what it needs from a list, asks to be scored, adds, and costs at most.

    A component is made once for a bundle and used from any thread. Every method has a default that does
    nothing, so that a class says only what its component has.

    Args:
        normalise: returns the canonical words of a text.
    """

    name: ClassVar[str]
    """Under which lists keep its notes."""
    asked_by: ClassVar[AskedBy | None] = None
    """Fields that ask for it; None: a weight of one of its columns in ``Weights.components`` does."""
    columns: tuple[str, ...] = ()
    """Names that its columns can have, which no stream may have."""
    always: bool = False
    """Whether all lists have it."""
    needs_scores: ClassVar[bool] = False
    """Whether its columns need the scores of models, so that lists that were not scored do without it."""

    def __init__(self, bundle: Bundle, normalise: Callable[[str], Words]) -> None:
        self.bundle, self.normalise = bundle, normalise

    # For a request

    def is_asked(self, options: RescoreOptions, weights: Weights) -> bool:
        """Whether all lists of a request have it."""
        return (
            self.always
            or self.is_weighted(weights)
            or (self.asked_by is not None and any(getattr(options, name) for name in self.asked_by.options))
        )

    def is_weighted(self, weights: Weights) -> bool:
        """Whether weights ask for it."""
        if self.asked_by is None:
            return any(weights.components.get(name) for name in self.columns)
        return any(getattr(weights, name) for name in self.asked_by.weights)

    def is_asked_by_list(self, nbest: NBestList) -> bool:
        """Whether a list asks for it, if its request does not."""
        if self.asked_by is None:
            return False
        last = nbest.hypotheses[-1] if nbest.hypotheses else None
        return any(getattr(nbest, name) for name in self.asked_by.lists) or any(
            getattr(last, name, None) for name in self.asked_by.hypotheses
        )

    def complete(self, weights: Weights) -> Weights:
        """Fill in what weights leave open."""
        return weights

    def without_models(self, weights: Weights, models: Collection[str] | None) -> Weights:
        """Weights that do without this component, if its column needs scores that are missing.

        Args:
            models: names of the models that have scored a list; None: it was not scored at all.
        """
        return weights

    def bind(self, options: RescoreOptions, weights: Weights) -> Component:
        """The component as a request that asks for it uses it.

        Raises:
            ConfigError, LimitExceeded: the options do not fit.
        """
        return self

    # For a list, before scoring

    def extend(self, prepared: PreparedList) -> PreparedList:
        """Add hypotheses.

        Raises:
            InvalidList: the list cannot be scored under these options; likewise below.
        """
        return prepared

    def prepare(self, prepared: PreparedList) -> PreparedList:
        """Check a list with all of its hypotheses, and note what will be needed of it."""
        return prepared

    # For a batch

    def encoders(self, weights: Weights) -> Mapping[str, WordEncoder]:
        """Encoders of words whose results it needs, by the name that these get."""
        return {}

    def ask(self, batch: Batch) -> Asked:
        """Ask for scores besides those of the batch's trie.

        One of the components of this name asks for all lists of the batch, whatever the options of each.
        """
        yield from ()

    def interpolations(self, batch: Batch, weights: Weights) -> Mapping[str, Interpolation]:
        """Interpolations of the mixture, by the column that says what each changed."""
        return {}

    def mixture_key(self, weights: Weights) -> Hashable:
        """The weights on which ``interpolations`` depends besides the λ of the mixture."""
        return None

    # For a scored list

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        """Add columns to those of the components before it, or change them."""

    # Upper bounds, before anything is made

    def column_names(self, outline: Outline) -> Iterable[str]:
        """Names of the columns that an answer to a list may have."""
        nbest, weights, options = outline
        return self.columns if self.is_asked(options, weights) or self.is_asked_by_list(nbest) else ()

    def growth(self, outline: Outline) -> Growth | None:
        """The hypotheses that it may add to a list; None: it adds none."""
        return None

    def steps_to_extend(self, prepared: PreparedList) -> int:
        """Steps of ``extend``, such as comparisons of a word or a phone with another; raises likewise."""
        return 0

    def steps_to_prepare(self, prepared: PreparedList) -> int:
        """Steps of ``prepare``, likewise."""
        return 0

    def steps_to_rank(self, prepared: PreparedList, weights: Weights) -> int:
        """Steps of ``add_columns``, in units of ``decision.count_steps``."""
        return 0

    def tokens(self, prepared: PreparedList) -> int:
        """Tokens that ``ask`` has scored for a list."""
        return 0


class Streams(Component):
    """The score streams of a list."""

    name = "streams"
    asked_by = AskedBy()
    always = True

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
    needs_scores = True

    def __init__(self, bundle: Bundle, normalise: Callable[[str], Words]) -> None:
        super().__init__(bundle, normalise)
        self.columns = tuple(bundle.model_kinds)

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        columns |= scored.gather(lambda batch: batch.once("models", lambda: self._sum(batch)))

    def _sum(self, batch: Batch) -> Columns:
        return {name: part.sum_paths(batch.trie, batch.partial) for name, part in batch.scores.items()}


class Mixture(Component):
    """The log-probability of each hypothesis by the word-level mixture of the language models."""

    name = MIXTURE
    asked_by = AskedBy()
    always = True
    needs_scores = True
    columns = (MIXTURE,)

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        if found := scored.gather(lambda batch: sum_mixture(batch, scored.options)):
            columns[MIXTURE] = found[MIXTURE]


def interpolate_mixture(batch: Batch, options: BoundOptions) -> Mapping[str, Interpolation]:
    """Interpolations of the mixture of a batch under some options, by column, in this order."""

    def compute() -> Mapping[str, Interpolation]:
        return {
            name: interpolation
            for component in options.components
            for name, interpolation in component.interpolations(batch, options.weights).items()
        }

    return batch.once(("interpolations", _mixture_key(options)), compute)


def sum_mixture(batch: Batch, options: BoundOptions) -> Columns:
    """The mixture's log-probability of all hypotheses of a batch, and what each interpolation changed in it.

    It is computed once for all lists of the batch whose mixtures are the same.
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
    """The options on which the mixture of a batch depends besides its scores."""
    shares = tuple(options.weights.mixture.items())
    return shares, tuple(component.mixture_key(options.weights) for component in options.components)


class UnknownWords(Component):
    """The number of words of each hypothesis that the bundle's n-gram does not know."""

    name = OOV
    asked_by = AskedBy()
    always = True
    needs_scores = True
    columns = (OOV,)

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        columns |= scored.gather(lambda batch: batch.once(OOV, lambda: self._count(batch)))

    def _count(self, batch: Batch) -> Columns:
        return {OOV: batch.scores[self.bundle.ngram].count_unknown(batch.trie)}


class WordCount(Component):
    """The number of canonical words of each hypothesis; whether there are none follows from it."""

    name = WORDS
    asked_by = AskedBy()
    always = True
    columns = (WORDS, EMPTY)

    def add_columns(self, columns: Columns, scored: ScoredList) -> None:
        words = scored.prepared.words
        columns[WORDS] = np.fromiter(map(len, words), np.float64, len(words))

    def column_names(self, outline: Outline) -> Iterable[str]:
        return (WORDS,)


def reserved_names(components: Iterable[Component]) -> frozenset[str]:
    """Names of columns, which streams may not have."""
    return frozenset(name for component in components for name in component.columns)


def weighted_columns(kinds: Iterable[type[Component]]) -> tuple[str, ...]:
    """Names of the columns whose weights are in ``Weights.components``: those of classes that nothing
    else asks for."""
    return tuple(name for kind in kinds if kind.asked_by is None for name in kind.columns)


def find_by_name(components: Collection[Component]) -> dict[str, Component]:
    """One component of each name, in order."""
    return {component.name: component for component in components}

"""Score lists once with all models, so that every row of a comparison only applies other weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rescorer.errors import InvalidList
from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.error_rate.oracle import (
    ALL,
    EvaluatedList,
    Selection,
    evaluate_list,
    find_first_pass_order,
    find_first_pass_totals,
)
from rescorer.options import RescoreOptions
from rescorer.pipeline import Rescorer
from rescorer.preparation.previous import join_words, normalise_previous
from rescorer.ranking import Ranking
from rescorer.trie import Words
from rescorer.types import MAXIMUM, NBestList, TextScore, Weights


@dataclass(frozen=True)
class ScoredList:
    """The errors and components of a list, both in input order."""

    nbest: NBestList
    evaluated: EvaluatedList
    reference: str
    components: Mapping[str, np.ndarray]
    """(H,) float64 by name."""
    words: Sequence[Words]
    """Canonical words of each hypothesis."""
    first_pass_order: Sequence[int]
    """Indices of the hypotheses, best first, as the recogniser ranked them."""
    first_pass_totals: np.ndarray | None
    """(H,), by which the recogniser ranked; None if only the order is known."""
    selection: Selection
    """Which hypotheses take part in rankings."""
    context: Words = ()
    """Canonical words of what was said before."""
    counting: CountingSettings = DEFAULT_COUNTING
    """How the errors were counted."""

    @property
    def readings(self) -> tuple[Words, ...]:
        """All readings of the reference, as written."""
        return self.counting.expand(self.reference, self.nbest.id)

    @property
    def first_pass_index(self) -> int:
        """Index of the hypothesis that the recogniser ranked first."""
        return self.first_pass_order[0]

    @property
    def n_recognised(self) -> int:
        """Number of hypotheses of the recogniser; generated ones come after them."""
        return sum(hypothesis.generated is None for hypothesis in self.nbest.hypotheses)

    @property
    def has_generated(self) -> bool:
        """Whether hypotheses were generated for the list."""
        return self.nbest.hypotheses[-1].generated is not None

    @property
    def recognised(self) -> ScoredList:
        """The list without generated hypotheses, the others at the same positions; itself if there are
        none."""
        if not self.has_generated:
            return self
        n, first = self.n_recognised, self.first_pass_totals
        streams = {name: values[:n] for name, values in self.nbest.streams.items()}
        return replace(
            self,
            nbest=replace(self.nbest, hypotheses=self.nbest.hypotheses[:n], streams=streams),
            evaluated=replace(self.evaluated, hypotheses=self.evaluated.hypotheses[:n]),
            components={name: values[:n] for name, values in self.components.items()},
            words=self.words[:n],
            first_pass_order=self.first_pass_order[:n],
            first_pass_totals=None if first is None else first[:n],
        )


def score_lists(
    rescorer: Rescorer,
    lists: Sequence[NBestList],
    weights: Weights | None = None,
    first_pass_weights: Weights | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
    selection: Selection = ALL,
    *,
    generate: bool = False,
) -> tuple[list[ScoredList], list[InvalidList]]:
    """Score lists that have references; lists that cannot be scored or evaluated are returned as errors.

    Args:
        weights: their interpolation weights define the mixture.
        first_pass_weights: weights that define the first pass; None for the order of the list.
        generate: add hypotheses with phrases in place of what sounds like them.
    """
    normalise = rescorer.bundle.normaliser.normalise
    rankings = rescorer.rank_each(lists, RescoreOptions(weights, MAXIMUM, generate=generate))
    extended = (
        answer.nbest if isinstance(answer, Ranking) else nbest
        for nbest, answer in zip(lists, rankings, strict=True)
    )
    components = (answer.components if isinstance(answer, Ranking) else answer for answer in rankings)
    return _count_lists(normalise, extended, components, first_pass_weights, counting, selection)


def count_lists(
    normalise: Callable[[str], Words],
    lists: Sequence[NBestList],
    first_pass_weights: Weights | None = None,
    counting: CountingSettings = DEFAULT_COUNTING,
    selection: Selection = ALL,
) -> tuple[list[ScoredList], list[InvalidList]]:
    """Like ``score_lists``, without models: the components are the streams of the lists."""
    components = (
        {name: np.array(values, dtype=np.float64) for name, values in nbest.streams.items()}
        for nbest in lists
    )
    return _count_lists(normalise, lists, components, first_pass_weights, counting, selection)


def _count_lists(
    normalise: Callable[[str], Words],
    lists: Iterable[NBestList],
    components: Iterable[Mapping[str, np.ndarray] | InvalidList],
    first_pass_weights: Weights | None,
    counting: CountingSettings,
    selection: Selection,
) -> tuple[list[ScoredList], list[InvalidList]]:
    scored: list[ScoredList] = []
    errors: list[InvalidList] = []
    for nbest, scores in zip(lists, components, strict=True):
        if isinstance(scores, InvalidList):
            errors.append(scores)
            continue
        try:
            evaluated = evaluate_list(nbest, normalise, first_pass_weights, counting)
            words = tuple(normalise(hypothesis.text) for hypothesis in nbest.hypotheses)
            order = find_first_pass_order(nbest, normalise, first_pass_weights)
        except InvalidList as error:
            errors.append(error)
            continue
        first_totals = _find_totals(nbest, words, first_pass_weights)
        reference = nbest.reference or ""
        said = (spoken.words for spoken in normalise_previous(nbest.previous, normalise))
        context = join_words(said, normalise(nbest.context))
        scored.append(
            ScoredList(
                nbest, evaluated, reference, scores, words, order, first_totals, selection, context, counting
            )
        )
    return scored, errors


def _find_totals(
    nbest: NBestList, words: Sequence[Words], first_pass_weights: Weights | None
) -> np.ndarray | None:
    try:
        return find_first_pass_totals(nbest, words, first_pass_weights)
    except InvalidList:  # the only stream, which nothing else needs, has infinite scores
        return None


def score_references(
    rescorer: Rescorer, scored: Sequence[ScoredList], weights: Weights | None = None
) -> list[TextScore]:
    """Score the references with all models, taking the first reading of each."""
    texts = [" ".join(item.readings[0]) for item in scored]
    return rescorer.score_text(texts, weights=weights)

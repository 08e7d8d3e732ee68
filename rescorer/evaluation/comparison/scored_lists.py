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
    """Words of each hypothesis as texts are compared and errors are counted."""
    first_pass_order: Sequence[int]
    """Indices of the hypotheses, best first, as the recogniser ranked them."""
    first_pass_totals: np.ndarray | None
    """(H,), by which the recogniser ranked; None if only the order is known."""
    selection: Selection
    """Which hypotheses take part in rankings."""
    context: Words = ()
    """What was said before, in words as models read them."""
    words_read: Sequence[Words] = ()
    """Words of each hypothesis as models read them; empty: as they are compared."""
    counting: CountingSettings = DEFAULT_COUNTING
    """How the errors were counted."""

    @property
    def read(self) -> Sequence[Words]:
        """Words of each hypothesis as models read them; without models, ``words``."""
        return self.words_read or self.words

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
            words_read=self.words_read[:n],
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
    rankings = rescorer.rank_each(lists, RescoreOptions(weights, MAXIMUM, generate=generate))
    extended = (
        answer.nbest if isinstance(answer, Ranking) else nbest
        for nbest, answer in zip(lists, rankings, strict=True)
    )
    components = (answer.components if isinstance(answer, Ranking) else answer for answer in rankings)
    normalisers = (ranker := rescorer.ranker).text_normaliser.normalise, ranker.bundle.normaliser.normalise
    return _count_lists(normalisers, extended, components, first_pass_weights, counting, selection)


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
    return _count_lists((normalise, normalise), lists, components, first_pass_weights, counting, selection)


def _count_lists(
    normalisers: tuple[Callable[[str], Words], Callable[[str], Words]],
    lists: Iterable[NBestList],
    components: Iterable[Mapping[str, np.ndarray] | InvalidList],
    first_pass_weights: Weights | None,
    counting: CountingSettings,
    selection: Selection,
) -> tuple[list[ScoredList], list[InvalidList]]:
    """Count errors in words of the first normaliser; the second gives those that models read."""
    normalise, read = normalisers
    scored: list[ScoredList] = []
    errors: list[InvalidList] = []
    for nbest, scores in zip(lists, components, strict=True):
        if isinstance(scores, InvalidList):
            errors.append(scores)
            continue
        try:
            evaluated = evaluate_list(nbest, normalise, first_pass_weights, counting, read)
            words, words_read = (
                tuple(map(words_of, (hypothesis.text for hypothesis in nbest.hypotheses)))
                for words_of in normalisers
            )
            order = find_first_pass_order(nbest, read, first_pass_weights)
        except InvalidList as error:
            errors.append(error)
            continue
        said = (spoken.words for spoken in normalise_previous(nbest.previous, read))
        scored.append(
            ScoredList(
                nbest,
                evaluated,
                nbest.reference or "",
                scores,
                words,
                order,
                _find_totals(nbest, words_read, first_pass_weights),
                selection,
                join_words(said, read(nbest.context)),
                words_read,
                counting,
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

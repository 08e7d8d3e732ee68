"""Phrases that were not said: the lists that they make worse, and the weight that keeps these few.

A phrase is a false alarm where it lets a hypothesis with more errors win. To count these lists, each is
scored without phrases, and with those of its phrases that its reference lacks.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from rescorer.conversation import Phrase
from rescorer.errors import InvalidList
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.components import collect_components
from rescorer.extensions import Phrases
from rescorer.pipeline import Rescorer
from rescorer.ranking import TIE_DECIMALS
from rescorer.score_combination import MIXTURE, PHRASES, phrase_weight, totals
from rescorer.trie import Words
from rescorer.types import MAXIMUM, Weights

DEFAULT_MAX_SHARE = 0.005
"""Share of all lists that phrases which were not said may make worse."""
MAX_DISTRACTOR_WORDS = 3
SEED = 1
MAX_KEPT = 8
"""Candidates in memory while distractors are drawn, per distractor."""
N_WEIGHTS = 120
LEAST_WEIGHT = 1e-3
"""Smallest weight that is tried, as a share of the largest; the weights between are evenly spaced on a
logarithmic scale."""

Normalise = Callable[[str], Words]
Components = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Exposure:
    """A list in whose hypotheses phrases occur that were not said."""

    plain: Components
    """Components without phrases."""
    biased: Components
    """Components with these phrases."""
    mixture: np.ndarray
    """The mixture's component under the same λ, with all phrases of the list."""
    competing: np.ndarray
    """(H,) bool: the recogniser's hypotheses, and those that were generated from these phrases."""


@dataclass(frozen=True, slots=True)
class FalseAlarms:
    """Counts the lists that phrases which were not said make worse; see ``find_false_alarms``."""

    exposures: Mapping[int, Exposure]
    """By index of the list; the others have no phrase that was not said."""
    n_lists: int
    n_phrases: int
    """Number of phrases of all lists, without distractors."""
    n_said: int
    n_distractors: int = 0

    def count(
        self, scored: Sequence[ScoredList], weights: Weights, lists: Collection[int] | None = None
    ) -> int:
        """Number of lists that phrases which were not said make worse, by the largest total.

        Args:
            scored: the same lists as before; their mixture may have other λ.
            lists: indices of the lists to count; None for all.
        """
        return int(self._count(scored, weights, np.array([phrase_weight(weights)]), lists)[0])

    def find_limit(
        self,
        scored: Sequence[ScoredList],
        weights: Weights,
        max_share: float,
        lists: Collection[int] | None = None,
    ) -> float:
        """The largest weight of phrases, at most that of ``weights``, that keeps false alarms few.

        It and all smaller weights that were tried make at most ``max_share`` of the lists worse.
        """
        highest = phrase_weight(weights)
        allowed = int(max_share * (self.n_lists if lists is None else len(lists)) + 1e-9)
        tried = highest * np.geomspace(LEAST_WEIGHT, 1.0, N_WEIGHTS)
        too_many = self._count(scored, weights, tried, lists) > allowed
        if not too_many.any():
            return highest
        first = int(np.argmax(too_many))
        return float(tried[first - 1]) if first else 0.0

    def _count(
        self,
        scored: Sequence[ScoredList],
        weights: Weights,
        phrase_weights: np.ndarray,
        lists: Collection[int] | None,
    ) -> np.ndarray:
        """Number of lists that are worse, (W,), for each weight of phrases."""
        counted = range(len(scored)) if lists is None else set(lists)
        worse = np.zeros(len(phrase_weights), dtype=np.int64)
        for index, exposure in self.exposures.items():
            if index in counted:
                worse += _is_worse(scored[index], exposure, weights, phrase_weights)
        worse[phrase_weights == 0] = 0  # phrases are left out altogether then, with their unknown words
        return worse


def _is_worse(
    item: ScoredList, exposure: Exposure, weights: Weights, phrase_weights: np.ndarray
) -> np.ndarray:
    """Whether phrases let a hypothesis with more errors win than without, (W,) bool."""
    moved = item.components[MIXTURE] - exposure.mixture  # by other λ
    plain, biased = (
        totals({**{k: v for k, v in part.items() if k != PHRASES}, MIXTURE: part[MIXTURE] + moved}, weights)
        for part in (exposure.plain, exposure.biased)
    )
    own = np.arange(len(item.words)) < item.n_recognised
    before = item.selection.order(item.words, np.where(own, plain, -np.inf))[0][0]
    order, merged = item.selection.order(item.words, np.where(exposure.competing, biased, -np.inf))
    kept = sorted(order)
    errors = np.array([counts.errors for counts in item.evaluated.hypotheses])
    boosted = merged[kept] + phrase_weights[:, None] * exposure.biased[PHRASES][kept]  # (W, N)
    winners = np.argmax(np.round(boosted, TIE_DECIMALS), axis=1)
    worse: np.ndarray = errors[kept][winners] > errors[before]
    return worse


@dataclass(frozen=True, slots=True)
class PhraseBound:
    """Bounds the weight of phrases by the lists that phrases which were not said make worse."""

    alarms: FalseAlarms
    max_share: float = DEFAULT_MAX_SHARE
    """Largest share of the lists that may become worse."""

    def apply(
        self, scored: Sequence[ScoredList], weights: Weights, lists: Collection[int] | None = None
    ) -> Weights:
        """Lower the weight of phrases where it makes too many of some lists worse; None for all lists."""
        limit = self.alarms.find_limit(scored, weights, self.max_share, lists)
        return weights if limit == phrase_weight(weights) else replace(weights, phrases=limit)


def has_phrases(rescorer: Rescorer, scored: Sequence[ScoredList]) -> bool:
    """Whether lists have phrases of their own, or the ranker expects some in all lists."""
    return bool(rescorer.ranker.component(Phrases).expected) or any(item.nbest.phrases for item in scored)


def find_false_alarms(
    rescorer: Rescorer,
    scored: Sequence[ScoredList],
    weights: Weights,
    distractors: Sequence[Words] = (),
) -> FalseAlarms:
    """Score lists with the phrases that their references lack, and without phrases.

    Args:
        weights: complete weights, whose λ the lists were scored with.
        distractors: phrases that are given to all lists beside their own.
    """
    normalise = cache(rescorer.bundle.normaliser.normalise)
    others = _PhraseTable([Phrase(" ".join(words)) for words in distractors], normalise)
    expected = [phrase for known in rescorer.ranker.component(Phrases).expected for phrase in known.phrases]
    shared = _PhraseTable(expected, normalise)
    unsaid: dict[int, tuple[Phrase, ...]] = {}
    n_phrases = n_said = 0
    for index, item in enumerate(scored):
        tables = (_PhraseTable(item.nbest.phrases, normalise), shared, others)
        longest = max(table.longest for table in tables)
        readings = normalise_reference(item, normalise)
        said = {gram for words in readings for gram in _list_grams(words, longest)}
        heard = {gram for words in set(item.read) for gram in _list_grams(words, longest)}
        if found := [phrase for table in tables for phrase in table.find(heard) - table.find(said)]:
            unsaid[index] = tuple(sorted(found, key=lambda phrase: phrase.text))
        n_phrases += len(item.nbest.phrases) + len(expected)
        n_said += sum(len(table.find(said)) for table in tables[:2])
    exposures = _expose(rescorer, scored, weights, unsaid)
    return FalseAlarms(exposures, len(scored), n_phrases, n_said, len(distractors))


class _PhraseTable:
    """Phrases by the words of their spellings."""

    def __init__(self, phrases: Sequence[Phrase], normalise: Normalise) -> None:
        self._by_words: dict[Words, set[Phrase]] = {}
        for phrase in phrases:
            for text in (phrase.text, *phrase.spellings):
                self._by_words.setdefault(normalise(text), set()).add(phrase)
        self.longest = max(map(len, self._by_words), default=0)

    def find(self, grams: set[Words]) -> set[Phrase]:
        """The phrases that some word sequences have."""
        return {phrase for words in grams & self._by_words.keys() for phrase in self._by_words[words]}


def _expose(
    rescorer: Rescorer,
    scored: Sequence[ScoredList],
    weights: Weights,
    unsaid: Mapping[int, tuple[Phrase, ...]],
) -> dict[int, Exposure]:
    """Score lists without phrases, and with some, whatever the ranker expects in all lists."""
    if weights.phrases == 0:  # phrases are left out altogether
        return {}
    component = rescorer.ranker.component(Phrases)
    expected, component.expected = component.expected, ()
    try:
        lists = [replace(scored[i].nbest, phrases=own) for i, own in unsaid.items()]
        plain = rescorer.rescore_each(
            [replace(nbest, phrases=()) for nbest in lists], weights, decision=MAXIMUM
        )
        biased = rescorer.rescore_each(lists, weights, decision=MAXIMUM)
    finally:
        component.expected = expected
    exposures = {}
    for index, first, second in zip(unsaid, plain, biased, strict=True):
        if isinstance(first, InvalidList) or isinstance(second, InvalidList):  # only too many phrases
            continue
        mixture = scored[index].components[MIXTURE]
        parts = collect_components(first), collect_components(second)
        exposures[index] = Exposure(*parts, mixture, _find_competing(scored[index], unsaid[index]))
    return exposures


def _find_competing(item: ScoredList, phrases: Sequence[Phrase]) -> np.ndarray:
    texts = {phrase.text for phrase in phrases}
    made = (hypothesis.generated for hypothesis in item.nbest.hypotheses)
    return np.array([one is None or all(part.phrase in texts for part in one.parts) for one in made])


def normalise_reference(item: ScoredList, normalise: Normalise) -> list[Words]:
    """The canonical words of each reading of a reference."""
    return [normalise(" ".join(reading)) for reading in item.readings]


def draw_distractors(
    scored: Sequence[ScoredList], normalise: Normalise, n: int, seed: int = SEED
) -> list[Words]:
    """Draw phrases of one to three words that occur in hypotheses but in no reference of the lists.

    All such phrases are equally likely, however often they occur. The draw depends neither on the order of
    the lists nor on that of their hypotheses: those with the smallest hashes are taken.
    """
    said = {
        gram
        for item in scored
        for reading in normalise_reference(item, normalise)
        for gram in _list_grams(reading)
    }
    drawn: set[tuple[bytes, Words]] = set()
    for item in scored:
        heard = {gram for words in set(item.read) for gram in _list_grams(words)} - said
        drawn.update((_hash(words, seed), words) for words in heard)
        if len(drawn) > MAX_KEPT * n:
            drawn = set(heapq.nsmallest(n, drawn))
    return [words for _, words in heapq.nsmallest(n, drawn)]


def _list_grams(words: Words, longest: int = MAX_DISTRACTOR_WORDS) -> Iterator[Words]:
    for size in range(1, longest + 1):
        for start in range(len(words) - size + 1):
            yield words[start : start + size]


def _hash(words: Words, seed: int) -> bytes:
    key = str(seed).encode()
    return hashlib.blake2b(" ".join(words).encode(), digest_size=8, key=key).digest()

"""Owns the counts an audit makes while lists pass by; of a list only sums are held. Judges nothing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescorer.errors import InvalidList
from rescorer.evaluation.error_rate.alternations import expand_alternations
from rescorer.evaluation.error_rate.counting import PLAIN, Counting
from rescorer.evaluation.error_rate.oracle import EvaluatedList
from rescorer.evaluation.error_rate.report import Totals
from rescorer.evaluation.inspection.models import ModelTally
from rescorer.evaluation.inspection.streams import StreamFacts, StreamTally
from rescorer.evaluation.inspection.words import WordFacts, WordTally
from rescorer.list_ranker import check_list
from rescorer.ranking import best_first
from rescorer.text import Normaliser
from rescorer.trie import Words, build_trie
from rescorer.types import Hypothesis, NBestList, Weights

NEAR_NATS = 3.0
"""An empty hypothesis so close below the best other one is one weight away from winning."""
SCORE_FIELD = re.compile(
    r"(?:^|[^a-z])(?:am|[a-z]{0,3}lm|ac|tot)(?:[^a-z]|$)|score|prob|acoustic|cost|nll", re.I
)
"""What a client calls a score that we were not told to read."""
RANK_FIELDS = ("original_rank", "rank")
FIRST_PASS = "first pass"
"""What the weighted sum of the streams is called among the streams."""


@dataclass(frozen=True, slots=True)
class ErrorFacts:
    """What the lists give against their references."""

    totals: Totals
    random_errors: float
    """Expected errors of a hypothesis drawn from each list at random."""
    errors_at_depth: tuple[int, ...]
    """Errors of the oracle of the first 1, 2, … hypotheses."""
    without_first_word: int
    """Lists in which no hypothesis is the reference, and one is all of it but the first word."""
    unit: str

    @property
    def random_rate(self) -> float:
        words = self.totals.system.reference_words
        return self.random_errors / words if words else 0.0

    def depth_for(self, share: float) -> int:
        """Hypotheses a list that give this share of what the oracle of whole lists gains."""
        first, last = self.errors_at_depth[0], self.errors_at_depth[-1]
        enough = first - share * (first - last)
        return next(i for i, errors in enumerate(self.errors_at_depth, start=1) if errors <= enough)


@dataclass(frozen=True, slots=True)
class Facts:
    """All counts of one file of lists."""

    lists: int = 0
    hypotheses: int = 0
    words: int = 0
    """Canonical words of all hypotheses."""
    longest_list: int = 0
    single: int = 0
    """Lists of one hypothesis."""
    rejected: int = 0
    same_id: int = 0
    """Lists whose id an earlier one had."""
    id_in_text: int = 0
    """Lists in which every hypothesis begins with the list's id."""
    duplicates: int = 0
    """Hypotheses whose text, as it came, an earlier one of the list has."""
    duplicates_normalised: int = 0
    """The same by canonical words."""
    empty: int = 0
    """Hypotheses without canonical words."""
    with_empty: int = 0
    only_empty: int = 0
    empty_near_best: int = 0
    """Lists whose empty hypothesis scores less than ``NEAR_NATS`` below the best other, or above it."""
    ranked: int = 0
    """Lists whose hypotheses say their ranks."""
    without_first: int = 0
    """Of these, those that lack the first rank."""
    with_gaps: int = 0
    prefixes: int = 0
    """Distinct prefixes, list by list, ``</s>`` counted as a word."""

    unread: tuple[tuple[str, int], ...] = ()
    """Fields of hypotheses that look like scores, and in how many lists without any stream they are."""

    @property
    def sharing(self) -> float:
        """Words and ``</s>`` of all hypotheses over distinct prefixes: what a trie saves."""
        return (self.words + self.hypotheses) / self.prefixes if self.prefixes else 1.0


class Collector:
    """Adds up lists; ``facts``, ``streams``, ``words`` and ``errors`` say what was found."""

    def __init__(
        self,
        normaliser: Normaliser,
        first_pass: Mapping[str, float] | None = None,
        counting: Counting = PLAIN,
        models: ModelTally | None = None,
    ) -> None:
        self.normaliser, self.first_pass, self.counting = normaliser, first_pass, counting
        self._models = models
        self._counts: Counter[str] = Counter()
        self._longest = 0
        self._ids: set[str] = set()
        self._unread: Counter[str] = Counter()
        self._lowest_ranks: Counter[int] = Counter()
        self._streams: dict[str, StreamTally] = {}
        self._words = WordTally()
        self._totals = Totals.zero()
        self._random = 0.0
        self._at_depth = np.zeros(0, dtype=np.int64)
        self._beyond = 0
        self._without_first_word = 0

    def reject(self) -> None:
        """One more list that could not be read."""
        self._counts["rejected"] += 1

    def add(self, nbest: NBestList) -> None:
        """One more list.

        Raises:
            InvalidList: it cannot be audited, and nothing of it was counted.
        """
        check_list(nbest, Weights("first pass", self.first_pass or {}))
        words = [self.normaliser.words(hypothesis.text) for hypothesis in nbest.hypotheses]
        total = self._total(nbest)
        order = range(len(words)) if not self.first_pass or total is None else best_first(total).tolist()
        evaluated = self._evaluated(nbest, order)
        self._add_texts(nbest, words)
        self._add_empty(words, total)
        self._add_ranks(nbest.hypotheses)
        if not nbest.streams:
            self._unread.update(score_fields(nbest.hypotheses))
        errors = None
        if evaluated is not None:
            in_order = np.array([counts.errors for counts in evaluated.hypotheses])
            self._add_errors(evaluated, in_order)
            self._add_first_words(nbest, words)
            errors = np.empty(len(words))
            errors[list(order)] = in_order
        n_words = np.array([len(each) for each in words], dtype=np.float64)
        streams = {name: np.array(values, dtype=np.float64) for name, values in nbest.streams.items()}
        if self.first_pass and total is not None:
            streams[FIRST_PASS] = total
        for name, scores in streams.items():
            self._streams.setdefault(name, StreamTally(name)).add(scores, n_words, errors)
        if self._models is not None:
            self._models.add(nbest, errors, order[0])

    def facts(self) -> Facts:
        lowest = min(self._lowest_ranks, default=0)
        late = sum(lists for rank, lists in self._lowest_ranks.items() if rank > min(lowest, 1))
        unread = tuple(self._unread.most_common())
        return Facts(**self._counts, longest_list=self._longest, without_first=late, unread=unread)

    def streams(self) -> tuple[StreamFacts, ...]:
        return tuple(tally.facts() for tally in self._streams.values())

    def words(self, known: frozenset[str] | None = None) -> WordFacts:
        """Args: known: words of a bundle's n-gram, where there is a bundle."""
        return self._words.facts(self.normaliser, known)

    def errors(self) -> ErrorFacts | None:
        """None without references."""
        if not self._totals.lists:
            return None
        return ErrorFacts(
            self._totals,
            self._random,
            tuple(self._at_depth.tolist()),
            self._without_first_word,
            self.counting.unit,
        )

    def _total(self, nbest: NBestList) -> np.ndarray | None:
        """(H,) what the recogniser ranked by: the weighted streams, or the only one; None: nobody says.

        Raises:
            InvalidList: a total is not finite.
        """
        if self.first_pass:
            total = np.zeros(len(nbest.hypotheses))
            with np.errstate(over="ignore", invalid="ignore"):  # answered below
                for name, weight in self.first_pass.items():
                    total += weight * np.array(nbest.streams[name])
            if not np.isfinite(total).all():
                message = "the total is not finite; the scores or weights are too large"
                raise InvalidList(message, list_id=nbest.id, field="streams")
            return total
        return np.array(next(iter(nbest.streams.values()))) if len(nbest.streams) == 1 else None

    def _evaluated(self, nbest: NBestList, order: Sequence[int]) -> EvaluatedList | None:
        """The list's errors in the order of the first pass."""
        if nbest.reference is None:
            return None
        errors = self.counting.against(nbest.reference, self.normaliser.words, nbest.id)
        counts = tuple(errors(nbest.hypotheses[i].text) for i in order)
        return EvaluatedList(nbest.id, nbest.group, counts, 0, self.counting.unit)

    def _add_texts(self, nbest: NBestList, words: Sequence[Words]) -> None:
        texts = [hypothesis.text for hypothesis in nbest.hypotheses]
        self._longest = max(self._longest, len(texts))
        self._counts.update(
            lists=1,
            hypotheses=len(texts),
            words=sum(map(len, words)),
            single=len(texts) == 1,
            same_id=nbest.id in self._ids,
            id_in_text=all(text.split(maxsplit=1)[:1] == [nbest.id] for text in texts),
            duplicates=len(texts) - len(set(texts)),
            duplicates_normalised=len(words) - len(set(words)),
            prefixes=build_trie(words).n_edges,
        )
        self._ids.add(nbest.id)
        self._words.add(texts)

    def _add_empty(self, words: Sequence[Words], total: np.ndarray | None) -> None:
        empty = np.array([not each for each in words])
        self._counts.update(
            empty=int(empty.sum()), with_empty=bool(empty.any()), only_empty=bool(empty.all())
        )
        if total is not None and empty.any() and not empty.all():
            self._counts["empty_near_best"] += bool(total[empty].max() > total[~empty].max() - NEAR_NATS)

    def _add_ranks(self, hypotheses: Sequence[Hypothesis]) -> None:
        ranks = ranks_of(hypotheses)
        if ranks:
            self._lowest_ranks[min(ranks)] += 1
            self._counts.update(ranked=1, with_gaps=max(ranks) - min(ranks) >= len(ranks))

    def _add_errors(self, evaluated: EvaluatedList, errors: np.ndarray) -> None:
        """``errors``: (H,) in the order of the first pass."""
        self._totals += Totals.of(evaluated)
        self._random += float(errors.mean())
        best = np.minimum.accumulate(errors)
        longer = len(best) - len(self._at_depth)
        if longer > 0:  # the lists before end at their own oracle
            self._at_depth = np.append(self._at_depth, np.full(longer, self._beyond))
        self._at_depth[: len(best)] += best
        self._at_depth[len(best) :] += best[-1]
        self._beyond += int(best[-1])

    def _add_first_words(self, nbest: NBestList, words: Sequence[Words]) -> None:
        readings = expand_alternations(nbest.reference or "", nbest.id)
        spoken = {self.normaliser.words(" ".join(reading)) for reading in readings}
        self._words.add((), readings[0])
        heard = set(words)
        if not spoken & heard and any(each[1:] in heard for each in spoken if each[1:]):
            self._without_first_word += 1


def score_fields(hypotheses: Sequence[Hypothesis]) -> list[str]:
    """Fields that are called as scores are, and hold a number with decimals in every hypothesis."""
    names = [name for name in hypotheses[0].fields if SCORE_FIELD.search(name)]
    return [name for name in names if all(type(each.fields.get(name)) is float for each in hypotheses)]


def ranks_of(hypotheses: Sequence[Hypothesis]) -> set[int]:
    """The ranks that hypotheses say they had, with those merged into them; empty where one says none."""
    for name in RANK_FIELDS:
        ranks: set[int] = set()
        for hypothesis in hypotheses:
            said: Any = hypothesis.fields.get("merged_ranks") or [hypothesis.fields.get(name)]
            if not isinstance(said, list) or not all(type(rank) is int for rank in said):
                break
            ranks.update(said)
        else:
            return ranks
    return set()

"""Gather statistics from a stream of lists, keeping sums instead of the lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rescorer.evaluation.error_rate.counting import DEFAULT_COUNTING, CountingSettings
from rescorer.evaluation.error_rate.oracle import EvaluatedList, find_first_pass_totals
from rescorer.evaluation.error_rate.report import Totals
from rescorer.evaluation.inspection.equal_texts import (
    EqualTexts,
    EqualTextTally,
    make_bundle_twin,
    make_mild_normaliser,
)
from rescorer.evaluation.inspection.list_stats import ErrorStats, ListStats
from rescorer.evaluation.inspection.models import ModelTally
from rescorer.evaluation.inspection.streams import StreamStats, StreamTally
from rescorer.evaluation.inspection.words import WordStats, WordTally
from rescorer.preparation.list_checks import check_list
from rescorer.preparation.unread_lists import find_unread_lists
from rescorer.preparation.unread_scores import find_partial_scores, find_unread_fields
from rescorer.ranking import best_first
from rescorer.text import Normaliser, SpacingTally
from rescorer.trie import Words, build_trie
from rescorer.types import Hypothesis, NBestList, Weights

SAMPLE_LISTS = 100
"""Number of lists from which the base and sign of a field that was not read are found."""
NEAR_NATS = 3.0
"""An empty hypothesis at most this far below the best other one may win after a small change of weights."""
RANK_FIELDS = ("original_rank", "rank")
FIRST_PASS = "first pass"
"""Name, among the streams, of the weighted sum that defines the first pass."""


class ListTally:
    """Adds up statistics list by list; the ``…_stats`` methods return the results."""

    def __init__(
        self,
        normaliser: Normaliser,
        first_pass: Weights | None = None,
        counting: CountingSettings = DEFAULT_COUNTING,
        models: ModelTally | None = None,
    ) -> None:
        self.normaliser, self.first_pass, self.counting = normaliser, first_pass, counting
        self._models = models
        self._read = models.normaliser if models else normaliser
        mild = make_mild_normaliser(normaliser.settings)
        self._equal = {"normaliser": EqualTextTally(normaliser, mild)}
        if self._read.settings != normaliser.settings:
            self._equal["bundle"] = EqualTextTally(self._read, make_bundle_twin(self._read, normaliser))
        self._counts: Counter[str] = Counter()
        self._longest = 0
        self._ids: set[str] = set()
        self._unread = UnreadTally()
        self._lowest_ranks: Counter[int] = Counter()
        self._streams: dict[str, StreamTally] = {}
        self._words = WordTally(drops=lambda token: not normaliser.normalise_token(token))
        self._spacing = SpacingTally()
        self._totals = Totals.zero()
        self._random_errors = 0.0
        self._errors_at_depth = np.zeros(0, dtype=np.int64)
        self._oracle_errors = 0
        self._without_first_word = 0

    def reject(self) -> None:
        """Count a list that could not be read."""
        self._counts["rejected"] += 1

    def add(self, nbest: NBestList) -> None:
        """Count a list.

        Raises:
            InvalidList: the list is invalid; nothing of it has been counted.
        """
        check_list(nbest, self.first_pass or Weights("first pass"))
        words = [self.normaliser.normalise(hypothesis.text) for hypothesis in nbest.hypotheses]
        total = find_first_pass_totals(nbest, words, self.first_pass)
        order = range(len(words)) if not self.first_pass or total is None else best_first(total).tolist()
        evaluated = self._evaluate(nbest, order)
        self._add_texts(nbest, words)
        self._add_empty(words, total)
        self._add_ranks(nbest.hypotheses)
        self._unread.add(nbest)
        errors = None
        if evaluated is not None:
            ordered_errors = np.array([counts.errors for counts in evaluated.hypotheses])
            self._add_errors(evaluated, ordered_errors)
            self._add_first_words(nbest, words)
            errors = np.empty(len(words))
            errors[list(order)] = ordered_errors
        n_words = np.array([len(hypothesis) for hypothesis in words], dtype=np.float64)
        streams = {name: np.array(values, dtype=np.float64) for name, values in nbest.streams.items()}
        if self.first_pass and total is not None:
            streams[FIRST_PASS] = total
        for name, scores in streams.items():
            self._streams.setdefault(name, StreamTally(name)).add(scores, n_words, errors)
        if self._models is not None:
            self._models.add(nbest, errors, order[0])

    def list_stats(self) -> ListStats:
        lowest = min(self._lowest_ranks, default=0)
        without_first = sum(lists for rank, lists in self._lowest_ranks.items() if rank > min(lowest, 1))
        return ListStats(
            **self._counts,
            longest_list=self._longest,
            without_first=without_first,
            unread=tuple(self._unread.scores.most_common()),
            unread_option=self._unread.option,
            partial_scores=tuple(self._unread.partial_scores.most_common()),
            unread_lists=tuple(self._unread.lists.most_common()),
        )

    def stream_stats(self) -> tuple[StreamStats, ...]:
        return tuple(tally.stats() for tally in self._streams.values())

    def word_stats(self, vocabulary: frozenset[str] | None = None) -> WordStats:
        """Return the statistics of words; ``vocabulary`` contains the words of the bundle's n-gram, if
        any."""
        spacing = self._spacing.describe() if self.counting.unit == "word" else ""
        return replace(self._words.stats(self.normaliser, vocabulary, self._read), spacing=spacing)

    def equal_texts(self) -> dict[str, EqualTexts]:
        """Texts made equal by the normaliser, and by that of the bundle if it is another one."""
        return {name: tally.stats() for name, tally in self._equal.items()}

    def error_stats(self) -> ErrorStats | None:
        """Return the error statistics; None without references."""
        if not self._totals.lists:
            return None
        return ErrorStats(
            self._totals,
            self._random_errors,
            tuple(self._errors_at_depth.tolist()),
            self._without_first_word,
            self.counting.unit,
        )

    def _evaluate(self, nbest: NBestList, order: Sequence[int]) -> EvaluatedList | None:
        """The errors of the list in the order of the first pass; None without a reference."""
        if nbest.reference is None:
            return None
        count = self.counting.counter_for(nbest.reference, self.normaliser.normalise, nbest.id)
        errors = tuple(count(nbest.hypotheses[i].text) for i in order)
        return EvaluatedList(nbest.id, nbest.group, errors, errors[0], self.counting.unit)

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
            tab_in_text=all("\t" in text for text in texts),
            duplicates=len(texts) - len(set(texts)),
            duplicates_normalised=len(words) - len(set(words)),
            prefixes=build_trie(words).n_edges,
        )
        self._ids.add(nbest.id)
        self._spacing.add(words[0])
        self._words.add(texts)
        for tally in self._equal.values():
            tally.add(texts if nbest.reference is None else [*texts, nbest.reference])

    def _add_empty(self, words: Sequence[Words], total: np.ndarray | None) -> None:
        empty = np.array([not hypothesis for hypothesis in words])
        self._counts.update(
            empty=int(empty.sum()), with_empty=bool(empty.any()), only_empty=bool(empty.all())
        )
        if total is not None and empty.any() and not empty.all():
            self._counts["empty_near_best"] += bool(total[empty].max() > total[~empty].max() - NEAR_NATS)

    def _add_ranks(self, hypotheses: Sequence[Hypothesis]) -> None:
        ranks = read_ranks(hypotheses)
        if ranks:
            self._lowest_ranks[min(ranks)] += 1
            self._counts.update(ranked=1, with_gaps=max(ranks) - min(ranks) >= len(ranks))

    def _add_errors(self, evaluated: EvaluatedList, errors: np.ndarray) -> None:
        """``errors``: (H,) in the order of the first pass."""
        self._totals += Totals.from_list(evaluated)
        self._random_errors += float(errors.mean())
        best = np.minimum.accumulate(errors)
        n_new_depths = len(best) - len(self._errors_at_depth)
        if n_new_depths > 0:  # shorter lists so far have reached their oracle there
            self._errors_at_depth = np.append(
                self._errors_at_depth, np.full(n_new_depths, self._oracle_errors)
            )
        self._errors_at_depth[: len(best)] += best
        self._errors_at_depth[len(best) :] += best[-1]
        self._oracle_errors += int(best[-1])

    def _add_first_words(self, nbest: NBestList, words: Sequence[Words]) -> None:
        readings = self.counting.expand(nbest.reference or "", nbest.id)
        references = {self.normaliser.normalise(" ".join(reading)) for reading in readings}
        self._spacing.add(self.normaliser.normalise(" ".join(readings[0])))
        self._words.add((), readings[0])
        hypotheses = set(words)
        if not references & hypotheses and any(
            reference[1:] in hypotheses for reference in references if reference[1:]
        ):
            self._without_first_word += 1


class UnreadTally:
    """Counts fields that no reader uses, although they look like scores or hypotheses."""

    def __init__(self) -> None:
        self.scores: Counter[str] = Counter()
        """Lists without streams, by the field with numbers."""
        self.partial_scores: Counter[str] = Counter()
        """Lists without streams, by the field that only some of their hypotheses have."""
        self.lists: Counter[str] = Counter()
        """Lists, by the description of the array that looks like hypotheses."""
        self._sample: list[NBestList] = []
        self._descriptions: dict[str, str] = {}

    def add(self, nbest: NBestList) -> None:
        for unread in find_unread_lists([nbest]):
            self.lists[self._descriptions.setdefault(unread.name, unread.description)] += 1
        if nbest.streams:
            return
        if len(self._sample) < SAMPLE_LISTS:
            self._sample.append(nbest)
        self.scores.update(field.label for field in find_unread_fields([nbest]) if field.is_likely)
        self.partial_scores.update(find_partial_scores([nbest]).keys())

    @property
    def option(self) -> str:
        """The most likely field with its units, as ``--stream`` takes it; empty if there is none."""
        likely = [f for f in find_unread_fields(self._sample) if f.is_likely and not f.parent]
        return f"{likely[0].name}{likely[0].units}" if likely else ""


def read_ranks(hypotheses: Sequence[Hypothesis]) -> set[int]:
    """Read the ranks of the hypotheses and of those merged into them; empty if any hypothesis has no rank."""
    for name in RANK_FIELDS:
        ranks: set[int] = set()
        for hypothesis in hypotheses:
            values: Any = hypothesis.fields.get("merged_ranks") or [hypothesis.fields.get(name)]
            if not isinstance(values, list) or not all(type(rank) is int for rank in values):
                break
            ranks.update(values)
        else:
            return ranks
    return set()

"""Analyse the errors of one row of a comparison, and what it changed from the first pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rescorer.evaluation.comparison.row import Row
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.error_analysis.aligned_text import Aligner, Alignment
from rescorer.evaluation.error_analysis.breakdown import (
    DEPTH_LIMITS,
    LENGTH_LIMITS,
    Part,
    divide_by_frequency,
    divide_by_known,
    divide_lists,
)
from rescorer.evaluation.error_analysis.changes import Changes, count_changes
from rescorer.evaluation.error_analysis.confusions import Confusions, count_confusions
from rescorer.evaluation.error_analysis.oracle_depth import oracle_by_depth
from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.evaluation.error_rate.report import to_percent

TOP = 20
"""Number of words of each kind in the JSON data."""


@dataclass(frozen=True, slots=True)
class AlignedList:
    """The texts that the first pass and a system chose for a list, aligned with its reference."""

    id: str
    before: Alignment
    after: Alignment
    is_generated: bool = False
    """Whether the recogniser did not have what the system chose."""

    @property
    def has_errors(self) -> bool:
        return any(pair.kind != "correct" for pair in (*self.before, *self.after))

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data: pairs of a reference word and a recognised word, null for a gap."""
        return {
            "id": self.id,
            "first_pass": [list(pair) for pair in self.before],
            "rescored": [list(pair) for pair in self.after],
            **({"generated": True} if self.is_generated else {}),
        }


@dataclass(frozen=True, slots=True)
class ErrorAnalysis:
    """The errors of a system, and its changes to the first pass."""

    system: str
    confusions: Confusions
    changes: Changes
    parts: dict[str, list[Part]]
    """Errors before and after by the property that divides words or lists."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data, with the most frequent words of each kind; rates in percent."""
        confusions, changes = self.confusions, self.changes
        pairs = confusions.substitutions.most_common(TOP)
        return {
            "system": self.system,
            "substitutions": [{"reference": a, "hypothesis": b, "count": n} for (a, b), n in pairs],
            "deletions": _list_words(confusions.deletions),
            "insertions": _list_words(confusions.insertions),
            "fixed": _list_words(changes.fixed),
            "broken": _list_words(changes.broken),
            "insertions_removed": _list_words(changes.insertions_removed),
            "insertions_added": _list_words(changes.insertions_added),
            "words_fixed": changes.fixed.total(),
            "words_broken": changes.broken.total(),
            "parts": {name: list(map(_part_to_dict, parts)) for name, parts in self.parts.items()},
        }


def align_rows(
    scored: Sequence[ScoredList], first_pass: Row, row: Row, aligner: Aligner
) -> Iterator[AlignedList]:
    """Align the choices of the first pass and of a row for each list."""
    winners = zip(first_pass.winners.tolist(), row.winners.tolist(), strict=True)
    for item, (first, winner) in zip(scored, winners, strict=True):
        texts = [hypothesis.text for hypothesis in item.nbest.hypotheses]
        before = aligner.align(item.reference, texts[first])
        after = before if winner == first else aligner.align(item.reference, texts[winner])
        is_generated = item.nbest.hypotheses[winner].generated is not None
        yield AlignedList(item.evaluated.id, before, after, is_generated)


def analyse_errors(
    comparison: Comparison, row: Row, aligner: Aligner, unknown: Collection[str] | None = None
) -> ErrorAnalysis:
    """Analyse the errors of a row and what it changed.

    Args:
        aligner: aligns texts by the method that counted their errors.
        unknown: words that the language models do not know; None if that cannot be known.
    """
    aligned = list(align_rows(comparison.scored, comparison.first_pass, row, aligner))
    pairs = [(item.before, item.after) for item in aligned]
    parts = {"frequency": divide_by_frequency(pairs)}
    if unknown is not None and aligner.unit == "word":  # models know words, not parts of them
        parts["language models"] = divide_by_known(pairs, unknown)
    parts["reference length"] = _divide(comparison, row, _reference_length, LENGTH_LIMITS)
    if not (row.winners == comparison.first_pass.winners).all():
        parts["rank of the winner"] = _divide(comparison, row, find_first_pass_rank, DEPTH_LIMITS)
    confusions = count_confusions(item.after for item in aligned)
    return ErrorAnalysis(row.name, confusions, count_changes(pairs), parts)


def find_oracle_by_depth(scored: Sequence[ScoredList]) -> dict[int, WordErrors]:
    """The errors of the oracle of the first hypotheses of each list, in the order of the first pass; without
    generated ones."""
    lists = (item.recognised for item in scored)
    return oracle_by_depth([item.evaluated.hypotheses[i] for i in item.first_pass_order] for item in lists)


def find_first_pass_rank(scored: ScoredList, winner: int) -> int:
    """The rank, from 1, that the first pass gave to a hypothesis, or to the source of a generated one."""
    made = scored.nbest.hypotheses[winner].generated
    return scored.first_pass_order.index(winner if made is None else made.source) + 1


def _reference_length(scored: ScoredList, _: int) -> int:
    return scored.evaluated.oracle.reference_words


def _divide(
    comparison: Comparison, row: Row, value: Callable[[ScoredList, int], int], limits: Sequence[int]
) -> list[Part]:
    winners = zip(comparison.first_pass.winners.tolist(), row.winners.tolist(), strict=True)
    lists: list[tuple[int, int, int, int]] = []
    for item, (first, winner) in zip(comparison.scored, winners, strict=True):
        before, after = item.evaluated.hypotheses[first], item.evaluated.hypotheses[winner]
        lists.append((value(item, winner), before.reference_words, before.errors, after.errors))
    return divide_lists(lists, limits)


def _list_words(words: Counter[str]) -> list[dict[str, Any]]:
    return [{"word": word, "count": count} for word, count in words.most_common(TOP)]


def _part_to_dict(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        "items": part.items,
        "reference_words": part.reference_words,
        "errors_before": part.errors_before,
        "errors_after": part.errors_after,
        "rate_before": to_percent(part.rate(part.errors_before)),
        "rate_after": to_percent(part.rate(part.errors_after)),
    }

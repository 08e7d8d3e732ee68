"""Sum the errors of evaluated lists, in total and per group, and report them under plain keys."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.evaluation.error_rate.oracle import EvaluatedList

NO_GROUP = "(none)"
PERCENT_DECIMALS = 2


@dataclass(frozen=True, slots=True)
class Totals:
    """Errors summed over lists; totals add with ``+``."""

    lists: int
    hypotheses: int
    system: WordErrors
    """Errors of the first hypothesis of each list."""
    first_pass: WordErrors
    """Errors of the hypothesis that the recogniser ranked first."""
    oracle: WordErrors
    """Errors of the best hypothesis of each list: no re-ranking of the lists can have fewer."""
    worst: WordErrors
    """Errors of the worst hypothesis of each list."""

    @classmethod
    def zero(cls) -> Totals:
        none = WordErrors.zero()
        return cls(0, 0, none, none, none, none)

    @classmethod
    def from_list(cls, evaluated: EvaluatedList) -> Totals:
        return cls(
            lists=1,
            hypotheses=len(evaluated.hypotheses),
            system=evaluated.system,
            first_pass=evaluated.first_pass,
            oracle=evaluated.oracle,
            worst=evaluated.worst,
        )

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.lists + other.lists,
            self.hypotheses + other.hypotheses,
            self.system + other.system,
            self.first_pass + other.first_pass,
            self.oracle + other.oracle,
            self.worst + other.worst,
        )

    @property
    def recovered_share(self) -> float | None:
        """Share of the gap between first pass and oracle that the system closes.

        Negative if the system adds errors; None if there is no gap.
        """
        gap = self.first_pass.errors - self.oracle.errors
        return (self.first_pass.errors - self.system.errors) / gap if gap else None

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain numbers; rates in percent, None if undefined."""
        system = self.system
        return {
            "lists": self.lists,
            "hypotheses": self.hypotheses,
            "wer": to_percent(system.rate),
            "word_accuracy": to_percent(system.accuracy),
            "errors": system.errors,
            "substitutions": system.substitutions,
            "deletions": system.deletions,
            "insertions": system.insertions,
            "reference_words": system.reference_words,
            "sentence_error_rate": to_percent(system.sentence_rate),
            "sentences_wrong": system.sentences_wrong,
            "first_pass_wer": to_percent(self.first_pass.rate),
            "oracle_wer": to_percent(self.oracle.rate),
            "worst_wer": to_percent(self.worst.rate),
            "recovered_percent": to_percent(self.recovered_share),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Errors of one system."""

    total: Totals
    groups: Mapping[str, Totals]
    """Totals per speaker or other group, in input order; the empty string for lists without a group."""
    unit: str = "word"
    """What was counted: ``word``, ``character`` or ``mixed``."""

    def to_dict(self) -> dict[str, Any]:
        """``Totals.to_dict`` of all lists, and of each group under ``groups`` if any list has a group."""
        named = {group or NO_GROUP: totals.to_dict() for group, totals in self.groups.items()}
        return self.total.to_dict() | ({"groups": named} if any(self.groups) else {})


def build_report(lists: Iterable[EvaluatedList]) -> Report:
    """Sum the errors of one system's lists, all of which must be counted in the same unit."""
    groups: dict[str, Totals] = {}
    unit = "word"
    for evaluated in lists:
        unit = evaluated.unit
        totals = groups.get(evaluated.group, Totals.zero())
        groups[evaluated.group] = totals + Totals.from_list(evaluated)
    return Report(sum(groups.values(), Totals.zero()), groups, unit)


def to_percent(share: float | None) -> float | None:
    """``share`` in percent, rounded; None if it is undefined or infinite."""
    return None if share is None or not math.isfinite(share) else round(100.0 * share, PERCENT_DECIMALS)

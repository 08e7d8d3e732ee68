"""Owns the results of one system: sums over lists, by group, as plain keys and as aligned tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from rescorer.evaluation.error_rate.error_counts import WordErrors
from rescorer.evaluation.error_rate.oracle import EvaluatedList

NO_GROUP = "(none)"
PERCENT_DECIMALS = 2


@dataclass(frozen=True, slots=True)
class Totals:
    """Errors summed over lists; they add with ``+``."""

    lists: int
    hypotheses: int
    system: WordErrors
    """Of what the lists have first."""
    first_pass: WordErrors
    """Of what the recogniser had first."""
    oracle: WordErrors
    """Of the best hypothesis of each list: no order of these lists has fewer."""
    worst: WordErrors

    @classmethod
    def zero(cls) -> Totals:
        none = WordErrors.zero()
        return cls(0, 0, none, none, none, none)

    @classmethod
    def of(cls, each: EvaluatedList) -> Totals:
        return cls(1, len(each.hypotheses), each.system, each.first_pass, each.oracle, each.worst)

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
    def recovered(self) -> float | None:
        """Share of the errors between first pass and oracle that the system takes away; negative where it
        adds some; None where there are none to take."""
        gap = self.first_pass.errors - self.oracle.errors
        return (self.first_pass.errors - self.system.errors) / gap if gap else None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; rates in percent. None stands for what cannot be said: a rate without reference
        words, a gap of no errors."""
        system = self.system
        return {
            "lists": self.lists,
            "hypotheses": self.hypotheses,
            "wer": _percent(system.rate),
            "word_accuracy": _percent(system.accuracy),
            "errors": system.errors,
            "substitutions": system.substitutions,
            "deletions": system.deletions,
            "insertions": system.insertions,
            "reference_words": system.reference_words,
            "sentence_error_rate": _percent(system.sentence_rate),
            "sentences_wrong": system.sentences_wrong,
            "first_pass_wer": _percent(self.first_pass.rate),
            "oracle_wer": _percent(self.oracle.rate),
            "worst_wer": _percent(self.worst.rate),
            "recovered_percent": _percent(self.recovered),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What ``evaluate`` found."""

    total: Totals
    groups: Mapping[str, Totals]
    """By speaker or other group, in the order they came; one key, the empty string, where no list says."""
    unit: str = "word"
    """What was counted: ``word`` or ``character``."""

    def to_dict(self) -> dict[str, Any]:
        """``Totals.to_dict`` of all lists, and of each group under ``groups`` where lists say one."""
        named = {group or NO_GROUP: totals.to_dict() for group, totals in self.groups.items()}
        return self.total.to_dict() | ({"groups": named} if any(self.groups) else {})


def evaluate(lists: Iterable[EvaluatedList]) -> Report:
    """Adds up the errors of one system's lists, all counted in one unit."""
    groups: dict[str, Totals] = {}
    unit = "word"
    for each in lists:
        unit = each.unit
        groups[each.group] = groups.get(each.group, Totals.zero()) + Totals.of(each)
    return Report(sum(groups.values(), Totals.zero()), groups, unit)


def render(reports: Mapping[str, Report], by_group: bool = False) -> RenderableType:
    """A table with one row a system, and with ``by_group`` one more table a system, one row a group.

    Args:
        reports: by the name of the system, such as the file it came from.
    """
    unit = next((each.unit for each in reports.values()), "word")
    totals = {name: each.total for name, each in reports.items()}
    tables: list[RenderableType] = [_table("system", totals, unit)]
    if by_group:
        for name, report in reports.items():
            named = {group or NO_GROUP: totals for group, totals in report.groups.items()}
            tables.append(_table("group", named, report.unit, title=name))
    return Group(*tables)


def _table(heading: str, rows: Mapping[str, Totals], unit: str, title: str | None = None) -> Table:
    columns = {
        "lists": "lists",
        f"{unit}s": "reference_words",
        f"{unit[0].upper()}ER %": "wer",
        "accuracy %": "word_accuracy",
        "sub": "substitutions",
        "del": "deletions",
        "ins": "insertions",
        "SER %": "sentence_error_rate",
        "first pass %": "first_pass_wer",
        "oracle %": "oracle_wer",
        "worst %": "worst_wer",
        "recovered %": "recovered_percent",
    }
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(heading, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    for name, totals in rows.items():
        values = totals.to_dict()
        table.add_row(name, *(_shown(values[key]) for key in columns.values()))
    return table


def _percent(share: float | None) -> float | None:
    return None if share is None or math.isinf(share) else round(100.0 * share, PERCENT_DECIMALS)


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.{PERCENT_DECIMALS}f}" if isinstance(value, float) else str(value)

"""Tables of error rates: one row per system, and one row per group."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table

from rescorer.evaluation.error_rate.report import NO_GROUP, PERCENT_DECIMALS, Report, Totals

PIPE_WIDTH = 130
"""Columns assumed if the output is not a terminal; the table needs about as many."""


def print_error_rates(reports: Mapping[str, Report], by_group: bool = False) -> None:
    """Print the tables to stdout."""
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    Console(width=width).print(render_error_rates(reports, by_group))


def render_error_rates(reports: Mapping[str, Report], by_group: bool = False) -> RenderableType:
    """Render a table with one row per system.

    Args:
        reports: the report of each system, by its name (for example, its file name).
        by_group: add one table per system, with one row per group.
    """
    unit = next((report.unit for report in reports.values()), "word")
    totals_by_system = {name: report.total for name, report in reports.items()}
    tables: list[RenderableType] = [_table("system", totals_by_system, unit)]
    if by_group:
        for name, report in reports.items():
            totals_by_group = {group or NO_GROUP: totals for group, totals in report.groups.items()}
            tables.append(_table("group", totals_by_group, report.unit, title=name))
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
        table.add_row(name, *(_format_number(values[key]) for key in columns.values()))
    return table


def _format_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.{PERCENT_DECIMALS}f}" if isinstance(value, float) else str(value)

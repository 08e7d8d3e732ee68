"""Tables of error rates: one row per system, and one row per group."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from rich.console import Group, RenderableType

from rescorer.cli.render.tables import FoldingTable
from rescorer.evaluation.error_rate.report import NO_GROUP, PERCENT_DECIMALS, Report, Totals, to_percent
from rescorer.text import rate_name, unit_noun

COLUMNS = {
    "accuracy %": "word_accuracy",
    "oracle %": "oracle_wer",
    "recovered %": "recovered_percent",
    "SER %": "sentence_error_rate",
    "first pass %": "first_pass_wer",
    "sub": "substitutions",
    "del": "deletions",
    "ins": "insertions",
    "worst %": "worst_wer",
    "lists": "lists",
}
"""Keys of ``Totals.to_dict`` by heading, between the error rate and the number of words; the least important
columns are last, because those fold first."""


def warn_if_worse(prefix: str, reports: Mapping[str, Report]) -> None:
    """Print one line to stderr if systems have more errors than the first pass of the same lists.

    Args:
        prefix: beginning of the message, such as the name of the file.
    """
    worse = {
        name: report.total
        for name, report in reports.items()
        if report.total.system.errors > report.total.first_pass.errors
    }
    if worse:
        by_first_pass: dict[str, list[str]] = {}  # systems with lists of their own have another first pass
        for name, total in worse.items():
            rate = f"{name} {_format_number(to_percent(total.system.rate))}"
            by_first_pass.setdefault(_format_number(to_percent(total.first_pass.rate)), []).append(rate)
        comparisons = "; ".join(
            f"{', '.join(rates)} %, first pass {first} %" for first, rates in by_first_pass.items()
        )
        typer.echo(
            f"warning: {prefix}rescoring adds errors: {comparisons}; check the weights, and the signs and "
            "bases of the scores with `rescorer inspect`",
            err=True,
        )


Cells = Mapping[str, str]
"""Formatted cells of a row, by heading."""


def render_error_rates(
    reports: Mapping[str, Report],
    by_group: bool = False,
    extra_cells: Mapping[str, Cells] | None = None,
) -> RenderableType:
    """Render a table with one row per system.

    Args:
        reports: the report of each system, by its name (for example, its file name).
        by_group: add one table per system, with one row per group.
        extra_cells: further cells of each system, shown after the error rate; all have the same headings.
    """
    unit = next((report.unit for report in reports.values()), "word")
    totals_by_system = {name: report.total for name, report in reports.items()}
    tables: list[RenderableType] = [_make_table("system", totals_by_system, unit, extra_cells=extra_cells)]
    if by_group:
        for name, report in reports.items():
            totals_by_group = {group or NO_GROUP: totals for group, totals in report.groups.items()}
            tables.append(_make_table("group", totals_by_group, report.unit, title=name))
    return Group(*tables)


def format_cells(totals: Totals, unit: str, extra: Cells | None = None) -> dict[str, str]:
    """All cells of a row, the most important first."""
    values = totals.to_dict()
    numbers = {heading: _format_number(values[key]) for heading, key in COLUMNS.items()}
    rate, words = _format_number(values["wer"]), _format_number(values["reference_words"])
    return {f"{rate_name(unit)} %": rate, **(extra or {}), **numbers, f"{unit_noun(unit)}s": words}


def _make_table(
    heading: str,
    rows: Mapping[str, Totals],
    unit: str,
    title: str = "",
    extra_cells: Mapping[str, Cells] | None = None,
) -> FoldingTable:
    cells = {name: format_cells(totals, unit, (extra_cells or {}).get(name)) for name, totals in rows.items()}
    headings = next(iter(cells.values()), format_cells(Totals.zero(), unit))
    table = FoldingTable(heading, *headings, title=title)
    for name, row in cells.items():
        table.add_row(name, *row.values())
    return table


def _format_number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.{PERCENT_DECIMALS}f}" if isinstance(value, float) else str(value)

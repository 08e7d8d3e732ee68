"""Print an evaluation: error rates with intervals and gains, verdicts, and the oracle by depth."""

from __future__ import annotations

from pathlib import Path

from rescorer.cli.evaluation.evaluation import Evaluation, FileResults
from rescorer.cli.output import describe_shared_lists
from rescorer.cli.render.evaluation.error_rates import Cells, format_cells, render_error_rates
from rescorer.cli.render.exports import write_export
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import pluralise
from rescorer.evaluation.figures import format_interval, format_p, format_percent, format_signed, format_size
from rescorer.evaluation.significance.results import Result


def print_evaluation(evaluation: Evaluation, by_group: bool) -> None:
    """Print the rows as tables, and below them what they mean."""
    named = list(evaluation.named_results())
    reports = {name: result.row.report for name, _, result in named}
    has_generated = any(result.row.n_generated for _, _, result in named)
    extra = {name: statistics_cells(result, has_generated) for name, _, result in named}
    print_out(render_error_rates(reports, by_group, extra))
    _print_remarks(evaluation)
    for part in evaluation.parts:
        _print_verdicts(evaluation, part)
    for part in evaluation.parts if len(evaluation.parts) == 1 else ():
        print_out("", _render_oracle(part))
    for file, totals in evaluation.perplexity.items():
        values = ", ".join(
            f"{name} {'inf' if value is None else format_size(value, 1)}"
            for name, value in totals["perplexity"].items()
        )
        print_out(
            f"perplexity of the references ({Path(file).name}, {totals['tokens']:,} tokens, "
            f"{totals['unknown_words']} unknown words): {values}"
        )


def statistics_cells(result: Result, has_generated: bool = False) -> Cells:
    """The interval of a row, and its gain over the first pass with interval and p-values.

    Args:
        has_generated: whether to say how many generated hypotheses the row chose.
    """
    gain = result.gain
    cells = {
        "interval": format_interval(result.interval),
        "gain": "-",
        "gain interval": "-",
        "p": "-",
        "p corrected": "-",
    }
    cells |= {"generated": str(result.row.n_generated)} if has_generated else {}
    if gain is None:
        return cells
    cells["gain"] = format_signed(100 * gain.gain)
    if gain.interval.is_finite:
        low, high = (format_signed(100 * end) for end in (gain.interval.low, gain.interval.high))
        cells["gain interval"] = f"{low} to {high}"
        cells["p"] = format_p(gain.p_value)
        cells["p corrected"] = format_p(result.p_corrected)
    return cells


def export_rows(evaluation: Evaluation, path: Path) -> None:
    """Write the table of rows to a file: Markdown, CSV or LaTeX, by the end of its name."""
    unit = evaluation.counting.unit
    rows = [
        (name, format_cells(result.row.report.total, unit, statistics_cells(result)))
        for name, _, result in evaluation.named_results()
    ]
    headings = ["system", *rows[0][1]]
    records = [
        {"system": name, "file": part.file, **_to_record(result)}
        for name, part, result in evaluation.named_results()
    ]
    write_export(path, headings, [[name, *cells.values()] for name, cells in rows], records)


def _to_record(result: Result) -> dict[str, str | float | None]:
    """The numbers of a row, as in JSON, with the ends of intervals apart."""
    record: dict[str, str | float | None] = {}
    for key, value in result.to_dict().items():
        if key.endswith("_interval"):
            low, high = value or (None, None)
            record |= {
                f"{key.removesuffix('_interval')}_low": low,
                f"{key.removesuffix('_interval')}_high": high,
            }
        elif value is None or isinstance(value, (str, int, float)):
            record[key] = value
    return record


def _print_remarks(evaluation: Evaluation) -> None:
    if len(evaluation.files) > 1 and not evaluation.n_shared:
        print_out("the files share no list: these rows are about different lists and cannot be compared")
    elif any(evaluation.other_lists.values()):
        print_out(describe_shared_lists(evaluation.n_shared, evaluation.other_lists))
    drawn = {
        pluralise(part.significance.bootstrap.n_units, part.significance.bootstrap.unit)
        for part in evaluation.parts
    }
    print_out(f"intervals of 95 %: bootstrap of {', '.join(sorted(drawn))}; gains are over the first pass")
    print_out(f"words are compared by {evaluation.normaliser.settings.describe()}")
    warnings = dict.fromkeys(part.significance.bootstrap.warning for part in evaluation.parts)
    for line in (*warnings, *evaluation.notes):
        if line:
            print_out(line)


def _print_verdicts(evaluation: Evaluation, part: FileResults) -> None:
    several = len(evaluation.parts) > 1
    for verdict in part.verdicts:
        prefix = f"{part.label}: " if several else ""
        print_out(f"verdict: {prefix}{verdict.sentence()}")


def _render_oracle(part: FileResults) -> FoldingTable:
    """The oracle's error rate, if only the first hypotheses of each list were there."""
    table = FoldingTable("oracle of the first", *map(str, part.oracle_by_depth))
    rates = (format_percent(counts.rate) for counts in part.oracle_by_depth.values())
    table.add_row("error rate %", *rates)
    return table

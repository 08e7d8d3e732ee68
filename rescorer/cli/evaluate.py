"""The command ``rescorer evaluate``, and what the commands around it print.

Render the results of ``rescorer evaluate`` and the commands around it.

Results come in; tables, sentences and pictures come out.

Commands for people who measure: how good lists are, and which weights suit them.

Lists with references come in; tables, reports and weights come out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from rescorer.errors import ConfigError, FormatError, did_you_mean, pluralise
from rescorer.evaluation.error_analysis import (
    AlignedList,
    Aligner,
    Alignment,
    Column,
    ErrorAnalysis,
    Part,
    align_rows,
    align_three,
    analyse_errors,
    find_oracle_by_depth,
    find_unknown_words,
)
from rescorer.evaluation.error_rate import CountingSettings, Normalise, WordErrors
from rescorer.evaluation.false_alarms import DEFAULT_MAX_SHARE, PhraseBound, find_false_alarms, has_phrases
from rescorer.evaluation.figures import format_interval, format_p, format_percent, format_signed, format_size
from rescorer.evaluation.folds import count_tuning_lists
from rescorer.evaluation.list_errors import (
    NO_GROUP,
    PERCENT_DECIMALS,
    ListKey,
    Report,
    Selection,
    Totals,
    find_shared_lists,
    index_lists,
    to_percent,
)
from rescorer.evaluation.list_tally import describe_equated, find_equated
from rescorer.evaluation.scored_lists import (
    ScoredList,
    count_lists,
    score_lists,
    score_references,
    sum_scores,
)
from rescorer.evaluation.significance import (
    Result,
    Significance,
    SystemVerdict,
    correct_verdicts,
    find_verdicts,
    judge_rows,
)
from rescorer.evaluation.systems import (
    Comparison,
    Row,
    choose_row,
    compare_file,
    compare_rules,
    compare_systems,
    drop_models,
    name_possible_rows,
    weights_by_system,
)
from rescorer.extensions import used_rerankers
from rescorer.pipeline import Rescorer
from rescorer.reranking.reranker import replace_by_base
from rescorer.scoring.combination import phrase_weight
from rescorer.terminal.evaluation_options import (
    AnalysisOptions,
    EvaluationOptions,
    ModelOptions,
    collect_lists,
    make_list_reader,
)
from rescorer.terminal.options import (
    CandidateOptions,
    PhraseOptions,
    WeightOptions,
    check_streams,
    expand_options,
    parse_first_pass,
    warn_if_tuned_otherwise,
    warn_if_untuned,
    warn_of_unread_lists,
)
from rescorer.terminal.program import SEE_JSON, SOME_REJECTED, Rejections, describe_shared_lists
from rescorer.terminal.tables import (
    ExportOption,
    FoldingTable,
    check_export,
    make_console,
    make_text_grid,
    print_out,
    write_export,
)
from rescorer.text import Normaliser, rate_name, remark_on_spacing, unit_noun
from rescorer.types import NBestList, Weights

GAP = "***"
"""Stands where a text lacks a word, as in sclite's output."""
LABELS = ("reference", "first pass", "rescored")
RIGHT, FIXED, BROKEN, WRONG = "", "bold green", "bold red", "yellow"
STYLES = {
    (True, True): (RIGHT, RIGHT),
    (False, True): (FIXED, FIXED),
    (True, False): (RIGHT, BROKEN),
    (False, False): (WRONG, WRONG),
}
"""Styles of both texts, by whether the first pass and the rescored text are right."""


def legend() -> Text:
    """Explain the colours."""
    parts = (("wrong in both", WRONG), ", ", ("fixed", FIXED), ", ", ("broken", BROKEN))
    return Text.assemble("errors: ", *parts, f"; {GAP} stands for no word")


def print_alignments(lists: Iterable[AlignedList]) -> None:
    """Print the texts of the lists in which something is wrong."""
    width = make_console().width
    print_out("", legend())
    for aligned in lists:
        if aligned.has_errors:
            print_out(*render_alignment(aligned, width))


def render_alignment(aligned: AlignedList, width: int) -> Iterator[Text]:
    """Yield the lines of a list: its id, then the texts in blocks of lines that fit the width."""
    yield Text(f"{aligned.id}, generated" if aligned.is_generated else aligned.id, style="bold")
    if aligned.before == aligned.after:
        yield from _render_block(_two_rows(aligned.before), (LABELS[0], "recognised"), width)
        return
    try:
        columns = align_three(aligned.before, aligned.after)
    except ValueError:  # each follows the reading of the reference that matches it best
        for alignment, label in ((aligned.before, LABELS[1]), (aligned.after, LABELS[2])):
            yield from _render_block(_two_rows(alignment), (LABELS[0], label), width)
        return
    yield from _render_block([_style(column) for column in columns], LABELS, width)


def render_change(first_pass: Alignment, width: int) -> Iterator[Text]:
    """Yield the lines of a text and of what replaces it, for lists without a reference.

    Args:
        first_pass: the choice of the first pass, in place of a reference, and the rescored text.
    """
    yield from _render_block(_two_rows(first_pass), LABELS[1:], width)


_Cells = tuple[tuple[str, str], ...]
"""Text and style of each row in one column."""


def _style(column: Column) -> _Cells:
    before, after = STYLES[column.before == column.reference, column.after == column.reference]
    return (
        (column.reference or GAP, RIGHT),
        (column.before or GAP, before),
        (column.after or GAP, after),
    )


def _two_rows(alignment: Alignment) -> list[_Cells]:
    return [
        ((pair.reference or GAP, RIGHT), (pair.hypothesis or GAP, RIGHT if pair.kind == "correct" else WRONG))
        for pair in alignment
    ]


def _render_block(columns: Sequence[_Cells], labels: Sequence[str], width: int) -> Iterator[Text]:
    label_width = max(map(len, labels)) + 2
    for begin, end in _wrap(columns, width - label_width):
        for row, label in enumerate(labels):
            line = Text.assemble((label.ljust(label_width), "dim"))
            for column in columns[begin:end]:
                text, style = column[row]
                line.append(text, style)
                line.append(" " * (_column_width(column) - cell_len(text) + 1))
            line.rstrip()
            yield line
        yield Text()


def _wrap(columns: Sequence[_Cells], width: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of columns that fit a width; at least one column each."""
    begin = used = 0
    for index, column in enumerate(columns):
        needed = _column_width(column) + 1
        if index > begin and used + needed > width + 1:
            yield begin, index
            begin, used = index, 0
        used += needed
    if begin < len(columns):
        yield begin, len(columns)


def _column_width(column: _Cells) -> int:
    return max(cell_len(text) for text, _ in column)


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


SHOWN = 10
"""Number of words or pairs of each kind."""


def print_errors(analysis: ErrorAnalysis, unit: str) -> None:
    """Print the analysis of one system's errors.

    Args:
        unit: what was counted.
    """
    confusions, changes, noun = analysis.confusions, analysis.changes, unit_noun(unit)
    pairs = Counter({f"{a} → {b}": n for (a, b), n in confusions.substitutions.items()})
    grid = {
        "confused": pairs,
        "deleted": confusions.deletions,
        "inserted": confusions.insertions,
    }
    print_out("", f"errors of {analysis.system}", make_text_grid(_describe(grid)))
    changed = {
        f"{noun}s fixed": changes.fixed,
        f"{noun}s broken": changes.broken,
        "insertions removed": changes.insertions_removed,
        "insertions added": changes.insertions_added,
    }
    if any(changed.values()):
        print_out("", "changes to the first pass", make_text_grid(_describe(changed)))
    for name, parts in analysis.parts.items():
        print_out("", _render_parts(name, parts, unit))


def _describe(counts: Mapping[str, Counter[str]]) -> list[tuple[str, str]]:
    return [(name, _list_commonest(words)) for name, words in counts.items()]


def _list_commonest(words: Counter[str]) -> str:
    """The total, then the commonest words with their numbers."""
    shown = ", ".join(f"{word} {count}" for word, count in words.most_common(SHOWN))
    more = ", …" if len(words) > SHOWN else ""
    return f"{words.total():,}: {shown}{more}" if words else "0"


PARTS = {
    "frequency": ("frequency of the reference {unit}", "{unit}s", "wrong"),
    "language models": ("to the language models", "{unit}s", "wrong"),
    "reference length": ("reference {unit}s", "lists", "errors"),
    "rank of the winner": ("rank in the first pass", "lists", "errors"),
}
"""Heading of the names, what the parts contain, and what is counted, by key of ``ErrorAnalysis.parts``."""


def _render_parts(name: str, parts: list[Part], unit: str) -> FoldingTable:
    heading, items, wrong = (text.format(unit=unit_noun(unit)) for text in PARTS[name])
    share = "%" if wrong == "wrong" else f"{rate_name(unit)} %"
    first, after = f"first pass {share}", f"rescored {share}"
    table = FoldingTable(heading, items, first, after, f"first pass {wrong}", f"rescored {wrong}")
    for part in parts:
        before_rate, after_rate = part.rate(part.errors_before), part.rate(part.errors_after)
        rates = ("-" if rate is None else f"{100 * rate:.2f}" for rate in (before_rate, after_rate))
        table.add_row(part.name, f"{part.items:,}", *rates, str(part.errors_before), str(part.errors_after))
    return table


MAX_SAID = 0.5
"""Share of phrases that were said from which the lists are not like those in use."""


def describe_false_alarms(bound: PhraseBound, held_out: int) -> Iterator[str]:
    """Yield lines about false alarms and what the lists can say about them.

    Args:
        held_out: number of lists that were made worse by weights that they did not tune.
    """
    alarms = bound.alarms
    others = f", {pluralise(alarms.n_distractors, 'distractor')}" if alarms.n_distractors else ""
    yield (
        f"phrases: {alarms.n_phrases:,} in {pluralise(alarms.n_lists, 'list')}, {alarms.n_said:,} of them "
        f"said{others}; some that were not said occur in the hypotheses of "
        f"{pluralise(len(alarms.exposures), 'list')}"
    )
    yield (
        f"false alarms: held out, they make {describe_share(held_out, alarms.n_lists)} worse; "
        f"at most {_percent(bound.max_share)} % of the tuning lists are allowed"
    )
    if held_out > bound.max_share * alarms.n_lists:
        yield "warning: held out, the weight of phrases over-boosts: give more lists, or a smaller bound"
    if alarms.n_said > MAX_SAID * alarms.n_phrases and not alarms.n_distractors:
        yield (
            "warning: most of the phrases of these lists were said, so that false alarms are rarer here than "
            "where most are not: give each list the phrases that it would have in use, or add --distractors"
        )


def describe_over_boosting(n_worse: int, n_lists: int, weight: float) -> str:
    """Say that a weight of phrases lets phrases win that were not said."""
    return (
        f"the weight of phrases, {weight:.4g}, over-boosts: phrases that were not said make "
        f"{describe_share(n_worse, n_lists)} worse"
    )


def describe_share(n_worse: int, n_lists: int) -> str:
    """A number of lists, and their share.

    >>> describe_share(3, 1200)
    '3 of 1,200 lists (0.25 %)'
    """
    return f"{n_worse:,} of {pluralise(n_lists, 'list')} ({format_percent(n_worse / n_lists)} %)"


def false_alarms_to_dict(bound: PhraseBound, held_out: int) -> dict[str, Any]:
    """Convert to JSON data; shares in percent."""
    alarms = bound.alarms
    return {
        "lists": alarms.n_lists,
        "phrases": alarms.n_phrases,
        "said": alarms.n_said,
        "distractors": alarms.n_distractors,
        "lists_with_unsaid_phrases": len(alarms.exposures),
        "max_false_alarms": 100 * bound.max_share,
        "held_out_worse": held_out,
    }


def _percent(share: float) -> str:
    return f"{100 * share:g}"


OWN_LISTS = ", all its lists"
"""Ends the names of rows about all lists of a file, where most rows are about those that files share."""


@dataclass(frozen=True)
class EvaluatedFile:
    """The lists of a file that could be evaluated."""

    lists: Mapping[ListKey, ScoredList]
    compare: Callable[[Sequence[ScoredList]], Comparison]
    """Makes the rows of some of the lists."""
    normalise: Normalise
    """Converts the references to the words that were counted."""
    unknown: Collection[str] | None
    """Words of the references that the language models do not know; None without models."""


@dataclass(frozen=True)
class FileResults:
    """The rows of one file, on some of its lists."""

    file: str
    suffix: str
    """Added to the names of the rows; not empty if they are about other lists than most rows."""
    comparison: Comparison
    significance: Significance
    results: Sequence[Result]
    verdicts: Sequence[SystemVerdict]
    oracle_by_depth: Mapping[int, WordErrors]

    @property
    def label(self) -> str:
        """The file, and which of its lists if not those of most rows."""
        return self.file + self.suffix


@dataclass
class Evaluation:
    """The files, their rows, and the lists that were rejected."""

    counting: CountingSettings
    normaliser: Normaliser
    """Gives the words that errors are counted in, and by which equal references of several files are
    recognised."""
    files: dict[str, EvaluatedFile] = field(default_factory=dict)
    parts: list[FileResults] = field(default_factory=list)
    n_shared: int = 0
    """Number of lists that all files have; 0 if there are none, and each row is about lists of its own."""
    perplexity: dict[str, Any] = field(default_factory=dict)
    """Scores of the references, by file."""
    rejected: Rejections = field(default_factory=Rejections)

    def add(
        self,
        file: str,
        scored: Sequence[ScoredList],
        compare: Callable[[Sequence[ScoredList]], Comparison],
        normalise: Normalise,
        unknown: Collection[str] | None = None,
    ) -> None:
        """Add the lists of a file, unless there are none."""
        if scored:
            keys = ((item.evaluated.id, self.normaliser.normalise(item.reference), item) for item in scored)
            self.files[file] = EvaluatedFile(index_lists(keys), compare, normalise, unknown)

    def compare(self, own_lists: bool) -> None:
        """Make the rows: on the lists that all files have, or on each file's own if there are none."""
        shared = find_shared_lists([evaluated.lists for evaluated in self.files.values()])
        self.n_shared = len(shared)
        for file, evaluated in self.files.items():
            lists = [evaluated.lists[key] for key in shared] or list(evaluated.lists.values())
            self._add_part(file, evaluated.compare(lists), "")
        if own_lists and shared and len(self.files) > 1:
            for file, evaluated in self.files.items():
                if len(evaluated.lists) > len(shared):
                    comparison = evaluated.compare(list(evaluated.lists.values()))
                    self._add_part(file, comparison, OWN_LISTS)
        corrected = correct_verdicts([part.verdicts for part in self.parts])
        self.parts = [
            replace(part, verdicts=verdicts) for part, verdicts in zip(self.parts, corrected, strict=True)
        ]

    def _add_part(self, file: str, comparison: Comparison, suffix: str) -> None:
        significance = Significance(comparison)
        self.parts.append(
            FileResults(
                file,
                suffix,
                comparison,
                significance,
                judge_rows(comparison, significance),
                find_verdicts(comparison, significance),
                find_oracle_by_depth(comparison.scored),
            )
        )

    def row_name(self, part: FileResults, row: Row) -> str:
        """The name under which a row is shown: with its file, if there are several files."""
        several = len(self.files) > 1 and row.name != part.file
        return (f"{part.file}: {row.name}" if several else row.name) + part.suffix

    def named_results(self) -> Iterator[tuple[str, FileResults, Result]]:
        """Yield all rows with the names under which they are shown."""
        for part in self.parts:
            for result in part.results:
                yield self.row_name(part, result.row), part, result

    @property
    def notes(self) -> list[str]:
        """What is to be said about the rows."""
        notes = (note for part in self.parts for note in part.comparison.notes)
        return list(dict.fromkeys(filter(None, (self.spacing, *notes))))

    @property
    def spacing(self) -> str:
        """Advice if words were counted in texts without spaces between words, otherwise empty."""
        if self.counting.unit != "word":
            return ""
        lists = (pair for evaluated in self.files.values() for pair in evaluated.lists.items())
        return remark_on_spacing(text for key, item in lists for text in (key[1], item.words[0]))

    @property
    def other_lists(self) -> dict[str, int]:
        """Number of lists of each file that are not shared."""
        return {file: len(evaluated.lists) - self.n_shared for file, evaluated in self.files.items()}

    def choose_row(self, part: FileResults, system: str | None) -> Row:
        """Find the row whose errors are analysed, as ``comparison.row.choose_row``."""
        rows = [result.row for result in part.results]
        return rows[choose_row([(self.row_name(part, row), row) for row in rows], system)]

    def align(self, part: FileResults, system: str | None) -> Iterator[AlignedList]:
        """Align the texts of a row with the references; raises ConfigError as ``choose_row``."""
        row = self.choose_row(part, system)
        return align_rows(part.comparison.scored, part.comparison.first_pass, row, self._aligner(part))

    def analyse(self, part: FileResults, system: str | None) -> ErrorAnalysis:
        """Analyse the errors of a row; raises ConfigError as ``choose_row``."""
        row = self.choose_row(part, system)
        return analyse_errors(part.comparison, row, self._aligner(part), self.files[part.file].unknown)

    def _aligner(self, part: FileResults) -> Aligner:
        """Aligns texts as the errors of a file were counted."""
        return Aligner(self.files[part.file].normalise, self.counting)

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to JSON data, with the same keys for one file and for several."""
        return {
            "systems": [
                {"name": name, "file": part.file, **result.to_dict()}
                for name, part, result in self.named_results()
            ],
            "shared_lists": self.n_shared,
            "other_lists": self.other_lists,
            "references": self.perplexity,
            "rejected": len(self.rejected),
            "rejected_lists": self.rejected.reasons,
            "counting": self.counting.method,
            "unit": self.counting.unit,
            "normaliser": self.normaliser.settings.describe(),
            "verdicts": [
                {"file": part.file, **verdict.to_dict()} for part in self.parts for verdict in part.verdicts
            ],
            "notes": self.notes,
            "intervals": [
                {
                    "file": part.file,
                    "drawn": part.significance.bootstrap.unit,
                    "units": part.significance.bootstrap.n_units,
                    "warning": part.significance.bootstrap.warning,
                }
                for part in self.parts
            ],
            "oracle_by_depth": {
                part.label: {
                    str(depth): to_percent(counts.rate) for depth, counts in part.oracle_by_depth.items()
                }
                for part in self.parts
            },
        }


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


def check_bundle_options(options: EvaluationOptions) -> None:
    """Raise ConfigError if an option would be without effect, with or without a bundle."""
    if options.bundle is not None:
        return
    if options.phrases != PhraseOptions():
        raise ConfigError("--phrases and --phrase-list change the scores of a --bundle: give one")
    if options.candidates != CandidateOptions():
        raise ConfigError("--generate makes hypotheses that a --bundle scores: give one")
    if options.tune:
        raise ConfigError("--tune compares language models: give --bundle")
    if options.weights.weight or options.weights.weights != WeightOptions().weights:
        raise ConfigError(
            "--weights and -w choose the weights of a --bundle: give one, or name the weights that the "
            "recogniser ranked by with --first-pass"
        )


def check_system(
    system: str | None,
    files: Sequence[str],
    rescorer: Rescorer | None,
    options: EvaluationOptions,
) -> None:
    """Raise ConfigError, before any list is read, if no row can have the name that ``--system`` gives.

    Args:
        files: names of the files in the names of rows.
    """
    if system is None:
        return
    weights = options.weights.resolve(rescorer.bundle.weights) if rescorer else None
    systems = weights_by_system(rescorer, weights, options.tune) if rescorer and weights else {}
    rows = [*name_possible_rows(systems, options.tune, options.candidates.generate), *files]
    names = [system.removeprefix(f"{file}: ").removesuffix(OWN_LISTS) for file in files]
    if not any(name in rows for name in names):
        raise ConfigError(
            f"--system {system!r}: the rows can be {', '.join(map(repr, rows))}{did_you_mean(names[0], rows)}"
        )


def evaluate_files(files: Sequence[str], options: EvaluationOptions, rescorer: Rescorer | None) -> Run:
    """Read and score files under the same options; lists that cannot be evaluated are reported on stderr.

    Raises:
        ConfigError: the options contradict each other or the lists.
        FormatError: no list can be evaluated.
    """
    first_pass, selection = parse_first_pass(options.first_pass), options.selection.selection()
    if selection.merge and rescorer is None and first_pass is None:
        raise ConfigError("--merge adds up probabilities: give the scores with --first-pass, or a --bundle")
    read_lists = make_list_reader(
        options.reference, options.lists, alternations=options.counting.settings().alternations
    )
    normaliser = options.text.make_normaliser(rescorer.bundle if rescorer else None)
    if rescorer is not None:
        rescorer.ranker.text_normaliser = normaliser
        options.phrases.apply(rescorer.ranker)
        options.candidates.apply(rescorer.ranker)
    generate = options.candidates.generate
    run = Run(Evaluation(options.counting.settings(), normaliser), selection, first_pass, generate)
    files, printed = list(dict.fromkeys(files)), set[str]()
    for file in files:
        lists = collect_lists(read_lists(file), run.evaluation.rejected)
        check_streams(lists, first_pass, options.lists, file)
        if rescorer is None:
            warn_of_unread_lists(lists, options.lists, file)
            run.add_file(file, lists, normaliser, is_only_file=len(files) == 1)
            continue
        weights = options.weights.resolve(rescorer.bundle.weights)
        printed.add(check_streams(lists, weights, options.lists, file, printed))
        warn_if_tuned_otherwise(weights, selection)
        if not any(run.warnings.values()) and (line := warn_if_untuned(lists, weights)):
            run.warnings[file] = line
        if options.tune:
            options.lists.check_groups(lists)
        run.add_scored_file(file, lists, rescorer, weights, with_tuning=options.tune)
    run.evaluation.rejected.report(SEE_JSON)
    if not run.evaluation.files:
        raise FormatError("no list could be evaluated", file=", ".join(files))
    return run


@dataclass(frozen=True)
class Run:
    """Adds files to an evaluation under the same options."""

    evaluation: Evaluation
    selection: Selection
    first_pass: Weights | None
    generate: bool = False
    """Whether hypotheses are generated from phrases."""
    warnings: dict[str, str] = field(default_factory=dict)
    """What was printed on stderr about the weights, by file."""

    def add_file(
        self, file: str, lists: Sequence[NBestList], normaliser: Normaliser, *, is_only_file: bool
    ) -> None:
        """Add the lists of a file as they are, apart from hypotheses to merge or drop."""
        counting = self.evaluation.counting
        normalise = normaliser.normalise
        scored, errors = count_lists(normalise, lists, self.first_pass, counting, self.selection)
        for error in errors:
            self.evaluation.rejected.add(error)
        compare = compare_rules if is_only_file else compare_file
        self.evaluation.add(file, scored, partial(compare, name=file), normalise)

    def add_scored_file(
        self,
        file: str,
        lists: Sequence[NBestList],
        rescorer: Rescorer,
        weights: Weights,
        *,
        with_tuning: bool,
    ) -> None:
        """Add the lists of a file with the scores of all models."""
        evaluation = self.evaluation
        scored, errors = score_lists(
            rescorer,
            lists,
            weights,
            self.first_pass,
            evaluation.counting,
            self.selection,
            generate=self.generate,
        )
        for error in errors:
            evaluation.rejected.add(error)
        if not scored:
            return
        _warn_about_false_alarms(file, scored, weights, rescorer)
        _warn_about_equated_texts(file, lists, rescorer)
        rerankers = used_rerankers(rescorer.bundle, weights)
        if n_seen := count_tuning_lists(weights, lists, rerankers):
            overlap = f"{n_seen} of these {pluralise(len(lists), 'list')}"
            message = f"weights {weights.name!r} were tuned on {overlap}: errors are optimistic"
            typer.echo(f"{file}: {message}", err=True)
            self.warnings[file] = message
        references = score_references(rescorer, scored, weights)
        evaluation.perplexity[file] = sum_scores(references).to_dict()
        read = {
            word for text in references for word, flag in zip(text.words, text.unknown, strict=True) if flag
        }
        counted = rescorer.ranker.text_normaliser.normalise
        texts = [" ".join(item.readings[0]) for item in scored]
        unknown = find_unknown_words(texts, read, rescorer.bundle.normaliser.normalise, counted)
        compare = partial(
            compare_systems,
            systems=weights_by_system(rescorer, weights, with_tuning),
            with_tuning=with_tuning,
            word_only=drop_models(replace_by_base(weights, rerankers), self.first_pass),
            rescorer=rescorer,
        )
        evaluation.add(file, scored, compare, counted, unknown)


def _warn_about_equated_texts(file: str, lists: Sequence[NBestList], rescorer: Rescorer) -> None:
    """Print a line to stderr if the bundle's normaliser hides differences from its models."""
    texts = ([hypothesis.text for hypothesis in nbest.hypotheses] for nbest in lists)
    found = find_equated(texts, rescorer.bundle.normaliser, rescorer.ranker.text_normaliser)
    if found.beyond:
        typer.echo(f"{file}: warning: {describe_equated(found)}", err=True)


def _warn_about_false_alarms(
    file: str, scored: Sequence[ScoredList], weights: Weights, rescorer: Rescorer
) -> None:
    """Print a line to stderr if phrases that were not said make too many lists worse."""
    if not has_phrases(rescorer, scored):
        return
    weights = rescorer.ranker.effective_weights(weights)
    n_worse = find_false_alarms(rescorer, scored, weights).count(scored, weights)
    if n_worse > DEFAULT_MAX_SHARE * len(scored):
        over_boosts = describe_over_boosting(n_worse, len(scored), phrase_weight(weights))
        typer.echo(f"{file}: warning: {over_boosts}; `rescorer tune` finds one that does not", err=True)


@expand_options
def evaluate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="N-best lists, or the output of `rescorer rescore`: one file or folder per system.",
        ),
    ],
    *,
    options: EvaluationOptions,
    analysis: AnalysisOptions,
    models: ModelOptions,
    export: ExportOption = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON: a list `systems`, with keys such as wer; rates in percent."),
    ] = False,
) -> None:
    """Report the word error rate of lists, the range that re-ranking could reach, and the gain of models.

    Example: rescorer evaluate demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx --tune

    Rows without language models come first: the first pass, empty hypotheses left out, equal ones merged,
    the word weight only. A verdict says whether the models gain more than the best of these, beyond chance;
    intervals of 95 % are drawn by group where groups are known.

    Rows marked "tuned" are cross-validated: the weights for a list, those of `rescorer tune`, are tuned
    without its fold: on lists of other groups, or without groups of other ids, with other references. The
    models' scores are cached. Several files are as many systems, compared on the lists that all of them have;
    the jobs or shards of one system are one folder.
    """
    check_bundle_options(options)
    check_export(export)
    rescorer = models.load(options.bundle) if options.bundle else None
    check_system(analysis.system, files, rescorer, options)
    run = evaluate_files(files, options, rescorer)
    evaluation = run.evaluation
    evaluation.compare(analysis.own_lists)
    _show(evaluation, analysis, list(run.warnings.values()), as_json=as_json)
    if export is not None:
        export_rows(evaluation, export)
    rescored = {name: item.row.report for name, _, item in evaluation.named_results() if item.row.is_rescored}
    warn_if_worse("", rescored)
    if evaluation.rejected:
        raise typer.Exit(SOME_REJECTED)


def _show(
    evaluation: Evaluation, analysis: AnalysisOptions, warnings: Sequence[str], *, as_json: bool
) -> None:
    parts, system = evaluation.parts, analysis.system
    if not as_json:
        print_evaluation(evaluation, analysis.by_group)
    analyses = [(part, evaluation.analyse(part, system)) for part in parts] if analysis.errors else []
    aligned = [(part, evaluation.align(part, system)) for part in parts] if analysis.alignments else []
    if as_json:
        data = evaluation.to_dict() | ({"warnings": warnings} if warnings else {})
        if analysis.errors:
            data["errors"] = [{"file": part.label, **found.to_dict()} for part, found in analyses]
        if analysis.alignments:
            data["alignments"] = [
                {"file": part.label, **item.to_dict()}
                for part, lists in aligned
                for item in lists
                if item.has_errors
            ]
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    for _, found in analyses:
        print_errors(found, evaluation.counting.unit)
    for _, lists in aligned:
        print_alignments(lists)

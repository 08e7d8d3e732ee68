"""The command ``rescorer evaluate``, and the tables and aligned texts that this and other commands print.

This module reads options and prints results; ``rescorer.evaluation.run`` computes the results.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from rescorer.errors import ConfigError, FormatError, did_you_mean, pluralise
from rescorer.evaluation.error_analysis import AlignedList, Alignment, ErrorAnalysis, Part, align_three
from rescorer.evaluation.list_errors import (
    NO_GROUP,
    Report,
    build_report,
    format_interval,
    format_percent,
    format_size,
    to_percent,
)
from rescorer.evaluation.rate_tables import (
    GROUP_COLUMNS,
    RateTable,
    Signature,
    format_value,
    has_choice,
    parse_columns,
    tabulate,
    tabulate_results,
)
from rescorer.evaluation.run import OWN_LISTS, Evaluation, FileResults
from rescorer.evaluation.scored_lists import rerank
from rescorer.evaluation.significance import Result
from rescorer.evaluation.statistics import Gain
from rescorer.evaluation.sweep import Grid, Sweep, sweep, vary_models, vary_streams
from rescorer.evaluation.systems import Tuning, name_possible_rows, weights_by_system
from rescorer.extensions import used_rerankers
from rescorer.pipeline import Rescorer
from rescorer.reranking.reranker import replace_by_base
from rescorer.terminal.evaluation_options import (
    AnalysisOptions,
    EvaluationOptions,
    ModelOptions,
    collect_lists,
    make_list_reader,
)
from rescorer.terminal.language_models import (
    ImportOptions,
    complete_weights,
    find_unweighted,
    tune_command,
)
from rescorer.terminal.options import (
    CandidateOptions,
    PhraseOptions,
    argument,
    check_streams,
    expand_options,
    option,
    parse_first_pass,
    warn_if_tuned_otherwise,
    warn_if_untuned,
    warn_of_unread_lists,
)
from rescorer.terminal.program import (
    Rejections,
    describe_shared_lists,
    name_systems,
    print_json,
    print_note,
    running_command,
    warn,
)
from rescorer.terminal.tables import (
    ExportOptions,
    FoldingTable,
    fold_columns,
    make_console,
    make_text_grid,
    print_out,
    show,
)
from rescorer.text import rate_name, unit_noun

GAP = "***"
"""Printed in place of a missing word, as in sclite's output."""
LABELS = ("reference", "first pass", "rescored")
RIGHT, FIXED, BROKEN, WRONG = "", "bold green", "bold red", "yellow"
STYLES = {
    (True, True): (RIGHT, RIGHT),
    (False, True): (FIXED, FIXED),
    (True, False): (RIGHT, BROKEN),
    (False, False): (WRONG, WRONG),
}
"""Styles of a word in the first pass and in the rescored text. The key says whether each of them is right."""
LEGEND = Text.assemble(
    "errors: ", ("wrong in both", WRONG), ", ", ("fixed", FIXED), ", ", ("broken", BROKEN),
    f"; {GAP} stands for no word",
)  # fmt: skip
"""A line that explains the colours of aligned texts."""


def print_alignments(lists: Iterable[AlignedList]) -> None:
    """Print the aligned texts of all lists with errors."""
    width = make_console().width
    print_out("", LEGEND)
    for aligned in lists:
        if aligned.has_errors:
            print_out(*render_alignment(aligned, width))


def render_alignment(aligned: AlignedList, width: int) -> Iterator[Text]:
    """Yield the id of a list, then its aligned texts, in blocks of lines that are no wider than ``width``."""
    list_id = show(aligned.id)
    yield Text(f"{list_id}, generated" if aligned.is_generated else list_id, style="bold")
    if aligned.before == aligned.after:
        yield from render_pair(aligned.before, (LABELS[0], "recognised"), width)
        return
    try:
        columns = align_three(aligned.before, aligned.after)
    except ValueError:  # each follows the reading of the reference that matches it best
        for alignment, label in ((aligned.before, LABELS[1]), (aligned.after, LABELS[2])):
            yield from render_pair(alignment, (LABELS[0], label), width)
        return
    styles = [STYLES[before == reference, after == reference] for reference, before, after in columns]
    cells = [
        tuple((show(word or GAP), style) for word, style in zip(column, (RIGHT, *pair), strict=True))
        for column, pair in zip(columns, styles, strict=True)
    ]
    yield from _render_block(cells, LABELS, width)


def render_pair(alignment: Alignment, labels: Sequence[str], width: int) -> Iterator[Text]:
    """Yield the lines of two aligned texts. Words of the second one that differ have the colour of errors."""
    cells = [
        (
            (show(pair.reference or GAP), RIGHT),
            (show(pair.hypothesis or GAP), RIGHT if pair.kind == "correct" else WRONG),
        )
        for pair in alignment
    ]
    yield from _render_block(cells, labels, width)


_Cells = tuple[tuple[str, str], ...]
"""One column of aligned texts: the word of each text with its style."""


def _render_block(columns: Sequence[_Cells], labels: Sequence[str], width: int) -> Iterator[Text]:
    label_width = max(map(len, labels)) + 2
    widths = [max(cell_len(text) for text, _ in column) for column in columns]
    for block in fold_columns(widths, width - label_width + 1, 1) if columns else ():
        for row, label in enumerate(labels):
            line = Text.assemble((label.ljust(label_width), "dim"))
            for column in block:
                text, style = columns[column][row]
                line.append(text, style)
                line.append(" " * (widths[column] - cell_len(text) + 1))
            line.rstrip()
            yield line
        yield Text()


def warn_if_worse(prefix: str, systems: Mapping[str, tuple[Report, Gain | None]]) -> None:
    """Warn if systems have more errors than the first pass has on the same lists, beyond chance.

    Args:
        prefix: beginning of the warning, such as the name of the file.
        systems: the report of each system, and its gain over the first pass; None for the first pass itself.
    """
    worse = {name: report.total for name, (report, gain) in systems.items() if gain and gain.is_loss}
    if worse:
        by_first_pass: dict[str, list[str]] = {}  # each file has its own first pass
        for name, total in worse.items():
            rate = f"{name} {format_value(to_percent(total.system.rate))}"
            by_first_pass.setdefault(format_value(to_percent(total.first_pass.rate)), []).append(rate)
        comparisons = "; ".join(
            f"{', '.join(rates)} %, first pass {first} %" for first, rates in by_first_pass.items()
        )
        warn(
            f"{prefix}rescoring adds errors, more than chance would: {comparisons}; check the weights, and "
            "the signs and bases of the scores with `rescorer inspect`"
        )


def render_error_rates(
    reports: Mapping[str, Report],
    by_group: bool = False,
    results: Mapping[str, Result] | None = None,
    columns: Sequence[str] = (),
) -> RenderableType:
    """Render a table with one row per system, below a line with what all rows share.

    Args:
        reports: the report of each system, by the system's name, which may be that of a file.
        by_group: whether to add a table for each system, with one row per group.
        results: statistics of each system; None for a table without intervals and gains.
        columns: names of further columns; see ``parse_columns``.
    """
    unit = next((report.unit for report in reports.values()), "word")
    totals_by_system = {name: report.total for name, report in reports.items()}
    table = tabulate(totals_by_system, unit, results, columns)
    tables: list[RenderableType] = [Text(table.shared)] if table.shared else []
    tables.append(_make_table("system", table))
    if by_group:
        for name, report in reports.items():
            totals_by_group = {group or NO_GROUP: totals for group, totals in report.groups.items()}
            further = [*GROUP_COLUMNS, *(column for column in columns if column not in GROUP_COLUMNS)]
            tables.append(_make_table("group", tabulate(totals_by_group, report.unit, None, further), name))
    return Group(*tables)


def _make_table(heading: str, rates: RateTable, title: str = "") -> FoldingTable:
    table = FoldingTable(heading, *rates.headings, title=title)
    for name, cells in rates.rows.items():
        table.add_row(name, *cells)
    return table


SHOWN = 10
"""Number of words, or pairs of words, that are printed for each kind of error, the commonest first."""


def print_errors(analysis: ErrorAnalysis, unit: str) -> None:
    """Print the analysis of one system's errors.

    Args:
        unit: the unit of errors: ``word``, ``character`` or ``mixed``.
    """
    confusions, changes, noun = analysis.confusions, analysis.changes, unit_noun(unit)
    pairs = Counter({f"{a} → {b}": n for (a, b), n in confusions.substitutions.items()})
    grid = {"confused": pairs, "deleted": confusions.deletions, "inserted": confusions.insertions}
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


def _describe(counts: Mapping[str, Counter[str]]) -> Iterator[tuple[str, str]]:
    """Yield the name of each kind of errors, with its total and its commonest words: "9: a 5, the 4"."""
    for name, words in counts.items():
        shown = ", ".join(f"{word} {count}" for word, count in words.most_common(SHOWN))
        more = ", …" if len(words) > SHOWN else ""
        yield name, f"{words.total():,}: {shown}{more}" if words else "0"


PARTS = {
    "frequency": ("frequency of the reference {unit}", "{unit}s", "wrong"),
    "language models": ("to the language models", "{unit}s", "wrong"),
    "reference length": ("reference {unit}s", "lists", "errors"),
    "rank of the winner": ("rank in the first pass", "lists", "errors"),
}
"""For each table of ``ErrorAnalysis.parts``, the headings of three columns: the names of the parts, the
number of items, and the number of wrong items or errors."""


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


def print_evaluation(evaluation: Evaluation, by_group: bool, columns: Sequence[str] = ()) -> None:
    """Print the rows of an evaluation as tables, with remarks and verdicts below them.

    Args:
        columns: names of further columns; see ``parse_columns``.
    """
    results = {name: result for name, _, result in evaluation.named_results()}
    reports = {name: result.row.report for name, result in results.items()}
    print_out(render_error_rates(reports, by_group, results, columns))
    _print_remarks(evaluation)
    several = len(evaluation.parts) > 1
    for part in evaluation.parts:
        label = evaluation.labels.get(part.file, part.file)
        for verdict in part.verdicts:
            sentence = verdict.sentence().replace(part.file, label)
            print_out(f"verdict: {label + part.suffix + ': ' if several else ''}{sentence}")
    if differences := evaluation.compare_files():
        command = shlex.join(running_command("compare"))
        sentences = (difference.sentence() for difference in differences)
        print_out("", *sentences, f"every pair, and further tests: {command}")
    has_depth = not several and has_choice(report.total for report in reports.values())
    if has_depth:  # the oracle's error rate, if only the first hypotheses of each list were there
        depths = evaluation.parts[0].oracle_by_depth
        table = FoldingTable("oracle of the first", *map(str, depths))
        table.add_row("error rate %", *(format_percent(counts.rate) for counts in depths.values()))
        print_out("", table)
    for file, totals in evaluation.perplexity.items():
        values = ", ".join(
            f"{name} {'inf' if value is None else format_size(value, 1)}"
            for name, value in totals["perplexity"].items()
        )
        print_out(
            f"perplexity of the references ({Path(file).name}, {totals['tokens']:,} tokens, "
            f"{totals['unknown_words']} unknown words): {values}"
        )


def export_rows(evaluation: Evaluation, export: ExportOptions) -> None:
    """Write the table of rows to the file of ``--export``, if it is given."""
    results = {name: result for name, _, result in evaluation.named_results()}
    drawn, corrected = _describe_drawn(evaluation), evaluation.describe_correction()
    paper = tabulate_results(results, evaluation.counting.unit, drawn, corrected)
    signature = str(evaluation.signature or "")
    records = [
        {"system": name, "file": part.file, **_to_record(result), "signature": signature}
        for name, part, result in evaluation.named_results()
    ]
    export.write(paper.headings, paper.rows, records, [*paper.notes, *filter(None, [signature])])


def _to_record(result: Result) -> dict[str, str | float | None]:
    """Return the numbers of a row as JSON output has them, but each end of an interval as its own column."""
    record: dict[str, str | float | None] = {}
    for key, value in result.to_dict().items():
        if key.endswith("_interval"):
            low, high = value or (None, None)
            name = key.removesuffix("_interval")
            record |= {f"{name}_low": low, f"{name}_high": high}
        elif value is None or isinstance(value, (str, int, float)):
            record[key] = value
    return record


def _print_remarks(evaluation: Evaluation) -> None:
    if len(evaluation.files) > 1 and not evaluation.n_shared:
        print_out("the files share no list: these rows are about different lists and cannot be compared")
    elif any(evaluation.other_lists.values()):
        print_out(describe_shared_lists(evaluation.n_shared, evaluation.other_lists))
    results = [result for _, _, result in evaluation.named_results()]
    gains = ""
    if has_choice(result.row.report.total for result in results):
        gains = f"; gain: over the first pass; p: two-sided{evaluation.describe_correction()}"
    print_out(f"intervals of 95 %: bootstrap of {_describe_drawn(evaluation)}{gains}")
    print_out(f"words are compared by {evaluation.normaliser.settings.describe()}")
    if evaluation.signature:
        print_out(f"signature: {evaluation.signature}")
    warnings = dict.fromkeys(part.significance.bootstrap.warning for part in evaluation.parts)
    for line in (*warnings, *evaluation.notes):
        if line:
            print_out(line)


def _describe_drawn(evaluation: Evaluation) -> str:
    """Say what the bootstrap drew: ``8 groups``."""
    drawn = (part.significance.bootstrap for part in evaluation.parts)
    return ", ".join(sorted({pluralise(found.n_units, found.unit) for found in drawn}))


def check_bundle_options(options: EvaluationOptions, imports: ImportOptions) -> None:
    """Raise ConfigError if an option needs a bundle or ``--lm``, and none is given."""
    if options.bundle is not None or imports.lm:
        return
    if options.phrases != PhraseOptions():
        raise ConfigError("--phrases and --phrase-list change the scores of a --bundle: give one")
    if options.candidates != CandidateOptions():
        raise ConfigError("--generate makes hypotheses that a --bundle scores: give one")
    if options.tune:
        raise ConfigError("--tune compares language models: give --bundle")
    if options.weights.are_given:
        raise ConfigError(
            "--weights and -w choose the weights of a --bundle: give one, or name the weights that the "
            "recogniser ranked by with --first-pass"
        )


def check_system(
    system: str | None, files: Sequence[str], rescorer: Rescorer | None, options: EvaluationOptions
) -> None:
    """Raise ConfigError, before lists are read, if no row can have the name that ``--system`` gives.

    Args:
        files: names of the files, as they appear in the names of rows.
    """
    if system is None:
        return
    weights = None
    if rescorer:
        weights = complete_weights(rescorer.bundle, options.weights.resolve(rescorer.bundle.weights), [])
    systems = weights_by_system(rescorer, weights, options.tune) if rescorer and weights else {}
    rows = dict.fromkeys([*name_possible_rows(systems, options.tune, options.candidates.generate), *files])
    names = [system.removeprefix(f"{file}: ").removesuffix(OWN_LISTS) for file in files]
    if not any(name in rows for name in names):
        raise ConfigError(
            f"--system {system!r}: the rows can be {', '.join(map(repr, rows))}{did_you_mean(names[0], rows)}"
        )


def evaluate_files(
    files: Sequence[str], options: EvaluationOptions, rescorer: Rescorer | None, rejected: Rejections
) -> Evaluation:
    """Read, score and evaluate files with the same options.

    Args:
        rescorer: scores the lists with the models of a bundle; None if there is no bundle.
        rejected: collects the lists that cannot be read or scored.

    Raises:
        ConfigError: the options contradict each other or the lists.
        FormatError: no list can be evaluated.
    """
    first_pass, selection = parse_first_pass(options.first_pass), options.selection.selection()
    if selection.merge and rescorer is None and first_pass is None:
        raise ConfigError("--merge adds up probabilities: give the scores with --first-pass, or a --bundle")
    counting = options.counting.settings()
    read_lists = make_list_reader(options.reference, options.lists, alternations=counting.alternations)
    normaliser = options.text.make_normaliser(rescorer.bundle if rescorer else None)
    if rescorer is not None:
        rescorer.ranker.text_normaliser = normaliser
        options.phrases.apply(rescorer.ranker)
        options.candidates.apply(rescorer.ranker)
    evaluation = Evaluation(
        counting,
        normaliser,
        selection,
        first_pass,
        options.candidates.generate,
        on_rejected=rejected.add,
        on_warning=partial(typer.echo, err=True),
    )
    inputs, printed = name_systems(files), set[str]()
    for file, label in inputs.items():
        name = file if label in (file, Path(file).name) else label
        evaluation.labels[name] = label
        lists = collect_lists(read_lists(file), rejected)
        check_streams(lists, first_pass, options.lists, file)
        if rescorer is None:
            warn_of_unread_lists(lists, options.lists, file)
            evaluation.add_file(name, lists, is_only_file=len(inputs) == 1)
            continue
        weights = options.weights.resolve(rescorer.bundle.weights)
        weights = complete_weights(rescorer.bundle, weights, lists, first_pass)
        printed.add(check_streams(lists, weights, options.lists, file, printed))
        warn_if_tuned_otherwise(weights, selection)
        if not any(evaluation.warnings.values()) and (line := warn_if_untuned(lists, weights)):
            evaluation.warnings[name] = line
        if options.tune:
            options.lists.check_groups(lists)
        evaluation.add_scored_file(name, lists, rescorer, weights, with_tuning=options.tune)
    rejected.report(rejected.see_json)
    if not evaluation.files:
        raise FormatError("no list could be evaluated", file=", ".join(inputs))
    return evaluation


def find_tuning(part: FileResults, unweighted: Sequence[str]) -> Tuning | None:
    """Find the search for weights of the system that has all models to which weights gave no weight."""
    tunings = part.comparison.tunings
    return list(tunings.values())[-1] if unweighted and tunings else None


def describe_found_weights(part: FileResults, tuning: Tuning, names: Sequence[str]) -> Iterator[str]:
    """Yield lines about the weights of models of ``--lm`` that were tuned here, and the command to keep them.

    Args:
        names: models to which no weights were given.
    """
    report = tuning.report()
    judgement, first = report.judgement, part.comparison.first_pass.report.total
    interval = f" ({format_interval(judgement.interval)})" if judgement.interval.is_finite else ""
    models = ", ".join(names)
    yield (
        f"{models}: held out {format_percent(judgement.rate)} %{interval}, first pass "
        f"{format_percent(first.system.rate)} %: each list was ranked by weights that were tuned without it"
    )
    own = to_percent(build_report(rerank(*pair) for pair in tuning.tuned).total.system.rate)
    values = ", ".join(f"{weight.name} {weight.tuned:.4g}" for weight in report.weights)
    yield f"weights tuned on all of these lists, where they reach {format_value(own)} %: {values}"
    yield f"to keep them: {tune_command(names)}"


def check_signature(found: Signature | None, expected: Signature) -> None:
    """Raise ConfigError if figures with this signature cannot be compared with those evaluated here; print a
    note if only the version differs."""
    if found is None:
        raise ConfigError("--signature: the files share no list, so that there is no signature to compare")
    if remark := found.check(expected):
        print_note(f"note: --signature: {remark}")


def make_sweep(part: FileResults, grid: Grid, options: EvaluationOptions, rescorer: Rescorer | None) -> Sweep:
    """Count the errors of a file on a grid of weights; raise ConfigError if there is no weight to vary."""
    scored, first_pass = part.comparison.scored, parse_first_pass(options.first_pass)
    if rescorer is None:
        return sweep(scored, vary_streams(scored, first_pass), grid)
    lists, bundle = [item.nbest for item in scored], rescorer.bundle
    weights = complete_weights(bundle, options.weights.resolve(bundle.weights), lists, first_pass)
    weights = rescorer.ranker.effective_weights(weights)
    return sweep(scored, vary_models(replace_by_base(weights, used_rerankers(bundle, weights))), grid)


def print_sweep(found: Sweep, label: str, unit: str) -> None:
    """Print the error rates of a sweep with a row per weight and a column per penalty."""
    rate, names = rate_name(unit), " and ".join(found.varied.names)
    title = f"{label}: {rate} % by LMWT, the weight of {names}, and word insertion penalty"
    table = FoldingTable("LMWT", *(f"{penalty:g}" for penalty in found.grid.penalties), title=title)
    for scale, rates in zip(found.grid.scales, found.rates.tolist(), strict=True):
        table.add_row(f"{scale:g}", *map(format_percent, rates))
    print_out("", table, found.describe_best(rate))


def _label(items: Iterable[tuple[FileResults, Sweep | ErrorAnalysis | AlignedList]]) -> list[dict[str, Any]]:
    """Convert what was found in each file to JSON data, with the label of the file."""
    return [{"file": part.label, **found.to_dict()} for part, found in items]


@expand_options
def evaluate(
    *,
    files: list[str] = argument(
        "N-best lists, the output of `rescorer rescore`, or transcripts (trn, ctm, Kaldi's text, plain "
        "sentences): one file or folder per system. NAME=FILE names a system.",
        "[NAME=]FILE...",
    ),
    options: EvaluationOptions,
    analysis: AnalysisOptions,
    models: ModelOptions,
    export: ExportOptions,
    as_json: bool = option(
        False, "Print JSON: a list `systems`, with keys such as wer; rates in percent.", "--json"
    ),
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

    With --lm and without weights for its models, such weights are tuned too: the held-out error rate and the
    weights are printed, and the command of `rescorer tune` that keeps them.
    """
    check_bundle_options(options, models.imports)
    export.check()
    columns = parse_columns(analysis.columns)
    expected = None if analysis.signature is None else Signature.parse(analysis.signature)
    grid = None if analysis.sweep is None else Grid.parse(analysis.sweep)
    inputs = name_systems(files)
    has_models = options.bundle or models.imports.lm
    rescorer = models.load(options.bundle, list(inputs), options) if has_models else None
    unweighted = find_unweighted(rescorer.bundle if rescorer else None, options.weights)
    options = replace(options, tune=options.tune or bool(unweighted))
    check_system(analysis.system, [*inputs.values(), *inputs], rescorer, options)
    rejected = Rejections()
    evaluation = evaluate_files(files, options, rescorer, rejected)
    evaluation.compare(analysis.own_lists)
    if expected:
        check_signature(evaluation.signature, expected)
    parts, system, counting = evaluation.parts, analysis.system, evaluation.counting
    sweeps = [(part, make_sweep(part, grid, options, rescorer)) for part in parts if grid]
    tunings = [(part, tuning) for part in parts if (tuning := find_tuning(part, unweighted))]
    if not as_json:
        print_evaluation(evaluation, analysis.by_group, columns)
        for part, tuning in tunings:
            print_out("", *describe_found_weights(part, tuning, unweighted))
    analyses = [(part, evaluation.analyse(part, system)) for part in parts] if analysis.errors else []
    aligned = [(part, evaluation.align(part, system)) for part in parts] if analysis.alignments else []
    if as_json:
        data = evaluation.to_dict(rejected.reasons)
        if evaluation.warnings:
            data["warnings"] = list(evaluation.warnings.values())
        if tunings:
            data["tuned"] = [{"file": part.file, **tuning.report().to_dict()} for part, tuning in tunings]
        data |= {name: _label(items) for name, items in (("sweeps", sweeps), ("errors", analyses)) if items}
        if analysis.alignments:
            lists = [(part, item) for part, texts in aligned for item in texts if item.has_errors]
            data["alignments"] = _label(lists)
        print_json(data)
    else:
        for part, swept in sweeps:
            print_sweep(swept, evaluation.labels.get(part.file, part.file) + part.suffix, counting.unit)
        for _, found in analyses:
            print_errors(found, counting.unit)
        for _, texts in aligned:
            print_alignments(texts)
    export_rows(evaluation, export)
    results = evaluation.named_results()
    warn_if_worse(
        "", {name: (item.row.report, item.gain) for name, _, item in results if item.row.is_rescored}
    )
    rejected.end()

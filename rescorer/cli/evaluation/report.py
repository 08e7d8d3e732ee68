"""The command ``rescorer report``."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.evaluation.evaluation import FileResults
from rescorer.cli.evaluation.run import Run, check_bundle_options, check_system, evaluate_files
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.inputs import EvaluationOptions
from rescorer.cli.options.evaluation.score_cache import ModelOptions
from rescorer.cli.output import SOME_REJECTED, check_output_path, shorten_names
from rescorer.cli.render.tables import print_out
from rescorer.errors import ConfigError, FormatError
from rescorer.evaluation.comparison.systems import weights_by_system
from rescorer.evaluation.report.build import MAX_UTTERANCES, ReportedFile, ReportSettings, build_report_data
from rescorer.evaluation.report.data import ReportData
from rescorer.evaluation.report.markdown import render_markdown
from rescorer.evaluation.report.page import render_html
from rescorer.formats.io.text_io import write_text
from rescorer.pipeline import Rescorer
from rescorer.types import Weights


def render_json(data: ReportData) -> str:
    """The data of a report as JSON."""
    return json.dumps(data.to_dict(), ensure_ascii=False, allow_nan=False) + "\n"


WRITERS: Mapping[str, Callable[[ReportData], str]] = {
    ".html": render_html,
    ".md": render_markdown,
    ".json": render_json,
}
"""Output formats by the end of the file's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedEvaluationOptions(EvaluationOptions):
    """What is evaluated, where a report says more about models."""

    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            "-b",
            help="Model bundle to re-rank with: adds a row for each of its models and for their mixture, and "
            "the error rate along each weight.",
        ),
    ] = None
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="With --bundle: add rows with weights tuned on other folds, as by `rescorer tune`, and show "
            "the spread of these weights.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class ContentOptions:
    """What the report shows."""

    title: Annotated[
        str | None, typer.Option(help="Title of the report; default: the names of the files.")
    ] = None
    system: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="Row of the table that is compared with the first pass word by word; default: the last one "
            "whose models rank, with --tune the one with held-out weights.",
        ),
    ] = None
    max_utterances: Annotated[
        int, typer.Option(min=0, help="Number of utterances to show, those that changed most.")
    ] = MAX_UTTERANCES


@expand_options
def report(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="N-best lists, or the output of `rescorer rescore`."),
    ],
    output: Annotated[
        list[Path],
        typer.Option(
            "-o",
            "--output",
            help="File to write: a page (.html), text with tables (.md) or data (.json). May be repeated.",
        ),
    ],
    *,
    options: ReportedEvaluationOptions,
    content: ContentOptions,
    models: ModelOptions,
) -> None:
    """Write a report: one page with tables, charts and aligned utterances, which needs no network.

    Example: rescorer report demo/lists.jsonl.gz -b models/starter/1 --weights pocketsphinx -o report.html

    The page shows the rows of `rescorer evaluate` with intervals and significance, the error rate along each
    weight, the oracle by depth, words that rescoring fixed and broke, groups, and the utterances that changed
    most with their words and scores. Several files are compared on the lists that all of them have.
    """
    check_bundle_options(options)
    for path in output:
        check_output_path("-o", path, WRITERS)
    rescorer = models.load(options.bundle) if options.bundle else None
    check_system(content.system, shorten_names(list(dict.fromkeys(files))), rescorer, options)
    run = evaluate_files(files, options, rescorer)
    evaluation = run.evaluation
    evaluation.compare(own_lists=False)
    if not evaluation.n_shared:
        raise ConfigError("the files share no list, so they cannot be compared: report on one of them")
    if not any(result.row.report.total.system.reference_words for _, _, result in evaluation.named_results()):
        raise FormatError("no reference has words: there are no error rates to report", file=", ".join(files))
    weights = options.weights.resolve(rescorer.bundle.weights) if rescorer else None
    settings = ReportSettings(
        title=content.title or f"Error rates of {', '.join(Path(file).name for file in evaluation.files)}",
        command=shlex.join(["rescorer", *sys.argv[1:]]),
        model=rescorer.bundle.label if rescorer else "",
        counting=evaluation.counting,
        rules=evaluation.normaliser.settings.describe(),
        max_utterances=content.max_utterances,
        system=content.system,
    )
    reported = describe_files(run, rescorer, weights)
    data = build_report_data(reported, evaluation.normaliser.normalise, settings)
    for path in output:
        write(path, data)
    if evaluation.rejected:
        raise typer.Exit(SOME_REJECTED)


def write(path: Path, data: ReportData) -> None:
    """Write a report in the format that the end of the file's name chooses, and print what it contains."""
    text = WRITERS[path.suffix.lower()](data)
    write_text(path, text)
    size_kb = len(text.encode()) / 1e3
    print_out(f"{path}: {data.lists:,} utterances, {len(data.systems)} rows, {size_kb:,.0f} kB")


def describe_files(run: Run, rescorer: Rescorer | None, weights: Weights | None) -> list[ReportedFile]:
    """Collect what a report needs about each evaluated file, under its shortest unique name."""
    parts, rejected = run.evaluation.parts, len(run.evaluation.rejected)
    files = []
    for part, name in zip(parts, shorten_names([part.file for part in parts]), strict=True):
        warning = run.warnings.get(part.file)
        notes = [warning[0].upper() + warning[1:]] if warning else []
        if part is parts[0] and (remark := run.evaluation.spacing):
            notes.append(f"{remark[0].upper()}{remark[1:]}.")
        if part is parts[0] and rejected:
            notes.append(f"{rejected:,} list{' was' if rejected == 1 else 's were'} rejected")
        files.append(_describe_file(name, part, rescorer, weights, notes))
    return files


def _describe_file(
    name: str,
    part: FileResults,
    rescorer: Rescorer | None,
    weights: Weights | None,
    notes: list[str],
) -> ReportedFile:
    if rescorer is None or weights is None:
        return ReportedFile(part.file, name, part.comparison, part.significance, notes=notes)
    system, main = list(weights_by_system(rescorer, weights, bool(part.comparison.held_out)).items())[-1]
    main = replace(main, name=weights.name)
    held_out = part.comparison.held_out.get(system, ())
    mixture = part.comparison.mixtures.get(system)
    return ReportedFile(part.file, name, part.comparison, part.significance, main, held_out, notes, mixture)

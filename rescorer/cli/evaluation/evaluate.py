"""The command ``rescorer evaluate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer

from rescorer.cli.evaluation.evaluation import Evaluation
from rescorer.cli.evaluation.run import check_bundle_options, check_system, evaluate_files
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.analysis import AnalysisOptions
from rescorer.cli.options.evaluation.inputs import EvaluationOptions
from rescorer.cli.options.evaluation.score_cache import ModelOptions
from rescorer.cli.output import SOME_REJECTED
from rescorer.cli.render.evaluation.alignments import print_alignments
from rescorer.cli.render.evaluation.comparison import export_rows, print_evaluation
from rescorer.cli.render.evaluation.error_analysis import print_errors
from rescorer.cli.render.evaluation.error_rates import warn_if_worse
from rescorer.cli.render.exports import ExportOption, check_export


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

"""The command ``rescorer evaluate``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.evaluation.evaluation import Evaluation
from rescorer.cli.options.analysis import AnalysisOptions
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.models import DeviceOption
from rescorer.cli.options.scoring import (
    CountingOptions,
    NormaliserOption,
    ReferenceOption,
    choose_normaliser,
    collect_lists,
    make_list_reader,
)
from rescorer.cli.options.selection import SelectionOptions
from rescorer.cli.options.weights import (
    FirstPassOption,
    WeightOptions,
    check_streams,
    parse_first_pass,
)
from rescorer.cli.output import SEE_JSON, SOME_REJECTED
from rescorer.cli.render.alignments import print_alignments
from rescorer.cli.render.comparison import export_rows, print_evaluation
from rescorer.cli.render.error_analysis import print_errors
from rescorer.cli.render.error_rates import warn_if_worse
from rescorer.cli.render.exports import ExportOption, check_export
from rescorer.errors import ConfigError, FormatError
from rescorer.evaluation.comparison.baselines import drop_models
from rescorer.evaluation.comparison.scored_lists import count_lists, score_lists, score_references
from rescorer.evaluation.comparison.systems import (
    compare_file,
    compare_rules,
    compare_systems,
    weights_by_system,
)
from rescorer.evaluation.error_rate.oracle import Selection
from rescorer.evaluation.perplexity import sum_scores
from rescorer.evaluation.tuning.fingerprint import count_tuning_lists
from rescorer.pipeline import Rescorer
from rescorer.text import Normaliser
from rescorer.types import NBestList, Weights


@expand_options
def evaluate(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="N-best lists, or the output of `rescorer rescore`."),
    ],
    *,
    reference: ReferenceOption = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            "-b",
            help="Model bundle to re-rank with: adds rows for each of its models, for their mixture, for "
            "minimum Bayes risk (MBR), and for the word weight without models.",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="With --bundle: add rows with LM and word weights tuned on other folds."),
    ] = False,
    first_pass: FirstPassOption = None,
    normaliser: NormaliserOption = None,
    list_options: ListInputOptions,
    weight_options: WeightOptions,
    selection: SelectionOptions,
    counting_options: CountingOptions,
    analysis: AnalysisOptions,
    by_group: Annotated[
        bool, typer.Option("--by-group", help="Add a table with one row per speaker or other group.")
    ] = False,
    own_lists: Annotated[
        bool, typer.Option("--own-lists", help="With several files: add rows for all lists of each.")
    ] = False,
    device: DeviceOption = "cpu",
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

    Rows marked "tuned" are cross-validated: the weights for a list are tuned on lists of other groups, or
    without groups on other tenths of the ids, with other references. Several files are compared on the lists
    that all of them have.
    """
    if tune and bundle is None:
        raise ConfigError("--tune compares language models: give --bundle")
    check_export(export)
    first_pass_weights = parse_first_pass(first_pass)
    if selection.merge and bundle is None and first_pass is None:
        raise ConfigError("--merge adds up probabilities: give the scores with --first-pass, or a --bundle")
    read_lists = make_list_reader(reference, list_options)
    rescorer = Rescorer.load(bundle, device) if bundle else None
    run = Run(
        Evaluation(counting_options.settings(), choose_normaliser(normaliser, rescorer).normalise),
        selection.selection(),
        first_pass_weights,
    )
    evaluation = run.evaluation
    files = list(dict.fromkeys(files))
    for file in files:
        lists = collect_lists(read_lists(file), evaluation.rejected)
        check_streams(lists, first_pass_weights or Weights("first pass"), list_options.streams)
        if rescorer is None:
            run.add_file(file, lists, choose_normaliser(normaliser, None), is_only_file=len(files) == 1)
            continue
        weights = weight_options.resolve(rescorer.bundle.weights)
        check_streams(lists, weights, list_options.streams)
        if tune:
            list_options.check_groups(lists)
        run.add_scored_file(file, lists, rescorer, weights, with_tuning=tune)
    evaluation.rejected.report(SEE_JSON)
    if not evaluation.files:
        raise FormatError("no list could be evaluated", file=", ".join(files))
    evaluation.compare(own_lists)
    _show(evaluation, analysis, by_group, as_json)
    if export is not None:
        export_rows(evaluation, export)
    rescored = {name: item.row.report for name, _, item in evaluation.named_results() if item.row.is_rescored}
    warn_if_worse("", rescored)
    if evaluation.rejected:
        raise typer.Exit(SOME_REJECTED)


def _show(evaluation: Evaluation, analysis: AnalysisOptions, by_group: bool, as_json: bool) -> None:
    analyses = (
        [(part, evaluation.analyse(part, analysis.system)) for part in evaluation.parts]
        if analysis.errors
        else []
    )
    if as_json:
        errors = [{"file": part.file + part.suffix, **found.to_dict()} for part, found in analyses]
        data = evaluation.to_dict() | ({"errors": errors} if analysis.errors else {})
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    print_evaluation(evaluation, by_group)
    for _, found in analyses:
        print_errors(found, evaluation.counting.unit)
    if analysis.alignments:
        for part in evaluation.parts:
            print_alignments(evaluation.align(part, analysis.system))


@dataclass(frozen=True)
class Run:
    """Adds files to an evaluation under the same options."""

    evaluation: Evaluation
    selection: Selection
    first_pass: Weights | None

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
            rescorer, lists, weights, self.first_pass, evaluation.counting, self.selection
        )
        for error in errors:
            evaluation.rejected.add(error)
        if not scored:
            return
        if n_seen := count_tuning_lists(weights, lists):
            overlap = f"{n_seen} of these {len(lists)} lists"
            message = f"weights {weights.name!r} were tuned on {overlap}: errors are optimistic"
            typer.echo(f"{file}: {message}", err=True)
        references = score_references(rescorer, scored, weights)
        evaluation.perplexity[file] = sum_scores(references).to_dict()
        unknown = {
            word for text in references for word, flag in zip(text.words, text.unknown, strict=True) if flag
        }
        compare = partial(
            compare_systems,
            systems=weights_by_system(rescorer, weights),
            with_tuning=with_tuning,
            word_only=drop_models(weights, self.first_pass),
        )
        evaluation.add(file, scored, compare, rescorer.bundle.normaliser.normalise, unknown)

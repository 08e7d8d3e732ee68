"""The command ``rescorer evaluate``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

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
from rescorer.cli.output import SEE_JSON, SOME_REJECTED, Rejections
from rescorer.cli.render.error_rates import render_error_rates, warn_if_worse
from rescorer.cli.render.tables import print_out
from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.evaluation.comparison.scored_lists import score_lists, score_references
from rescorer.evaluation.comparison.systems import compare_systems, weights_by_system
from rescorer.evaluation.error_rate.counting import CountingSettings
from rescorer.evaluation.error_rate.oracle import Selection, evaluate_list, select_hypotheses
from rescorer.evaluation.error_rate.report import Report, build_report
from rescorer.evaluation.error_rate.shared_lists import ListKey, find_shared_lists, index_lists
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
            help="Model bundle to re-rank with: adds a row for each of its models and for their mixture.",
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
    by_group: Annotated[
        bool, typer.Option("--by-group", help="Add a table with one row per speaker or other group.")
    ] = False,
    own_lists: Annotated[
        bool, typer.Option("--own-lists", help="With several files: add rows for all lists of each.")
    ] = False,
    device: DeviceOption = "cpu",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print JSON: a list `systems`, with keys such as wer; rates in percent."),
    ] = False,
) -> None:
    """Report the word error rate of lists, the range that re-ranking could reach, and the gain of models.

    Example: rescorer evaluate demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx --tune

    Rows marked "tuned" are cross-validated: the weights for a list are tuned on lists of other groups, or
    without groups on other tenths of the ids, with other references. Several files are compared on the lists
    that all of them have.
    """
    if tune and bundle is None:
        raise ConfigError("--tune compares language models: give --bundle")
    first_pass_weights = parse_first_pass(first_pass)
    if selection.merge and bundle is None and first_pass is None:
        raise ConfigError("--merge adds up probabilities: give the scores with --first-pass, or a --bundle")
    read_lists = make_list_reader(reference, list_options)
    rescorer = Rescorer.load(bundle, device) if bundle else None
    evaluation = Evaluation(
        choose_normaliser(normaliser, rescorer),
        counting_options.settings(),
        selection.selection(),
        first_pass_weights,
    )
    for file in dict.fromkeys(files):
        lists = collect_lists(read_lists(file), evaluation.rejected)
        check_streams(lists, first_pass_weights or Weights("first pass"), list_options.streams)
        if rescorer is None:
            evaluation.add_plain(file, lists)
            continue
        weights = weight_options.resolve(rescorer.bundle.weights)
        check_streams(lists, weights, list_options.streams)
        if tune:
            list_options.check_groups(lists)
        evaluation.add_scored(file, lists, rescorer, weights, with_tuning=tune)
    evaluation.rejected.report(SEE_JSON)
    if not evaluation.files:
        raise FormatError("no list could be evaluated", file=", ".join(files))
    evaluation.compare(own_lists)
    if as_json:
        typer.echo(json.dumps(evaluation.to_dict(), indent=2, ensure_ascii=False))
    else:
        evaluation.print_tables(by_group)
    evaluation.warn()
    if evaluation.rejected:
        raise typer.Exit(SOME_REJECTED)


@dataclass(frozen=True)
class EvaluatedFile:
    """The lists of a file that could be evaluated."""

    lists: Mapping[ListKey, Any]
    report: Callable[[Sequence[Any]], Mapping[str, Report]]
    """Makes the rows of some of the lists, by system; the name is empty if there is only one."""


@dataclass
class Evaluation:
    """The files, the rows of the report, and the lists that were rejected."""

    normaliser: Normaliser
    counting: CountingSettings
    selection: Selection
    first_pass: Weights | None
    files: dict[str, EvaluatedFile] = field(default_factory=dict)
    rows: dict[str, Report] = field(default_factory=dict)
    """By name of the system, which includes the file if there are several."""
    file_by_row: dict[str, str] = field(default_factory=dict)
    n_shared: int = 0
    """Number of lists that all files have; 0 if there are none, and each row is about lists of its own."""
    perplexity: dict[str, Any] = field(default_factory=dict)
    """Scores of the references, by file."""
    rejected: Rejections = field(default_factory=Rejections)

    def add_plain(self, file: str, lists: Sequence[NBestList]) -> None:
        """Add the lists of a file as they are, apart from hypotheses to merge or drop."""
        normalise = self.normaliser.normalise
        evaluated = []
        for nbest in lists:
            try:
                item = evaluate_list(nbest, normalise, self.first_pass, self.counting)
                if self.selection:
                    item = select_hypotheses(item, nbest, normalise, self.first_pass, self.selection)
                evaluated.append((nbest.id, normalise(nbest.reference or ""), item))
            except InvalidList as error:
                self.rejected.add(error)
        if evaluated:
            self.files[file] = EvaluatedFile(index_lists(evaluated), lambda lists: {"": build_report(lists)})

    def add_scored(
        self,
        file: str,
        lists: Sequence[NBestList],
        rescorer: Rescorer,
        weights: Weights,
        *,
        with_tuning: bool,
    ) -> None:
        """Add the lists of a file with the scores of all models."""
        scored, errors = score_lists(rescorer, lists, weights, self.first_pass, self.counting, self.selection)
        for error in errors:
            self.rejected.add(error)
        if not scored:
            return
        if n_seen := count_tuning_lists(weights, lists):
            overlap = f"{n_seen} of these {len(lists)} lists"
            message = f"weights {weights.name!r} were tuned on {overlap}: errors are optimistic"
            typer.echo(f"{file}: {message}", err=True)
        self.perplexity[file] = score_references(rescorer, scored, weights).to_dict()
        systems = weights_by_system(rescorer, weights)
        normalise = self.normaliser.normalise
        self.files[file] = EvaluatedFile(
            index_lists((item.evaluated.id, normalise(item.reference), item) for item in scored),
            lambda lists: compare_systems(lists, systems, with_tuning),
        )

    def compare(self, own_lists: bool) -> None:
        """Make the rows: on the lists that all files have, or on each file's own if there are none."""
        shared = find_shared_lists([evaluated.lists for evaluated in self.files.values()])
        self.n_shared = len(shared)
        for file, evaluated in self.files.items():
            lists = [evaluated.lists[key] for key in shared] or list(evaluated.lists.values())
            self._add_rows(file, evaluated.report(lists), "")
        if own_lists and shared and len(self.files) > 1:
            for file, evaluated in self.files.items():
                if len(evaluated.lists) > len(shared):
                    self._add_rows(file, evaluated.report(list(evaluated.lists.values())), ", all its lists")

    def _add_rows(self, file: str, reports: Mapping[str, Report], suffix: str) -> None:
        for system, report in reports.items():
            several = f"{file}: {system}" if len(self.files) > 1 else system
            name = (several if system else file) + suffix
            self.rows[name], self.file_by_row[name] = report, file

    @property
    def other_lists(self) -> dict[str, int]:
        """Number of lists of each file that are not shared."""
        return {file: len(evaluated.lists) - self.n_shared for file, evaluated in self.files.items()}

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to JSON data, with the same keys for one file and for several."""
        return {
            "systems": [
                {"name": name, "file": self.file_by_row[name], **report.to_dict()}
                for name, report in self.rows.items()
            ],
            "shared_lists": self.n_shared,
            "other_lists": self.other_lists,
            "references": self.perplexity,
            "rejected": len(self.rejected),
            "rejected_lists": self.rejected.reasons,
            "counting": self.counting.method,
            "unit": self.counting.unit,
        }

    def print_tables(self, by_group: bool) -> None:
        """Print the report as tables."""
        print_out(render_error_rates(self.rows, by_group))
        if len(self.files) > 1 and not self.n_shared:
            print_out("the files share no list: these rows are about different lists and cannot be compared")
        elif any(self.other_lists.values()):
            besides = ", ".join(f"{file} {count:,}" for file, count in self.other_lists.items())
            print_out(f"compared on the {self.n_shared:,} lists that all files have; others: {besides}")
        for file, totals in self.perplexity.items():
            values = ", ".join(f"{name} {value:,.1f}" for name, value in totals["perplexity"].items())
            print_out(
                f"perplexity of the references ({Path(file).name}, {totals['tokens']:,} tokens, "
                f"{totals['unknown_words']} unknown words): {values}"
            )

    def warn(self) -> None:
        """Warn on stderr if rows have more errors than the first pass."""
        warn_if_worse("", self.rows)

"""The command ``rescorer evaluate``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from rescorer.cli.options.weights import (
    FirstPassOption,
    WeightOptions,
    check_streams,
    first_pass_weights,
    parse_first_pass,
)
from rescorer.cli.output import SEE_JSON, SOME_REJECTED, Rejections
from rescorer.cli.render.error_rates import render_error_rates
from rescorer.cli.render.tables import print_out
from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.evaluation.error_rate.counting import CountingSettings
from rescorer.evaluation.error_rate.oracle import evaluate_list
from rescorer.evaluation.error_rate.report import Report, build_report
from rescorer.evaluation.tuning.comparison import (
    compare_systems,
    score_lists,
    score_references,
    weights_by_system,
)
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
        typer.Option(
            "--tune", help="With --bundle: add rows with LM and word weights tuned on the other groups."
        ),
    ] = False,
    first_pass: FirstPassOption = None,
    normaliser: NormaliserOption = None,
    list_options: ListInputOptions,
    weight_options: WeightOptions,
    counting_options: CountingOptions,
    by_group: Annotated[
        bool, typer.Option("--by-group", help="Add a table with one row per speaker or other group.")
    ] = False,
    device: DeviceOption = "cpu",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON with keys such as wer; rates in percent.")
    ] = False,
) -> None:
    """Report the word error rate of lists, the range that re-ranking could reach, and the gain of models.

    Example: rescorer evaluate demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx --tune

    Rows marked "tuned" are leave-one-group-out: the weights for a list are tuned on lists of other groups
    with other references.
    """
    if tune and bundle is None:
        raise ConfigError("--tune compares language models: give --bundle")
    counting = counting_options.settings()
    read_lists = make_list_reader(reference, list_options)
    rescorer = Rescorer.load(bundle, device) if bundle else None
    words = choose_normaliser(normaliser, rescorer)
    first_pass_streams = parse_first_pass(first_pass)
    result = Evaluation(counting)
    for file in files:
        lists = collect_lists(read_lists(file), result.rejected)
        check_streams(lists, first_pass_weights(first_pass_streams), list_options.streams)
        if rescorer is None:
            result.add_plain(file, lists, words, first_pass_streams)
            continue
        weights = weight_options.resolve(rescorer.bundle.weights)
        check_streams(lists, weights, list_options.streams)
        prefix = f"{Path(file).name}: " if len(files) > 1 else ""
        result.add_comparison(file, lists, rescorer, weights, first_pass_streams, prefix, with_tuning=tune)
    result.rejected.report(SEE_JSON)
    if not result.rows:
        raise FormatError("no list could be evaluated", file=", ".join(files))
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False))
    else:
        result.print_tables(by_group)
    if result.rejected:
        raise typer.Exit(SOME_REJECTED)


@dataclass
class Evaluation:
    """The rows of the report, and the lists that were rejected."""

    counting: CountingSettings
    rows: dict[str, Report] = field(default_factory=dict)
    """By system."""
    perplexity: dict[str, Any] = field(default_factory=dict)
    """Scores of the references, by file."""
    rejected: Rejections = field(default_factory=Rejections)

    def add_plain(
        self,
        file: str,
        lists: Sequence[NBestList],
        normaliser: Normaliser,
        first_pass: Mapping[str, float] | None,
    ) -> None:
        """Add a row for the lists as they are."""
        evaluated = []
        for nbest in lists:
            try:
                evaluated.append(evaluate_list(nbest, normaliser.normalise, first_pass, self.counting))
            except InvalidList as error:
                self.rejected.add(error)
        if evaluated:
            self.rows[file] = build_report(evaluated)

    def add_comparison(
        self,
        file: str,
        lists: Sequence[NBestList],
        rescorer: Rescorer,
        weights: Weights,
        first_pass: Mapping[str, float] | None,
        prefix: str,
        *,
        with_tuning: bool,
    ) -> None:
        """Add the rows of all systems, their names after ``prefix``."""
        scored, errors = score_lists(rescorer, lists, weights, first_pass, self.counting)
        for error in errors:
            self.rejected.add(error)
        if not scored:
            return
        if n_seen := count_tuning_lists(weights, lists):
            overlap = f"{n_seen} of these {len(lists)} lists"
            message = f"weights {weights.name!r} were tuned on {overlap}: errors are optimistic"
            typer.echo(f"{file}: {message}", err=True)
        self.perplexity[file] = score_references(rescorer, scored, weights).to_dict()
        for name, row in compare_systems(scored, weights_by_system(rescorer, weights), with_tuning).items():
            self.rows[prefix + name] = row

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to JSON data."""
        systems = {name: row.to_dict() for name, row in self.rows.items()}
        record: dict[str, Any] = next(iter(systems.values())) if len(systems) == 1 else {"systems": systems}
        record |= {"rejected": len(self.rejected), "rejected_lists": self.rejected.reasons}
        if self.perplexity:
            record["references"] = self.perplexity
        return record | {"counting": self.counting.method, "unit": self.counting.unit}

    def print_tables(self, by_group: bool) -> None:
        """Print the report as tables."""
        print_out(render_error_rates(self.rows, by_group))
        for file, totals in self.perplexity.items():
            values = ", ".join(f"{name} {value:,.1f}" for name, value in totals["perplexity"].items())
            print_out(
                f"perplexity of the references ({Path(file).name}, {totals['tokens']:,} tokens, "
                f"{totals['unknown_words']} unknown words): {values}"
            )

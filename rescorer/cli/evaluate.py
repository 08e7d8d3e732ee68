"""Owns the command ``rescorer evaluate``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.bundle import read_normaliser
from rescorer.cli.options import (
    SOME_REJECTED,
    FirstPassOption,
    FormatOption,
    GroupsOption,
    MapOption,
    StreamOption,
    WeightOption,
    WeightsOption,
    check_streams,
    chosen_weights,
    first_pass_weights,
    named_numbers,
    print_reports,
)
from rescorer.cli.output import NAMED_IN_JSON, Rejections
from rescorer.cli.scoring_options import (
    CharactersOption,
    CountingOption,
    FragmentsOption,
    OptionalWordsOption,
    ReferenceOption,
    good_lists,
    lists_reader,
)
from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.evaluation.error_rate.counting import Counting
from rescorer.evaluation.error_rate.oracle import evaluate_list
from rescorer.evaluation.error_rate.report import Report
from rescorer.evaluation.error_rate.report import evaluate as report
from rescorer.evaluation.tuning.comparison import (
    comparison,
    reference_perplexities,
    score_lists,
    system_weights,
)
from rescorer.evaluation.tuning.fingerprint import tuned_on
from rescorer.pipeline import Rescorer
from rescorer.text import Normaliser
from rescorer.types import NBestList


def evaluate(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="N-best lists, or what `rescore` wrote.")
    ],
    reference: ReferenceOption = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle", "-b", help="Also re-rank: a row for each model of this bundle and the mixture."
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="With --bundle: rows with LM and word weight tuned on the other groups."),
    ] = False,
    first_pass: FirstPassOption = None,
    normaliser: Annotated[
        Path | None, typer.Option(help="Normaliser settings, JSON; default: the bundle's, or lower case.")
    ] = None,
    maps: MapOption = None,
    streams: StreamOption = None,
    format_: FormatOption = None,
    groups: GroupsOption = None,
    weights: WeightsOption = "default",
    weight: WeightOption = None,
    counting: CountingOption = "levenshtein",
    characters: CharactersOption = False,
    optional_words: OptionalWordsOption = False,
    fragments: FragmentsOption = False,
    by_group: Annotated[bool, typer.Option("--by-group", help="One more table: by speaker.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Plain keys such as wer, in percent.")] = False,
) -> None:
    """Word error rate of lists, the best and worst that re-ranking them could give, and the gain of models.

    Example: rescorer evaluate demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx --tune

    Rows marked "tuned" are leave-one-group-out: no list is judged by weights that its own speaker, or another
    speaker's same sentence, helped to choose.
    """
    if tune and bundle is None:
        raise ConfigError("--tune compares language models: give --bundle")
    how = Counting(counting, characters, optional_words, fragments)
    lists_in = lists_reader(reference, maps, streams, groups, format_)
    rejected = Rejections()
    rescorer = Rescorer.load(bundle, device) if bundle else None
    default = rescorer.bundle.normaliser if rescorer else Normaliser()
    words = read_normaliser(normaliser) if normaliser else default
    first = named_numbers(first_pass) if first_pass else None
    rows: dict[str, Report] = {}
    perplexity: dict[str, Any] = {}
    for file in files:
        lists = good_lists(lists_in(file), rejected)
        check_streams(lists, first_pass_weights(first), streams)
        if rescorer is None:
            plain = plain_report(lists, words, first, how, rejected)
            rows |= {file: plain} if plain.total.lists else {}
            continue
        chosen = chosen_weights(dict(rescorer.bundle.weights), weights, weight)
        check_streams(lists, chosen, streams)
        scored, faults = score_lists(rescorer, lists, chosen, first, how)
        for fault in faults:
            rejected.add(fault)
        if not scored:
            continue
        if seen := tuned_on(chosen, lists):
            warning = f"{file}: {seen} of {len(lists)} lists tuned the weights {chosen.name!r}: optimistic"
            typer.echo(warning, err=True)
        perplexity[file] = reference_perplexities(rescorer, scored, chosen).to_dict()
        prefix = f"{Path(file).name}: " if len(files) > 1 else ""
        for name, row in comparison(scored, system_weights(rescorer, chosen), tune).items():
            rows[prefix + name] = row
    rejected.tell(NAMED_IN_JSON)
    if not rows:
        raise FormatError("no list could be evaluated", file=", ".join(files))
    show(rows, perplexity, by_group, as_json, rejected, how)
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def plain_report(
    lists: list[NBestList],
    words: Normaliser,
    first: Mapping[str, float] | None,
    how: Counting,
    rejected: Rejections,
) -> Report:
    """What the lists are as they stand; those that cannot be evaluated are added to the rejected."""
    evaluated = []
    for each in lists:
        try:
            evaluated.append(evaluate_list(each, words.words, first, how))
        except InvalidList as fault:
            rejected.add(fault)
    return report(evaluated)


def show(
    rows: Mapping[str, Report],
    perplexity: Mapping[str, Any],
    by_group: bool,
    as_json: bool,
    rejected: Rejections,
    counting: Counting,
) -> None:
    """The report, for machines or for people."""
    if as_json:
        systems = {name: each.to_dict() for name, each in rows.items()}
        record: dict[str, Any] = next(iter(systems.values())) if len(rows) == 1 else {"systems": systems}
        record |= {"rejected": len(rejected), "rejected_lists": rejected.reasons}
        if perplexity:
            record["references"] = perplexity
        record |= {"counting": counting.method, "unit": counting.unit}
        typer.echo(json.dumps(record, indent=2, ensure_ascii=False))
        return
    print_reports(rows, by_group)
    for file, facts in perplexity.items():
        values = ", ".join(f"{name} {value:,.1f}" for name, value in facts["perplexity"].items())
        typer.echo(
            f"perplexity of the references ({Path(file).name}, {facts['tokens']:,} tokens, "
            f"{facts['unknown_words']} unknown words): {values}"
        )

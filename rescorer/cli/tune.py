"""Owns the command ``rescorer tune``."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options import (
    BundleOption,
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
from rescorer.cli.output import Rejections
from rescorer.cli.scoring_options import (
    CharactersOption,
    CountingOption,
    FragmentsOption,
    OptionalWordsOption,
    ReferenceOption,
    good_lists,
    lists_reader,
)
from rescorer.errors import ConfigError, FormatError
from rescorer.evaluation.error_rate.counting import Counting
from rescorer.evaluation.error_rate.report import evaluate
from rescorer.evaluation.tuning.comparison import cross_validated, first_pass, reranked, score_lists, tuned
from rescorer.evaluation.tuning.fingerprint import fingerprint
from rescorer.pipeline import Rescorer
from rescorer.score_combination import weights_to_dict


def tune(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="N-best lists of which it is known what was said.")
    ],
    bundle: BundleOption,
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file of weights, for --weights.")],
    reference: ReferenceOption = None,
    first: FirstPassOption = None,
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
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
) -> None:
    """Find the language-model weight and the word weight with the fewest errors.

    Example: rescorer tune demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx -o mine.json

    Errors are those that `rescorer evaluate` counts under the same options: of characters with --characters.
    Small sets overfit: the row to believe is "held out", leave-one-group-out. The weights record the lists
    that tuned them, and `rescorer evaluate` says so when it meets those lists again.
    """
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"-o {output}: no such folder")
    how = Counting(counting, characters, optional_words, fragments)
    lists_in = lists_reader(reference, maps, streams, groups, format_)
    rescorer = Rescorer.load(bundle, device)
    start = chosen_weights(dict(rescorer.bundle.weights), weights, weight)
    rejected = Rejections()
    lists = good_lists(lists_in(file), rejected)
    by = named_numbers(first) if first else None
    for each in (start, first_pass_weights(by)):
        check_streams(lists, each, streams)
    scored, faults = score_lists(rescorer, lists, start, by, how)
    for fault in faults:
        rejected.add(fault)
    rejected.tell()
    if not scored:
        raise FormatError("no list could be tuned on", file=file)
    found = tuned(scored, start)
    rows = {
        "first pass": evaluate(first_pass(each) for each in scored),
        "as it was": evaluate(reranked(each, start) for each in scored),
        "held out": evaluate(cross_validated(scored, start)),
        "tuned, on its own lists (optimistic)": evaluate(reranked(each, found) for each in scored),
    }
    print_reports(rows)
    used = {each.evaluated.id for each in scored}
    prints = tuple(fingerprint(each) for each in lists if each.id in used)
    record = replace(found, name=output.stem, tuned_on=prints)
    output.write_text(json.dumps(weights_to_dict(record), indent=2) + "\n", encoding="utf-8")
    ((name, scale),) = found.lm.items()
    typer.echo(
        f"lm:{name}={scale:.4g} word={found.word:.4g} written to {output}; {len(rejected)} lists rejected"
    )

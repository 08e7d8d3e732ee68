"""The command ``rescorer tune``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.models import BundleOption, DeviceOption
from rescorer.cli.options.scoring import CountingOptions, ReferenceOption, collect_lists, make_list_reader
from rescorer.cli.options.selection import SelectionOptions
from rescorer.cli.options.weights import (
    FirstPassOption,
    WeightOptions,
    check_streams,
    parse_first_pass,
)
from rescorer.cli.output import Rejections
from rescorer.cli.render.error_rates import render_error_rates, warn_if_worse
from rescorer.cli.render.tables import print_out
from rescorer.errors import ConfigError, FormatError
from rescorer.evaluation.comparison.rankings import (
    name_selected_first_pass,
    rank_by_first_pass,
    rerank,
    select_by_first_pass,
)
from rescorer.evaluation.comparison.scored_lists import ScoredList, score_lists
from rescorer.evaluation.comparison.tuned import cross_validate, tune_weights
from rescorer.evaluation.error_rate.report import Report, build_report
from rescorer.evaluation.tuning.fingerprint import fingerprint_list
from rescorer.evaluation.tuning.folds import describe_folds
from rescorer.pipeline import Rescorer
from rescorer.score_combination import weights_to_dict
from rescorer.types import Weights

HELD_OUT = "held out"


@expand_options
def tune(
    file: Annotated[str, typer.Argument(metavar="FILE", help="N-best lists with references.")],
    bundle: BundleOption,
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file of weights, for --weights.")],
    *,
    reference: ReferenceOption = None,
    first_pass: FirstPassOption = None,
    list_options: ListInputOptions,
    weight_options: WeightOptions,
    selection: SelectionOptions,
    counting_options: CountingOptions,
    device: DeviceOption = "cpu",
) -> None:
    """Find the language-model weight and the word insertion penalty with the fewest errors.

    Example: rescorer tune demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx -o mine.json

    Minimises the errors that `rescorer evaluate` counts under the same options: in characters with
    --characters. Small sets overfit: trust the row "held out", in which no list is ranked by weights that it
    helped to tune: a fold is a group or, without groups, a tenth of the ids. The weights record the lists
    that they were tuned on, and `rescorer evaluate` warns if it is given those lists.
    """
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"-o {output}: no such folder")
    counting = counting_options.settings()
    read_lists = make_list_reader(reference, list_options)
    rescorer = Rescorer.load(bundle, device)
    start = weight_options.resolve(rescorer.bundle.weights)
    rejected = Rejections()
    lists = collect_lists(read_lists(file), rejected)
    list_options.check_groups(lists)
    first_pass_weights = parse_first_pass(first_pass)
    for weights in (start, first_pass_weights or Weights("first pass")):
        check_streams(lists, weights, list_options.streams)
    scored, errors = score_lists(rescorer, lists, start, first_pass_weights, counting, selection.selection())
    for error in errors:
        rejected.add(error)
    rejected.report()
    if not scored:
        raise FormatError("no list could be used for tuning", file=file)
    tuned = tune_weights(scored, start)
    rows = _report_rows(scored, start, tuned)
    print_out(render_error_rates(rows))
    ids, groups = zip(*((item.evaluated.id, item.evaluated.group) for item in scored), strict=True)
    print_out(f"cross-validation: {describe_folds(ids, groups)}")
    scored_ids = {item.evaluated.id for item in scored}
    fingerprints = tuple(fingerprint_list(nbest) for nbest in lists if nbest.id in scored_ids)
    record = weights_to_dict(replace(tuned, name=output.stem, tuned_on=fingerprints))
    output.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    ((name, scale),) = tuned.lm.items()
    print_out(
        f"lm:{name}={scale:.4g} word={tuned.word:.4g} written to {output}; {len(rejected)} lists rejected"
    )
    warn_if_worse(f"{file}: ", {HELD_OUT: rows[HELD_OUT]})


def _report_rows(scored: Sequence[ScoredList], start: Weights, tuned: Weights) -> dict[str, Report]:
    rows = {"first pass": build_report(rank_by_first_pass(item) for item in scored)}
    if name := name_selected_first_pass(scored[0]):
        rows[name] = build_report(select_by_first_pass(item) for item in scored)
    return rows | {
        "before tuning": build_report(rerank(item, start) for item in scored),
        HELD_OUT: build_report(cross_validate(scored, start)),
        "tuned, on its own lists (optimistic)": build_report(rerank(item, tuned) for item in scored),
    }

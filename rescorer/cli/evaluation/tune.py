"""The command ``rescorer tune``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.inputs import ScoredListOptions
from rescorer.cli.options.evaluation.phrase_bound import PhraseBoundOptions
from rescorer.cli.options.evaluation.score_cache import ModelOptions
from rescorer.cli.options.evaluation.scoring import collect_lists
from rescorer.cli.options.models import BundleOption
from rescorer.cli.options.selection import SelectionOptions
from rescorer.cli.options.weights import warn_if_untuned
from rescorer.cli.output import SEE_JSON, SOME_REJECTED, Rejections, check_output_path, warn_about_tuning
from rescorer.cli.render.evaluation.error_rates import render_error_rates, warn_if_worse
from rescorer.cli.render.evaluation.false_alarms import (
    describe_false_alarms,
    describe_over_boosting,
    false_alarms_to_dict,
)
from rescorer.cli.render.evaluation.tuning import describe_report, make_weight_table
from rescorer.cli.render.tables import print_out
from rescorer.errors import FormatError, pluralise
from rescorer.evaluation.comparison.false_alarms import PhraseBound
from rescorer.evaluation.comparison.mixture_scores import score_mixtures
from rescorer.evaluation.comparison.rankings import (
    order_selection_by_first_pass,
    rank_by_first_pass,
    reorder,
    rerank,
)
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.tuned import Tuning
from rescorer.evaluation.error_rate.report import Report, build_report
from rescorer.evaluation.tuning.fingerprint import count_tuning_lists, fingerprint_list
from rescorer.evaluation.tuning.parameters import DEFAULT_FREE
from rescorer.evaluation.tuning.report import TuningReport
from rescorer.extensions.rerankers import used_rerankers
from rescorer.formats.io.text_io import write_text
from rescorer.score_combination import phrase_weight, weights_to_dict
from rescorer.text import remark_on_spacing
from rescorer.types import Weights

HELD_OUT = "held out"
FREE_HELP = (
    "Weights to tune, separated by commas: names as in -w, `streams` (those with a weight), `lm` (those with "
    "a weight; each keeps its sign, but `lm:NAME` without a weight may take either), `mix` (λ of the "
    "mixture), `cache` (its λ, if lists have previous utterances), `phrases` (if there are any), or `all`."
)


@dataclass(frozen=True, slots=True)
class TunedWeightOptions:
    """Which weights are tuned, and where and when they are written."""

    output: Annotated[Path, typer.Option("-o", "--output", help="JSON file of weights, for --weights.")]
    free: Annotated[str, typer.Option("--free", metavar="NAME,…", help=FREE_HELP)] = ",".join(DEFAULT_FREE)
    force: Annotated[
        bool, typer.Option("--force", help="Write the tuned weights even if their gain may be chance.")
    ] = False


@expand_options
def tune(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="N-best lists with references; several inputs are read as one."
        ),
    ],
    bundle: BundleOption,
    *,
    tuned: TunedWeightOptions,
    options: ScoredListOptions,
    phrase_bound: PhraseBoundOptions,
    models: ModelOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; rates in percent.")] = False,
) -> None:
    """Find the weights with the fewest errors, and keep the old ones if that may be chance.

    Example: rescorer tune demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx -o mine.json

    Minimises the errors that `rescorer evaluate` counts under the same options: in characters with
    --characters. Small sets overfit: the row "held out" is the one to believe, in which no list is ranked by
    weights that it helped to tune. A fold holds whole groups or, without groups, ids. Tuned weights are
    written only if they gain more than chance there; otherwise the file has the weights that tuning started
    from, and a line says why. The weights record the lists that they were tuned on, and `rescorer evaluate`
    warns if it is given those lists.

    If lists carry phrases, or --phrases gives them some, their weight is tuned too, and kept so small that
    phrases which were not said make at most --max-false-alarms of the lists worse. A weight that over-boosts
    is lowered before tuning starts, with a warning. With --generate, generated hypotheses compete under the
    weights that they have; `rescorer candidates` learns these.
    """
    names, force = [name.strip() for name in tuned.free.split(",")], tuned.force
    check_output_path("-o", tuned.output)
    options.counting.settings()  # reject contradictions before loading anything
    read_lists = options.make_reader()
    rescorer = models.load(bundle)
    options.apply(rescorer.ranker)
    start = rescorer.ranker.effective_weights(options.weights.resolve(rescorer.bundle.weights))
    rejected = Rejections()
    lists = collect_lists(read_lists(files), rejected)
    options.lists.check_groups(lists)
    options.check_streams(lists, start, files[0])
    untuned = warn_if_untuned(lists, start)
    scored, errors = options.score(rescorer, lists, start)
    for error in errors:
        rejected.add(error)
    rejected.report(SEE_JSON)
    if not scored:
        raise FormatError("no list could be used for tuning", file=", ".join(files))
    unit = scored[0].evaluated.unit
    if unit == "word" and (remark := remark_on_spacing(item.words[0] for item in scored)):
        typer.echo(f"warning: {', '.join(files)}: {remark}", err=True)
    if n_seen := count_tuning_lists(start, lists, used_rerankers(rescorer.bundle, start)):
        warn_about_tuning(start, n_seen, len(lists), "what tuning starts from knows them")
    bound = phrase_bound.make_bound(rescorer, scored, start, names)
    start = _lower_phrases(start, scored, bound) if bound else start
    tuning = Tuning(scored, start, names, score_mixtures(rescorer, scored, start, names), bound)
    report = tuning.report()
    rows, words = _report_rows(tuning), rescorer.ranker.text_normaliser.settings.describe()
    written = _write_weights(tuned, report, scored, options.selection)
    if as_json:
        _print_json(tuning, report, rows, force, rejected, [untuned] if untuned else [], words)
    else:
        print_out(render_error_rates(rows), "", make_weight_table(report), "", *describe_report(report))
        if bound:
            print_out(*describe_false_alarms(bound, tuning.count_false_alarms()))
        print_out(f"words are compared by {words}", report.judgement.explain(force))
        print_out(f"{written} written to {tuned.output}; {pluralise(len(rejected), 'list')} rejected")
        warn_if_worse(f"{', '.join(files)}: ", {HELD_OUT: rows[HELD_OUT]})
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def _write_weights(
    tuned: TunedWeightOptions,
    report: TuningReport,
    scored: Sequence[ScoredList],
    selection: SelectionOptions,
) -> str:
    """Write the weights that were decided on; return what they are."""
    chosen = replace(report.decide(tuned.force), name=tuned.output.stem)
    is_tuned = report.judgement.is_better or tuned.force
    if is_tuned:
        tuned_with = {"merge": selection.merge, "drop_empty": selection.drop_empty}
        tuned_on = tuple(fingerprint_list(item.recognised.nbest) for item in scored)
        chosen = replace(chosen, tuned_on=tuned_on, tuned_with=tuned_with)
    write_text(tuned.output, json.dumps(weights_to_dict(chosen), indent=2) + "\n")
    return "tuned weights" if is_tuned else "the weights that tuning started from"


def _lower_phrases(start: Weights, scored: Sequence[ScoredList], bound: PhraseBound) -> Weights:
    """Lower the weight of phrases that tuning starts from if it over-boosts; say so on stderr."""
    lowered = bound.apply(scored, start)
    if lowered is not start:
        n_worse = bound.alarms.count(scored, start)
        over_boosts = describe_over_boosting(n_worse, bound.alarms.n_lists, phrase_weight(start))
        typer.echo(f"warning: {over_boosts}; tuning starts from {phrase_weight(lowered):.4g}", err=True)
    return lowered


def _report_rows(tuning: Tuning) -> dict[str, Report]:
    scored, recognised = tuning.scored, [item.recognised for item in tuning.scored]
    rows = {"first pass": build_report(rank_by_first_pass(item) for item in recognised)}
    merges = scored[0].selection.merge and scored[0].first_pass_totals is not None
    if selected := ["merged"] * merges + ["empty dropped"] * scored[0].selection.drop_empty:
        rows[", ".join(["first pass", *selected])] = build_report(
            reorder(item.evaluated, order_selection_by_first_pass(item)) for item in recognised
        )
    return rows | {
        "before tuning": build_report(rerank(item, tuning.start) for item in scored),
        HELD_OUT: build_report(rerank(*pair) for pair in tuning.hold_out()),
        "tuned, on its own lists (optimistic)": build_report(rerank(*pair) for pair in tuning.tuned),
    }


def _print_json(
    tuning: Tuning,
    report: TuningReport,
    rows: dict[str, Report],
    force: bool,
    rejected: Rejections,
    warnings: Sequence[str],
    words: str,
) -> None:
    bound = tuning.phrase_bound
    alarms = false_alarms_to_dict(bound, tuning.count_false_alarms()) if bound else None
    data: dict[str, Any] = {
        **report.to_dict(force),
        "written": "tuned" if report.judgement.is_better or force else "start",
        "systems": [{"name": name, **row.to_dict()} for name, row in rows.items()],
        "unit": tuning.scored[0].evaluated.unit,
        "normaliser": words,
        **({"false_alarms": alarms} if alarms else {}),
        **({"warnings": warnings} if warnings else {}),
        "rejected": len(rejected),
        "rejected_lists": rejected.reasons,
    }
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))

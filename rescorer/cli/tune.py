"""The commands ``rescorer tune``, ``candidates`` and ``calibrate``: learn from lists with references."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.cli.evaluate import render_error_rates, warn_if_worse
from rescorer.errors import FormatError, pluralise
from rescorer.evaluation.calibration import (
    CONSTANT,
    SURE,
    CalibrationJudgement,
    Measures,
    judge_claims,
    make_claims,
)
from rescorer.evaluation.error_rate import CountingSettings
from rescorer.evaluation.false_alarms import (
    LearnedThreshold,
    PhraseBound,
    describe_false_alarms,
    describe_over_boosting,
    false_alarms_to_dict,
    learn_threshold,
)
from rescorer.evaluation.folds import DEFAULT_FREE, count_tuning_lists, fingerprint_list, make_folds
from rescorer.evaluation.list_errors import Report, describe_p, format_gain, format_percent, format_signed
from rescorer.evaluation.scored_lists import MeasuredList
from rescorer.evaluation.statistics import Interval
from rescorer.evaluation.systems import HELD_OUT, Tuning, score_mixtures
from rescorer.evaluation.tuning import KEPT, TuningReport
from rescorer.extensions import used_rerankers
from rescorer.formats.io.text_io import write_text
from rescorer.pipeline import Rescorer
from rescorer.terminal.evaluation_options import (
    AlternationsOption,
    ModelOptions,
    PhraseBoundOptions,
    ScoredListOptions,
    WeightedListOptions,
    collect_lists,
)
from rescorer.terminal.language_models import complete_weights
from rescorer.terminal.options import (
    BundleOption,
    DeviceOption,
    DictionaryOption,
    OtherBundleOption,
    SelectionOptions,
    argument,
    expand_options,
    option,
    use_dictionary,
    warn_if_untuned,
)
from rescorer.terminal.program import (
    Rejections,
    check_output_path,
    print_json,
    warn,
    warn_about_tuning,
)
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer.text import remark_on_spacing
from rescorer.types import Calibration, Weights
from rescorer.weights import phrase_weight, weights_to_dict


def write_weights(path: Path, weights: Weights) -> None:
    """Write weights to a JSON file, which ``--weights`` can read."""
    write_text(path, json.dumps(weights_to_dict(weights), indent=2) + "\n")


def make_weight_table(report: TuningReport) -> FoldingTable:
    """Make a table with one row per weight: its values before and after tuning, and over the folds."""
    table = FoldingTable("weight", "start", "tuned", "mean of folds", "± over folds", "note")
    for weight in report.weights:
        numbers = (weight.start, weight.tuned, weight.fold_mean, weight.fold_spread)
        table.add_row(weight.name, *(f"{number:.4g}" for number in numbers), weight.note or "-")
    return table


def describe_verdict(report: TuningReport, output: Path, *, force: bool) -> Iterator[str]:
    """Yield lines that say whether tuning helped, what was written, and what else could have been.

    Args:
        output: the file of weights.
        force: whether the tuned weights are written even if they are not better.
    """
    yield f"verdict: {report.judgement.explain(force)}"
    if report.judgement.is_better or force:
        yield f"tuned weights written to {output}"
        return
    yield f"{output} has the weights that tuning started from, named {KEPT!r}; --force writes the tuned ones"
    yield report.explain_start()


def describe_report(report: TuningReport) -> Iterator[str]:
    """Yield lines about the held-out error rates, the methods, and weights that hardly change the errors."""
    judgement, gain = report.judgement, report.judgement.gain
    p_value = f", p = {gain.p_value:.2g}" if gain.interval.is_finite else ""
    yield (
        f"held out: {format_percent(judgement.rate)} %{_span(judgement.interval)}, "
        f"start {format_percent(judgement.start_rate)} %; gain {format_percent(gain.gain)} points"
        f"{_span(gain.interval)}{p_value}"
    )
    yield from judgement.caveats()
    yield f"cross-validation: {report.folds}"
    counts = Counter(map(str, report.fold_methods)).items()
    in_folds = ", ".join(f"{method} ({count}×)" for method, count in counts)
    yield f"minimised: {report.method}; in the folds: {in_folds}"
    if alone := [direction.describe() for direction in report.flat if not direction.is_point]:
        yield f"equal within the noise: {'; '.join(alone)}"
    if report.flattest and not report.flattest.is_point:
        yield f"equal within the noise: {report.flattest.describe()}"


def _span(interval: Interval) -> str:
    """Format the ends of an interval in parentheses; empty if there are too few lists for an interval."""
    return (
        f" ({format_percent(interval.low)} to {format_percent(interval.high)})" if interval.is_finite else ""
    )


FilesArgument = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="N-best lists with references; several inputs are read as one."),
]
FREE_HELP = (
    "Weights to tune, separated by commas: names as in -w, `streams` (those with a weight), `lm` (those with "
    "a weight; each keeps its sign, but `lm:NAME` without a weight may take either), `mix` (λ of the "
    "mixture), `cache` (its λ, if lists have previous utterances), `phrases` (if there are any), or `all`."
)


@dataclass(frozen=True, slots=True)
class TunedWeightOptions:
    """The weights that are tuned, the file for them, and whether it gets weights whose gain may be chance."""

    output: Path = option(..., "JSON file of weights, for --weights.", "-o", "--output")
    free: str = option(",".join(DEFAULT_FREE), FREE_HELP, metavar="NAME,…")
    force: bool = option(False, "Write the tuned weights even if their gain may be chance.")


@expand_options
def tune(
    files: FilesArgument,
    bundle: OtherBundleOption = None,
    *,
    tuned: TunedWeightOptions,
    options: ScoredListOptions,
    phrase_bound: PhraseBoundOptions,
    models: ModelOptions,
    as_json: bool = option(False, "Print JSON; rates in percent.", "--json"),
) -> None:
    """Find the weights with the fewest errors, and keep the old ones if that may be chance.

    Example: rescorer tune demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx -o mine.json

    Minimises the errors that `rescorer evaluate` counts under the same options: in characters with
    --characters. Small sets overfit: the row "held out" is the one to believe, in which no list is ranked by
    weights that it helped to tune. A fold holds whole groups or, without groups, ids. Tuned weights are
    written only if they gain more than chance there; otherwise the file has the weights that tuning started
    from, and a line says why. The weights record the lists that they were tuned on, and `rescorer evaluate`
    warns if it is given those lists. They also record the models of --lm, whose weights are tuned with all
    others: with the same --lm and --weights, `rescorer rescore` uses the same models.

    If lists carry phrases, or --phrases gives them some, their weight is tuned too, and kept so small that
    phrases which were not said make at most --max-false-alarms of the lists worse. A weight that over-boosts
    is lowered before tuning starts, with a warning. With --generate, generated hypotheses compete under the
    weights that they have; `rescorer candidates` learns these.
    """
    names, force = [name.strip() for name in tuned.free.split(",")], tuned.force
    check_output_path("-o", tuned.output)
    options.counting.settings()  # reject contradictions before loading anything
    read_lists = options.make_reader()
    rescorer, rejected = models.load(bundle, files, options), Rejections()
    options.apply(rescorer.ranker)
    start = rescorer.ranker.effective_weights(options.weights.resolve(rescorer.bundle.weights))
    lists = collect_lists(read_lists(files), rejected)
    start = complete_weights(rescorer.bundle, start, lists, options.parse_first_pass())
    options.lists.check_groups(lists)
    start = options.choose_start(lists, start, files[0])
    options.check_streams(lists, start, files[0])
    untuned = warn_if_untuned(lists, start)
    scored, errors = options.score(rescorer, lists, start)
    rejected.extend(errors)
    rejected.report(rejected.see_json)
    if not scored:
        raise FormatError("no list could be used for tuning", file=", ".join(files))
    unit = scored[0].evaluated.unit
    if unit == "word" and (remark := remark_on_spacing(item.words[0] for item in scored)):
        warn(f"{', '.join(files)}: {remark}")
    if n_seen := count_tuning_lists(start, lists, used_rerankers(rescorer.bundle, start)):
        warn_about_tuning(start, n_seen, len(lists), "what tuning starts from knows them")
    if bound := phrase_bound.make_bound(rescorer, scored, start, names):
        start = _lower_phrases(bound, scored, start)
    tuning = Tuning(scored, start, names, score_mixtures(rescorer, scored, start, names), bound)
    report = tuning.report()
    rows, words = tuning.rows(), rescorer.ranker.text_normaliser.settings.describe()
    chosen, is_tuned = report.decide(force), report.judgement.is_better or force
    if is_tuned:
        tuned_on = tuple(fingerprint_list(item.recognised.nbest) for item in scored)
        chosen = replace(
            chosen, name=tuned.output.stem, tuned_on=tuned_on, tuned_with=asdict(options.selection)
        )
    write_weights(tuned.output, chosen)
    alarms = tuning.count_false_alarms() if bound else 0
    if as_json:
        data = {
            **_to_dict(report, force, rows, {"unit": unit, "normaliser": words}),
            **({"false_alarms": false_alarms_to_dict(bound, alarms)} if bound else {}),
            **({"warnings": [untuned]} if untuned else {}),
            **rejected.to_dict(),
        }
        print_json(data)
    else:
        n_rejected = pluralise(len(rejected), "list")
        print_out(*describe_verdict(report, tuned.output, force=force), f"{n_rejected} rejected", "")
        print_out(render_error_rates(rows), "", make_weight_table(report), "", *describe_report(report))
        if bound:
            print_out(*describe_false_alarms(bound, alarms))
        print_out(f"words are compared by {words}")
        warn_if_worse(f"{', '.join(files)}: ", {HELD_OUT: (rows[HELD_OUT], report.over_first_pass)})
    rejected.end()


def _to_dict(
    report: TuningReport, force: bool, rows: Mapping[str, Report], counted: Mapping[str, str]
) -> dict[str, Any]:
    """Return as JSON data the report, the rows of error rates, and the way that errors were counted."""
    return {
        **report.to_dict(force),
        "written": "tuned" if report.judgement.is_better or force else "start",
        "systems": [{"name": name, **row.to_dict()} for name, row in rows.items()],
        **counted,
    }


def _lower_phrases(bound: PhraseBound, scored: Sequence[MeasuredList], start: Weights) -> Weights:
    """Return the weights that tuning starts from. If the phrase weight is above its bound, lower it to the
    bound and warn."""
    lowered = bound.apply(scored, start)
    if lowered is not start:
        n_worse = bound.alarms.count(scored, start)
        over_boosts = describe_over_boosting(n_worse, bound.alarms.n_lists, phrase_weight(start))
        warn(f"{over_boosts}; tuning starts from {phrase_weight(lowered):.4g}")
    return lowered


N_FOLDS = 10


@dataclass(frozen=True, slots=True)
class FalseAlarmOptions:
    """The permitted share of false alarms, and how many foreign phrases each list gets to provoke them."""

    max_false_alarms: float = option(
        0.01,
        "Bound of the share of lists on which a generated hypothesis wins with a phrase that was not said: "
        "so few false alarms are permitted that a higher share is refuted with 95 % confidence.",
        min=0.0,
        max=1.0,
    )
    decoys: int = option(100, "Number of phrases of other lists that each list gets for that.", min=1)
    rounds: int = option(4, "How often each list gets such phrases.", min=1)


@expand_options
def candidates(
    *,
    files: list[str] = argument(
        "N-best lists with phrases and references; several inputs are read as one.", "FILE..."
    ),
    bundle: BundleOption,
    output: Path = option(..., "JSON file of weights to write, for --weights.", "-o", "--output"),
    options: WeightedListOptions,
    dictionary: DictionaryOption = None,
    false_alarms: FalseAlarmOptions,
    device: DeviceOption = "cpu",
) -> None:
    """Learn from lists with phrases and references when generated hypotheses may win.

    Example: rescorer candidates lists.jsonl --bundle models/starter/1 --weights pocketsphinx -o heard.json

    Each list is also scored with phrases of other lists that are not in its reference: there, every generated
    hypothesis that wins is a false alarm. Of the weights with few enough of them, those with the fewest
    errors are written. What is printed is held out: no list is judged by weights that its group, or its
    reference, helped to choose.
    """
    check_output_path("-o", output)
    rescorer, rejected = Rescorer.load(bundle, device), Rejections()
    use_dictionary(rescorer.ranker, dictionary)
    lists, weights = options.read(files, rescorer, rejected)
    learned = learn_threshold(
        rescorer,
        lists,
        weights,
        decoys=false_alarms.decoys,
        rounds=false_alarms.rounds,
        max_rate=false_alarms.max_false_alarms,
        on_rejected=rejected.add,
    )
    rejected.report(rejected.see_json)
    if learned is None:
        raise FormatError("no list could be used", file=", ".join(files))
    weights = replace(
        weights,
        name=output.stem,
        generated=learned.choice.generated,
        sound_match=learned.choice.sound_match,
        calibration=None,
    )
    write_weights(output, weights)
    print_out(*describe(learned), f"cross-validation: {learned.folds.describe()}")
    print_out(
        f"{pluralise(len(learned.lists), 'list')}; weights written to {output}; "
        f"{pluralise(len(rejected), 'list')} rejected"
    )
    rejected.end()


def describe(learned: LearnedThreshold) -> list[str]:
    """Describe the chosen weights, and held-out error rates: for each list, the rates use weights that were
    chosen without this list."""
    judgement, choice, gain = learned.judgement, learned.choice, learned.gain
    after, decoys = judgement.after, judgement.decoys
    without, rate = (
        f"{100 * found.errors / max(1, found.words):.2f} %" for found in (judgement.before, after)
    )
    return [
        f"weights: generated {choice.generated:g}, sound_match {choice.sound_match:g}",
        f"word error rate: {without} without generated hypotheses, {rate} with them; "
        f"gain {format_gain(gain)}, {describe_p(gain.p_value)}",
        f"generated hypotheses won {pluralise(after.right, 'time')} with a phrase that was said, "
        f"{pluralise(after.false_alarms, 'time')} with another, in {pluralise(after.lists, 'list')}",
        f"false alarms: {decoys.false_alarms:,} of {pluralise(decoys.lists, 'list')} with phrases that were "
        "not said",
    ]


def render_measures(judgements: Mapping[str, CalibrationJudgement]) -> FoldingTable:
    """Make a table of measures of posteriors and of held-out confidences, for words and for utterances."""
    headings = ("NCE", "ECE", f">= {SURE:g}", "of these right", "claims", "right %")
    table = FoldingTable("confidence", *headings)
    for name, judgement in judgements.items():
        share = f"{100 * judgement.right / judgement.claims:.1f}"
        for label, measures in (("posterior", judgement.before), ("held out", judgement.held_out)):
            nce, ece = measures.normalised_cross_entropy, measures.expected_calibration_error
            scores = "-" if math.isnan(nce) else f"{nce:.3f}", f"{ece:.3f}"
            counts = map(str, (measures.sure, measures.sure_and_right, judgement.claims))
            table.add_row(f"{name}, {label}", *scores, *counts, share)
    return table


def render_reliability(name: str, judgement: CalibrationJudgement) -> FoldingTable:
    """Make a table of the share of claims that are right, for each range of held-out confidences.

    Args:
        name: the kind of claims, ``word`` or ``utterance``.
    """
    table = FoldingTable("confidence", f"{name}s", "mean", "right", title=f"{name}s, held out")
    for part in judgement.held_out.bins:
        if part.claims:
            span = f"{part.lower:.1f} to {part.upper:.1f}"
            table.add_row(span, str(part.claims), f"{part.confidence:.3f}", f"{part.right:.3f}")
    return table


def summarise(judgements: Mapping[str, CalibrationJudgement]) -> Iterator[str]:
    """Yield a verdict for each kind of claim: that a word is right, and that an utterance is right."""
    if not judgements:
        yield (
            "no confidence written: no list can judge another, because every list shares its reference with "
            "one of each other fold; more lists with different references are needed"
        )
    for name, judgement in judgements.items():
        gain = judgement.gain
        spread = f" ± {gain.interval.half_width:.3f}" if gain.interval.is_finite else ""
        margin = f"{format_signed(gain.gain, 3)}{spread} nats per {name}, held out"
        if judgement.helps:
            how = f"{judgement.kind}, temperature {judgement.fitted.temperature:.3g}"
            yield f"{name}: calibrated ({how}); better than a constant by {margin}"
        elif judgement.kind == CONSTANT:
            yield f"{name}: no confidence written; on these lists nothing says more than a constant"
        elif not gain.interval.is_finite:
            yield f"{name}: no confidence written; too few lists or groups for a verdict ({margin})"
        else:
            yield f"{name}: no confidence written; not better than a constant beyond chance ({margin})"


PANEL, MARGIN, GAP = 300, 56, 40
"""Side of a panel, its distance to the edges of the drawing, and the gap between panels, in pixels."""
MIN_RADIUS, MAX_RADIUS = 2.5, 12.0
"""Smallest and largest radius of a point in pixels. Its area is proportional to its number of claims."""
STYLE = (
    "<style>text{font:12px sans-serif;fill:#333}.frame{fill:none;stroke:#999}.ideal{stroke:#999;"
    "stroke-dasharray:4 4}.before{stroke:#b45f06;fill:#b45f06}.held-out{stroke:#0b5394;fill:#0b5394}"
    "polyline{fill:none!important;stroke-width:1.5}circle{fill-opacity:.6}</style>"
)


def draw_reliability(judgements: Mapping[str, CalibrationJudgement]) -> str:
    """Draw an SVG file. It has a panel per kind of claim, each with posteriors and held-out confidences."""
    width = 2 * MARGIN + len(judgements) * (PANEL + GAP) - GAP
    height = 2 * MARGIN + PANEL + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="Reliability diagram">',
        STYLE,
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (name, judgement) in enumerate(judgements.items()):
        lines.append(f'<g transform="translate({MARGIN + number * (PANEL + GAP)} {MARGIN})">')
        lines += _draw_axes(name)
        lines += _draw_bins(judgement.before, "before")
        lines += _draw_bins(judgement.held_out, "held-out")
        lines.append("</g>")
    lines.append(
        f'<text x="{MARGIN}" y="{height - 12}"><tspan class="before" stroke="none">● posterior</tspan>'
        '<tspan class="held-out" stroke="none" dx="16">● calibrated, held out</tspan></text></svg>'
    )
    return "\n".join(lines) + "\n"


def _draw_axes(name: str) -> Iterator[str]:
    yield f'<text x="0" y="-14">{name}s: share that is right, by confidence</text>'
    yield f'<rect class="frame" width="{PANEL}" height="{PANEL}"/>'
    yield f'<line class="ideal" x1="0" y1="{PANEL}" x2="{PANEL}" y2="0"/>'
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        yield f'<text x="{tick * PANEL:.0f}" y="{PANEL + 18}" text-anchor="middle">{tick:g}</text>'
        yield f'<text x="-8" y="{(1 - tick) * PANEL + 4:.0f}" text-anchor="end">{tick:g}</text>'


def _draw_bins(measures: Measures, style: str) -> Iterator[str]:
    bins = [part for part in measures.bins if part.claims]
    most = max((part.claims for part in bins), default=1)
    points = [(part.confidence * PANEL, (1 - part.right) * PANEL) for part in bins]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="{style}" points="{path}"/>'
    for part, (x, y) in zip(bins, points, strict=True):
        radius = max(MIN_RADIUS, MAX_RADIUS * math.sqrt(part.claims / most))
        label = f"{part.claims} claims of mean confidence {part.confidence:.3f}: {part.right:.3f} right"
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        yield f'<circle class="{style}" {place}><title>{label}</title></circle>'


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions(WeightedListOptions):
    """Lists with references, the weights that rank them, and the way that errors are counted."""

    selection: SelectionOptions
    alternations: AlternationsOption = "on"


@expand_options
def calibrate(
    *,
    files: FilesArgument,
    bundle: BundleOption,
    output: Path = option(..., "JSON file of weights with a calibration, for --weights.", "-o", "--output"),
    options: CalibrationOptions,
    plot: Path | None = option(None, "SVG file of a reliability diagram to write."),
    device: DeviceOption = "cpu",
    as_json: bool = option(False, "Print the measures as JSON.", "--json"),
) -> None:
    """Learn from lists with references how sure to be of the best hypothesis and of its words.

    Example: rescorer calibrate demo/lists.jsonl.gz --bundle models/starter/1 --weights pocketsphinx
    -o sure.json

    Answers under the weights that this writes have confidences: of all words with confidence 0.8, about 80 %
    are right. What is printed is held out: no list is judged by a map that its group, or its reference,
    helped to fit. A confidence that is not better than a constant beyond chance is left out. Use lists on
    which the weights were not tuned.
    """
    check_output_path("-o", output)
    if plot:
        check_output_path("--plot", plot)
    rescorer, rejected = Rescorer.load(bundle, device), Rejections()
    lists, weights = options.read(files, rescorer, rejected)
    selection = options.selection
    claims, errors = make_claims(
        rescorer,
        lists,
        weights,
        merge=selection.merge,
        drop_empty=selection.drop_empty,
        counting=CountingSettings(alternations=options.alternations == "on"),
    )
    rejected.extend(errors)
    rejected.report(rejected.see_json)
    if claims is None:
        raise FormatError("no list could be used for calibration", file=", ".join(files))
    if n_seen := count_tuning_lists(weights, claims.lists, used_rerankers(rescorer.bundle, weights)):
        warn_about_tuning(weights, n_seen, len(claims.lists), "confidences will be too high on others")
    ids, groups = zip(*((nbest.id, nbest.group) for nbest in claims.lists), strict=True)
    folds = make_folds(ids, groups, claims.references, N_FOLDS)
    judgements = judge_claims(claims, folds)
    words = rescorer.ranker.text_normaliser.settings.describe()
    maps = {name: judgement.fitted for name, judgement in judgements.items() if judgement.helps}
    calibrated = replace(weights, name=output.stem, calibration=Calibration(**maps) if maps else None)
    write_weights(output, calibrated)
    if plot:
        write_text(plot, draw_reliability(judgements))
    if as_json:
        data: dict[str, Any] = {name: found.to_dict() for name, found in judgements.items()}
        data |= {"lists": len(claims.lists), **rejected.to_dict()}
        data["normaliser"] = words
        print_json(data)
    else:
        if judgements:
            print_out(render_measures(judgements), "")
        for name, judgement in judgements.items():
            print_out(render_reliability(name, judgement), "")
        print_out(f"cross-validation: {folds.describe()}; words are compared by {words}")
        print_out(*summarise(judgements))
        print_out(
            f"{pluralise(len(claims.lists), 'list')}; weights written to {output}; "
            f"{pluralise(len(rejected), 'list')} rejected"
        )
    rejected.end()

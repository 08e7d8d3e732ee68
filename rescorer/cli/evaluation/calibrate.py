"""The command ``rescorer calibrate``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.inputs import WeightedListOptions
from rescorer.cli.options.evaluation.scoring import AlternationsOption, collect_lists, make_list_reader
from rescorer.cli.options.models import BundleOption, DeviceOption
from rescorer.cli.options.selection import SelectionOptions
from rescorer.cli.options.weights import check_streams
from rescorer.cli.output import SEE_JSON, SOME_REJECTED, Rejections, check_output_path, warn_about_tuning
from rescorer.cli.render.evaluation.calibration import render_measures, render_reliability, summarise
from rescorer.cli.render.evaluation.reliability_plot import draw_reliability
from rescorer.cli.render.tables import print_out
from rescorer.errors import FormatError, pluralise
from rescorer.evaluation.calibration.claims import Claims, make_claims
from rescorer.evaluation.calibration.fitting import Division
from rescorer.evaluation.calibration.judging import Judgement, judge, replace_nan
from rescorer.evaluation.error_rate.counting import CountingSettings
from rescorer.evaluation.tuning.fingerprint import count_tuning_lists
from rescorer.evaluation.tuning.folds import Folds, make_folds
from rescorer.extensions.rerankers import used_rerankers
from rescorer.formats.io.text_io import write_text
from rescorer.pipeline import Rescorer
from rescorer.score_combination import weights_to_dict
from rescorer.types import Calibration, Weights

UTTERANCE, WORD = "utterance", "word"
N_FOLDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationOptions(WeightedListOptions):
    """Lists with references, and how they are ranked."""

    selection: SelectionOptions
    alternations: AlternationsOption = "on"


@expand_options
def calibrate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="N-best lists with references; several inputs are read as one."
        ),
    ],
    bundle: BundleOption,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="JSON file of weights with a calibration, for --weights.")
    ],
    *,
    options: CalibrationOptions,
    plot: Annotated[Path | None, typer.Option(help="SVG file of a reliability diagram to write.")] = None,
    device: DeviceOption = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the measures as JSON.")] = False,
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
    read_lists = make_list_reader(options.reference, options.lists)
    rescorer = Rescorer.load(bundle, device)
    options.text.apply(rescorer.ranker)
    weights = rescorer.ranker.effective_weights(options.weights.resolve(rescorer.bundle.weights))
    rejected = Rejections()
    lists = collect_lists(read_lists(files), rejected)
    options.lists.check_groups(lists)
    check_streams(lists, weights, options.lists, files[0])
    selection = options.selection
    claims, errors = make_claims(
        rescorer,
        lists,
        weights,
        merge=selection.merge,
        drop_empty=selection.drop_empty,
        counting=CountingSettings(alternations=options.alternations == "on"),
    )
    for error in errors:
        rejected.add(error)
    rejected.report(SEE_JSON)
    if claims is None:
        raise FormatError("no list could be used for calibration", file=", ".join(files))
    if n_seen := count_tuning_lists(weights, claims.lists, used_rerankers(rescorer.bundle, weights)):
        warn_about_tuning(weights, n_seen, len(claims.lists), "confidences will be too high on others")
    folds, judgements = judge_claims(claims)
    words = rescorer.ranker.text_normaliser.settings.describe()
    calibrated = add_calibration(weights, judgements, output.stem)
    write_text(output, json.dumps(weights_to_dict(calibrated), indent=2) + "\n")
    if plot:
        write_text(plot, draw_reliability(judgements))
    if as_json:
        data = to_dict(judgements, len(claims.lists), rejected.reasons) | {"normaliser": words}
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
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
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def judge_claims(claims: Claims) -> tuple[Folds, dict[str, Judgement]]:
    """Judge the confidences of utterances and of words that can be judged, by cross-validation."""
    ids, groups = zip(*((nbest.id, nbest.group) for nbest in claims.lists), strict=True)
    folds = make_folds(ids, groups, claims.references, N_FOLDS)
    division = Division(list(map(str, folds.fold.tolist())), claims.references)
    outcomes = {UTTERANCE: claims.utterances, WORD: claims.words}
    judgements = {name: judge(part, division, groups) for name, part in outcomes.items()}
    return folds, {name: found for name, found in judgements.items() if found is not None}


def add_calibration(weights: Weights, judgements: Mapping[str, Judgement], name: str) -> Weights:
    """Return the weights under another name, with the maps that help."""
    maps = {kind: judgement.fitted for kind, judgement in judgements.items() if judgement.helps}
    return replace(weights, name=name, calibration=Calibration(**maps) if maps else None)


def to_dict(judgements: Mapping[str, Judgement], lists: int, rejected: Sequence[str]) -> dict[str, Any]:
    """Convert judgements to JSON data, with None for numbers that are not defined."""
    parts = {name: {**asdict(part), "helps": part.helps} for name, part in judgements.items()}
    content: dict[str, Any] = replace_nan(
        {**parts, "lists": lists, "rejected": len(rejected), "rejected_lists": list(rejected)}
    )
    return content

"""The command ``rescorer candidates``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.candidates import DictionaryOption, use_dictionary
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.inputs import WeightedListOptions
from rescorer.cli.options.evaluation.scoring import collect_lists, make_list_reader
from rescorer.cli.options.models import BundleOption, DeviceOption
from rescorer.cli.options.weights import check_streams
from rescorer.cli.output import SEE_JSON, SOME_REJECTED, Rejections, check_output_path
from rescorer.cli.render.tables import print_out
from rescorer.errors import FormatError, pluralise
from rescorer.evaluation.candidates.outcomes import Outcome, draw_decoys, score_outcomes
from rescorer.evaluation.candidates.threshold import Choice, Judgement, Tally, choose, judge
from rescorer.evaluation.figures import describe_p, format_gain
from rescorer.evaluation.statistics.bootstrap import Gain, bootstrap, choose_units
from rescorer.evaluation.tuning.folds import make_folds
from rescorer.formats.io.text_io import write_text
from rescorer.pipeline import Rescorer
from rescorer.score_combination import weights_to_dict

N_FOLDS = 10


@dataclass(frozen=True, slots=True)
class FalseAlarmOptions:
    """How many false alarms are permitted, and how they are provoked."""

    max_false_alarms: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Bound of the share of lists on which a generated hypothesis wins with a phrase that was "
            "not said: so few false alarms are permitted that a higher share is refuted with 95 % "
            "confidence.",
        ),
    ] = 0.01
    decoys: Annotated[
        int, typer.Option(min=1, help="Number of phrases of other lists that each list gets for that.")
    ] = 100
    rounds: Annotated[int, typer.Option(min=1, help="How often each list gets such phrases.")] = 4


@expand_options
def candidates(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="N-best lists with phrases and references; several inputs are read as one.",
        ),
    ],
    bundle: BundleOption,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="JSON file of weights to write, for --weights.")
    ],
    *,
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
    rescorer = Rescorer.load(bundle, device)
    options.text.apply(rescorer.ranker)
    use_dictionary(rescorer.ranker, dictionary)
    weights = rescorer.ranker.effective_weights(options.weights.resolve(rescorer.bundle.weights))
    rejected = Rejections()
    lists = collect_lists(make_list_reader(options.reference, options.lists)(files), rejected)
    options.lists.check_groups(lists)
    check_streams(lists, weights, options.lists, files[0])
    found = score_outcomes(rescorer, lists, weights)
    draws = draw_decoys(rescorer, lists, false_alarms.decoys, false_alarms.rounds)
    others = [score_outcomes(rescorer, drawn, weights) for drawn in draws]
    kept, own, wrong = [], list[Outcome](), list[list[Outcome]]()
    for nbest, first, drawn in zip(lists, found, others, strict=True):
        results = [first, *drawn]
        if errors := [result for result in results if not isinstance(result, Outcome)]:
            rejected.add(errors[0])
        else:
            kept.append(nbest)
            outcome, *decoy_outcomes = (result for result in results if isinstance(result, Outcome))
            own.append(outcome)
            wrong.append(decoy_outcomes)
    rejected.report(SEE_JSON)
    if not kept:
        raise FormatError("no list could be used", file=", ".join(files))
    ids, groups, references = zip(*((n.id, n.group, n.reference or "") for n in kept), strict=True)
    folds = make_folds(ids, groups, references, N_FOLDS)
    unit, max_share = sum(weights.lm.values()), false_alarms.max_false_alarms
    judgement = judge(own, wrong, folds, max_share, unit)
    choice = choose(own, [one for drawn in wrong for one in drawn], max_share, unit)
    learned = replace(weights, name=output.stem, generated=choice.generated, calibration=None)
    learned = replace(learned, sound_match=choice.sound_match)
    write_text(output, json.dumps(weights_to_dict(learned), indent=2) + "\n")
    n_words = [one.n_words for one in own]
    gain = bootstrap(judgement.errors, n_words, choose_units(groups)).gain(0, 1)
    print_out(*describe(judgement, choice, gain), f"cross-validation: {folds.describe()}")
    print_out(
        f"{pluralise(len(kept), 'list')}; weights written to {output}; "
        f"{pluralise(len(rejected), 'list')} rejected"
    )
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def describe(judgement: Judgement, choice: Choice, gain: Gain) -> list[str]:
    """Describe the chosen weights, and what weights chosen in the same way do on lists held out."""
    after, decoys = judgement.after, judgement.decoys
    return [
        f"weights: generated {choice.generated:g}, sound_match {choice.sound_match:g}",
        f"word error rate: {_rate(judgement.before)} without generated hypotheses, {_rate(after)} with them; "
        f"gain {format_gain(gain)}, {describe_p(gain.p_value)}",
        f"generated hypotheses won {pluralise(after.right, 'time')} with a phrase that was said, "
        f"{pluralise(after.false_alarms, 'time')} with another, in {pluralise(after.lists, 'list')}",
        f"false alarms: {decoys.false_alarms:,} of {pluralise(decoys.lists, 'list')} with phrases that were "
        "not said",
    ]


def _rate(found: Tally) -> str:
    return f"{100 * found.errors / max(1, found.words):.2f} %"

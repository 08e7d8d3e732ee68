"""The command ``rescorer explain``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.inputs import ScoredListOptions
from rescorer.cli.options.evaluation.scoring import collect_lists
from rescorer.cli.options.models import BundleOption, DeviceOption
from rescorer.cli.output import SOME_REJECTED, Rejections
from rescorer.cli.render.evaluation.explanation import print_changes, print_explanation
from rescorer.errors import FormatError, did_you_mean
from rescorer.evaluation.comparison.explanation import Explanation, encode_words, explain_list, sort_by_change
from rescorer.evaluation.error_analysis.aligned_text import Aligner
from rescorer.extensions import Phrases
from rescorer.extensions.rerankers import used_rerankers
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList


@expand_options
def explain(
    file: Annotated[str, typer.Argument(metavar="FILE", help="N-best lists, before rescoring.")],
    bundle: BundleOption,
    *,
    list_id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Id of a list; default: the lists that changed most."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Without ID: number of lists to show.")] = 10,
    options: ScoredListOptions,
    device: DeviceOption = "cpu",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON list of explanations, with unweighted components.")
    ] = False,
) -> None:
    """Explain why a hypothesis won: what each score and language model contributed to its lead.

    Example: rescorer explain demo/lists.jsonl.gz demo-001 --bundle models/starter/1 --weights pocketsphinx

    Shows the best hypotheses of a list with their weighted components, the lead of the winner over the choice
    of the first pass and over the hypothesis with the fewest errors, and the aligned texts; of a reranker's
    score, what each of its features adds to it; the phrases that gave credits; and how a hypothesis was
    generated. Without an ID, it names
    the lists whose errors rescoring changed most, or whose totals did if there are no references.
    """
    rejected = Rejections()
    rescorer = Rescorer.load(bundle, device)
    options.apply(rescorer.ranker)
    weights = options.weights.resolve(rescorer.bundle.weights)
    lists = collect_lists(options.make_reader()(file), rejected)
    options.check_streams(lists, weights, file)
    chosen = lists if list_id is None else find_lists(lists, list_id, file)
    counting = options.counting.settings()
    explanations: list[Explanation] = []
    for has_reference in (True, False):
        part = [nbest for nbest in chosen if (nbest.reference is not None) == has_reference]
        counted = part if has_reference else [replace(nbest, reference="") for nbest in part]
        scored, errors = options.score(rescorer, counted, weights)
        for error in errors:
            rejected.add(error)
        rerankers = used_rerankers(rescorer.bundle, weights)
        encodings = encode_words(rescorer, [item.nbest for item in scored], rerankers)
        component = rescorer.ranker.component(Phrases)
        explanations += (
            explain_list(
                item,
                weights,
                rerankers,
                encoded,
                component.finder.find(item.nbest, item.read, component.expected),
                has_reference=has_reference,
            )
            for item, encoded in zip(scored, encodings, strict=True)
        )
    rejected.report()
    if not explanations:
        raise FormatError("no list could be explained", file=file)
    shown = explanations if list_id is not None else sort_by_change(explanations)[:top]
    if as_json:
        typer.echo(json.dumps([found.to_dict() for found in shown], indent=2, ensure_ascii=False))
    elif list_id is None:
        print_changes(shown, sum(found.has_changed for found in explanations), len(explanations))
    else:
        aligner = Aligner(rescorer.ranker.text_normaliser.normalise, counting)
        for found in shown:
            print_explanation(found, aligner)
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def find_lists(lists: Sequence[NBestList], list_id: str, file: str) -> list[NBestList]:
    """The lists with an id; raises FormatError if there are none."""
    found = [nbest for nbest in lists if nbest.id == list_id]
    if not found:
        hint = did_you_mean(list_id, [nbest.id for nbest in lists])
        raise FormatError(f"no list has the id {list_id!r}{hint}", file=file)
    return found

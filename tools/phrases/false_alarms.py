"""Count the lists that phrases which were not said make worse, under weights that these lists did not tune.

    python -m tools.phrases.false_alarms $DATA/nbest --bundle models/starter/1

A weight of phrases that over-boosts is bounded on the lists outside of each fold, as `rescorer tune --free
phrases --distractors 1000` does. The phrases that are counted then are drawn from all sets together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.score_cache import CacheOptions
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.models import BundleOption
from rescorer.cli.render.evaluation.false_alarms import describe_share
from rescorer.evaluation.comparison.false_alarms import (
    DEFAULT_MAX_SHARE,
    PhraseBound,
    draw_distractors,
    find_false_alarms,
)
from rescorer.evaluation.comparison.scored_lists import ScoredList, score_lists
from rescorer.evaluation.comparison.tuned import Tuning
from rescorer.pipeline import Rescorer
from rescorer.types import NBestList, Weights

N_PHRASES = 1000
RANK = "rank"
"""Stream of lists whose only score is their order: minus the logarithm of the rank, from 1."""
OVER_BOOSTING = 5.0
"""Weight of phrases that tuning starts from, in nats of the first language model."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of lists, how to read it, and the weights to start from."""

    path: str
    fields: tuple[str, ...]
    weights: Weights
    streams: tuple[str, ...] = ()
    groups: str | None = None

    def read(self, folder: Path) -> Iterator[NBestList]:
        """Yield the lists; those without a score get one from their order."""
        groups = str(folder / self.groups) if self.groups and self.groups.endswith(".json") else self.groups
        options = ListInputOptions(list(self.fields), list(self.streams), groups=groups)
        for item in options.read(str(folder / self.path)):
            if not isinstance(item, NBestList):
                raise SystemExit(str(item))
            ranks = np.arange(1, len(item.hypotheses) + 1)
            yield replace(item, streams={**item.streams, RANK: tuple((-np.log(ranks)).tolist())})


ORDER = Weights("order", {RANK: 2.0}, {"mixture": 0.1})
SCORED = Weights("scored", {"acoustic": 1.0}, {"mixture": 1.0})
SPEAKERS = "read-speech/utterances.json"
SOURCES = {
    "Switchboard, scored": Source(
        "switchboard/scored-dev.jsonl",
        ("hypotheses=hyps,text=text_norm,reference=ref_norm",),
        SCORED,
        ("acoustic=am_log2:2",),
    ),
    "Switchboard, order only": Source(
        "switchboard/rank-only-tenbest.jsonl",
        ("hypotheses=hyps_norm,reference=ref_norm",),
        ORDER,
        groups="^(sw[0-9]+)",
    ),
    "Moonshine": Source(
        "read-speech/moonshine-20best.jsonl.gz",
        ("hypotheses=hyps,reference=ref",),
        replace(SCORED, lm={"mixture": 0.0}),
        ("acoustic=am",),
        SPEAKERS,
    ),
    "PocketSphinx": Source(
        "read-speech/pocketsphinx-100best.jsonl.gz",
        ("hypotheses=hyps,reference=ref",),
        replace(SCORED, lm={"mixture": 9.5}, word=-0.6296),
        ("acoustic=am",),
        SPEAKERS,
    ),
    "DSTC2": Source("dstc2/rank-only-dev.jsonl", ("hypotheses=hyps,reference=ref",), ORDER),
}


def score(rescorer: Rescorer, folder: Path, source: Source) -> list[ScoredList]:
    """Read and score the lists of a file."""
    weights = rescorer.ranker.effective_weights(source.weights)
    scored, errors = score_lists(rescorer, list(source.read(folder)), weights)
    if errors:
        raise SystemExit(str(errors[0]))
    return scored


@expand_options
def main(
    folder: Annotated[Path, typer.Argument(help="The folder nbest of the data.")],
    bundle: BundleOption,
    seed: Annotated[int, typer.Option(help="Seed of the phrases that are counted; tuning draws with 1.")] = 2,
    *,
    cache: CacheOptions,
) -> None:
    """Print how many lists of each set become worse."""
    rescorer = cache.load_rescorer(bundle, "cpu")
    normalise = rescorer.bundle.normaliser.normalise
    sets = {name: score(rescorer, folder, source) for name, source in SOURCES.items()}
    everything = [item for scored in sets.values() for item in scored]
    phrases = draw_distractors(everything, normalise, N_PHRASES, seed)
    n_worse = n_default = 0
    for name, scored in sets.items():
        weights = rescorer.ranker.effective_weights(SOURCES[name].weights)
        given = find_false_alarms(rescorer, scored, weights, phrases)
        scale = sum(weights.lm.values()) or 1.0
        start = replace(weights, phrases=OVER_BOOSTING * scale)
        known = draw_distractors(scored, normalise, N_PHRASES)
        bound = PhraseBound(find_false_alarms(rescorer, scored, start, known), DEFAULT_MAX_SHARE)
        tuning = Tuning(scored, start, ("phrases",), phrase_bound=bound)
        folds = zip(tuning.cross_validation.folds, tuning.fold_weights, strict=True)
        worse = sum(given.count(scored, fold_weights, fold.lists.tolist()) for fold, fold_weights in folds)
        default, over = given.count(scored, weights), given.count(scored, start)
        n_worse, n_default = n_worse + worse, n_default + default
        bounded = ", ".join(f"{(each.phrases or 0.0) / scale:.2f}" for each in tuning.fold_weights)
        print(
            f"{name}: phrases in {len(given.exposures)} lists; worse at {OVER_BOOSTING:g} nats: {over}, by "
            f"default: {default}, within the bound: {describe_share(worse, len(scored))}; nats: {bounded}",
            flush=True,
        )
    print(f"all, by default: {describe_share(n_default, len(everything))}")
    print(f"all, within the bound: {describe_share(n_worse, len(everything))}")


if __name__ == "__main__":
    typer.run(main)

"""Rescore dialogues with what was said before each list, without it, and after another dialogue.

    python -m tools.conversations $DATA/nbest --bundle conversation/1 --set DSTC2
    python -m tools.conversations $DATA/nbest --bundle conversation/1 --set Switchboard --tune neural_cache
    python -m tools.conversations $DATA/nbest --bundle tags/1 --baseline words/1 --set Switchboard

The text before a list consists of what a service would know: the prompts of the system, if any, and the first
hypotheses of the recogniser, oldest first. Weights are tuned on the first half of the dialogues, separately
for each kind of past, and errors are counted on the second half.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from rescorer.evaluation.list_errors import EvaluatedList, describe_p, format_gain
from rescorer.evaluation.scored_lists import MeasuredList, rerank, score_lists
from rescorer.evaluation.statistics import bootstrap
from rescorer.evaluation.systems import Tuning, score_mixtures
from rescorer.pipeline import Rescorer
from rescorer.terminal.evaluation_options import CacheOptions
from rescorer.terminal.list_options import ListInputOptions
from rescorer.terminal.options import BundleOption, expand_options
from rescorer.types import NBestList, Utterance, Weights

FREE = ("streams", "lm", "word")
GREETING = "Hello"
"""Beginning of the first prompt of each DSTC2 dialogue."""
PASTS = ("nothing", "the dialogue", "another dialogue")
BASELINE = "baseline, after nothing"
FIRST_SYSTEM = 1
"""Row relative to which gains are counted: the row after the first pass."""


RANK = "rank"
"""Score stream of lists that have only an order: minus the logarithm of the rank, which starts at 1."""
ORDER = Weights("order", {RANK: 2.0}, {"mixture": 0.1})
"""Weights from which tuning starts."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of lists in the order in which they were said, and how to read the file."""

    path: str
    fields: str
    groups: str | None = None

    def read(self, folder: Path) -> Iterator[NBestList]:
        """Yield the lists, with the stream of their order."""
        for item in ListInputOptions([self.fields], groups=self.groups).read(str(folder / self.path)):
            if not isinstance(item, NBestList):
                raise SystemExit(str(item))
            ranks = np.arange(1, len(item.hypotheses) + 1)
            yield replace(item, streams={**item.streams, RANK: tuple((-np.log(ranks)).tolist())})


SOURCES = {
    "DSTC2": Source("dstc2/rank-only-dev.jsonl", "hypotheses=hyps,reference=ref"),
    "Switchboard": Source(
        "switchboard/rank-only-tenbest.jsonl", "hypotheses=hyps_norm,reference=ref_norm", "^(sw[0-9]+)"
    ),
}


@dataclass(frozen=True, slots=True)
class Dialogue:
    """Lists in the order in which they were said, with the prompt before each, which may be empty."""

    lists: tuple[NBestList, ...]
    prompts: tuple[str, ...]

    def past(self, n_turns: int) -> tuple[Utterance, ...]:
        """Return what was said before the list of a turn, counted from 0, or before the last turn."""
        turn = min(n_turns, len(self.lists) - 1)
        spoken: list[str] = []
        for nbest, prompt in zip(self.lists[:turn], self.prompts, strict=False):
            spoken += [prompt, nbest.hypotheses[0].text]
        return tuple(Utterance(text) for text in [*spoken, self.prompts[turn]] if text)


def read_dialogues(folder: Path, name: str) -> list[Dialogue]:
    """Read a set, and cut it into dialogues: at greetings of the system, or where the group changes."""
    source = SOURCES[name]
    with (folder / source.path).open(encoding="utf-8") as lines:
        prompts = [json.loads(line).get("system_prompt", "") for line in lines]
    dialogues: list[list[tuple[NBestList, str]]] = []
    before = None
    for nbest, prompt in zip(source.read(folder), prompts, strict=True):
        if before is None or prompt.startswith(GREETING) or nbest.group != before.group:
            dialogues.append([])
        dialogues[-1].append((nbest, prompt))
        before = nbest
    return [Dialogue(*zip(*turns, strict=True)) for turns in dialogues]


def add_past(dialogues: Sequence[Dialogue], past: str) -> Iterator[NBestList]:
    """Yield the lists of all dialogues with a kind of past, one of ``PASTS``; the dialogue is their group."""
    for number, dialogue in enumerate(dialogues):
        other = dialogues[number - 1] if past == "another dialogue" else dialogue
        for turn, nbest in enumerate(dialogue.lists):
            previous = () if past == "nothing" else other.past(turn)
            yield replace(nbest, previous=previous, group=str(number))


def hold_out(
    rescorer: Rescorer, dialogues: Sequence[Dialogue], past: str, start: Weights, caches: Sequence[str] = ()
) -> tuple[list[EvaluatedList], Weights]:
    """Tune weights on the first half of the dialogues; return the ranked second half, and the weights.

    Args:
        start: weights from which tuning starts. Values that they do not set are those of the bundle.
        caches: names of the caches whose λ is also tuned.
    """
    lists, free = list(add_past(dialogues, past)), (*FREE, *caches)
    start = rescorer.ranker.effective_weights(start)
    first = {str(number) for number in range(len(dialogues) // 2)}
    scored = score([nbest for nbest in lists if nbest.group in first], rescorer, start)
    tuned = Tuning(scored, start, free, score_mixtures(rescorer, scored, start, free)).tuned[0][1]
    held_out = score([nbest for nbest in lists if nbest.group not in first], rescorer, tuned)
    return [rerank(item, tuned) for item in held_out], tuned


def score(lists: Sequence[NBestList], rescorer: Rescorer, weights: Weights) -> list[MeasuredList]:
    """Score lists, all of which must be valid."""
    scored, errors = score_lists(rescorer, lists, weights)
    if errors:
        raise SystemExit(str(errors[0]))
    return scored


@expand_options
def main(
    folder: Annotated[Path, typer.Argument(help="The folder nbest of the data.")],
    bundle: BundleOption,
    name: Annotated[str, typer.Option("--set", help="DSTC2 or Switchboard.")] = "DSTC2",
    tune: Annotated[
        list[str] | None, typer.Option(help="cache or neural_cache: tune its λ too. May be repeated.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Another bundle: gains are over it, after nothing.")
    ] = None,
    *,
    cache: CacheOptions,
) -> None:
    """Print the error rate after each kind of past, and its gain over no past or over another bundle."""
    dialogues = read_dialogues(folder, name)
    start, caches = ORDER, tune or ()
    found = {}
    if baseline:
        found[BASELINE] = hold_out(cache.load_rescorer(baseline, "cpu"), dialogues, PASTS[0], start, caches)
    rescorer = cache.load_rescorer(bundle, "cpu")
    found |= {f"after {past}": hold_out(rescorer, dialogues, past, start, caches) for past in PASTS}
    lists = next(iter(found.values()))[0]
    systems = {
        "first pass": [item.first_pass for item in lists],
        **{row: [item.system for item in ranked] for row, (ranked, _) in found.items()},
        "oracle": [item.oracle for item in lists],
    }
    drawn = bootstrap(
        [[counts.errors for counts in row] for row in systems.values()],
        [item.system.reference_words for item in lists],
        [item.group for item in lists],
    )
    n_words = sum(item.system.reference_words for item in lists)
    print(f"{name}: {len({item.group for item in lists})} dialogues, {n_words:,} words")
    for index, row in enumerate(systems):
        gain = drawn.gain(FIRST_SYSTEM, index)
        gained = f"gain {format_gain(gain)}, {describe_p(gain.p_value)}"
        print(f"{row:24} {100 * drawn.rates[index]:6.2f}  {gained}")
    for row, (_, weights) in found.items():
        shares = f"cache {weights.cache:g}, neural_cache {weights.neural_cache:g}, θ {weights.flatness:g}"
        print(f"{row}, tuned: {shares}")


if __name__ == "__main__":
    typer.run(main)

"""Merge the outputs of published recognisers into lists, and choose among them with the help of phrases.

    python -m tools.phrases.systems $DATA/wer/librispeech-systems --bundle models/starter/1

The phrases are the biasing lists that the recognisers had been given. Weights for test-clean are tuned on
test-other, and the other way round. Intervals are drawn by speaker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.evaluation.score_cache import CacheOptions
from rescorer.cli.options.models import BundleOption
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.evaluation.comparison.rankings import order_by_weights
from rescorer.evaluation.comparison.scored_lists import ScoredList, score_lists
from rescorer.evaluation.comparison.tuned import Tuning
from rescorer.evaluation.figures import format_gain, format_p, gain_to_dict
from rescorer.evaluation.statistics.bootstrap import Gain, bootstrap
from rescorer.formats.io.text_io import write_text
from rescorer.pipeline import Rescorer
from rescorer.score_combination import PHRASES, weights_to_dict
from rescorer.trie import Words
from rescorer.types import Weights
from tools.phrases.biased_errors import BiasedErrors, add_up, count_biased_errors
from tools.phrases.librispeech import (
    PARTS,
    VOTES,
    Utterance,
    add_words,
    keep_recognisers,
    make_list,
    read_utterances,
)

NAIVE, UNBIASED, OURS = "naive rule", "votes + LM, tuned", "votes + LM + phrases, tuned"
START = Weights("start", {VOTES: 0.0}, {"mixture": 1.0})
"""The mixture is the scale: the votes of these recognisers may turn out to have any sign."""
FREE = (VOTES, "word", "oov")
SIZES = (100, 2000)


@dataclass(frozen=True)
class Part:
    """The lists of test-clean or test-other."""

    utterances: Sequence[Utterance]
    scored: Sequence[ScoredList]
    plain: Sequence[ScoredList]
    """The same lists without phrases."""

    def choose(self, weights: Weights, name: str) -> list[Words]:
        """The text that weights rank first, of each utterance; those named ``UNBIASED`` without phrases."""
        lists = self.plain if name == UNBIASED else self.scored
        return [
            list(item.votes())[order_by_weights(scored, weights)[0]]
            for item, scored in zip(self.utterances, lists, strict=True)
        ]


def choose_naively(item: Utterance) -> Words:
    """The hypothesis with the most words of the biasing list; the votes settle ties."""
    listed, votes = frozenset(item.listed), item.votes()
    return max(votes, key=lambda words: (sum(word in listed for word in words), votes[words]))


def score_part(rescorer: Rescorer, utterances: Sequence[Utterance]) -> Part:
    """Merge the outputs into lists, and score them."""
    normaliser = rescorer.bundle.normaliser
    lists = [make_list(item, normaliser) for item in utterances]
    weights = rescorer.ranker.effective_weights(START)
    plain, _ = score_lists(rescorer, [replace(item, phrases=()) for item in lists], weights)
    scored, errors = score_lists(rescorer, lists, weights)
    if errors:
        raise SystemExit(str(errors[0]))
    return Part(utterances, scored, plain)


def tune(part: Part, rescorer: Rescorer) -> dict[str, Weights]:
    """Tune weights with and without phrases on all lists of a part."""
    start = rescorer.ranker.effective_weights(START)
    unbiased = Tuning(part.plain, start, FREE).tuned[0][1]
    return {UNBIASED: unbiased, OURS: Tuning(part.scored, start, (*FREE, PHRASES)).tuned[0][1]}


def make_rows(part: Part, weights: dict[str, Weights], first: str, published: str) -> dict[str, list[Words]]:
    """The texts of each row: single recognisers, rules, and weights."""
    rules: dict[str, Callable[[Utterance], Words]] = {
        f"one recogniser, not biased ({first})": lambda item: item.outputs[first],
        f"best published ({published})": lambda item: item.outputs[published],
        "vote": lambda item: next(iter(item.votes())),
        NAIVE: choose_naively,
    }
    rows = {name: [rule(item) for item in part.utterances] for name, rule in rules.items()}
    rows |= {name: part.choose(tuned, name) for name, tuned in weights.items()}
    return rows | {"oracle": [_find_oracle(item) for item in part.utterances]}


def _find_oracle(item: Utterance) -> Words:
    return min(item.votes(), key=lambda words: _count(item, words).errors)


def _count(item: Utterance, words: Words) -> BiasedErrors:
    return count_biased_errors(item.reference, words, item.rare)


@dataclass(frozen=True)
class Result:
    """The errors of one row."""

    name: str
    counts: BiasedErrors
    over_naive: Gain
    over_published: Gain


def evaluate(part: Part, rows: dict[str, list[Words]], published: str) -> list[Result]:
    """Count the errors of all rows, and compare each with the naive rule and the best published one."""
    counts = {
        name: [_count(item, words) for item, words in zip(part.utterances, texts, strict=True)]
        for name, texts in rows.items()
    }
    names = list(counts)
    errors = np.array([[count.errors for count in counts[name]] for name in names])
    words = np.array([len(item.reference) for item in part.utterances])
    drawn = bootstrap(errors, words, [item.speaker for item in part.utterances])
    naive = names.index(NAIVE)
    best = next(i for i, name in enumerate(names) if published in name)
    return [
        Result(name, add_up(counts[name]), drawn.gain(naive, i), drawn.gain(best, i))
        for i, name in enumerate(names)
    ]


@expand_options
def main(
    folder: Annotated[Path, typer.Argument(help="The folder librispeech-systems.")],
    bundle: BundleOption,
    size: Annotated[int, typer.Option(help="Words of each biasing list: 100 as given, or more.")] = SIZES[0],
    seed: Annotated[int, typer.Option(help="Random seed of the words that are added.")] = 1,
    own: Annotated[bool, typer.Option("--own", help="Without recognisers that had other lists.")] = False,
    output: Annotated[Path | None, typer.Option("-o", help="JSON file of figures and weights.")] = None,
    *,
    cache: CacheOptions,
) -> None:
    """Print the error rates of each way to choose."""
    rescorer = cache.load_rescorer(bundle, "cpu")
    parts: dict[str, Part] = {}
    for name in PARTS:
        utterances = read_utterances(folder, name)
        recognisers = list(utterances[0].outputs)
        if own:
            recognisers = [r for r in recognisers if "biasing" not in r or r.endswith(f"_{size}")]
        utterances = keep_recognisers(utterances, recognisers)
        if size > SIZES[0]:
            utterances = add_words(utterances, size, seed)
        parts[name] = score_part(rescorer, utterances)
    first = next(name for name in recognisers if "biasing" not in name)
    published = [name for name in recognisers if name.endswith(f"_{size}")][-1]
    tuned = {name: tune(part, rescorer) for name, part in parts.items()}
    data = {}
    for name, other in (PARTS, PARTS[::-1]):
        rows = make_rows(parts[name], tuned[other], first, published)
        results = evaluate(parts[name], rows, published)
        print_out(f"{name}, lists of {size} words, {len(recognisers)} recognisers, tuned on {other}")
        print_out(make_table(results), f"weights: {weights_to_dict(tuned[other][OURS])}", "")
        data[name] = {result.name: _to_dict(result) for result in results} | {
            "weights": {row: weights_to_dict(weights) for row, weights in tuned[other].items()}
        }
    if output:
        write_text(output, json.dumps(data, indent=2) + "\n")


def make_table(results: Sequence[Result]) -> FoldingTable:
    """Make a table with one row per way to choose."""
    table = FoldingTable(
        "chosen by", "WER %", "U-WER %", "B-WER %", "gain over naive", "p", "gain over published", "p "
    )
    for result in results:
        cells = [f"{rate:.3f}" for rate in result.counts.rates().values()]
        for gain in (result.over_naive, result.over_published):
            cells += [format_gain(gain), format_p(gain.p_value)]
        table.add_row(result.name, *cells)
    return table


def _to_dict(result: Result) -> dict[str, object]:
    return {
        **result.counts.rates(),
        **result.counts._asdict(),
        "over_naive": gain_to_dict(result.over_naive),
        "over_published": gain_to_dict(result.over_published),
    }


if __name__ == "__main__":
    typer.run(main)

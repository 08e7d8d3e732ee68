"""Measure how much of a call a language model has to read before a list: the last utterance, five, or more.

    python -m tools.context_length $DATA/nbest --bundle smollm/1 --baseline ngram/1 \
      --last 1 --last 5 --last 20-29 --dtype bfloat16

All lists of Switchboard, of which only the order is known, are scored after nothing, after the last
utterances of their call, and, as a control, after as many of another call as the last --last says. The
utterances are the recogniser's first hypotheses, as far back as the call goes.

The total of a hypothesis is minus the logarithm of its rank, plus weighted scores: of the baseline, of the
bundle's model, and the number of words. Weights are those with the fewest errors on all other calls, from a
grid, for each row separately. Intervals and p are from a bootstrap over calls.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from rescorer.evaluation.list_errors import describe_p, format_signed
from rescorer.evaluation.scored_lists import MeasuredList
from rescorer.evaluation.statistics import Bootstrap, bootstrap
from rescorer.pipeline import Rescorer
from rescorer.terminal.evaluation_options import CacheOptions
from rescorer.terminal.options import BundleOption, DtypeOption, expand_options
from rescorer.types import NBestList, Utterance, Weights
from tools.conversations import RANK, Dialogue, read_dialogues, score

BLOCK = 10
"""Number of consecutive lists that are scored together."""
OTHER = 7
"""The control reads the call that comes this many after the list's own."""
SCALES = 0, 0.02, 0.05, 0.1, 0.2, 0.4
"""Weights of a model that are tried, relative to a weight of 1 of the logarithm of the rank."""
WORD_SCALES = -0.5, 0, 0.5, 1
"""Weights of the number of words that are tried."""
WEIGHTS = Weights("order", {RANK: 1.0}, {"mixture": 0.0})
DECIMALS = 4
"""Totals that are equal to so many decimals are a tie, which the recogniser's order settles."""


@dataclass(frozen=True, slots=True)
class Span:
    """How many utterances are read before a list."""

    least: int
    """So many, if the call has them."""
    step: int = 1
    """The oldest utterance only changes every so many lists, so that what was read of the others stays
    cached. Until then, utterances are added."""

    @classmethod
    def parse(cls, text: str) -> Span:
        """Parse a number of utterances, such as 5, or the smallest and largest number, such as 20-29."""
        least, dash, most = text.partition("-")
        try:
            span = cls(int(least), int(most) - int(least) + 1 if dash else 1)
        except ValueError:
            raise typer.BadParameter(f"{text!r}; expected a number such as 5, or two such as 20-29") from None
        if span.step < 1:
            raise typer.BadParameter(f"{text!r}; the first number is larger than the second")
        return span

    def first(self, turn: int) -> int:
        """Return the index of the oldest utterance that is read before that of a turn, counted from 0."""
        return max(0, turn - turn % self.step - self.least)


NOTHING = Span(0)


def add_previous(dialogues: Sequence[Dialogue], span: Span, offset: int = 0) -> Iterator[list[NBestList]]:
    """Yield blocks of lists of a call, with the utterances that are read before each of them.

    Args:
        offset: 0 for utterances of the same call; otherwise they come from the call so many further on, which
            begins again where it is too short.
    """
    for number, dialogue in enumerate(dialogues):
        said = [nbest.hypotheses[0].text for nbest in dialogues[(number + offset) % len(dialogues)].lists]
        lists = [
            replace(
                nbest, previous=tuple(Utterance(said[i % len(said)]) for i in range(span.first(turn), turn))
            )
            for turn, nbest in enumerate(dialogue.lists)
        ]
        yield from (lists[begin : begin + BLOCK] for begin in range(0, len(lists), BLOCK))


@dataclass(frozen=True)
class Errors:
    """The errors of all hypotheses of L lists, with as many columns H as the longest list has hypotheses."""

    scored: Sequence[MeasuredList]

    def column(self, name: str, fill: float = 0.0) -> np.ndarray:
        """Return a component, (L, H) float64.

        Args:
            fill: value where a list has no hypothesis.
        """
        return self._pad([item.components[name] for item in self.scored], fill)

    @cached_property
    def counts(self) -> np.ndarray:
        """Errors of each hypothesis, (L, H) float64; infinity where a list has no hypothesis."""
        rows = [
            np.array([counts.errors for counts in item.evaluated.hypotheses], dtype=np.float64)
            for item in self.scored
        ]
        return self._pad(rows, np.inf)

    @cached_property
    def words(self) -> np.ndarray:
        """Reference words of each list, (L,)."""
        return np.array([item.evaluated.hypotheses[0].reference_words for item in self.scored])

    @cached_property
    def calls(self) -> np.ndarray:
        """Name of the call of each list, (L,)."""
        return np.array([item.evaluated.group for item in self.scored])

    def _pad(self, rows: Sequence[np.ndarray], fill: float) -> np.ndarray:
        padded = np.full((len(rows), max(map(len, rows))), fill)
        for target, row in zip(padded, rows, strict=True):
            target[: len(row)] = row
        return padded

    def hold_out(self, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, tuple[float, ...]]:
        """Count the errors of the best hypotheses, with the weights that have the fewest on all other calls.

        Args:
            columns: (L, H) scores of each model.

        Returns:
            (L,) errors, and the weights that were chosen for most calls: of each model and of a word.
        """
        rank, words = self.column(RANK, -np.inf), self.column("words")
        points = list(itertools.product(*[SCALES] * len(columns), WORD_SCALES))
        table = np.empty((len(points), len(self.scored)))
        for row, point in zip(table, points, strict=True):
            total = rank.copy()
            for weight, column in zip(point, (*columns, words), strict=True):
                total += weight * column
            best = np.argmax(np.round(total, DECIMALS), axis=1)
            row[:] = self.counts[np.arange(len(best)), best]
        errors, chosen = np.empty(len(self.scored)), Counter[int]()
        for call in dict.fromkeys(self.calls.tolist()):
            own = self.calls == call
            best_row = int(np.argmin(table[:, ~own].sum(axis=1)))
            errors[own] = table[best_row, own]
            chosen[best_row] += 1
        return errors, points[chosen.most_common(1)[0][0]]


def score_all(rescorer: Rescorer, name: str, blocks: Iterator[list[NBestList]]) -> Errors:
    """Score all lists block by block, and say what it cost."""
    weights = rescorer.ranker.effective_weights(WEIGHTS)
    began = time.process_time()
    scored = [item for block in blocks for item in score(block, rescorer, weights)]
    cost = (time.process_time() - began) / len(scored)
    print(f"{name}: {cost:.3f} s of processor time a list", file=sys.stderr, flush=True)
    return Errors(scored)


def describe_gain(drawn: Bootstrap, base: int, row: int) -> str:
    """Say how much a row gains over another one in points, with interval and p."""
    if base == row:
        return ""
    gain = drawn.gain(base, row)
    points, interval = format_signed(100 * gain.gain), ""
    if gain.interval.is_finite:
        low, high = (format_signed(100 * end) for end in (gain.interval.low, gain.interval.high))
        interval = f" ({low} to {high})"
    return f"{points}{interval}, {describe_p(gain.p_value)}"


@expand_options
def main(
    folder: Annotated[Path, typer.Argument(help="The folder nbest of the data.")],
    bundle: BundleOption,
    baseline: Annotated[Path, typer.Option(help="Bundle of the small models, which read nothing before.")],
    last: Annotated[
        list[str],
        typer.Option(help="Number of utterances before a list, such as 5, or 20-29. May be repeated."),
    ],
    dtype: DtypeOption = "float32",
    *,
    cache: CacheOptions,
) -> None:
    """Print error rates, alone and beside the baseline, and gains over several rows."""
    dialogues = read_dialogues(folder, "Switchboard")
    spans = {text: Span.parse(text) for text in last}
    small = score_all(cache.load_rescorer(baseline, "cpu"), "baseline", add_previous(dialogues, NOTHING))
    mixture = small.column("mixture")
    rescorer = cache.load_rescorer(bundle, "cpu", dtype)
    model = list(rescorer.bundle.model_kinds)[-1]
    pasts = {"nothing": (NOTHING, 0), "another call": (spans[last[-1]], OTHER)}
    pasts |= {f"last {text}": (span, 0) for text, span in spans.items()}
    rows = {"first pass": small.counts[:, 0], "baseline": small.hold_out([mixture])[0]}
    alone, chosen = {}, {}
    for row, past in pasts.items():
        column = score_all(rescorer, row, add_previous(dialogues, *past)).column(model)
        alone[row] = 100 * small.hold_out([column])[0].sum() / small.words.sum()
        rows[row], chosen[row] = small.hold_out([mixture, column])
    rows["oracle"] = small.counts.min(axis=1)
    drawn = bootstrap(np.array(list(rows.values())), small.words, small.calls.tolist())
    names = list(rows)
    bases = "nothing", "baseline", "another call", names[-2]
    print(f"{len(small.words):,} lists, {small.words.sum():,} words, {len(dialogues)} calls")
    for number, row in enumerate(names):
        rates = f"{100 * drawn.rates[number]:.2f} %"
        print(f"{row}: {rates}" + (f", {model} alone {alone[row]:.2f} %" if row in alone else ""))
        if row in chosen:
            print(f"  weights of the baseline, of {model} and of a word: {chosen[row]}")
        for base in bases:
            if gain := describe_gain(drawn, names.index(base), number):
                print(f"  over {base}: {gain}")


if __name__ == "__main__":
    typer.run(main)

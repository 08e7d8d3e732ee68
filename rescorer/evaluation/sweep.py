"""Error rates on a grid of language model weights and word insertion penalties, as Kaldi's score.sh makes it.

Scored lists and the weights to vary come in, a table of errors goes out. The total of a hypothesis is

    other scores + LMWT · (language model scores − penalty · number of words)

so that a penalty is in the unit of the language model, as in score.sh, and ``word`` is −LMWT · penalty. The
best cell is chosen on the lists that judge it, so that its error rate is optimistic; ``tuning`` holds out
lists.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rescorer.errors import ConfigError, InvalidList
from rescorer.evaluation.list_errors import format_percent, to_percent
from rescorer.evaluation.scored_lists import MeasuredList, order_by_weights
from rescorer.formats.common import parse_finite
from rescorer.types import Weights
from rescorer.weights import MIXTURE, WORDS

PENALTIES = (0.0, 0.5, 1.0)
"""The word insertion penalties of score.sh."""
MAX_CELLS = 2_000
"""Largest number of cells of a grid."""
MAX_VALUE, MIN_STEP, DECIMALS = 1e9, 1e-6, 9
"""Largest weight or penalty, smallest step, and number of decimals to which both are rounded. Totals stay
finite."""
LM_STREAMS = ("graph", "lm")
"""Names of score streams of a recogniser's own language model, in the order in which they are looked for."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The weights and penalties to try."""

    scales: tuple[float, ...]
    """Values of the language model weight (LMWT)."""
    penalties: tuple[float, ...] = PENALTIES

    @classmethod
    def parse(cls, text: str) -> Grid:
        """Parse ``7:17``, ``7:17:0.5``, or ``7:17x0:2:0.5`` with penalties; a range may be a single number.

        Raises:
            ConfigError: the text is malformed, or the grid has too many cells.

        >>> Grid.parse("7:9x0:1:0.5")
        Grid(scales=(7.0, 8.0, 9.0), penalties=(0.0, 0.5, 1.0))
        """
        scales, cross, penalties = text.partition("x")
        try:
            grid = cls(_parse_range(scales), _parse_range(penalties) if cross else PENALTIES)
        except ValueError:
            raise ConfigError(
                f"--sweep {text!r}: expected FROM:TO or FROM:TO:STEP, such as 7:17, and penalties as "
                f"7:17x0:1:0.5; numbers up to {MAX_VALUE:g}, in steps of at least {MIN_STEP:g}"
            ) from None
        if len(grid.scales) * len(grid.penalties) > MAX_CELLS:
            raise ConfigError(f"--sweep {text!r}: expected at most {MAX_CELLS:,} cells")
        return grid


def _parse_range(text: str) -> tuple[float, ...]:
    """Parse ``FROM:TO:STEP``; raise ValueError if it is malformed. Ranges are cut above ``MAX_CELLS``."""
    first, *others = map(parse_finite, text.split(":"))
    last, step = (*others, 1.0)[:2] if others else (first, 1.0)
    is_known = len(others) < 3 and max(abs(first), abs(last)) <= MAX_VALUE
    if not is_known or step < MIN_STEP or last < first:
        raise ValueError(text)
    count = min((last - first) / step + 1e-9, MAX_CELLS)
    return tuple(round(first + step * number, DECIMALS) for number in range(math.floor(count) + 1))


@dataclass(frozen=True, slots=True)
class Varied:
    """The weights of which a sweep varies those of language models and of words."""

    weights: Weights
    streams: tuple[str, ...] = ()
    """Score streams of language models; empty if the weights of ``lm`` are varied."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the varied weights, as in ``-w``. The first one is LMWT; all keep their proportions."""
        if self.streams:
            return self.streams
        return tuple(f"lm:{name}" for name, weight in self.weights.lm.items() if weight)

    def at(self, scale: float, penalty: float) -> Weights:
        """Return the weights at a point of the grid."""
        word = 0.0 - scale * penalty
        if self.streams:
            streams = {**self.weights.streams, **dict.fromkeys(self.streams, scale)}
            return replace(self.weights, streams=streams, word=word)
        first = next(weight for weight in self.weights.lm.values() if weight)
        lm = {name: scale * weight / first for name, weight in self.weights.lm.items()}
        return replace(self.weights, lm=lm, word=word)

    def options(self, scale: float, penalty: float) -> str:
        """Return the options that give the weights at a point of the grid, such as ``-w lm:mixture=9 -w
        word=-4.5``."""
        weights = self.at(scale, penalty)
        values = {**weights.streams, **{f"lm:{name}": value for name, value in weights.lm.items()}}
        if self.streams:
            pairs = [*(f"{name}={value:g}" for name, value in values.items()), f"word={weights.word:g}"]
            return f"--first-pass {shlex.quote(','.join(pairs))}"
        changes = {**{name: values[name] for name in self.names}, "word": weights.word}
        return " ".join(f"-w {shlex.quote(f'{name}={value:g}')}" for name, value in changes.items())


def vary_models(weights: Weights) -> Varied:
    """Vary the weights of the language models of a bundle: of those with a weight or, if none has one, of the
    mixture."""
    if any(weights.lm.values()):
        return Varied(weights)
    return Varied(replace(weights, lm={MIXTURE: 1.0}))


def vary_streams(lists: Sequence[MeasuredList], first_pass: Weights | None) -> Varied:
    """Vary the weight of the recogniser's own language model, without models of a bundle.

    Args:
        first_pass: the weights of other streams; None for ``acoustic=1``.

    Raises:
        ConfigError: the lists have no stream of a language model.
    """
    found = next((name for name in LM_STREAMS if name in lists[0].components), None)
    if found is None:
        raise ConfigError(
            f"--sweep varies the weight of language models: give --bundle, or lists with a score stream "
            f"{' or '.join(LM_STREAMS)}"
        )
    return Varied(first_pass or Weights("first pass", {"acoustic": 1.0}, lm={}), (found,))


@dataclass(frozen=True, slots=True)
class Sweep:
    """The errors on the same lists at each point of a grid."""

    grid: Grid
    varied: Varied
    errors: np.ndarray
    """(S, P) int64, errors by weight and by penalty."""
    reference_words: np.ndarray
    """(S, P) int64, which are the same everywhere unless references have alternatives."""

    @property
    def rates(self) -> np.ndarray:
        """(S, P) errors per reference word; NaN or infinite without reference words."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rates: np.ndarray = self.errors / self.reference_words
        return rates

    @property
    def best(self) -> tuple[int, int]:
        """The indices of weight and penalty with the fewest errors, the first of several."""
        scale, penalty = np.unravel_index(np.argmin(self.errors), self.errors.shape)
        return int(scale), int(penalty)

    def describe_best(self, rate: str) -> str:
        """Say in a sentence where the fewest errors are, and what that is worth.

        Args:
            rate: name of the error rate, such as ``WER``.
        """
        scale, penalty = self.best
        point = self.grid.scales[scale], self.grid.penalties[penalty]
        on_edge = scale in (0, len(self.grid.scales) - 1) and len(self.grid.scales) > 1
        best = format_percent(self.rates[scale, penalty])
        return (
            f"best: {rate} {best} % at LMWT {point[0]:g}, penalty {point[1]:g}"
            f"{', on the edge of the grid' if on_edge else ''} ({self.varied.options(*point)}); optimistic, "
            "since these lists chose it"
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates are in percent, by weight and then by penalty."""
        scale, penalty = self.best
        point = self.grid.scales[scale], self.grid.penalties[penalty]
        return {
            "weights": list(self.varied.names),
            "scales": list(self.grid.scales),
            "penalties": list(self.grid.penalties),
            "errors": self.errors.tolist(),
            "wer": [[to_percent(rate) for rate in row] for row in self.rates.tolist()],
            "best": {"scale": point[0], "penalty": point[1], "options": self.varied.options(*point)},
        }


def sweep(lists: Sequence[MeasuredList], varied: Varied, grid: Grid) -> Sweep:
    """Count the errors of lists at each point of a grid.

    Raises:
        InvalidList: a list lacks a stream that has a weight.
    """
    shape = len(grid.scales), len(grid.penalties)
    errors, words = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    points = [
        (row, column, varied.at(scale, penalty))
        for row, scale in enumerate(grid.scales)
        for column, penalty in enumerate(grid.penalties)
    ]
    needed = {name for name, weight in varied.weights.streams.items() if weight} | {*varied.streams}
    for item in lists:
        if missing := sorted(needed - {*item.components}):
            message = "no such stream in this list"
            raise InvalidList(message, list_id=item.nbest.id, field=f'streams["{missing[0]}"]')
        lengths = np.array([len(text) for text in item.read], dtype=np.float64)
        measured = replace(item, components={WORDS: lengths, **item.components})
        for row, column, weights in points:
            best = item.evaluated.hypotheses[order_by_weights(measured, weights)[0]]
            errors[row, column] += best.errors
            words[row, column] += best.reference_words
    return Sweep(grid, varied, errors, words)

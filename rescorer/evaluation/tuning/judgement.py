"""Judge whether tuned weights are better than the start on lists that did not make them.

Weights change only if the one-sided lower bound of 97.5 % of the held-out gain is above 0. Otherwise the
start is kept, and a sentence says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rescorer.evaluation.error_rate.report import to_percent
from rescorer.evaluation.figures import explain_unknown
from rescorer.evaluation.statistics.bootstrap import (
    MIN_UNITS_FOR_INTERVAL,
    Gain,
    Interval,
    bootstrap,
    choose_units,
)
from rescorer.evaluation.statistics.power import units_needed


@dataclass(frozen=True, slots=True)
class Judgement:
    """Held-out error rates of tuned weights and of the start, and what follows from them."""

    start_rate: float
    """Errors per reference word of the start."""
    rate: float
    """Errors per reference word of the tuned weights, each list ranked by weights that it did not tune."""
    interval: Interval
    """Interval of 95 % of ``rate``."""
    gain: Gain
    n_lists: int
    unit: str
    """What is drawn in the bootstrap: ``group`` or ``list``."""
    n_units: int
    warning: str
    """What to expect of the intervals if there are few units; empty if there are enough."""

    @property
    def is_better(self) -> bool:
        """Whether the gain is more than chance."""
        return self.gain.lower_bound > 0

    @property
    def n_lists_needed(self) -> int | None:
        """Number of lists on which a gain of this size would be found four times out of five.

        None if there is no gain, or its spread is unknown.
        """
        return units_needed(self.gain.gain, self.gain.standard_error, self.n_lists)

    @property
    def n_lists_for_test(self) -> int | None:
        """Number of lists like these of which enough would differ for a test, if too few of these do.

        Showing the gain takes at least as many. None if enough differ, or none.
        """
        differing = self.gain.units_changed
        if not 0 < differing < MIN_UNITS_FOR_INTERVAL:
            return None
        return math.ceil(self.n_lists * MIN_UNITS_FOR_INTERVAL / differing)

    def describe_lists_needed(self) -> str:
        """Say in one sentence how many lists would show a gain of this size, or why that is not known."""
        if needed := self.n_lists_needed:
            return (
                f"a gain of this size is found four times out of five with {needed:,} lists; "
                f"these are {self.n_lists:,}"
            )
        unknown = "how many lists would show a gain of this size is not known"
        if not self.gain.gain > 0:
            return f"{unknown}, because there is no gain held out"
        reason = f"{unknown}, because {explain_unknown(self.gain, self.unit)}"
        if not (needed := self.n_lists_for_test):
            return reason
        return (
            f"{reason}: with about {needed:,} lists as many can be expected to differ; "
            f"these are {self.n_lists:,}"
        )

    def figures(self) -> dict[str, float]:
        """Figures to keep with what was judged, in percent; see ``Weights.held_out``. Unknown ones are left
        out."""
        figures = {
            "start_wer": to_percent(self.start_rate),
            "wer": to_percent(self.rate),
            "wer_low": to_percent(self.interval.low),
            "wer_high": to_percent(self.interval.high),
            "gain": to_percent(self.gain.gain),
            "gain_low": to_percent(self.gain.lower_bound),
            "p": round(self.gain.p_value, 4),
        }
        return {name: value for name, value in figures.items() if value is not None}

    def caveats(self) -> Iterator[str]:
        """Yield what to expect of the interval, and how many lists would show the gain."""
        if self.warning:
            yield f"warning: {self.warning}"
        yield self.describe_lists_needed()

    def explain(self, force: bool = False) -> str:
        """One sentence: why the weights are kept, or what they gain.

        Args:
            force: the tuned weights are written even if they are not better.
        """
        gain, low = 100 * self.gain.gain, 100 * self.gain.lower_bound
        if self.is_better:
            return f"tuned weights gain {gain:.2f} points held out, at least {low:.2f} with 97.5 % confidence"
        kept = "the start is not kept, because of --force" if force else "the start is kept"
        if not self.gain.units_changed or gain == 0:
            return f"{kept}: held out, the tuned weights choose hypotheses with as many errors"
        if gain < 0:
            return f"{kept}: held out, the tuned weights lose {-gain:.2f} points"
        bound = f"the lower bound is {low:.2f}" if np.isfinite(low) else explain_unknown(self.gain, self.unit)
        return f"{kept}: the held-out gain of {gain:.2f} points may be chance, because {bound}"


def judge(
    start_errors: np.ndarray, errors: np.ndarray, reference_words: np.ndarray, groups: Sequence[str]
) -> Judgement:
    """Compare held-out errors of tuned weights with those of the start.

    Args:
        start_errors, errors: (L,).
        reference_words: (L,), or (2, L) where the reading of a reference depends on the weights.
        groups: (L,) speaker or other group of each list, drawn as a whole; see ``choose_units``.
    """
    drawn = bootstrap(np.stack([start_errors, errors]), reference_words, choose_units(groups))
    return Judgement(
        start_rate=float(drawn.rates[0]),
        rate=float(drawn.rates[1]),
        interval=drawn.interval(1),
        gain=drawn.gain(0, 1),
        n_lists=len(errors),
        unit=drawn.unit,
        n_units=drawn.n_units,
        warning=drawn.warning,
    )

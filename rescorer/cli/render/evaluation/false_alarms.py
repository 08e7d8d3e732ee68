"""Lines about the lists that phrases which were not said make worse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rescorer.errors import pluralise
from rescorer.evaluation.comparison.false_alarms import PhraseBound
from rescorer.evaluation.figures import format_percent

MAX_SAID = 0.5
"""Share of phrases that were said from which the lists are not like those in use."""


def describe_false_alarms(bound: PhraseBound, held_out: int) -> Iterator[str]:
    """Yield lines about false alarms and what the lists can say about them.

    Args:
        held_out: number of lists that were made worse by weights that they did not tune.
    """
    alarms = bound.alarms
    others = f", {pluralise(alarms.n_distractors, 'distractor')}" if alarms.n_distractors else ""
    yield (
        f"phrases: {alarms.n_phrases:,} in {pluralise(alarms.n_lists, 'list')}, {alarms.n_said:,} of them "
        f"said{others}; some that were not said occur in the hypotheses of "
        f"{pluralise(len(alarms.exposures), 'list')}"
    )
    yield (
        f"false alarms: held out, they make {describe_share(held_out, alarms.n_lists)} worse; "
        f"at most {_percent(bound.max_share)} % of the tuning lists are allowed"
    )
    if held_out > bound.max_share * alarms.n_lists:
        yield "warning: held out, the weight of phrases over-boosts: give more lists, or a smaller bound"
    if alarms.n_said > MAX_SAID * alarms.n_phrases and not alarms.n_distractors:
        yield (
            "warning: most of the phrases of these lists were said, so that false alarms are rarer here than "
            "where most are not: give each list the phrases that it would have in use, or add --distractors"
        )


def describe_over_boosting(n_worse: int, n_lists: int, weight: float) -> str:
    """Say that a weight of phrases lets phrases win that were not said."""
    return (
        f"the weight of phrases, {weight:.4g}, over-boosts: phrases that were not said make "
        f"{describe_share(n_worse, n_lists)} worse"
    )


def describe_share(n_worse: int, n_lists: int) -> str:
    """A number of lists, and their share.

    >>> describe_share(3, 1200)
    '3 of 1,200 lists (0.25 %)'
    """
    return f"{n_worse:,} of {pluralise(n_lists, 'list')} ({format_percent(n_worse / n_lists)} %)"


def false_alarms_to_dict(bound: PhraseBound, held_out: int) -> dict[str, Any]:
    """Convert to JSON data; shares in percent."""
    alarms = bound.alarms
    return {
        "lists": alarms.n_lists,
        "phrases": alarms.n_phrases,
        "said": alarms.n_said,
        "distractors": alarms.n_distractors,
        "lists_with_unsaid_phrases": len(alarms.exposures),
        "max_false_alarms": 100 * bound.max_share,
        "held_out_worse": held_out,
    }


def _percent(share: float) -> str:
    return f"{100 * share:g}"

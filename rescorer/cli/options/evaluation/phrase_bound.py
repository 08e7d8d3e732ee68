"""Options that bound the weight of phrases while it is tuned."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from rescorer.errors import ConfigError
from rescorer.evaluation.comparison.false_alarms import (
    DEFAULT_MAX_SHARE,
    PhraseBound,
    draw_distractors,
    find_false_alarms,
    has_phrases,
)
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.tuning.parameters import ALL
from rescorer.phrases.phrase_set import MAX_PHRASES
from rescorer.pipeline import Rescorer
from rescorer.score_combination import PHRASES
from rescorer.types import Weights

DEFAULT_PERCENT = 100 * DEFAULT_MAX_SHARE


@dataclass(frozen=True, slots=True)
class PhraseBoundOptions:
    """How large the weight of phrases may become."""

    max_false_alarms: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=100.0,
            metavar="PERCENT",
            help="Share of the lists that phrases which were not said may make worse.",
        ),
    ] = DEFAULT_PERCENT
    distractors: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_PHRASES // 2,
            metavar="N",
            help="Also give all lists N phrases of 1 to 3 words that occur in hypotheses but in no "
            "reference, drawn with seed 1, and bound the weight of phrases by them too.",
        ),
    ] = 0

    def make_bound(
        self,
        rescorer: Rescorer,
        scored: Sequence[ScoredList],
        weights: Weights,
        names: Collection[str],
    ) -> PhraseBound | None:
        """Return what bounds the weight of phrases; None if there are none, or it is not tuned.

        Args:
            weights: complete weights, whose λ the lists were scored with.
            names: weights to tune.

        Raises:
            ConfigError: an option would be without effect.
        """
        is_free = PHRASES in names or ALL in names
        if is_free and (self.distractors or has_phrases(rescorer, scored)):
            normalise = rescorer.bundle.normaliser.normalise
            distractors = draw_distractors(scored, normalise, self.distractors) if self.distractors else []
            alarms = find_false_alarms(rescorer, scored, weights, distractors)
            return PhraseBound(alarms, self.max_false_alarms / 100)
        if self.max_false_alarms != DEFAULT_PERCENT or self.distractors:
            why = "no list has phrases" if is_free else "--free does not name it"
            raise ConfigError(
                f"--max-false-alarms and --distractors bound the weight of phrases, but {why}; give lists "
                "with phrases, --phrases or --phrase-list, and let it be free"
            )
        return None

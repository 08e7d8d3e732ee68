"""How often best hypotheses of a confidence are right, before calibration and after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from rescorer.evaluation.calibration.fitting import Division
from rescorer.evaluation.calibration.judging import Measures, judge
from rescorer.evaluation.calibration.outcomes import collect_outcomes, judge_utterance
from rescorer.evaluation.comparison.rankings import order_by_weights
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.report.data import Calibration, ReliabilityBin
from rescorer.evaluation.tuning.folds import make_folds
from rescorer.score_combination import totals
from rescorer.trie import Words
from rescorer.types import Weights

N_FOLDS = 10
MIN_LISTS = 20
"""Smallest number of lists whose confidences are judged; a bin of fewer says nothing."""
MAX_LISTS = 2_000
"""Largest number of lists that are judged, evenly chosen: each takes milliseconds, and bins of hundreds of
lists hardly change with more of them."""


def describe_confidence(
    scored: Sequence[ScoredList], weights: Weights, normalise: Callable[[str], Words]
) -> tuple[Calibration, ...]:
    """Judge the posteriors of best hypotheses, and confidences calibrated on other folds.

    Returns an empty tuple if there are fewer than ``MIN_LISTS`` lists.
    """
    scored = scored[:: -(-len(scored) // MAX_LISTS)]
    ids, groups = [item.evaluated.id for item in scored], [item.evaluated.group for item in scored]
    if len(set(ids)) < MIN_LISTS:
        return ()
    claims = [_judge_best(item, weights, normalise) for item in scored]
    references = [item.reference for item in scored]
    folds = make_folds(ids, groups, references, N_FOLDS)
    division = Division(list(map(str, folds.fold.tolist())), references)
    judgement = judge(collect_outcomes(claims), division, groups)
    if judgement is None:
        return ()
    held_out = "calibrated, held out"
    return _describe("posterior", judgement.before), _describe(held_out, judgement.held_out)


def _judge_best(
    scored: ScoredList, weights: Weights, normalise: Callable[[str], Words]
) -> tuple[np.ndarray, np.ndarray]:
    """Posteriors of the best hypothesis at several temperatures, and whether it is right."""
    readings = [normalise(" ".join(words)) for words in scored.readings]
    best = order_by_weights(scored, weights)[0]
    return judge_utterance(scored.words, totals(scored.components, weights), best, readings)


def _describe(name: str, measures: Measures) -> Calibration:
    bins = (ReliabilityBin(part.confidence, part.right, part.claims) for part in measures.bins if part.claims)
    entropy = measures.normalised_cross_entropy
    return Calibration(
        name,
        tuple(bins),
        measures.expected_calibration_error,
        None if math.isnan(entropy) else entropy,
    )

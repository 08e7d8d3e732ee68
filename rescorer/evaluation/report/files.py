"""Describe the lists of one file: errors around the chosen weights, and the oracle by depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rescorer.evaluation.comparison.analysis import find_oracle_by_depth
from rescorer.evaluation.comparison.systems import Comparison
from rescorer.evaluation.comparison.tuned import MixtureScores
from rescorer.evaluation.report.confidence import describe_confidence
from rescorer.evaluation.report.data import DepthCurve, FileAnalysis
from rescorer.evaluation.report.utterances import NamedRow
from rescorer.evaluation.report.weights import (
    describe_curves,
    describe_share_curves,
    describe_surface,
    list_weights,
    make_problem,
)
from rescorer.trie import Words
from rescorer.types import Weights


def analyse_file(
    name: str,
    comparison: Comparison,
    weights: Weights | None,
    held_out: Sequence[Weights],
    system: NamedRow,
    normalise: Callable[[str], Words],
    mixture: MixtureScores | None = None,
) -> FileAnalysis:
    """Describe the lists of a file and the weights applied to them.

    Args:
        held_out: weights of each list that cross-validation tuned; empty without tuning.
        system: row whose errors are compared with the oracle's, if it is of this file.
        normalise: converts references to canonical words.
        mixture: scores under the λ that tuning chose from, if it did.
    """
    scored = comparison.scored
    problem = make_problem(scored, weights) if weights else None
    folds = list({(*list_weights(fold).items(), *fold.mixture.items()): fold for fold in held_out}.values())
    depth = find_oracle_by_depth(scored)
    row = system.row if system.comparison is comparison else comparison.first_pass
    total = row.report.total
    return FileAnalysis(
        file=name,
        lists=len(scored),
        hypotheses=total.hypotheses,
        reference_words=total.system.reference_words,
        weights=weights.name if weights else "",
        weight_values=list_weights(weights) if weights else {},
        curves=describe_curves(problem, folds) if problem else (),
        share_curves=describe_share_curves(scored, weights, folds, mixture) if mixture and weights else (),
        surface=describe_surface(problem, folds) if problem else None,
        depth=DepthCurve(
            depths=tuple(depth),
            oracle_errors=tuple(counts.errors for counts in depth.values()),
            first_pass_errors=comparison.first_pass.report.total.system.errors,
            system_errors=total.system.errors,
            system=system.name,
        ),
        calibrations=describe_confidence(scored, weights, normalise) if weights else (),
    )

"""Compare the first pass, each model alone, and the mixture on the same lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from rescorer.evaluation.comparison.rankings import (
    name_selected_first_pass,
    rank_by_first_pass,
    rerank,
    select_by_first_pass,
)
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.comparison.tuned import cross_validate
from rescorer.evaluation.error_rate.report import Report, build_report
from rescorer.pipeline import Rescorer
from rescorer.score_combination import MIXTURE
from rescorer.types import Weights


def weights_by_system(rescorer: Rescorer, weights: Weights) -> dict[str, Weights]:
    """Apply ``weights`` to each model of the bundle alone, and to the mixture if there are several models."""
    scale = weights.lm.get(MIXTURE, 1.0)
    models = list(rescorer.models)
    systems = [*models, MIXTURE] if len(models) > 1 else models
    return {name: replace(weights, name=name, lm={name: scale}) for name in systems}


def compare_systems(
    scored: Sequence[ScoredList], systems: Mapping[str, Weights], with_tuning: bool
) -> dict[str, Report]:
    """Report the first pass, each system and, with tuning, each system with cross-validated weights."""
    rows = {"first pass": build_report(rank_by_first_pass(item) for item in scored)}
    if scored and (name := name_selected_first_pass(scored[0])):
        rows[name] = build_report(select_by_first_pass(item) for item in scored)
    for name, weights in systems.items():
        rows[name] = build_report(rerank(item, weights) for item in scored)
        if with_tuning:
            rows[f"{name}, tuned"] = build_report(cross_validate(scored, weights))
    return rows

"""Measure what each model contributes to a word-level mixture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rescorer_training.evaluation.em_weights import fit_mixture
from rescorer_training.evaluation.perplexity import perplexity
from rescorer_training.evaluation.token_scores import TokenScores


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one model contributes to a mixture, measured on the text used to fit the interpolation weights."""

    share: float
    """Interpolation weight λ."""
    alone: float
    """Perplexity of the model alone."""
    without: float | None
    """Perplexity of the mixture of the other models, with refitted weights; None if there are no others."""


def measure_contributions(scores: TokenScores, shares: Mapping[str, float]) -> dict[str, Contribution]:
    """Measure the contribution of each model; return the results by model name."""

    def measure_without(name: str) -> float | None:
        others = {key: values for key, values in scores.log_probs.items() if key != name}
        return perplexity(scores.mix(fit_mixture(others))) if others else None

    return {
        name: Contribution(share, perplexity(scores.log_probs[name]), measure_without(name))
        for name, share in shares.items()
    }

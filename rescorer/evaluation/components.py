"""Collect the score components of re-ranked lists as arrays."""

from __future__ import annotations

import numpy as np

from rescorer.types import RescoredList


def collect_components(rescored: RescoredList) -> dict[str, np.ndarray]:
    """The components of a list by name, each (H,) float64 in input order; the list must not be merged."""
    hypotheses = sorted(rescored.hypotheses, key=lambda hypothesis: hypothesis.original_rank)
    return {
        name: np.array([hypothesis.components[name] for hypothesis in hypotheses])
        for name in hypotheses[0].components
    }

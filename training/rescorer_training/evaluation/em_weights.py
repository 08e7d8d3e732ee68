"""Fit interpolation weights by expectation maximisation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def fit_mixture(
    log_probs: Mapping[str, np.ndarray], *, tolerance: float = 1e-6, max_iterations: int = 200
) -> dict[str, float]:
    """Return the interpolation weights λ that maximise Σ_t ln Σ_m λ_m · P_m(t) (Jelinek & Mercer 1980).

    The objective is concave, so the result does not depend on the starting point.

    Args:
        log_probs: for each model, (T,) ln P of every held-out token.
        tolerance: stop when the mean log-likelihood improves by less than this, in nats.
    """
    columns = np.stack(list(log_probs.values()))  # (M, T)
    highest = columns.max(axis=0)
    relative = np.exp(columns - highest)  # relative to the best model of each token, so nothing underflows
    shares = np.full(len(columns), 1.0 / len(columns))
    previous = -np.inf
    for _ in range(max_iterations):
        mixed = shares @ relative  # (T,)
        likelihood = float(np.mean(np.log(mixed) + highest))
        if likelihood - previous < tolerance:
            break
        previous = likelihood
        shares = shares * (relative / mixed).mean(axis=1)
    return dict(zip(log_probs, (shares / shares.sum()).tolist(), strict=True))

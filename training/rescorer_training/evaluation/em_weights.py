"""Owns the fit of λ, the shares of the models in a word-level mixture (pure)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def fit_mixture(
    log_probs: Mapping[str, np.ndarray], *, tolerance: float = 1e-6, most_rounds: int = 200
) -> dict[str, float]:
    """λ that maximise Σ_t ln Σ_m λ_m · P_m(t), by expectation maximisation (Jelinek & Mercer 1980).

    The objective is concave, so that the start does not matter.

    Args:
        log_probs: (T,) ln P of every held-out token, by model.
        tolerance: stop when the mean log-likelihood rises by less, in nats.
    """
    columns = np.stack(list(log_probs.values()))  # (M, T)
    top = columns.max(axis=0)
    relative = np.exp(columns - top)  # no underflow: the best model of each token is 1
    shares = np.full(len(columns), 1.0 / len(columns))
    before = -np.inf
    for _ in range(most_rounds):
        mixed = shares @ relative  # (T,)
        likelihood = float(np.mean(np.log(mixed) + top))
        if likelihood - before < tolerance:
            break
        before = likelihood
        shares = shares * (relative / mixed).mean(axis=1)
    return dict(zip(log_probs, (shares / shares.sum()).tolist(), strict=True))

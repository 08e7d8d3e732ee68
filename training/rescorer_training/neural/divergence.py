"""Detect training that has diverged: a loss that is not finite, or far above the unigram entropy."""

from __future__ import annotations

import math

import numpy as np

from rescorer.errors import ScoringError
from rescorer_training.neural.options import TrainingOptions

MARGIN_NATS = math.log(10.0)
"""Mean loss per word above the unigram entropy from which training counts as diverged."""
GRACE_STEPS = 100
"""Steps at the beginning of a run during which a high loss is not yet a sign of divergence."""


def compute_loss_limit(ids: np.ndarray) -> float:
    """Return the mean loss per word above which training on (T,) ``ids`` has diverged, in nats."""
    counts = np.bincount(ids)
    probs = counts[counts > 0] / len(ids)
    unigram_entropy = float(-(probs * np.log(probs)).sum())
    return unigram_entropy + MARGIN_NATS


def check_loss(mean_loss: float, step: int, options: TrainingOptions, limit: float = math.inf) -> None:
    """Check the mean loss per word of the last steps.

    Args:
        limit: largest loss after the first ``GRACE_STEPS`` steps.

    Raises:
        ScoringError: the loss is not finite or above the limit.
    """
    if step <= GRACE_STEPS:
        limit = math.inf
    if not math.isfinite(mean_loss) or mean_loss > limit:
        raise ScoringError(
            f"training diverged: the loss is {mean_loss:.4g} nats per word at step {step}, worse than word "
            f"frequencies alone. Start again with a lower --learning-rate (now {options.learning_rate:g}), a "
            f"lower --gradient-clip (now {options.gradient_clip:g}) or more --warmup-steps (now "
            f"{options.warmup_steps})"
        )

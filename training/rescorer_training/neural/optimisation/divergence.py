"""Detect training that has diverged: a loss that is not finite, or far above the unigram entropy."""

from __future__ import annotations

import math

import numpy as np

from rescorer.errors import ScoringError
from rescorer_training.neural.options import TrainingOptions

MARGIN_NATS = math.log(10.0)
"""Training counts as diverged if the mean loss per word exceeds the unigram entropy by more than this."""
GRACE_STEPS = 100
"""Number of steps at the start of a run for which a high loss does not count as divergence."""


def compute_loss_limit(ids: np.ndarray) -> float:
    """Return the limit, in nats, on the mean loss per word in training on (T,) ``ids``."""
    counts = np.bincount(ids)
    probs = counts[counts > 0] / len(ids)
    unigram_entropy = float(-(probs * np.log(probs)).sum())
    return unigram_entropy + MARGIN_NATS


def check_loss(mean_loss: float, step: int, options: TrainingOptions, limit: float = math.inf) -> None:
    """Check the mean loss per word of the last steps.

    Args:
        limit: maximum mean loss; not applied in the first ``GRACE_STEPS`` steps.

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

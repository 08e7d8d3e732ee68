"""Compute the cross-entropy of a table of scores together with its gradient."""

from __future__ import annotations

import torch
from torch import Tensor


def cross_entropy_and_gradient(scores: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Σ −ln softmax(scores)[target] in float64, and its gradient with respect to the scores, (N, K).

    Args:
        scores: (N, K); −∞ is padding.
        target: (N,) int64.
    """
    log_p = torch.log_softmax(scores, dim=1)
    column = target.unsqueeze(1)
    loss = -log_p.gather(1, column).sum(dtype=torch.float64)
    return loss, log_p.exp_().scatter_add_(1, column, log_p.new_full(column.shape, -1.0))

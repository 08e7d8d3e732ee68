"""Owns dropout over sequences: a mask for each position, or one for all of them."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def dropped(values: Tensor, share: float, locked: bool) -> Tensor:
    """``values`` (T, B, D) with a share of them zero and the others scaled up.

    Args:
        locked: one mask for all positions of a sequence (Gal & Ghahramani 2016), not one for each.
    """
    if not share:
        return values
    if not locked:
        return functional.dropout(values, share)
    kept = values.new_empty(1, *values.shape[1:]).bernoulli_(1 - share)
    return values * kept.div_(1 - share)

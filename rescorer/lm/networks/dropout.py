"""Apply dropout to sequences: one mask per position, one for all positions, or one per word."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

MASK_LEVELS = 1 << 16
"""On CPUs the dropout probability is rounded to a multiple of 1 / ``MASK_LEVELS``."""


def apply_dropout(values: Tensor, share: float, locked: bool) -> Tensor:
    """Set a share of the values to zero and scale up the others, (T, B, D).

    Args:
        locked: use one mask for all positions of a sequence (Gal & Ghahramani 2016).
    """
    if not share:
        return values
    if locked:
        return values * functional.dropout(values.new_ones(values.shape[1:]), share)
    if values.is_cuda:
        return functional.dropout(values, share)
    return values * _dropout_mask(values.shape, share).to(values.dtype)


def drop_words(embedded: Tensor, words: Tensor, n_words: int, share: float) -> Tensor:
    """Set the vectors of a share of the vocabulary to zero and scale up the others (Gal & Ghahramani 2016).

    A word is dropped wherever it occurs in the batch.

    Args:
        embedded: (T, B, E) vectors of the words.
        words: (T, B) int64.
        n_words: size of the vocabulary.
    """
    if not share:
        return embedded
    kept = functional.dropout(embedded.new_ones(n_words), share)
    return embedded * kept[words].unsqueeze(-1)


def _dropout_mask(shape: torch.Size, share: float) -> Tensor:
    """Factors of a dropout layer: zero for dropped values, 1 / (1 - share) for the others.

    Four values share one random integer, which is five times as fast as drawing one random number per value;
    that would take a third of the training time of a small network.
    """
    threshold = min(round(share * MASK_LEVELS), MASK_LEVELS - 1)
    draws = torch.empty(-(-shape.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = draws.view(torch.int16)[: shape.numel()].view(shape) >= threshold - MASK_LEVELS // 2
    return kept.to(torch.float32).mul_(MASK_LEVELS / (MASK_LEVELS - threshold))

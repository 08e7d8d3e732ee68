"""Self-attention with rotary positions: which keys a query sees, and how positions enter the products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

ROTARY_BASE = 10_000.0


def rotary_table(n_positions: int, head_size: int, like: Tensor) -> Tensor:
    """Rotations of positions 0 … n - 1, (n, head_size / 2) complex, on the device of ``like``.

    Rotary positions (Su et al. 2021): pair i of a query or key at position p is turned by p · 10000^(-2i/d),
    so that products depend on differences of positions alone. Angles are computed in float64, because those
    of positions beyond some thousands are inexact in float32.
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.float64, device=like.device) / head_size
    positions = torch.arange(n_positions, dtype=torch.float64, device=like.device)
    angles = positions.unsqueeze(1) * ROTARY_BASE**-exponents
    dtype = torch.complex128 if like.dtype == torch.float64 else torch.complex64
    return torch.polar(torch.ones_like(angles), angles).to(dtype)


def rotate(values: Tensor, rotations: Tensor) -> Tensor:
    """Turn each pair of values of every head: (..., heads, d), (..., 1, d / 2) complex → (..., heads, d)."""
    precise = values if values.dtype == torch.float64 else values.float()
    pairs = torch.view_as_complex(precise.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(values.dtype)


def attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017), (B, Q, heads, d), (B, K, heads, d) → (B, Q, H).

    Args:
        mask: (B or 1, 1, Q, K) bool, True where a query sees a key; None: each query sees the keys up to its
            own position.
    """
    attended = functional.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=mask,
        is_causal=mask is None,
    )
    return attended.transpose(1, 2).flatten(2)


def window_mask(n_before: Tensor, n_memory: int, n_words: int, window: int) -> Tensor:
    """Which of the keys, those in memory and then those of the words, each word of a sequence sees.

    Args:
        n_before: (B,) number of keys in memory that are valid, which are the last ones.
        window: number of words that a word sees, including itself.

    Returns:
        (B, 1, T, M + T) bool.
    """
    words = torch.arange(n_memory, n_memory + n_words, device=n_before.device).unsqueeze(1)  # (T, 1)
    keys = torch.arange(n_memory + n_words, device=n_before.device)
    seen = (keys <= words) & (keys > words - window)  # (T, M + T)
    valid = keys >= n_memory - n_before.unsqueeze(1)  # (B, M + T)
    return (seen & valid.unsqueeze(1)).unsqueeze(1)

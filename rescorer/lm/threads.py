"""Owns how many CPU threads the neural models use."""

from __future__ import annotations

import torch


def use_threads(count: int) -> None:
    """For the whole process; 0 leaves torch's own choice, one a core."""
    if count:
        torch.set_num_threads(count)

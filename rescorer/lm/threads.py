"""The number of torch's CPU threads, which may be chosen before torch is imported."""

from __future__ import annotations

import sys

_chosen = 0


def use_threads(count: int) -> None:
    """Set the number of torch's CPU threads in this process; 0 keeps torch's default, one per core.

    Does not import torch, which takes seconds and n-grams do not need: what loads networks calls
    ``apply_threads``.
    """
    global _chosen
    _chosen = count
    if "torch" in sys.modules:
        apply_threads()


def apply_threads() -> None:
    """Let torch use the number of threads that was chosen last, if any was."""
    if _chosen:
        import torch

        torch.set_num_threads(_chosen)

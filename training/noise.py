"""Owns the noise that words are told apart from: a power of the unigram distribution, and draws from it."""

from __future__ import annotations

import torch
from torch import Tensor

from rescorer.errors import ConfigError

UNSEEN = 0.5
"""What a word counts that never occurs, so that every word can be drawn and has a finite ln q."""


class Noise:
    """q(w) ∝ count(w)^power over the words that can be predicted.

    Power 1 is the unigram distribution (Mnih & Teh 2012), 0.75 word2vec's (Mikolov et al. 2013b), 0 the
    uniform one. Draws are with replacement and come from torch's global generator of the device, whose state
    a checkpoint holds: a resumed run draws what the run left alone would have drawn.

    Args:
        counts: (n_words,) in the vocabulary's order; words that never occur count one half.
        device: where draws are made; the model's.

    Raises:
        ConfigError: the counts are not one finite number ≥ 0 a word, or the power is not in 0 … 1.
    """

    def __init__(self, counts: Tensor, power: float = 1.0, device: torch.device | str = "cpu") -> None:
        counts = counts.to("cpu", torch.float64)
        if counts.ndim != 1 or not len(counts) or not torch.isfinite(counts).all() or counts.min() < 0:
            raise ConfigError("noise needs the count of every word: finite numbers, none below 0")
        if not 0 <= power <= 1:
            raise ConfigError(f"the power of the noise is {power}; expected 0 (uniform) to 1 (unigram)")
        mass = counts.clamp(min=UNSEEN) ** power
        self.log_probs = (mass / mass.sum()).log().to(device, torch.float32)  # (n_words,)
        self._cumulative = (mass.cumsum(0) / mass.sum()).to(device)  # float64: 1/q may exceed float32's 2²⁴

    @property
    def n_words(self) -> int:
        return len(self.log_probs)

    def draw(self, *shape: int) -> Tensor:
        """Word ids of the given shape, independent of one another."""
        places = torch.rand(shape, dtype=torch.float64, device=self._cumulative.device)
        return torch.searchsorted(self._cumulative, places, right=True).clamp_(max=self.n_words - 1)

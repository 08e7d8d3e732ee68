"""Owns the yardstick of the training benchmark: an LSTM language model as a PyTorch user writes it.

Nothing of ours is in it: nn.Embedding, nn.LSTM, nn.Linear over the whole vocabulary, cross_entropy, Adam, and
padded batches of 64 sentences in random order.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

SENTENCES_A_BATCH = 64


class PlainLstm(nn.Module):
    """One LSTM layer and a full softmax."""

    def __init__(self, vocabulary_size: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, size)
        self.lstm = nn.LSTM(size, size, batch_first=True)
        self.decoder = nn.Linear(size, vocabulary_size)

    def forward(self, words: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(words))
        return self.decoder(hidden)  # (B, T, V)


def plain_optimiser(model: PlainLstm) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def plain_step(model: PlainLstm, optimiser: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> float:
    """One update; inputs, targets: (B, T), targets -1 where padded. Returns the mean loss."""
    optimiser.zero_grad()
    logits = model(inputs)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return loss.item()

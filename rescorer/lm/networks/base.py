"""Owns what every context network is to the rest: ``forward`` over whole sequences (training) and ``step``
over single states (the trie), which give the same vectors."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

State = tuple[Tensor, ...]
"""What a network carries from word to word: tensors whose first axis is the node, (N, …)."""


class ContextNetwork(Protocol):
    """From words to context vectors; an ``nn.Module``."""

    output_size: int
    embedding: nn.Embedding
    window: int
    """Words that a vector depends on; 0: all of them."""

    def forward(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Context vectors after each word, (B, T) → (B, T, D), and the state after the last one.

        Rows go on from ``state``; None is the start state.
        """

    def __call__(self, words: Tensor, state: State | None = None) -> tuple[Tensor, State]: ...

    def start(self, n: int) -> State:
        """The state before the first input, for n nodes."""

    def inputs(self, words: Tensor) -> Tensor:
        """What ``step`` needs of each distinct word, computed once a word: (W,) → (W, I)."""

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """One word further: (N, I) and the states of N nodes → (N, D) vectors and N new states."""

    def set_dropout(self, dropout: float) -> None:
        """Changes the share of values dropped in further training."""

"""Interface of a context network.

Training calls ``forward`` over whole sequences, trie scoring calls ``step`` over single states; both give the
same vectors.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

State = tuple[Tensor, ...]
"""State that a network carries from one word to the next: tensors whose first axis is the node, (N, …)."""


class ContextNetwork(Protocol):
    """An ``nn.Module`` that maps words to context vectors."""

    output_size: int
    embedding: nn.Embedding
    window: int
    """Number of words on which a context vector depends; 0 if it depends on all words so far."""

    def forward(
        self, words: Tensor, state: State | None = None, topics: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Compute the context vectors after each word, (B, T) → (B, T, D), and the state after the last one.

        Args:
            state: the state from which each row continues; None: the initial state.
            topics: (B, T, K) or (B, 1, K) features beside the words, topics or tags; None: zeros.
        """

    def __call__(
        self, words: Tensor, state: State | None = None, topics: Tensor | None = None
    ) -> tuple[Tensor, State]: ...

    def initial_state(self, n: int) -> State:
        """The state of n nodes before the first input."""

    def inputs(self, words: Tensor) -> Tensor:
        """Project words for ``step``, once per distinct word: (W,) → (W, I)."""

    def topic_inputs(self, topics: Tensor) -> Tensor:
        """What such features add to the inputs of ``step``, or to the sum over a window: (R, K) → (R, I)."""

    def step(self, inputs: Tensor, state: State) -> tuple[Tensor, State]:
        """Advance N nodes by one word: (N, I) and their states → (N, D) vectors and new states."""

"""CBOW and skip-gram over a block of words: from contexts to queries, and the gradient back to contexts."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from rescorer_training.vectors.word2vec.chunks import Chunks, add_rows
from rescorer_training.vectors.word2vec.sampling import Block


class OutputLayer(Protocol):
    """Predicts centre words from queries; see ``NegativeSampling.train``."""

    def train(
        self, queries: Tensor, chunks: Chunks, pairs: Tensor, centres: Tensor, rate: float,
        random: torch.Generator,
    ) -> Tensor: ...  # fmt: skip


def train_block(
    vectors: Tensor, output: OutputLayer, block: Block, rate: float, random: torch.Generator, *, cbow: bool
) -> None:
    """Take one gradient step with the words of a block.

    All gradients are computed with the vectors as they were before the block, then added up. A query is the
    vector of a context word (skip-gram) or the mean of the vectors in the window (CBOW). As in the original
    program, the step of a mean is added to every vector of the window undivided.

    Args:
        vectors: (V + 1, D) input vectors, changed in place; the last row is for padding.
        rate: learning rate.
    """
    rows = vectors.index_select(0, block.words)
    contexts, mask = block.contexts, block.mask
    if not cbow:
        steps = output.train(rows, contexts, mask.transpose(1, 2), block.centres, rate, random)
        add_rows(vectors, block.words, steps)
        return
    chunks = Chunks(contexts.n, contexts.stride, contexts.stride)
    sizes = mask.sum(2, keepdim=True)
    means = torch.bmm(mask, contexts.unfold(rows)).div_(sizes.clamp(min=1))
    pairs = (sizes > 0) * torch.eye(contexts.stride)
    steps = output.train(means.view(chunks.n_rows, -1), chunks, pairs, block.centres, rate, random)
    spread = torch.bmm(mask.transpose(1, 2), chunks.unfold(steps))
    add_rows(vectors, block.words, contexts.fold(spread))

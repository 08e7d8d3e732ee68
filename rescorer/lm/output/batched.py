"""Compute within-class scores in a few batched products, for GPUs.

One product per class would keep a GPU busy with kernel launches. Instead, the vectors that are scored against
a class are laid out in chunks of ``CHUNK_ROWS``, and every chunk is multiplied with a copy of its class's
weights, (B, R, D) × (B, D, W): copying them costs less than launching hundreds of kernels. Classes of similar
size share a product, in which the smaller ones are padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rescorer.lm.output.tables import TableLayout

CHUNK_ROWS = 64
"""Number of vectors that share one copy of a class's weights; the last chunk of a class is padded."""
MAX_COPIED_WEIGHTS = 1 << 27
"""Largest number of copied weights held at once: 256 MB in bfloat16."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Distinct pairs of a vector and a class, in chunks that belong to one class each, in layout order."""

    vectors: Tensor
    """(B·R, D), padded with zeros where a chunk is not full."""
    positions: Tensor
    """(B,) position of each chunk's class in the layout."""
    bounds: list[int]
    """Number of chunks before each class in layout order, followed by the total."""
    slots: Tensor
    """(E,) index of each edge's vector in ``vectors``."""


def build_chunks(hidden: Tensor, rows: Tensor, positions: Tensor, n_classes: int) -> Chunks:
    """Lay out the vectors ``hidden[rows[e]]`` for the classes at ``positions[e]``, each pair once."""
    pairs, pair_of_edge = torch.unique(positions * len(hidden) + rows, return_inverse=True)  # (P,) by class
    class_of_pair = pairs // len(hidden)
    pair_counts = torch.bincount(class_of_pair, minlength=n_classes)  # (C,)
    chunk_counts = (pair_counts + CHUNK_ROWS - 1) // CHUNK_ROWS
    chunks_before, pairs_before = (counts.cumsum(0) - counts for counts in (chunk_counts, pair_counts))
    rank_in_class = torch.arange(len(pairs), device=pairs.device) - pairs_before[class_of_pair]
    slot_of_pair = chunks_before[class_of_pair] * CHUNK_ROWS + rank_in_class  # (P,)
    bounds = [0, *chunk_counts.cumsum(0).tolist()]
    vectors = hidden.new_zeros(bounds[-1] * CHUNK_ROWS, hidden.shape[1])
    vectors[slot_of_pair] = hidden[pairs % len(hidden)]
    class_of_chunk = torch.repeat_interleave(chunk_counts, output_size=bounds[-1])
    return Chunks(vectors, class_of_chunk, bounds, slot_of_pair[pair_of_edge])


def split_products(layout: TableLayout, bounds: list[int], size: int) -> Iterator[tuple[int, int, int]]:
    """Split the chunks into products of at most ``MAX_COPIED_WEIGHTS``.

    Args:
        bounds: as in ``Chunks``.
        size: D, the length of a vector.

    Yields:
        First chunk, end of the chunks, and number of words in the largest class.
    """
    for positions, width in layout.groups:
        step = max(1, MAX_COPIED_WEIGHTS // (width * size))
        for begin in range(bounds[positions.start], bounds[positions.stop], step):
            yield begin, min(begin + step, bounds[positions.stop]), width


def within_class_log_probs(
    chunks: Chunks, targets: Tensor, layout: TableLayout, ranges: Tensor, weight: Tensor, bias: Tensor
) -> Tensor:
    """ln P(word | its class, vector) of every edge, (E,) in the dtype of ``bias``.

    Args:
        chunks: the vectors of the edges by class, in the dtype of ``weight``.
        targets: (E,) int64 index of the word within its class.
        ranges: (C, 2) int64 first word and number of words of each class in ``layout``.
        weight, bias: (≥ V, D), (V,) of the words.
    """
    first_words, n_words = ranges[chunks.positions].unbind(1)  # (B,)
    products = list(split_products(layout, chunks.bounds, weight.shape[1]))
    by_slot = torch.argsort(chunks.slots)
    slots, targets = chunks.slots[by_slot], targets[by_slot]
    device = weight.device
    slot_ranges = torch.tensor([[begin, end] for begin, end, _ in products], device=device) * CHUNK_ROWS
    edge_ranges = torch.searchsorted(slots, slot_ranges).tolist()
    sorted_out = bias.new_zeros(len(targets))  # stays 0 for words that are alone in their class
    for (begin, end, width), (first, last) in zip(products, edge_ranges, strict=True):
        columns = torch.arange(width, device=device)
        ids = (first_words[begin:end, None] + columns).clamp_(max=len(bias) - 1)  # (B, W)
        vectors = chunks.vectors[begin * CHUNK_ROWS : end * CHUNK_ROWS].view(end - begin, CHUNK_ROWS, -1)
        scores = torch.bmm(vectors, weight[ids].transpose(1, 2)).to(bias.dtype)  # (B, R, W)
        scores += bias[ids].unsqueeze(1)
        scores.masked_fill_((columns >= n_words[begin:end, None]).unsqueeze(1), -torch.inf)
        log_probs = functional.log_softmax(scores, dim=2).flatten(0, 1)
        sorted_out[first:last] = log_probs[slots[first:last] - begin * CHUNK_ROWS, targets[first:last]]
    return torch.empty_like(sorted_out).index_copy_(0, by_slot, sorted_out)

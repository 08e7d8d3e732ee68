"""Owns within-class scores by a few batched products: for GPUs, which a product a class would keep busy with
launches.

The vectors that a class is asked for are laid in chunks of ``CHUNK_ROWS``, and every chunk meets a copy of
its class's weights, (B, R, D) × (B, D, W): copying them costs less than launching hundreds of kernels.
Classes of about the same size share a product, in which the smaller ones are padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rescorer.lm.output.tables import TableLayout

CHUNK_ROWS = 64
"""Vectors that share one copy of a class's weights; what a class's last chunk lacks is padding."""
WEIGHTS_A_PRODUCT = 1 << 27
"""Elements of the copies held at once: 256 MB in bfloat16."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Distinct pairs of a vector and a class, in chunks of one class each, in the layout's order."""

    vectors: Tensor
    """(B·R, D), zeros where a chunk is not full."""
    places: Tensor
    """(B,) of each chunk's class in the layout."""
    bounds: list[int]
    """Chunks before each class in the layout's order, and all of them."""
    slots: Tensor
    """(E,) which of the vectors is each edge's."""


def chunked(hidden: Tensor, rows: Tensor, places: Tensor, n_classes: int) -> Chunks:
    """Lays out the vectors ``hidden[rows[e]]``, (N, D), for classes at ``places[e]``, each pair once."""
    pairs, pair = torch.unique(places * len(hidden) + rows, return_inverse=True)  # (P,) by place
    of_class = pairs // len(hidden)
    counts = torch.bincount(of_class, minlength=n_classes)  # (C,)
    chunks = (counts + CHUNK_ROWS - 1) // CHUNK_ROWS
    before, pairs_before = (each.cumsum(0) - each for each in (chunks, counts))
    place_in_class = torch.arange(len(pairs), device=pairs.device) - pairs_before[of_class]
    slot = before[of_class] * CHUNK_ROWS + place_in_class  # (P,)
    bounds = [0, *chunks.cumsum(0).tolist()]
    vectors = hidden.new_zeros(bounds[-1] * CHUNK_ROWS, hidden.shape[1])
    vectors[slot] = hidden[pairs % len(hidden)]
    of_chunk = torch.repeat_interleave(chunks, output_size=bounds[-1])
    return Chunks(vectors, of_chunk, bounds, slot[pair])


def blocks(layout: TableLayout, bounds: list[int], size: int) -> Iterator[tuple[int, int, int]]:
    """First and last chunk of each product, and the words of its largest class; ``size``: D."""
    for places, width in layout.groups:
        step = max(1, WEIGHTS_A_PRODUCT // (width * size))
        for begin in range(bounds[places.start], bounds[places.stop], step):
            yield begin, min(begin + step, bounds[places.stop]), width


def within_classes(
    hidden: Tensor,
    rows: Tensor,
    targets: Tensor,
    places: Tensor,
    layout: TableLayout,
    weight: Tensor,
    bias: Tensor,
) -> Tensor:
    """ln P(word | its class, hidden[rows[e]]) of every edge e, (E,) in the dtype of ``bias``.

    Args:
        hidden: (N, D) in the dtype of ``weight``.
        rows, targets, places: (E,) int64: vector, place of the word in its class, place of that class in
            ``layout``.
        weight, bias: (≥ V, D), (V,) of the words.
    """
    chunks = chunked(hidden, rows, places, len(layout.words))
    first_words = torch.tensor([own.start for own in layout.words], device=hidden.device)[
        chunks.places
    ]  # (B,)
    n_words = torch.tensor([own.stop - own.start for own in layout.words], device=hidden.device)[
        chunks.places
    ]
    products = list(blocks(layout, chunks.bounds, hidden.shape[1]))
    by_slot = torch.argsort(chunks.slots)
    slots, targets = chunks.slots[by_slot], targets[by_slot]
    starts = torch.tensor([[begin, end] for begin, end, _ in products], device=hidden.device) * CHUNK_ROWS
    out = bias.new_zeros(len(rows))  # 0 for the only word of a class
    for (begin, end, width), (first, last) in zip(
        products, torch.searchsorted(slots, starts).tolist(), strict=True
    ):
        columns = torch.arange(width, device=hidden.device)
        ids = (first_words[begin:end, None] + columns).clamp_(max=len(bias) - 1)  # (B, W)
        vectors = chunks.vectors[begin * CHUNK_ROWS : end * CHUNK_ROWS].view(end - begin, CHUNK_ROWS, -1)
        scores = torch.bmm(vectors, weight[ids].transpose(1, 2)).to(bias.dtype)  # (B, R, W)
        scores += bias[ids].unsqueeze(1)
        scores.masked_fill_((columns >= n_words[begin:end, None]).unsqueeze(1), -torch.inf)
        log_probs = functional.log_softmax(scores, dim=2).flatten(0, 1)
        out[first:last] = log_probs[slots[first:last] - begin * CHUNK_ROWS, targets[first:last]]
    return torch.empty_like(out).index_copy_(0, by_slot, out)

"""Owns the floor of the training benchmark: the matrix products that a training step cannot do without."""

from __future__ import annotations

import torch
from torch import Tensor

from rescorer.bench.matrix_products import GATE_COUNTS, Product
from rescorer.lm.networks import NetworkConfig

PASSES = 3
"""Forward, gradient of the inputs, gradient of the weights: three products of equal size."""


def network_products(config: NetworkConfig, n_rows: int, n_columns: int) -> list[Product]:
    """Those of a context network forward over (B, T) words, padding included."""
    n, hidden, size = n_rows * n_columns, config.hidden_size, config.embedding_size
    products: list[Product] = []
    if config.window:
        products += [(n, config.window * size, hidden)] + [(n, hidden, hidden)] * (config.layers - 1)
    else:
        gates, below = GATE_COUNTS[config.kind] * hidden, size
        for _ in range(config.layers):
            products += [(n, below, gates)] + [(n_rows, hidden, gates)] * n_columns
            below = hidden
    if hidden != size:
        products.append((n, hidden, size))
    return products


def output_products(config: NetworkConfig, words: Tensor, samples: int | None = None) -> list[Product]:
    """Those of the output layer forward over the (N,) targets; ``samples``: words scored in place of all."""
    n, size = len(words), config.embedding_size
    if config.output == "full":
        return [(n, size, samples or config.n_words)]
    sizes = torch.tensor(config.class_sizes)
    class_of = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    occurrences = torch.bincount(class_of[words], minlength=len(sizes))
    within = zip(occurrences.tolist(), config.class_sizes, strict=True)
    return [(n, size, len(sizes))] + [(rows, size, width) for rows, width in within if rows and width > 1]

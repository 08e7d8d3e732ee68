"""Floor of the training benchmark: the matrix products that every training step has to compute."""

from __future__ import annotations

import torch
from torch import Tensor

from rescorer.bench.matrix_products import GATE_COUNTS, Product
from rescorer.bench.workload import transformer_products
from rescorer.lm.networks import NetworkConfig

N_PASSES = 3
"""Number of passes of equal cost per step: forward, gradient of the inputs, and gradient of the weights."""


def list_network_products(config: NetworkConfig, n_rows: int, n_columns: int) -> list[Product]:
    """Return the forward products of a network below its output layer, for (B, T) words, padding included."""
    n, hidden, size = n_rows * n_columns, config.hidden_size, config.embedding_size
    if config.kind == "transformer":
        return transformer_products(config, n)
    products: list[Product] = []
    if config.window:
        products += [(n, config.window * size, hidden)] + [(n, hidden, hidden)] * (config.layers - 1)
    else:
        gates, input_size = GATE_COUNTS[config.kind] * hidden, size
        for _ in range(config.layers):
            products += [(n, input_size, gates)] + [(n_rows, hidden, gates)] * n_columns
            input_size = hidden
    if hidden != size:
        products.append((n, hidden, size))
    return products


def list_output_products(config: NetworkConfig, words: Tensor, samples: int | None = None) -> list[Product]:
    """Return the forward products of an output layer.

    Args:
        words: (N,) targets.
        samples: number of words that a sampled objective scores; None scores all words.
    """
    n, size = len(words), config.embedding_size
    if config.output == "full":
        return [(n, size, samples or config.n_words)]
    sizes = torch.tensor(config.class_sizes)
    class_of = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    occurrences = torch.bincount(class_of[words], minlength=len(sizes))
    within = zip(occurrences.tolist(), config.class_sizes, strict=True)
    return [(n, size, len(sizes))] + [(rows, size, width) for rows, width in within if rows and width > 1]

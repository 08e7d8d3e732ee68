"""Owns the floor of the training benchmark: the matrix products that a training step cannot do without, and
the time this machine takes for them alone.

It is torch.mm's time: a fused kernel, such as torch's LSTM, may have faster products and be below it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from rescorer.lm.networks import NetworkConfig

Product = tuple[int, int, int]
"""(n, k) × (k, m), as (n, k, m)."""

GATES = {"lstm": 4, "gru": 3, "elman": 1}
PASSES = 3
"""Forward, gradient of the inputs, gradient of the weights: three products of equal size."""


def network_products(config: NetworkConfig, n_rows: int, n_columns: int) -> list[Product]:
    """Those of a context network forward over (B, T) words, padding included."""
    n, hidden, size = n_rows * n_columns, config.hidden_size, config.embedding_size
    products: list[Product] = []
    if config.window:
        products += [(n, config.window * size, hidden)] + [(n, hidden, hidden)] * (config.layers - 1)
    else:
        gates, below = GATES[config.kind] * hidden, size
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


def flops(products: Iterable[Product]) -> int:
    return sum(2 * n * k * m for n, k, m in products)


def seconds_alone(
    products: Iterable[Product], clock: Callable[[], float] = time.perf_counter, least_seconds: float = 0.003
) -> float:
    """Time of the products with nothing around them; each distinct shape is repeated ``least_seconds``."""
    total = 0.0
    for (n, k, m), count in Counter(products).items():
        a, b, out = torch.randn(n, k), torch.randn(k, m), torch.empty(n, m)
        torch.mm(a, b, out=out)
        times, began = 0, clock()
        while (spent := clock() - began) < least_seconds:
            torch.mm(a, b, out=out)
            times += 1
        total += count * spent / times
    return total

"""Owns the floor of a benchmark: matrix products that cannot be done without, and the time that this machine
takes for them with nothing around them.

It is torch.mm's time: a fused kernel, such as torch's LSTM, may have faster products and be below it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

import torch

Product = tuple[int, int, int]
"""(n, k) × (k, m), as (n, k, m)."""

GATES = {"lstm": 4, "gru": 3, "elman": 1}


def flops(products: Iterable[Product]) -> int:
    return sum(2 * n * k * m for n, k, m in products)


def seconds_alone(
    products: Iterable[Product],
    clock: Callable[[], float] = time.perf_counter,
    least_seconds: float = 0.003,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> float:
    """Time of the products with nothing around them; each distinct shape is repeated ``least_seconds``."""
    settle = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None
    total = 0.0
    for (n, k, m), count in Counter(products).items():
        a, b = (torch.randn(shape, device=device).to(dtype) for shape in ((n, k), (k, m)))
        out = torch.mm(a, b)
        settle()
        times, began = 0, clock()
        while (spent := clock() - began) < least_seconds:
            torch.mm(a, b, out=out)
            settle()
            times += 1
        total += count * spent / times
    return total


def middle_of_work(products: Iterable[Product]) -> Product:
    """The product that half of all flops are in or below, by size."""
    by_size = sorted(products, key=lambda product: flops([product]))
    half, done = flops(by_size) / 2, 0
    for product in by_size:
        done += flops([product])
        if done >= half:
            break
    return product


def gemm_rate(
    products: Iterable[Product],
    clock: Callable[[], float] = time.perf_counter,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> float:
    """Flops a second of the typical one among the products."""
    typical = middle_of_work(products)
    return flops([typical]) / seconds_alone([typical], clock, 0.2, dtype, device)

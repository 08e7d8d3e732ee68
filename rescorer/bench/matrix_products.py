"""Measure how fast this machine multiplies matrices: the lower limit of a benchmark's time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import torch

from rescorer.lm.kernels.linear import linear

Product = tuple[int, int, int]
"""(n, k) × (k, m), as (n, k, m)."""

GATE_COUNTS = {"lstm": 4, "gru": 3, "elman": 1}
"""Number of gates of each kind of recurrent layer."""


def flops(products: Iterable[Product]) -> int:
    """Number of floating-point operations of some products."""
    return sum(2 * n * k * m for n, k, m in products)


def measure_products(
    products: Iterable[Product],
    clock: Callable[[], float] = time.perf_counter,
    min_seconds: float = 0.003,
) -> float:
    """Measure the total time of the products in seconds, computed by ``torch.mm`` and nothing else.

    A fused kernel, such as torch's LSTM, may have faster products and take less time.

    Args:
        min_seconds: minimum time for which each distinct shape is repeated.
    """
    total = 0.0
    for (n, k, m), count in Counter(products).items():
        a, b, out = torch.randn(n, k), torch.randn(k, m), torch.empty(n, m)
        total += count * measure_call(partial(torch.mm, a, b, out=out), clock, min_seconds)
    return total


def measure_call(call: Callable[[], object], clock: Callable[[], float], min_seconds: float) -> float:
    """Measure the mean seconds of a call, repeated for ``min_seconds`` after one untimed call."""
    call()
    count, start = 0, clock()
    while (seconds := clock() - start) < min_seconds:
        call()
        count += 1
    return seconds / count


def median_product(products: Iterable[Product]) -> Product:
    """Find the weighted median: products up to its size make up half of all operations."""
    by_size = sorted(products, key=lambda product: flops([product]))
    half, total = flops(by_size) / 2, 0
    for product in by_size:
        total += flops([product])
        if total >= half:
            break
    return product


def measure_gemm_rate(
    products: Iterable[Product],
    clock: Callable[[], float] = time.perf_counter,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> float:
    """Measure the operations per second of the median product, with the faster of ``mm`` and ``linear``."""
    n, k, m = median_product(products)
    x, weight, out = (torch.randn(shape, device=device).to(dtype) for shape in ((n, k), (m, k), (n, m)))
    synchronise = torch.cuda.synchronize if x.is_cuda else lambda: None
    with torch.inference_mode():
        kernels = (lambda: torch.mm(x, weight.t(), out=out), lambda: linear(x, weight))
        seconds = [measure_call(lambda run=run: (run(), synchronise()), clock, 0.2) for run in kernels]  # type: ignore[misc]
    return flops([(n, k, m)]) / min(seconds)

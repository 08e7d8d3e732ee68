"""Owns the floor of a benchmark: matrix products that cannot be done without, and the time that this machine
takes for them with nothing around them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import torch

from rescorer.lm.linear import linear

Product = tuple[int, int, int]
"""(n, k) × (k, m), as (n, k, m)."""

GATES = {"lstm": 4, "gru": 3, "elman": 1}


def flops(products: Iterable[Product]) -> int:
    return sum(2 * n * k * m for n, k, m in products)


def seconds_alone(
    products: Iterable[Product],
    clock: Callable[[], float] = time.perf_counter,
    least_seconds: float = 0.003,
) -> float:
    """Time of the products by torch.mm; each distinct shape is repeated ``least_seconds``.

    A fused kernel, such as torch's LSTM, may have faster products and be below it.
    """
    total = 0.0
    for (n, k, m), count in Counter(products).items():
        a, b, out = torch.randn(n, k), torch.randn(k, m), torch.empty(n, m)
        total += count * seconds_a_call(partial(torch.mm, a, b, out=out), clock, least_seconds)
    return total


def seconds_a_call(call: Callable[[], object], clock: Callable[[], float], least_seconds: float) -> float:
    """Mean time of a call that is repeated ``least_seconds``, the first one left out."""
    call()
    times, began = 0, clock()
    while (spent := clock() - began) < least_seconds:
        call()
        times += 1
    return spent / times


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
    """Flops a second of the typical one among the products, by the fastest kernel that we know of."""
    n, k, m = middle_of_work(products)
    x, weight, out = (torch.randn(shape, device=device).to(dtype) for shape in ((n, k), (m, k), (n, m)))
    settle = torch.cuda.synchronize if x.is_cuda else lambda: None
    with torch.inference_mode():
        kernels = (lambda: torch.mm(x, weight.t(), out=out), lambda: linear(x, weight))
        seconds = [seconds_a_call(lambda k=k: (k(), settle()), clock, 0.2) for k in kernels]  # type: ignore[misc]
    return flops([(n, k, m)]) / min(seconds)

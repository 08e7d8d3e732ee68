"""Pad inputs of oneDNN with rows of zeros, so that only a few distinct row counts occur.

oneDNN compiles and keeps a kernel for each number of rows and each size of a matrix; compiling takes as long
as a small product. The levels of tries vary in size: without padding, scoring lists one by one takes 50 %
longer and half a gigabyte more memory.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

MIN_ROWS = 32
"""Smallest number of rows after padding."""
FINE_STEPS, COARSE_STEPS = 8, 2
"""Number of distinct row counts between successive powers of two: for the few matrices of a network, and for
the many classes of an output layer."""


def pad_rows(x: Tensor, steps_per_octave: int) -> Tensor:
    """Append rows of zeros to (N, K) on a CPU; tensors on other devices are returned unchanged."""
    missing = padded_row_count(len(x), steps_per_octave) - len(x) if x.device.type == "cpu" else 0
    return functional.pad(x, (0, 0, 0, missing)) if missing else x


def padded_row_count(rows: int, steps_per_octave: int) -> int:
    """Round a row count up to one of ``steps_per_octave`` values between successive powers of two.

    The result is at least ``MIN_ROWS``.

    >>> [padded_row_count(rows, 2) for rows in (0, 1, 32, 33, 100, 1000)]
    [32, 32, 32, 48, 128, 1024]
    """
    step = max(MIN_ROWS, 1 << rows.bit_length() >> 1) // steps_per_octave
    return max(MIN_ROWS, -(-rows // step) * step)

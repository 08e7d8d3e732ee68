"""Owns how many rows oneDNN is given: one of a few numbers, the rows filled up to it.

oneDNN compiles a kernel for each number of rows that it meets and each size of a matrix, which takes as long
as a small product, and keeps them. Tries have levels of every size: without filling, lists one by one take
half as long again, and half a gigabyte.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

FEWEST_ROWS = 32
"""What is filled up to at least."""
FINE, COARSE = 8, 2
"""Numbers an octave: for the few matrices of a network, and for the many of an output layer's classes."""


def filled_up(x: Tensor, an_octave: int) -> Tensor:
    """(N, K) with rows of zeros after its own, on a CPU."""
    missing = rows_to_fill(len(x), an_octave) - len(x) if x.device.type == "cpu" else 0
    return functional.pad(x, (0, 0, 0, missing)) if missing else x


def rows_to_fill(rows: int, an_octave: int) -> int:
    """The next of ``an_octave`` numbers an octave, ``FEWEST_ROWS`` at least.

    >>> [rows_to_fill(rows, 2) for rows in (1, 32, 33, 100, 1000)]
    [32, 32, 48, 128, 1024]
    """
    step = max(FEWEST_ROWS, 1 << (rows.bit_length() - 1)) // an_octave
    return max(FEWEST_ROWS, -(-rows // step) * step)

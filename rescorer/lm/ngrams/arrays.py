"""The array operations that NumPy and torch spell differently, so that one code looks up n-grams with both.

Everything else that the code needs (arithmetic, comparison, assignment by index) is written alike.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = Any
"""A NumPy array or a torch tensor."""


class ArrayLibrary(Protocol):
    """Operations on arrays of one library and device."""

    def asarray(self, values: np.ndarray) -> Array:
        """Convert a NumPy array, to the library's device."""

    def numpy(self, array: Array) -> np.ndarray:
        """Convert back to a NumPy array."""

    def take(self, array: Array, rows: Array) -> Array:
        """Gather rows along the first axis."""

    def true_places(self, mask: Array) -> Array:
        """Return the indices at which a vector is true, int64."""

    def int64(self, array: Array) -> Array:
        """Convert integers to int64."""

    def float32_view(self, array: Array) -> Array:
        """Reinterpret a contiguous (N, M) int64 array as (N, 2 M) float32."""

    def full(self, size: int, value: float, like: Array) -> Array:
        """Make a vector of one value with the type of another array."""


class NumpyArrays:
    """``ArrayLibrary`` of NumPy."""

    def asarray(self, values: np.ndarray) -> np.ndarray:
        return values

    def numpy(self, array: np.ndarray) -> np.ndarray:
        return array

    def take(self, array: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return array.take(rows, axis=0)

    def true_places(self, mask: np.ndarray) -> np.ndarray:
        return np.flatnonzero(mask)

    def int64(self, array: np.ndarray) -> np.ndarray:
        return array.astype(np.int64)

    def float32_view(self, array: np.ndarray) -> np.ndarray:
        return array.view(np.float32)

    def full(self, size: int, value: float, like: np.ndarray) -> np.ndarray:
        return np.full(size, value, dtype=like.dtype)


NUMPY = NumpyArrays()

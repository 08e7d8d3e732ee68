"""Divide consecutive rows into overlapping chunks, so that a batch of matrix products covers all of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of ``width`` rows that begin every ``stride`` rows; consecutive ones share the rest."""

    n: int
    stride: int
    width: int

    @property
    def n_rows(self) -> int:
        """Number of rows that the chunks cover."""
        return self.n * self.stride + self.width - self.stride

    def unfold(self, rows: Tensor) -> Tensor:
        """View rows as chunks without copying them: (n_rows, …) to (n, width, …)."""
        first, *rest = rows.stride()
        return rows.as_strided((self.n, self.width, *rows.shape[1:]), (self.stride * first, first, *rest))

    def fold(self, chunks: Tensor) -> Tensor:
        """Sum what chunks have for each row, the transpose of ``unfold``: (n, width, D) to (n_rows, D)."""
        if self.width == self.stride:
            return chunks.reshape(self.n_rows, -1)
        n_parts = -(-self.width // self.stride)
        depth = chunks.shape[2]
        rows = chunks.new_zeros((self.n + n_parts) * self.stride, depth)
        for part, columns in enumerate(chunks.split(self.stride, dim=1)):
            begin = part * self.stride
            window = rows[begin : begin + self.n * self.stride].view(self.n, self.stride, depth)
            window[:, : columns.shape[1]] += columns
        return rows[: self.n_rows]


def add_rows(matrix: Tensor, ids: Tensor, changes: Tensor) -> None:
    """Add ``changes`` (n, D) to the rows ``ids`` (n,) of a matrix in place; an id may occur several times."""
    # with an expanded index, scatter_add_ sorts the ids and adds whole rows: twice as fast as index_add_
    matrix.scatter_add_(0, ids[:, None].expand(-1, matrix.shape[1]), changes)


def pad_rows(rows: Tensor, before: int, after: int, value: float) -> Tensor:
    """Pad a one-dimensional tensor at both ends."""
    return torch.nn.functional.pad(rows, (before, after), value=value)

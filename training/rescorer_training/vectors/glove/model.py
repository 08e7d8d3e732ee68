"""The parameters of GloVe and one AdaGrad step over a block of entries."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

MAX_GRADIENT = 100.0
"""Limit of each gradient's absolute value, as in the original program."""


@dataclass
class GloveParameters:
    """Vectors and biases of words and of context words, and AdaGrad's sums of squared steps.

    Word i has row i, context word j row V + j.
    """

    vectors: Tensor
    """(2V, D)."""
    biases: Tensor
    """(2V,)."""
    vector_squares: Tensor
    """(2V, D)."""
    bias_squares: Tensor
    """(2V,)."""

    @classmethod
    def initialise(cls, n_words: int, dimensions: int, seed: int) -> GloveParameters:
        """Draw uniform values in ±0.5 / D; sums of squares start at 1, as in the original program."""
        random = torch.Generator().manual_seed(seed)
        values = (torch.rand(2 * n_words, dimensions + 1, generator=random) - 0.5) / dimensions
        vectors, biases = values[:, :-1].contiguous(), values[:, -1].contiguous()
        return cls(vectors, biases, torch.ones_like(vectors), torch.ones_like(biases))

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def summed_vectors(self) -> Tensor:
        """Return the sum of each word's two vectors, (V, D)."""
        words, contexts = self.vectors.chunk(2)
        return words + contexts


def train_block(
    parameters: GloveParameters, rows: Tensor, columns: Tensor, targets: Tensor, weights: Tensor, rate: float
) -> float:
    """Take one AdaGrad step with a block of entries; the loss is Σ f(x) (w·c + b + b' - ln x)² / 2.

    The original program handles entries one by one. Here, all gradients of a block are computed with the
    parameters as they were before it; if a row occurs several times, its steps and squared steps are added
    up. With one entry per block, both are the same.

    Args:
        rows: (n,) int64 rows of words.
        columns: (n,) int64 rows of context words, V … 2V - 1.
        targets: (n,) ln x.
        weights: (n,) f(x).

    Returns:
        The loss of the block before the step.
    """
    both, n = torch.cat([rows, columns]), len(rows)
    vectors = parameters.vectors.index_select(0, both)
    biases = parameters.biases.index_select(0, both)
    differences = (vectors[:n] * vectors[n:]).sum(1) + biases[:n] + biases[n:] - targets
    errors = weights * differences
    gradients = torch.cat([vectors[n:], vectors[:n]]).mul_(errors.repeat(2)[:, None])
    gradients.clamp_(-MAX_GRADIENT, MAX_GRADIENT)
    bias_gradients = errors.clamp(-MAX_GRADIENT, MAX_GRADIENT).repeat(2)
    _step(parameters.vectors, parameters.vector_squares, both, gradients.mul_(rate))
    _step(parameters.biases[:, None], parameters.bias_squares[:, None], both, bias_gradients[:, None] * rate)
    return float(torch.dot(errors, differences)) / 2


def _step(values: Tensor, squares: Tensor, rows: Tensor, steps: Tensor) -> None:
    """Subtract steps, divided by the roots of the sums of squares before the block, and add their squares."""
    scales = squares.index_select(0, rows).rsqrt_()
    index = rows[:, None].expand(-1, values.shape[1])
    # with an expanded index, scatter_add_ adds whole rows: faster than index_add_
    values.scatter_add_(0, index, scales.mul_(steps).neg_())
    squares.scatter_add_(0, index, steps.square_())

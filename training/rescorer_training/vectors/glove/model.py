"""The parameters of GloVe and one AdaGrad step over a block of entries."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

MAX_GRADIENT = 100.0
"""Limit of the absolute value of each component of a vector's gradient, as in the original program."""


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

    @staticmethod
    def shapes(n_words: int, dimensions: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by name."""
        rows = 2 * n_words
        return {
            "vectors": (rows, dimensions),
            "biases": (rows,),
            "vector_squares": (rows, dimensions),
            "bias_squares": (rows,),
        }

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

    As in the original program (version 1.2 and later), gradients of vectors are clipped and then multiplied
    by the learning rate, while biases move at a rate of 1: they have to grow to the logarithms of counts.

    The original program handles entries one by one. Here, all gradients of a block are computed with the
    parameters as they were before it. With one entry per block, both are the same.

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
    _step(parameters.vectors, parameters.vector_squares, both, gradients.mul_(rate))
    _step(parameters.biases[:, None], parameters.bias_squares[:, None], both, errors.repeat(2)[:, None])
    return float(torch.dot(errors, differences)) / 2


def _step(values: Tensor, squares: Tensor, rows: Tensor, steps: Tensor) -> None:
    """Add the squares of steps to their sums, and subtract the steps, divided by the roots of the sums.

    A step is divided by the root of all squares but its own: those before the block, as in the original
    program, and those of other steps of its row in the block. Without the latter, a frequent word's steps
    would add up to one that is far too long.
    """
    index = rows[:, None].expand(-1, values.shape[1])
    own = steps.square()
    # with an expanded index, scatter_add_ adds whole rows: faster than index_add_
    squares.scatter_add_(0, index, own)
    # at least the initial 1, also where rounding loses it beside a large square
    scales = squares.index_select(0, rows).sub_(own).clamp_(min=1.0).rsqrt_()
    values.scatter_add_(0, index, scales.mul_(steps).neg_())

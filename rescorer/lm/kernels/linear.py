"""Multiply matrices for scoring with the fastest kernel of the machine.

On CPUs torch multiplies float32 matrices with MKL, which reaches only half the peak speed of an AMD
processor; oneDNN, which torch includes for other types, reaches full speed. Both accumulate in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from rescorer.lm.kernels.int8 import int8_linear, int8_matrix_of
from rescorer.lm.kernels.row_padding import COARSE_STEPS, FINE_STEPS, MIN_ROWS, pad_rows

MIN_MULTIPLICATIONS = 1 << 19
"""Smallest product, in multiplications, for which calling oneDNN pays off, assuming that the weights are
already in its memory order."""
MIN_SLICE_ROWS = 192
"""Smallest number of rows for which oneDNN multiplies a slice of a parameter, such as the weights of one
class. oneDNN compiles kernels for each of the hundreds of slice sizes and keeps them (300 MB), which does not
pay off for fewer rows."""
EXPECTED_ROWS = 64
"""Number of input rows for which oneDNN reorders the weights; the result can be used with any number of
rows."""
MAX_ERROR = 1e-5
"""Largest accepted error of a product of random unit vectors. Errors are below 1e-6 in float32 and far above
1e-3 in bfloat16."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute x·Wᵀ + b like ``functional.linear``, (..., K), (M, K) → (..., M).

    Uses oneDNN only if no gradients are required, because its products are not differentiable. Weights in
    bfloat16 or int8 are multiplied in their own type; the result is float32 in either case.
    """
    if x.dim() > 2:
        return linear(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])
    if not torch.is_grad_enabled() and (matrix := int8_matrix_of(weight)) is not None:
        return int8_linear(x, matrix, bias)
    if weight.dtype == torch.bfloat16 and not torch.is_grad_enabled():
        is_slice = not isinstance(weight, nn.Parameter)
        if is_slice and x.device.type == "cpu" and len(x) < MIN_SLICE_ROWS:
            return functional.linear(x.float(), weight.float(), bias)
        padded = pad_rows(x.to(torch.bfloat16), COARSE_STEPS if is_slice else FINE_STEPS)
        product = functional.linear(padded, weight)[: len(x)].float()
        return product if bias is None else product.add_(bias)
    is_cpu_float32 = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if is_cpu_float32 and not torch.is_grad_enabled() and is_onednn_exact():
        if isinstance(weight, nn.Parameter):
            if not weight.requires_grad and len(x) * weight.numel() >= MIN_MULTIPLICATIONS:
                return _onednn_linear(x, reorder_weight(weight), bias, FINE_STEPS)
        elif len(x) >= MIN_SLICE_ROWS:
            return _onednn_linear(x, weight, bias)
    return functional.linear(x, weight, bias)


_reordered: MutableMapping[Tensor, tuple[int, Tensor]] = WeakIdKeyDictionary()


def reorder_weight(weight: nn.Parameter) -> Tensor:
    """Copy a parameter into oneDNN's memory order, once per version of the parameter.

    Reordering the weights for every product would be most of the work if there are few rows. Use this only
    for parameters that require no gradients: fused optimisers change other parameters without changing their
    version.
    """
    version, copy = _reordered.get(weight, (-1, weight))
    if version != weight._version:
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), EXPECTED_ROWS)
        _reordered[weight] = weight._version, copy
    return copy


def cast_matrices_to_bfloat16(parameters: Iterable[nn.Parameter]) -> None:
    """Cast every matrix to bfloat16, for ``linear``.

    Biases keep their type: in bfloat16, ln P of a rare word would be accurate to only one decimal place.
    """
    for parameter in parameters:
        if parameter.dim() >= 2:
            parameter.data = parameter.data.to(torch.bfloat16)


@cache
def is_onednn_exact() -> bool:
    """Whether oneDNN exists and accumulates in float32; it can be configured or built to use a lower
    precision."""
    random = torch.Generator().manual_seed(1)
    x, weight = (functional.normalize(torch.randn(MIN_ROWS, 256, generator=random), dim=1) for _ in range(2))
    try:
        product = _onednn_linear(x, weight, None)
    except (AttributeError, RuntimeError):  # this torch has no oneDNN
        return False
    return bool((product.double() - x.double() @ weight.double().t()).abs().max() < MAX_ERROR)


def _onednn_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, steps_per_octave: int = COARSE_STEPS
) -> Tensor:
    padded = pad_rows(x, steps_per_octave)
    return torch.ops.mkldnn._linear_pointwise(padded, weight, bias, "none", [], "")[: len(x)]

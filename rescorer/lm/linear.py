"""Owns the matrix product of scoring: by the fastest kernel that this machine has for it.

On CPUs torch multiplies float32 matrices with MKL, which leaves half of an AMD processor unused; oneDNN,
which torch brings along for other types, does not. Both add up in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.weak import WeakIdKeyDictionary

from rescorer.lm.int8 import int8_of, int8_product
from rescorer.lm.row_padding import COARSE, FEWEST_ROWS, FINE, filled_up

LEAST_WORK = 1 << 19
"""Multiplications below which calling oneDNN takes longer than the product, the weights being in order."""
FEWEST_ROWS_OF_SLICES = 192
"""From so many on oneDNN multiplies what is no parameter, such as the weights of one class: for each of their
hundreds of sizes it compiles kernels and keeps them, which below costs more than it brings, and 300 MB."""
ROWS_TO_EXPECT = 64
"""What the order of the weights is chosen for; it is the right one for any other number of rows too."""
TOLERANCE = 1e-5
"""Largest error of a product of random unit vectors; float32 stays below 1e-6, bfloat16 far above 1e-3."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x·Wᵀ + b as ``functional.linear``: (..., K), (M, K) → (..., M); not differentiable by oneDNN, which is
    therefore left out where gradients are wanted. Weights in bfloat16 and int8 multiply in these types; what
    comes out is float32 again."""
    if x.dim() > 2:
        return linear(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])
    if not torch.is_grad_enabled() and (matrix := int8_of(weight)) is not None:
        return int8_product(x, matrix, bias)
    if weight.dtype == torch.bfloat16 and not torch.is_grad_enabled():
        is_slice = not isinstance(weight, nn.Parameter)
        if is_slice and x.device.type == "cpu" and len(x) < FEWEST_ROWS_OF_SLICES:
            return functional.linear(x.float(), weight.float(), bias)
        filled = filled_up(x.to(torch.bfloat16), COARSE if is_slice else FINE)
        product = functional.linear(filled, weight)[: len(x)].float()
        return product if bias is None else product.add_(bias)
    suits = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if suits and not torch.is_grad_enabled() and onednn_is_exact():
        if isinstance(weight, nn.Parameter):
            if not weight.requires_grad and len(x) * weight.numel() >= LEAST_WORK:
                return _onednn(x, in_order(weight), bias, FINE)
        elif len(x) >= FEWEST_ROWS_OF_SLICES:
            return _onednn(x, weight, bias)
    return functional.linear(x, weight, bias)


_in_order: MutableMapping[Tensor, tuple[int, Tensor]] = WeakIdKeyDictionary()


def in_order(weight: nn.Parameter) -> Tensor:
    """A copy in the order that oneDNN reads, made once: for few rows, else, making it is most of the work.

    Only of a parameter that takes no gradients: fused optimisers change the others without a new version.
    """
    version, copy = _in_order.get(weight, (-1, weight))
    if version != weight._version:
        copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS_TO_EXPECT)
        _in_order[weight] = weight._version, copy
    return copy


def narrow(parameters: Iterable[nn.Parameter]) -> None:
    """Makes every matrix bfloat16, for ``linear``; biases stay what they are: ln P of a rare word would lose
    its second decimal."""
    for parameter in parameters:
        if parameter.dim() >= 2:
            parameter.data = parameter.data.to(torch.bfloat16)


@cache
def onednn_is_exact() -> bool:
    """Whether oneDNN is there and adds up in float32: it may be told, or made, to round to less."""
    random = torch.Generator().manual_seed(1)
    x, weight = (
        functional.normalize(torch.randn(FEWEST_ROWS, 256, generator=random), dim=1) for _ in range(2)
    )
    try:
        found = _onednn(x, weight, None)
    except (AttributeError, RuntimeError):  # a torch without oneDNN
        return False
    return bool((found.double() - x.double() @ weight.double().t()).abs().max() < TOLERANCE)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None, an_octave: int = COARSE) -> Tensor:
    filled = filled_up(x, an_octave)
    return torch.ops.mkldnn._linear_pointwise(filled, weight, bias, "none", [], "")[: len(x)]

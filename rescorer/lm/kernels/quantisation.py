"""Store matrices as int8 with one scale per row; loading a model converts them back to float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rescorer.lm.files.network_files import SCALE_SUFFIX

MAX_LEVEL = 127


def quantise_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Round every matrix to int8, each row relative to its largest magnitude; vectors stay unchanged."""
    quantised: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if value.dim() < 2 or not value.is_floating_point():
            quantised[name] = value
            continue
        scale = value.float().abs().flatten(1).amax(dim=1) / MAX_LEVEL  # (rows,)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        rows = (-1, *(1,) * (value.dim() - 1))
        quantised[name] = torch.round(value.float() / scale.view(rows)).to(torch.int8)
        quantised[name + SCALE_SUFFIX] = scale
    return quantised


def dequantise_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the matrices of ``quantise_tensors`` back to float32; other tensors stay unchanged."""
    restored = {name: value for name, value in tensors.items() if not name.endswith(SCALE_SUFFIX)}
    for name, scale in tensors.items():
        if name.endswith(SCALE_SUFFIX):
            matrix = name.removesuffix(SCALE_SUFFIX)
            rows = (-1, *(1,) * (restored[matrix].dim() - 1))
            restored[matrix] = restored[matrix].float() * scale.view(rows)
    return restored

"""Owns weights stored as int8, a scale a row; scoring never sees them, a model is loaded back to float32."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE = ".int8_scale"
"""Ends the name of the (rows,) float32 scales that belong to an int8 matrix."""
LARGEST = 127


def quantised(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix as int8, each row divided by its largest magnitude / 127; vectors as they are."""
    out: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if value.dim() < 2 or not value.is_floating_point():
            out[name] = value
            continue
        scale = value.float().abs().flatten(1).amax(dim=1) / LARGEST  # (rows,)
        scale = torch.where(scale > 0, scale, torch.ones_like(scale))
        rows = (-1, *(1,) * (value.dim() - 1))
        out[name] = torch.round(value.float() / scale.view(rows)).to(torch.int8)
        out[name + SCALE] = scale
    return out


def restored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What ``quantised`` made, in float32 again; other tensors as they are."""
    out = {name: value for name, value in tensors.items() if not name.endswith(SCALE)}
    for name, scale in tensors.items():
        if name.endswith(SCALE):
            whole = name.removesuffix(SCALE)
            out[whole] = out[whole].float() * scale.view(-1, *(1,) * (out[whole].dim() - 1))
    return out

"""The array operations of ``arrays`` in torch, for n-gram look-ups on a GPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


class TorchArrays:
    """``ArrayLibrary`` of torch on one device."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)

    def asarray(self, values: np.ndarray) -> Tensor:
        if values.dtype == np.uint16:  # torch has few operations on unsigned integers
            values = values.astype(np.int32)
        return torch.tensor(values, device=self.device)

    def numpy(self, array: Tensor) -> np.ndarray:
        return array.cpu().numpy()

    def take(self, array: Tensor, rows: Tensor) -> Tensor:
        return array.index_select(0, rows)

    def true_places(self, mask: Tensor) -> Tensor:
        return mask.nonzero().squeeze(1)

    def int64(self, array: Tensor) -> Tensor:
        return array.long()

    def float32_view(self, array: Tensor) -> Tensor:
        return array.view(torch.float32)

    def full(self, size: int, value: float, like: Tensor) -> Tensor:
        return torch.full((size,), value, dtype=like.dtype, device=self.device)

"""Check the saved state of a run of word vectors, before anything goes on from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rescorer.errors import BundleError

ADVICE = "restore a copy of it, or start the run again in another folder"


def check_tensors(path: Path, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check shapes, float32 and finite values.

    Raises:
        BundleError: a tensor has another shape or type, or a value that is not finite.
    """
    for name, shape in shapes.items():
        tensor, described = tensors[name], name.replace("_", " ")
        if tuple(tensor.shape) != shape or tensor.dtype != torch.float32:
            raise BundleError(
                f"{path} is damaged: {described} of shape {tuple(tensor.shape)} and {tensor.dtype}; expected "
                f"{shape} and {torch.float32}; {ADVICE}"
            )
        if not torch.isfinite(tensor).all():
            raise BundleError(f"{path} is damaged: {described} with values that are not finite; {ADVICE}")


def check_progress(path: Path, progress: Mapping[str, Any]) -> None:
    """Check the position of a run: ``seconds`` and lists are of finite numbers, all else are counts.

    Raises:
        BundleError: a value is something else, or negative.
    """
    for name, value in progress.items():
        values = value if isinstance(value, list) else [value]
        types = (int, float) if name == "seconds" or isinstance(value, list) else (int,)
        if not all(type(item) in types and 0 <= item < math.inf for item in values):
            raise BundleError(f"{path} is damaged: {name.replace('_', ' ')} is {value!r}; {ADVICE}")

"""Read the header of a safetensors file within bounds: the types and shapes of its tensors.

A reader compares them with those that it expects before it builds anything of their sizes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple, TypeGuard

from rescorer.errors import BundleError
from rescorer.safe_input.json import parse_json

MAX_HEADER_BYTES = 1 << 20
MAX_DIMENSIONS = 4
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
INTEGER_BYTES = {"I8": 1, "I32": 4, "I64": 8}
TYPE_BYTES = FLOAT_BYTES | INTEGER_BYTES


class TensorInfo(NamedTuple):
    """Type and shape of a stored tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_tensor_header(stream: BinaryIO) -> dict[str, TensorInfo]:
    """Read the types and shapes in the header of a safetensors file; rewinds the file.

    Raises:
        BundleError: the header is damaged, or its tensors do not fill the file exactly.
    """
    size = os.fstat(stream.fileno()).st_size
    header_bytes = int.from_bytes(os.pread(stream.fileno(), 8, 0), "little")
    if size < 8 or header_bytes > min(MAX_HEADER_BYTES, size - 8):
        raise BundleError(
            f"{stream.name}: the header has {header_bytes:,} bytes; expected at most "
            f"{min(MAX_HEADER_BYTES, max(0, size - 8)):,} in a safetensors file of this size"
        )
    header = parse_json(os.pread(stream.fileno(), header_bytes, 8), f"{stream.name}: header")
    header.pop("__metadata__", None)
    tensors = {
        name: _parse_tensor(f"{stream.name}: tensor {name[:100]!a}", entry) for name, entry in header.items()
    }
    total = sum(math.prod(info.shape) * TYPE_BYTES[info.dtype] for info in tensors.values())
    if total != size - 8 - header_bytes:
        raise BundleError(
            f"{stream.name}: has {size - 8 - header_bytes:,} bytes of tensors; its header says {total:,}"
        )
    return tensors


def _parse_tensor(place: str, entry: Any) -> TensorInfo:
    if (
        not isinstance(entry, dict)
        or not _are_sizes(entry.get("shape"))
        or entry.get("dtype") not in [*TYPE_BYTES]
    ):
        raise BundleError(f"{place}: expected a shape, and a type that is one of {', '.join(TYPE_BYTES)}")
    info = TensorInfo(entry["dtype"], tuple(entry["shape"]))
    offsets = entry.get("data_offsets")
    n_bytes = math.prod(info.shape) * TYPE_BYTES[info.dtype]
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[1] - offsets[0] != n_bytes:
        raise BundleError(f"{place}: its offsets do not span the {n_bytes:,} bytes of its shape")
    return info


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return (
        isinstance(values, list)
        and len(values) <= MAX_DIMENSIONS
        and all(type(value) is int and value >= 0 for value in values)
    )


def format_shape(shape: Sequence[int]) -> str:
    """Write a shape for messages, such as ``64×200``."""
    return "×".join(map(str, shape[:8])) or "()"

"""Read the configuration and vocabulary of a network, and compare them with the header of its weights."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple, TypeGuard

from rescorer.errors import BundleError
from rescorer.lm.files.network_config import NetworkConfig
from rescorer.lm.files.parameter_shapes import parameter_shapes
from rescorer.safe_input.files import Folder
from rescorer.safe_input.json import parse_json
from rescorer.vocabulary import Vocabulary

CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE = "config.json", "model.safetensors", "vocabulary.txt"
NETWORK_FILES = (CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE)
SCALE_SUFFIX = ".int8_scale"
"""Suffix of the name of an int8 matrix's scales, (rows,) float32."""

MAX_HEADER_BYTES = 1 << 20
MAX_DIMENSIONS = 4
MAX_WORD_BYTES = 1024
"""Largest average length of the words of a vocabulary."""
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
INTEGER_BYTES = {"I8": 1, "I32": 4, "I64": 8}
TYPE_BYTES = FLOAT_BYTES | INTEGER_BYTES
TREE = "output.tree"
"""The only tensor of integers that are not quantised weights."""
TREE_TYPES = ("I32", "I64")


class TensorInfo(NamedTuple):
    """Type and shape of a stored tensor."""

    dtype: str
    shape: tuple[int, ...]


def read_config(folder: Folder) -> NetworkConfig:
    """Read the configuration of a network, and check that its weights file has the tensors that it needs.

    Raises:
        BundleError: a file cannot be read, or the two do not fit together.
    """
    place = folder.path / CONFIG_FILE
    try:
        config = NetworkConfig.from_dict(folder.read_json(CONFIG_FILE))
    except BundleError as error:
        message = str(error)
        raise BundleError(message if message.startswith(str(place)) else f"{place}: {message}") from None
    with folder.open(WEIGHTS_FILE) as stream:
        check_tensors(stream, config)
    return config


def read_vocabulary(folder: Folder, config: NetworkConfig) -> Vocabulary:
    """Read the vocabulary of a network; raises BundleError if it does not have the configured size."""
    path = folder.path / VOCABULARY_FILE
    data = folder.read_bytes(VOCABULARY_FILE, config.vocabulary_size * MAX_WORD_BYTES)
    n_words = data.count(b"\n") + (not data.endswith(b"\n"))
    if n_words != config.vocabulary_size:
        raise BundleError(
            f"{path}: the vocabulary has {n_words:,} words, the network {config.vocabulary_size:,}"
        )
    return Vocabulary.parse(data, str(path))


def check_tensors(stream: BinaryIO, config: NetworkConfig) -> None:
    """Compare the header of a weights file with the tensors that a configuration needs.

    Raises:
        BundleError: a tensor is missing, superfluous, or of another type or shape.
    """
    tensors = read_tensor_header(stream)
    expected = parameter_shapes(config)
    n_bytes = sum(math.prod(shape) for shape in expected.values())
    largest = os.fstat(stream.fileno()).st_size
    if n_bytes > largest:  # before names are compared: the smallest type has one byte
        raise BundleError(
            f"{stream.name}: the weights do not fit the network: {CONFIG_FILE} describes {n_bytes:,} "
            f"parameters, but the file has only {largest:,} bytes"
        )
    for name, shape in expected.items():
        if name not in tensors:
            raise BundleError(f"{stream.name}: the weights do not fit the network: {name} is missing")
        _check_tensor(stream, name, tensors, shape)
    unknown = {name for name in tensors if name.removesuffix(SCALE_SUFFIX) not in expected}
    if unknown:
        raise BundleError(
            f"{stream.name}: the weights do not fit the network: it has no {min(unknown)[:100]!a}"
        )


def _check_tensor(
    stream: BinaryIO, name: str, tensors: Mapping[str, TensorInfo], shape: tuple[int, ...]
) -> None:
    found = tensors[name]
    place = f"{stream.name}: the weights do not fit the network: {name}"
    if found.shape != shape:
        raise BundleError(
            f"{place} has the shape {_format(found.shape)}; {CONFIG_FILE} needs {_format(shape)}"
        )
    scale = tensors.get(name + SCALE_SUFFIX)
    float_types = tuple(FLOAT_BYTES) if scale is None else ("I8",)
    allowed = TREE_TYPES if name == TREE else float_types
    if found.dtype not in allowed:
        raise BundleError(f"{place} has the type {found.dtype}; expected {' or '.join(allowed)}")
    if scale is not None and (scale.shape != shape[:1] or scale.dtype not in FLOAT_BYTES):
        raise BundleError(
            f"{place}: its scales have the shape {_format(scale.shape)} and the type {scale.dtype}; expected "
            f"one F32 for each of {shape[0]:,} rows"
        )


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


def _format(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape[:8])) or "()"

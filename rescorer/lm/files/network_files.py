"""Read the configuration and vocabulary of a network, and compare them with the header of its weights."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import BinaryIO

from rescorer.errors import BundleError
from rescorer.lm.files.network_config import NetworkConfig
from rescorer.lm.files.parameter_shapes import Shapes, parameter_shapes
from rescorer.safe_input.files import Folder
from rescorer.safe_input.tensors import FLOAT_BYTES, TensorInfo, format_shape, read_tensor_header
from rescorer.vocabulary import Vocabulary

CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE = "config.json", "model.safetensors", "vocabulary.txt"
NETWORK_FILES = (CONFIG_FILE, WEIGHTS_FILE, VOCABULARY_FILE)
SCALE_SUFFIX = ".int8_scale"
"""Suffix of the name of an int8 matrix's scales, (rows,) float32."""

MAX_WORD_BYTES = 1024
"""Largest average length of the words of a vocabulary."""
TREES = ("output.tree", "output.places")
"""The only tensors of integers that are not quantised weights."""
TREE_TYPES = ("I32", "I64")


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
        check_tensors(stream, parameter_shapes(config))
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


def check_tensors(stream: BinaryIO, expected: Shapes) -> None:
    """Compare the header of a weights file with the shapes of the tensors that a network needs.

    Raises:
        BundleError: a tensor is missing, superfluous, or of another type or shape.
    """
    tensors = read_tensor_header(stream)
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
            f"{place} has the shape {format_shape(found.shape)}; {CONFIG_FILE} needs {format_shape(shape)}"
        )
    scale = tensors.get(name + SCALE_SUFFIX)
    float_types = tuple(FLOAT_BYTES) if scale is None else ("I8",)
    allowed = TREE_TYPES if name in TREES else float_types
    if found.dtype not in allowed:
        raise BundleError(f"{place} has the type {found.dtype}; expected {' or '.join(allowed)}")
    if scale is not None and (scale.shape != shape[:1] or scale.dtype not in FLOAT_BYTES):
        raise BundleError(
            f"{place}: its scales have the shape {format_shape(scale.shape)} and the type {scale.dtype}; "
            f"expected one F32 for each of {shape[0]:,} rows"
        )

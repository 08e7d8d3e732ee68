"""Write and read a reranker as ``config.json`` and ``parameters.safetensors``.

The configuration says which sizes the parameters have; they are compared with the header of the parameters
before anything is built. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rescorer.errors import MAX_QUOTED_CHARS, BundleError, ConfigError, quote, shorten
from rescorer.reranking.config import (
    ENCODER,
    Config,
    check_config,
    describe_reranker,
    encoding_size,
    parameter_shapes,
    transformer_sizes,
)
from rescorer.reranking.ensemble import Ensemble
from rescorer.reranking.reranker import Reranker
from rescorer.reranking.transformer import TransformerEnsemble
from rescorer.safe_input.files import Folder
from rescorer.safe_input.json import MAX_JSON_BYTES
from rescorer.safe_input.tensors import MAX_HEADER_BYTES, TensorInfo, format_shape, read_tensor_header
from rescorer.score_combination import parse_weights
from rescorer.word_encoder import WordEncoder

CONFIG_FILE, PARAMETERS_FILE = "config.json", "parameters.safetensors"
RERANKER_FILES = (CONFIG_FILE, PARAMETERS_FILE)
FLOAT_BYTES = 8

Tensors = Mapping[str, np.ndarray]


def write_reranker(reranker: Reranker, folder: Path) -> None:
    """Write the two files of a reranker into a folder, which is made if need be.

    Args:
        folder: ``reranker/NAME`` of a bundle; the name of the reranker is that of its folder.

    Raises:
        ConfigError: the configuration would be too large to be read.
    """
    text = json.dumps(describe_reranker(reranker), indent=2, ensure_ascii=False) + "\n"
    if len(text.encode()) > MAX_JSON_BYTES:
        raise ConfigError(
            f"the configuration of reranker {quote(reranker.name)} has {len(text.encode()):,} bytes; "
            f"expected at most {MAX_JSON_BYTES:,}: shorten tuned_on"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PARAMETERS_FILE).write_bytes(
        save(
            {
                name: np.ascontiguousarray(values, dtype=np.float64)
                for name, values in _collect_tensors(reranker).items()
            }
        )
    )
    (folder / CONFIG_FILE).write_text(text, encoding="utf-8")


def read_reranker(folder: Folder, name: str) -> Reranker:
    """Read a reranker.

    Args:
        folder: the folder of its two files.
        name: name of the reranker.

    Raises:
        BundleError: a file cannot be read, a value is not one of those permitted, or the two files do not fit
            together.
    """
    place = folder.path / CONFIG_FILE
    config = folder.read_json(CONFIG_FILE)
    try:
        check_config(config)
        base = parse_weights(config["base"])
    except ConfigError as error:
        raise BundleError(f"{place}: {shorten(str(error), 5 * MAX_QUOTED_CHARS)}") from None
    tensors = _read_parameters(folder, config)
    try:
        encoder = WordEncoder(config[ENCODER]["model"], tensors["projection"]) if ENCODER in config else None
        return Reranker(
            name,
            tuple(config["features"]),
            tensors["scales"],
            base,
            _build_ensemble(config, tensors),
            config["models"],
            tuple(config["tuned_on"]),
            config["held_out"],
            encoder,
        )
    except ConfigError as error:
        raise BundleError(f"{folder.path}: {shorten(str(error), 5 * MAX_QUOTED_CHARS)}") from None


def _collect_tensors(reranker: Reranker) -> Tensors:
    """The tensors of a reranker by name; their shapes are those of ``parameter_shapes``."""
    tensors = {"scales": reranker.scales}
    ensemble, encoder = reranker.ensemble, reranker.encoder
    if encoder is not None:
        tensors["projection"] = encoder.projection
    if isinstance(ensemble, TransformerEnsemble):
        return {**tensors, **ensemble.parameters}
    tensors["linear"] = ensemble.linear
    if not ensemble.is_linear:
        tensors |= {"hidden": ensemble.hidden, "bias": ensemble.bias, "output": ensemble.output}
    return tensors


def _build_ensemble(config: Config, tensors: Tensors) -> Ensemble | TransformerEnsemble:
    if (sizes := transformer_sizes(config)) is not None:
        names = sizes.parameter_shapes(config["members"])
        return TransformerEnsemble(sizes, {name: tensors[name] for name in names})
    members, inputs = tensors["linear"].shape
    none = np.zeros((members, 0))
    return Ensemble(
        tensors["linear"],
        tensors.get("hidden", np.zeros((members, inputs, 0))),
        tensors.get("bias", none),
        tensors.get("output", none),
        encoding_size(config),
    )


def _read_parameters(folder: Folder, config: Config) -> dict[str, np.ndarray]:
    """Read the tensors after comparing their types and shapes with those of the configuration."""
    shapes = parameter_shapes(config)
    path = folder.path / PARAMETERS_FILE
    with folder.open(PARAMETERS_FILE) as stream:
        found = read_tensor_header(stream)
        for name in sorted({*shapes, *found}):
            _check_tensor(f"{path}: {name[:MAX_QUOTED_CHARS]!a}", found.get(name), shapes.get(name))
        n_bytes = sum(math.prod(shape) for shape in shapes.values()) * FLOAT_BYTES
        try:
            tensors: dict[str, np.ndarray] = load(stream.read(8 + MAX_HEADER_BYTES + n_bytes))
        except (ValueError, SafetensorError):
            raise BundleError(f"{path}: cannot be read as a safetensors file") from None
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise BundleError(f"{path}: {name} has values that are not finite")
    return tensors


def _check_tensor(place: str, found: TensorInfo | None, shape: tuple[int, ...] | None) -> None:
    if shape is None:
        raise BundleError(f"{place} is not a parameter of the reranker that {CONFIG_FILE} describes")
    if found is None:
        raise BundleError(f"{place} is missing; {CONFIG_FILE} needs it, of shape {format_shape(shape)}")
    if found != TensorInfo("F64", shape):
        raise BundleError(
            f"{place} has the type {found.dtype} and the shape {format_shape(found.shape)}; {CONFIG_FILE} "
            f"needs F64 and {format_shape(shape)}"
        )

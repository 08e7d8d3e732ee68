"""Write and read a reranker as ``config.json`` and ``parameters.safetensors``.

The configuration says which sizes the parameters have; they are compared with the header of the parameters
before anything is built. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rescorer.errors import MAX_QUOTED_CHARS, BundleError, ConfigError, did_you_mean, quote, shorten
from rescorer.reranking.features import MAX_FEATURES
from rescorer.reranking.reranker import MAX_HIDDEN, MAX_MEMBERS, MAX_PARAMETERS, Ensemble, Reranker
from rescorer.safe_input.files import Folder
from rescorer.safe_input.json import MAX_JSON_BYTES
from rescorer.safe_input.tensors import MAX_HEADER_BYTES, TensorInfo, format_shape, read_tensor_header
from rescorer.score_combination import parse_weights, weights_to_dict
from rescorer.types import MAX_NUMBER

CONFIG_FILE, PARAMETERS_FILE = "config.json", "parameters.safetensors"
RERANKER_FILES = (CONFIG_FILE, PARAMETERS_FILE)
SCHEMA = 1
KEYS = ("schema", "features", "base", "members", "hidden_units", "models", "tuned_on", "held_out")
FLOAT_BYTES = 8


def write_reranker(reranker: Reranker, folder: Path) -> None:
    """Write the two files of a reranker into a folder, which is made if need be.

    Args:
        folder: ``reranker/NAME`` of a bundle; the name of the reranker is that of its folder.

    Raises:
        ConfigError: the configuration would be too large to be read.
    """
    ensemble = reranker.ensemble
    config = {
        "schema": SCHEMA,
        "features": list(reranker.features),
        "base": weights_to_dict(reranker.base),
        "members": len(ensemble.linear),
        "hidden_units": ensemble.output.shape[1],
        "models": dict(reranker.models),
        "tuned_on": list(reranker.tuned_on),
        "held_out": dict(reranker.held_out),
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    if len(text.encode()) > MAX_JSON_BYTES:
        raise ConfigError(
            f"the configuration of reranker {quote(reranker.name)} has {len(text.encode()):,} bytes; "
            f"expected at most {MAX_JSON_BYTES:,}: shorten tuned_on"
        )
    tensors = {"scales": reranker.scales, "linear": ensemble.linear}
    if ensemble.output.shape[1]:
        tensors |= {"hidden": ensemble.hidden, "bias": ensemble.bias, "output": ensemble.output}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PARAMETERS_FILE).write_bytes(
        save({name: np.ascontiguousarray(values, dtype=np.float64) for name, values in tensors.items()})
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
        _check_config(config)
        base = parse_weights(config["base"])
    except ConfigError as error:
        raise BundleError(f"{place}: {shorten(str(error), 5 * MAX_QUOTED_CHARS)}") from None
    tensors = _read_parameters(folder, config)
    members, units, inputs = config["members"], config["hidden_units"], len(config["features"])
    none = np.zeros((members, 0))
    try:
        ensemble = Ensemble(
            tensors["linear"],
            tensors.get("hidden", np.zeros((members, inputs, 0))),
            tensors.get("bias", none) if units else none,
            tensors.get("output", none) if units else none,
        )
        return Reranker(
            name,
            tuple(config["features"]),
            tensors["scales"],
            base,
            ensemble,
            config["models"],
            tuple(config["tuned_on"]),
            config["held_out"],
        )
    except ConfigError as error:
        raise BundleError(f"{folder.path}: {shorten(str(error), 5 * MAX_QUOTED_CHARS)}") from None


def parameter_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor that a checked configuration describes, by name; linear ones have two tensors."""
    members, inputs, units = config["members"], len(config["features"]), config["hidden_units"]
    shapes: dict[str, tuple[int, ...]] = {"scales": (inputs,), "linear": (members, inputs)}
    if units:
        shapes |= {"hidden": (members, inputs, units), "bias": (members, units), "output": (members, units)}
    return shapes


def _check_config(config: Mapping[str, Any]) -> None:
    """Check types and sizes; raises ConfigError. Features and weights are checked where they are built."""
    if config.get("schema") != SCHEMA:
        found = shorten(repr(config.get("schema")), MAX_QUOTED_CHARS)
        raise ConfigError(f"'schema' is {found}; expected {SCHEMA}, or a newer version of this program")
    for key in KEYS:
        if key not in config:
            raise ConfigError(f"{key!r} is missing")
    for key in config:
        if key not in KEYS:
            raise ConfigError(
                f"unknown key {quote(key)}; expected {', '.join(KEYS)}{did_you_mean(key, KEYS)}"
            )
    for key, least, most in (("members", 1, MAX_MEMBERS), ("hidden_units", 0, MAX_HIDDEN)):
        if type(config[key]) is not int or not least <= config[key] <= most:
            found = shorten(repr(config[key]), MAX_QUOTED_CHARS)
            raise ConfigError(f"{key!r} is {found}; expected an integer from {least} to {most:,}")
    for key in ("features", "tuned_on"):
        if not isinstance(config[key], list) or not all(isinstance(value, str) for value in config[key]):
            raise ConfigError(f"{key!r} is not a list of strings")
    if not 1 <= len(config["features"]) <= MAX_FEATURES:
        raise ConfigError(f"{len(config['features']):,} features; expected 1 to {MAX_FEATURES}")
    for key in ("base", "models", "held_out"):
        if not isinstance(config[key], dict):
            raise ConfigError(f"{key!r} is not an object")
    if not all(isinstance(digest, str) for digest in config["models"].values()):
        raise ConfigError("'models' is not an object of SHA-256 hashes by the name of the model")
    for value in config["held_out"].values():
        if type(value) not in (int, float) or not abs(value) <= MAX_NUMBER:
            raise ConfigError("'held_out' is not an object of finite numbers by name")
    n_parameters = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    if n_parameters > MAX_PARAMETERS:
        raise ConfigError(f"{n_parameters:,} parameters; expected at most {MAX_PARAMETERS:,}")


def _read_parameters(folder: Folder, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
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

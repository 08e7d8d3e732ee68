"""Describe a reranker as the JSON object ``config.json``, and check such an object."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rescorer.errors import MAX_QUOTED_CHARS, ConfigError, did_you_mean, quote, shorten
from rescorer.reranking.ensemble import MAX_HIDDEN, MAX_MEMBERS, MAX_PARAMETERS, Ensemble
from rescorer.reranking.features import MAX_FEATURES
from rescorer.reranking.reranker import Reranker
from rescorer.reranking.transformer import MAX_HEADS, MAX_LAYERS, MAX_UNITS, MAX_WIDTH, TransformerSizes
from rescorer.score_combination import weights_to_dict
from rescorer.types import MAX_NUMBER
from rescorer.word_encoder import MAX_ENCODING_SIZE, MAX_VECTOR_SIZE

SCHEMA = 1
KEYS = ("schema", "features", "base", "members", "hidden_units", "models", "tuned_on", "held_out")
TRANSFORMER, ENCODER = "transformer", "encoder"
"""Keys that only transformers, and only networks with an encoding of the words have."""

Config = Mapping[str, Any]
Limits = Mapping[str, tuple[int, int]]
PERCEPTRON_LIMITS: Limits = {"members": (1, MAX_MEMBERS), "hidden_units": (0, MAX_HIDDEN)}
TRANSFORMER_LIMITS: Limits = {
    "layers": (1, MAX_LAYERS),
    "width": (1, MAX_WIDTH),
    "heads": (1, MAX_HEADS),
}
ENCODER_LIMITS: Limits = {"vector_size": (1, MAX_VECTOR_SIZE), "size": (1, MAX_ENCODING_SIZE)}


def describe_reranker(reranker: Reranker) -> dict[str, Any]:
    """The configuration of a reranker, which ``check_config`` accepts."""
    ensemble = reranker.ensemble
    config: dict[str, Any] = {
        "schema": SCHEMA,
        "features": list(reranker.features),
        "base": weights_to_dict(reranker.base),
        "members": ensemble.members,
        "hidden_units": ensemble.hidden_units,
        "models": dict(reranker.models),
        "tuned_on": list(reranker.tuned_on),
        "held_out": dict(reranker.held_out),
    }
    if not isinstance(ensemble, Ensemble):
        config[TRANSFORMER] = {name: getattr(ensemble.sizes, name) for name in TRANSFORMER_LIMITS}
    if reranker.encoder is not None:
        vector_size, size = reranker.encoder.projection.shape
        config[ENCODER] = {"model": reranker.encoder.model, "vector_size": vector_size, "size": size}
    return config


def check_config(config: Config) -> None:
    """Check types and sizes; features and weights are checked where they are built.

    Raises:
        ConfigError: a key is missing or unknown, or a value is not one of those permitted.
    """
    if config.get("schema") != SCHEMA:
        found = shorten(repr(config.get("schema")), MAX_QUOTED_CHARS)
        raise ConfigError(f"'schema' is {found}; expected {SCHEMA}, or a newer version of this program")
    _check_keys(config, KEYS, (TRANSFORMER, ENCODER))
    _check_integers(config, PERCEPTRON_LIMITS)
    for key in ("features", "tuned_on"):
        if not isinstance(config[key], list) or not all(isinstance(value, str) for value in config[key]):
            raise ConfigError(f"{key!r} is not a list of strings")
    if not 1 <= len(config["features"]) <= MAX_FEATURES:
        raise ConfigError(f"{len(config['features']):,} features; expected 1 to {MAX_FEATURES}")
    for key in ("base", "models", "held_out", TRANSFORMER, ENCODER):
        if not isinstance(config.get(key, {}), dict):
            raise ConfigError(f"{key!r} is not an object")
    if not all(isinstance(digest, str) for digest in config["models"].values()):
        raise ConfigError("'models' is not an object of SHA-256 hashes by the name of the model")
    for value in config["held_out"].values():
        if type(value) not in (int, float) or not abs(value) <= MAX_NUMBER:
            raise ConfigError("'held_out' is not an object of finite numbers by name")
    _check_encoder(config)
    _check_transformer(config)
    n_parameters = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    if n_parameters > MAX_PARAMETERS:
        raise ConfigError(f"{n_parameters:,} parameters; expected at most {MAX_PARAMETERS:,}")


def transformer_sizes(config: Config) -> TransformerSizes | None:
    """Sizes of the transformers that a configuration describes; None if it describes other networks.

    Raises:
        ConfigError: a size is not one of those permitted.
    """
    if TRANSFORMER not in config:
        return None
    sizes = config[TRANSFORMER]
    return TransformerSizes(
        len(config["features"]),
        encoding_size(config),
        sizes["layers"],
        sizes["width"],
        sizes["heads"],
        config["hidden_units"],
    )


def encoding_size(config: Config) -> int:
    """Length of the encoding of the words; 0 without one."""
    size: int = config[ENCODER]["size"] if ENCODER in config else 0
    return size


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor that a checked configuration describes, by name; linear ones have two tensors."""
    members, features, units = config["members"], len(config["features"]), config["hidden_units"]
    shapes: dict[str, tuple[int, ...]] = {"scales": (features,)}
    if ENCODER in config:
        shapes["projection"] = (config[ENCODER]["vector_size"], config[ENCODER]["size"])
    if (sizes := transformer_sizes(config)) is not None:
        return shapes | sizes.parameter_shapes(members)
    inputs = features + encoding_size(config)
    shapes["linear"] = (members, inputs)
    if units:
        shapes |= {"hidden": (members, inputs, units), "bias": (members, units), "output": (members, units)}
    return shapes


def _check_encoder(config: Config) -> None:
    """Check the part of a configuration that only networks with an encoding of the words have."""
    if ENCODER in config:
        _check_keys(config[ENCODER], ("model", *ENCODER_LIMITS), (), f"{ENCODER}.")
        _check_integers(config[ENCODER], ENCODER_LIMITS, f"{ENCODER}.")
        if not isinstance(config[ENCODER]["model"], str):
            raise ConfigError(f"'{ENCODER}.model' is not a string")


def _check_transformer(config: Config) -> None:
    """Check the part of a configuration that only transformers have."""
    if TRANSFORMER in config:
        _check_keys(config[TRANSFORMER], tuple(TRANSFORMER_LIMITS), (), f"{TRANSFORMER}.")
        _check_integers(config[TRANSFORMER], TRANSFORMER_LIMITS, f"{TRANSFORMER}.")
        _check_integers(config, {"hidden_units": (1, MAX_UNITS)})


def _check_keys(
    config: Config, required: tuple[str, ...], optional: tuple[str, ...], place: str = ""
) -> None:
    for key in required:
        if key not in config:
            raise ConfigError(f"'{place}{key}' is missing")
    known = (*required, *optional)
    for key in config:
        if key not in known:
            raise ConfigError(
                f"unknown key {quote(place + key)}; expected {', '.join(known)}{did_you_mean(key, known)}"
            )


def _check_integers(config: Config, limits: Limits, place: str = "") -> None:
    for key, (least, most) in limits.items():
        if type(config[key]) is not int or not least <= config[key] <= most:
            found = shorten(repr(config[key]), MAX_QUOTED_CHARS)
            raise ConfigError(f"'{place}{key}' is {found}; expected an integer from {least} to {most:,}")

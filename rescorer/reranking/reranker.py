"""A reranker and its files.

A reranker computes features of the hypotheses of a list, and its networks turn them into one score per
hypothesis. The networks may also read an encoding of the words.

The files are ``config.json`` and ``parameters.safetensors``. The configuration gives the sizes of the
networks, from which the shapes of all parameters follow; the header of the other file is compared with these
shapes before anything is built. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rescorer.decision import count_steps
from rescorer.errors import (
    MAX_QUOTED_CHARS,
    BundleError,
    ConfigError,
    LimitExceeded,
    did_you_mean,
    quote,
    shorten,
)
from rescorer.ranking import MAX_TOTAL
from rescorer.reranking.features import (
    FEATURE_KINDS,
    MAX_FEATURES,
    ListView,
    centre_features,
    check_feature,
    count_slot_steps,
    feature_matrix,
    needed_components,
)
from rescorer.reranking.networks import (
    MAX_HIDDEN,
    MAX_MEMBERS,
    MAX_PARAMETERS,
    MAX_UNITS,
    TRANSFORMER_LIMITS,
    Ensemble,
    PerceptronSizes,
    TransformerSizes,
)
from rescorer.safe_input import (
    MAX_HEADER_BYTES,
    MAX_JSON_BYTES,
    Folder,
    TensorInfo,
    format_shape,
    read_tensor_header,
)
from rescorer.trie import ENCODING, MAX_ENCODING_SIZE, MAX_VECTOR_SIZE, WordEncoder, Words
from rescorer.types import MAX_NUMBER, Weights
from rescorer.weights import OOV, RERANKER, WORDS, parse_weights, totals, weights_to_dict


@dataclass(frozen=True, slots=True)
class Reranker:
    """A trained model that scores the hypotheses of a list.

    Raises:
        ConfigError: a feature is unknown or occurs twice, or shapes do not match.
    """

    name: str
    features: tuple[str, ...]
    """(F,) names that ``features.check_feature`` accepts."""
    scales: np.ndarray
    """(F,) float64, above 0. Each feature is divided by its scale."""
    base: Weights
    """Base weights, with the λ of the mixture. They give the totals from which some features are computed:
    posteriors, expected distances, and ``total`` itself."""
    ensemble: Ensemble
    models: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each language model on whose scores the reranker was trained, by the name of the model."""
    tuned_on: tuple[str, ...] = ()
    """Fingerprints of the lists on which the reranker was trained."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """Error rates on lists that were not used in training, as in ``Weights.held_out``."""
    encoder: WordEncoder | None = None
    """The encoder whose encodings of the words the networks read; None if they read only features."""

    def __post_init__(self) -> None:
        for feature in self.features:
            check_feature(feature)
        if len(set(self.features)) < len(self.features):
            raise ConfigError("a feature stands twice; expected each once")
        sizes = self.ensemble.sizes
        if self.scales.shape != (len(self.features),) or sizes.features != len(self.features):
            raise ConfigError(
                f"{len(self.features)} features, {self.scales.shape} scales and networks with "
                f"{sizes.features} inputs; expected as many of each"
            )
        encoding = 0 if self.encoder is None else self.encoder.projection.shape[1]
        if encoding != sizes.encoding:
            raise ConfigError(
                f"an encoding of words of length {encoding} and networks for one of length "
                f"{sizes.encoding}; expected the same"
            )
        if not (np.isfinite(self.scales).all() and (self.scales > 0).all()):
            raise ConfigError("a scale is not a finite number above 0")

    @property
    def component(self) -> str:
        """Name of the component that holds the reranker's scores."""
        return f"{RERANKER}{self.name}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Component names of the streams and language models that features, base weights and encoder need."""
        base = [name for part in (self.base.streams, self.base.lm) for name, weight in part.items() if weight]
        encoders = () if self.encoder is None else (self.encoder.model,)
        return tuple(dict.fromkeys((*base, *needed_components(self.features), *encoders)))

    @property
    def counts_unknown_words(self) -> bool:
        """Whether the scores depend on the number of unknown words, and so on a model's vocabulary."""
        return OOV in self.features or self.base.oov != 0

    def base_totals(self, components: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the totals of a list by the base weights, (H,) float64.

        They stand in for the scores where the reranker cannot run; see ``replace_by_base``.
        """
        names = {*self.base.streams, *self.base.lm, WORDS, OOV} & components.keys()
        return totals({name: components[name] for name in names}, self.base)

    def feature_values(
        self, components: Mapping[str, np.ndarray], words: Sequence[Words], context: Words
    ) -> np.ndarray:
        """Compute the features of a list, (H, F), not centred or scaled; huge scores may make them overflow.

        Args:
            components: (H,) float64 by name, for at least the names in ``needs``.
            words: canonical words of each hypothesis.
            context: canonical words that were said before the list.

        Raises:
            LimitExceeded: the list is too long for the features, or a total of the base weights is too large.
        """
        total = totals(components, self.base)
        if not (np.abs(total) <= MAX_TOTAL).all():
            raise LimitExceeded(
                f"a total under the base weights of reranker {quote(self.name)} is not within "
                f"±{MAX_TOTAL:g}; the scores or weights are too large",
                field="streams",
            )
        with np.errstate(over="ignore", invalid="ignore"):
            return feature_matrix(self.features, ListView(components, words, context, total))

    def inputs(
        self, components: Mapping[str, np.ndarray], words: Sequence[Words], context: Words
    ) -> np.ndarray:
        """Compute centred and scaled features of a list, (H, F); for arguments, see ``feature_values``."""
        values = self.feature_values(components, words, context)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled: np.ndarray = centre_features(values) / self.scales
        return scaled

    def score(
        self,
        components: Mapping[str, np.ndarray],
        words: Sequence[Words],
        context: Words,
        encoding: np.ndarray | None = None,
    ) -> np.ndarray:
        """Score each hypothesis of a list, (H,) float64. The results may overflow if components are huge.

        The other arguments and the errors are those of ``feature_values``.

        Args:
            encoding: (H, K) float64 encodings of the words by ``encoder``; None if the reranker has no
                encoder.
        """
        x = self.inputs(components, words, context)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.ensemble.score(x, self.centre_encoding(encoding))

    def centre_encoding(self, encoding: np.ndarray | None) -> np.ndarray | None:
        """Subtract the mean over the list from the encoding of each hypothesis, (H, K). None: no encoder."""
        if self.encoder is None:
            return None
        if encoding is None:
            raise ValueError(f"reranker {self.name!r} needs the encodings of its words")
        return centre_features(encoding)

    @property
    def inputs_by_name(self) -> tuple[str, ...]:
        """Names of the columns of ``contributions``: features, and ``encoding:MODEL`` with an encoder."""
        encodings = () if self.encoder is None else (f"{ENCODING}{self.encoder.model}",)
        return (*self.features, *encodings)

    def contributions(self, x: np.ndarray, encoding: np.ndarray | None = None) -> np.ndarray:
        """Compute how much each feature, and the encoding, contributes to each score.

        A contribution is the score minus the score with this input set to 0. The result is (H, F) float64, or
        (H, F + 1) with the encoding as the last column. In a linear reranker the contributions of a
        hypothesis add up to its score.

        Args:
            x: result of ``inputs``.
            encoding: result of ``centre_encoding``.
        """
        score = self.ensemble.score(x, encoding)
        parts = []
        for column in range(x.shape[1]):
            without = x.copy()
            without[:, column] = 0.0
            parts.append(score - self.ensemble.score(without, encoding))
        if encoding is not None:
            parts.append(score - self.ensemble.score(x, np.zeros_like(encoding)))
        return np.stack(parts, axis=1)


def replace_by_base(weights: Weights, rerankers: Sequence[Reranker]) -> Weights:
    """Replace some rerankers in a set of weights by their base weights.

    The base weights of each are multiplied by the weight of its score. The result can rank lists for which
    these rerankers cannot run, because the scores of a model are missing.
    """
    parts = [(weights.rerankers[reranker.name], reranker.base) for reranker in rerankers]
    names = {reranker.name for reranker in rerankers}
    return replace(
        weights,
        streams=_add_parts(weights.streams, [(weight, base.streams) for weight, base in parts]),
        lm=_add_parts(weights.lm, [(weight, base.lm) for weight, base in parts]),
        word=weights.word + sum(weight * base.word for weight, base in parts),
        oov=weights.oov + sum(weight * base.oov for weight, base in parts),
        empty=weights.empty + sum(weight * base.empty for weight, base in parts),
        rerankers={name: weight for name, weight in weights.rerankers.items() if name not in names},
    )


def _add_parts(
    own: Mapping[str, float], parts: Sequence[tuple[float, Mapping[str, float]]]
) -> dict[str, float]:
    """Add the weights of all parts to ``own``, by name. Each part is first multiplied by its factor."""
    total = dict(own)
    for factor, values in parts:
        for name, value in values.items():
            total[name] = total.get(name, 0.0) + factor * value
    return total


STEPS_PER_LIST = 10_000  # fixed time of a reranker per list
STEPS_PER_NETWORK = 1500  # fixed time of a network with hidden units per list
STEPS_PER_WORD = 25  # time that a word takes in features whose cost is H · N, such as looking up its code
STEPS_PER_ALIGNMENT = 1500  # least time of aligning one hypothesis with another
STEPS_PER_FEATURE = 2000  # fixed time of a feature per list
STEPS_PER_VALUE = 5
"""Time of one feature of one hypothesis, when the numbers from which it is computed are known."""
PRODUCTS_PER_STEP = 2  # number of multiplications that take as long as a step, except in transformers
PRODUCTS_PER_UNIT = 20  # number of multiplications that take as long as the tanh of a hidden unit
STEPS_PER_LAYER = 40_000  # fixed time of a layer of a transformer per list
STEPS_PER_WEIGHT, STEPS_PER_UNIT = 2, 8
"""Time of an attention weight, mostly for its exponential function, and time of a hidden unit of a layer."""
PRODUCTS_OF_MATRICES_PER_STEP = 8
"""Number of multiplications in the large matrices of a transformer that take as long as a step."""


def estimate_steps(reranker: Reranker, words: Sequence[Words], context: Words) -> int:
    """Estimate an upper bound of the steps of scoring a list, as if its hypotheses had no words in common.

    Args:
        words: canonical words of each hypothesis.
        context: canonical words that were said before the list.
    """
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    costs = [FEATURE_KINDS[feature.partition(":")[0]].cost for feature in reranker.features]
    n_words, n_rows = int(lengths.sum()), len(words)
    steps = STEPS_PER_LIST + len(costs) * (STEPS_PER_FEATURE + n_rows * STEPS_PER_VALUE)
    if any("N" in cost for cost in costs):
        steps += (n_words + len(context)) * STEPS_PER_WORD * (1 + costs.count("H · N"))
    if (n_temperatures := costs.count("H² · N")) > 0:
        steps += count_steps(lengths.tolist()) + n_rows * n_rows * n_temperatures // PRODUCTS_PER_STEP
    if (n_slots := costs.count("H · N²")) > 0:
        steps += count_slot_steps(lengths) + n_rows * STEPS_PER_ALIGNMENT + n_words * STEPS_PER_WORD * n_slots
    members, sizes = reranker.ensemble.members, reranker.ensemble.sizes
    units, inputs = sizes.units, sizes.features + sizes.encoding
    if isinstance(sizes, PerceptronSizes):
        products = n_rows * (inputs + members * units * (inputs + PRODUCTS_PER_UNIT))
        return steps + (members * STEPS_PER_NETWORK if units else 0) + products // PRODUCTS_PER_STEP
    width, layers = sizes.width, sizes.layers
    products_by_row, products_by_pair = width * (4 * width + 2 * units), 2 * width
    products = layers * n_rows * (products_by_row + n_rows * products_by_pair) + n_rows * width * inputs
    activations = layers * n_rows * (STEPS_PER_WEIGHT * n_rows * sizes.heads + STEPS_PER_UNIT * units)
    return steps + members * (
        layers * STEPS_PER_LAYER + activations + products // PRODUCTS_OF_MATRICES_PER_STEP
    )


SCHEMA = 1
KEYS = ("schema", "features", "base", "members", "hidden_units", "models", "tuned_on", "held_out")
TRANSFORMER, ENCODER = "transformer", "encoder"
"""Keys that only some configurations have: those of transformers, and those of networks with an encoder."""

Config = Mapping[str, Any]
Limits = Mapping[str, tuple[int, int]]
PERCEPTRON_LIMITS: Limits = {"members": (1, MAX_MEMBERS), "hidden_units": (0, MAX_HIDDEN)}
ENCODER_LIMITS: Limits = {"vector_size": (1, MAX_VECTOR_SIZE), "size": (1, MAX_ENCODING_SIZE)}


def describe_reranker(reranker: Reranker) -> dict[str, Any]:
    """Return the configuration of a reranker, in a form that ``check_config`` accepts."""
    sizes = reranker.ensemble.sizes
    config: dict[str, Any] = {
        "schema": SCHEMA,
        "features": list(reranker.features),
        "base": weights_to_dict(reranker.base),
        "members": reranker.ensemble.members,
        "hidden_units": sizes.units,
        "models": dict(reranker.models),
        "tuned_on": list(reranker.tuned_on),
        "held_out": dict(reranker.held_out),
    }
    if isinstance(sizes, TransformerSizes):
        config[TRANSFORMER] = {name: getattr(sizes, name) for name in TRANSFORMER_LIMITS}
    if reranker.encoder is not None:
        vector_size, size = reranker.encoder.projection.shape
        config[ENCODER] = {"model": reranker.encoder.model, "vector_size": vector_size, "size": size}
    return config


def check_config(config: Config) -> None:
    """Check types and sizes in a configuration. Features and weights are checked later, when they are built.

    Raises:
        ConfigError: a key is missing or unknown, or a value is not allowed.
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
    if ENCODER in config:
        _check_keys(config[ENCODER], ("model", *ENCODER_LIMITS), (), f"{ENCODER}.")
        _check_integers(config[ENCODER], ENCODER_LIMITS, f"{ENCODER}.")
        if not isinstance(config[ENCODER]["model"], str):
            raise ConfigError(f"'{ENCODER}.model' is not a string")
    if TRANSFORMER in config:
        _check_keys(config[TRANSFORMER], tuple(TRANSFORMER_LIMITS), (), f"{TRANSFORMER}.")
        _check_integers(config[TRANSFORMER], TRANSFORMER_LIMITS, f"{TRANSFORMER}.")
        _check_integers(config, {"hidden_units": (1, MAX_UNITS)})
    n_parameters = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    if n_parameters > MAX_PARAMETERS:
        raise ConfigError(f"{n_parameters:,} parameters; expected at most {MAX_PARAMETERS:,}")


def network_sizes(config: Config) -> PerceptronSizes | TransformerSizes:
    """Sizes of the networks that a configuration describes.

    Raises:
        ConfigError: a size is not within its limits.
    """
    encoding = config[ENCODER]["size"] if ENCODER in config else 0
    features, units = len(config["features"]), config["hidden_units"]
    if TRANSFORMER not in config:
        return PerceptronSizes(features, encoding, units)
    return TransformerSizes(
        features, encoding, units=units, **{name: config[TRANSFORMER][name] for name in TRANSFORMER_LIMITS}
    )


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor that a checked configuration describes, by name."""
    shapes: dict[str, tuple[int, ...]] = {"scales": (len(config["features"]),)}
    if ENCODER in config:
        shapes["projection"] = (config[ENCODER]["vector_size"], config[ENCODER]["size"])
    return shapes | network_sizes(config).parameter_shapes(config["members"])


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


RERANKER_CONFIG_FILE, PARAMETERS_FILE = "config.json", "parameters.safetensors"
RERANKER_FILES = (RERANKER_CONFIG_FILE, PARAMETERS_FILE)
FLOAT_BYTES = 8


def write_reranker(reranker: Reranker, folder: Path) -> None:
    """Write the two files of a reranker into ``folder``, which is created if necessary.

    The folder is ``reranker/NAME`` of a bundle.

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
    tensors = {"scales": reranker.scales, **reranker.ensemble.parameters}
    if reranker.encoder is not None:
        tensors["projection"] = reranker.encoder.projection
    contiguous = {name: np.ascontiguousarray(values, dtype=np.float64) for name, values in tensors.items()}
    (folder / PARAMETERS_FILE).write_bytes(save(contiguous))
    (folder / RERANKER_CONFIG_FILE).write_text(text, encoding="utf-8")


def read_reranker(folder: Folder, name: str) -> Reranker:
    """Read a reranker from the folder of its two files.

    Raises:
        BundleError: a file cannot be read, a value is not allowed, or the two files do not fit together.
    """
    place = folder.path / RERANKER_CONFIG_FILE
    config = folder.read_json(RERANKER_CONFIG_FILE)
    try:
        check_config(config)
        base = parse_weights(config["base"])
    except ConfigError as error:
        raise BundleError(f"{place}: {shorten(str(error), 5 * MAX_QUOTED_CHARS)}") from None
    tensors = _read_parameters(folder, config)
    try:
        encoder = WordEncoder(config[ENCODER]["model"], tensors["projection"]) if ENCODER in config else None
        sizes = network_sizes(config)
        parameters = {name: tensors[name] for name in sizes.parameter_shapes(config["members"])}
        return Reranker(
            name,
            tuple(config["features"]),
            tensors["scales"],
            base,
            Ensemble(sizes, parameters),
            config["models"],
            tuple(config["tuned_on"]),
            config["held_out"],
            encoder,
        )
    except ConfigError as error:
        raise BundleError(f"{folder.path}: {shorten(str(error), 5 * MAX_QUOTED_CHARS)}") from None


def _read_parameters(folder: Folder, config: Config) -> dict[str, np.ndarray]:
    """Read the tensors, after comparing their types and shapes with the configuration."""
    shapes = parameter_shapes(config)
    path = folder.path / PARAMETERS_FILE
    with folder.open(PARAMETERS_FILE) as stream:
        found = read_tensor_header(stream)
        for name in sorted({*shapes, *found}):
            place = f"{path}: {name[:MAX_QUOTED_CHARS]!a}"
            if name not in shapes:
                raise BundleError(
                    f"{place} is not a parameter of the reranker that {RERANKER_CONFIG_FILE} describes"
                )
            if name not in found:
                raise BundleError(
                    f"{place} is missing; {RERANKER_CONFIG_FILE} needs it, of shape "
                    f"{format_shape(shapes[name])}"
                )
            if found[name] != TensorInfo("F64", shapes[name]):
                raise BundleError(
                    f"{place} has the type {found[name].dtype} and the shape "
                    f"{format_shape(found[name].shape)}; {RERANKER_CONFIG_FILE} needs F64 and "
                    f"{format_shape(shapes[name])}"
                )
        n_bytes = sum(math.prod(shape) for shape in shapes.values()) * FLOAT_BYTES
        try:
            tensors: dict[str, np.ndarray] = load(stream.read(8 + MAX_HEADER_BYTES + n_bytes))
        except (ValueError, SafetensorError):
            raise BundleError(f"{path}: cannot be read as a safetensors file") from None
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise BundleError(f"{path}: {name} has values that are not finite")
    return tensors

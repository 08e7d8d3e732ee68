"""Ensembles of linear networks, multilayer perceptrons and small transformers, for rerankers, in NumPy.

The inputs of hypothesis i are its features, centred in the list and divided by their scales, and after them
the encoding of its words, if there is one, centred too: the mean of the context vectors from which a language
model predicts its words and its end of sentence, times a projection. Because the mean is linear, the vectors
are projected where the networks run, and K numbers per hypothesis leave that process.

The score of a linear network or perceptron is u·x_i + v·tanh(W·x_i + b). In a transformer, every hypothesis
attends to all hypotheses of its list, and their positions play no part. For the features x of each hypothesis
and the encoding e of its words,

    z = [x, e] W_input + b_input
    z = z + attention(normalise(z))                                                       in each layer
    z = z + gelu(normalise(z) W_hidden + b_hidden) W_hidden_output + b_hidden_output
    score = u · [x, e] + v · normalise(z)

The layers have pre-layer normalisation (Xiong et al. 2020, arXiv 2002.04745) without gains and biases, which
would only repeat the matrices that follow. The score of an ensemble is the mean over its members.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError, LimitExceeded
from rescorer.reranking.features import MAX_FEATURES
from rescorer.trie import MAX_ENCODING_SIZE

MAX_MEMBERS, MAX_HIDDEN = 64, 1024
MAX_PARAMETERS = 1 << 20  # largest number of parameters of all members: 8 MB


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The parameters of M networks with U hidden units each; U is 0 for linear ones.

    The I inputs are F features and an encoding of length K.

    Raises:
        ConfigError: shapes do not match, or a parameter is not finite.
    """

    linear: np.ndarray  # (M, I) float64, u
    hidden: np.ndarray  # (M, I, U) float64, W
    bias: np.ndarray  # (M, U) float64, b
    output: np.ndarray  # (M, U) float64, v
    encoding: int = 0  # K, length of the encoding of the words; 0 without one

    def __post_init__(self) -> None:
        members, inputs = self.linear.shape
        units = self.output.shape[-1]
        expected = {"hidden": (members, inputs, units), "bias": (members, units), "output": (members, units)}
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ConfigError(f"{name} has the shape {getattr(self, name).shape}; expected {shape}")
        features = inputs - self.encoding
        if not (0 < members <= MAX_MEMBERS and 0 < features <= MAX_FEATURES and units <= MAX_HIDDEN):
            raise ConfigError(
                f"{members} networks with {features} features and {units} hidden units; expected 1 to "
                f"{MAX_MEMBERS}, 1 to {MAX_FEATURES} and at most {MAX_HIDDEN}"
            )
        if not 0 <= self.encoding <= MAX_ENCODING_SIZE:
            raise ConfigError(f"an encoding of length {self.encoding}; expected at most {MAX_ENCODING_SIZE}")
        n_parameters = sum(getattr(self, name).size for name in ("linear", *expected))
        if n_parameters > MAX_PARAMETERS:
            raise ConfigError(f"{n_parameters:,} parameters; expected at most {MAX_PARAMETERS:,}")
        for name in ("linear", *expected):
            if not np.isfinite(getattr(self, name)).all():
                raise ConfigError(f"{name} has a parameter that is not finite")

    @property
    def members(self) -> int:
        """M."""
        return len(self.linear)

    @property
    def features(self) -> int:
        """F."""
        return self.linear.shape[1] - self.encoding

    @property
    def hidden_units(self) -> int:
        """U, 0 for linear networks."""
        return self.output.shape[1]

    @property
    def is_linear(self) -> bool:
        return not self.hidden_units

    def score(self, x: np.ndarray, encoding: np.ndarray | None = None) -> np.ndarray:
        """Score hypotheses, (H,) float64, by their features, (H, F) float64, centred and scaled, and the
        encodings of their words, (H, K) float64, centred; None if K is 0.
        """
        inputs = x if encoding is None else np.concatenate((x, encoding), axis=1)
        score: np.ndarray = inputs @ self.linear.mean(axis=0)
        if self.output.shape[1]:
            for hidden, bias, output in zip(self.hidden, self.bias, self.output, strict=True):
                score += np.tanh(inputs @ hidden + bias) @ output / len(self.output)
        return score


TRANSFORMER_LIMITS = {"layers": (1, 4), "width": (1, 128), "heads": (1, 8)}
MAX_UNITS = 512
MAX_ATTENTION_WEIGHTS = 1 << 28
"""Largest number of attention weights of all members, layers and heads: some seconds of work."""
MAX_CELLS = 1 << 20  # largest number of attention weights in memory at a time: 8 MB
VARIANCE_FLOOR = 1e-5  # added to the variance in layer normalisation

Parameters = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """Sizes of every member of an ensemble.

    Raises:
        ConfigError: a size is not within its limits, or the heads do not divide the width.
    """

    features: int  # F, number of features of a hypothesis
    encoding: int  # K, length of the encoding of its words; 0 without one
    layers: int  # L
    width: int  # W, length of the vector z of a hypothesis
    heads: int  # number of parts of that vector in which hypotheses attend to each other independently
    units: int  # U, hidden units of the feed-forward part of a layer

    def __post_init__(self) -> None:
        limits = {"features": (1, MAX_FEATURES), "encoding": (0, MAX_ENCODING_SIZE), **TRANSFORMER_LIMITS}
        for name, (least, most) in (limits | {"units": (1, MAX_UNITS)}).items():
            if not least <= getattr(self, name) <= most:
                raise ConfigError(
                    f"a transformer with {getattr(self, name):,} {name}; expected {least} to {most}"
                )
        if self.width % self.heads:
            raise ConfigError(
                f"a transformer of width {self.width} with {self.heads} heads; expected heads that divide it"
            )

    def parameter_shapes(self, members: int) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter of an ensemble of M members, by name."""
        inputs, width, units = self.features + self.encoding, self.width, self.units
        layers = (members, self.layers)
        return {
            "linear": (members, inputs),  # u
            "input": (members, inputs, width),
            "input_bias": (members, width),
            "attention": (*layers, width, 3 * width),  # queries, keys and values
            "attention_bias": (*layers, 3 * width),
            "attention_output": (*layers, width, width),
            "attention_output_bias": (*layers, width),
            "hidden": (*layers, width, units),
            "hidden_bias": (*layers, units),
            "hidden_output": (*layers, units, width),
            "hidden_output_bias": (*layers, width),
            "output": (members, width),  # v
        }


@dataclass(frozen=True, slots=True)
class TransformerEnsemble:
    """The parameters of M transformers.

    Raises:
        ConfigError: a parameter is missing, or has another shape or a value that is not finite.
    """

    sizes: TransformerSizes
    parameters: Parameters  # float64, by name; the shapes are those of ``TransformerSizes.parameter_shapes``

    def __post_init__(self) -> None:
        if "linear" not in self.parameters or not 0 < self.members <= MAX_MEMBERS:
            raise ConfigError(f"'linear' is missing, or not that of 1 to {MAX_MEMBERS} networks")
        shapes = self.sizes.parameter_shapes(self.members)
        if self.parameters.keys() != shapes.keys():
            raise ConfigError(f"the parameters {', '.join(self.parameters)}; expected {', '.join(shapes)}")
        for name, shape in shapes.items():
            if self.parameters[name].shape != shape:
                raise ConfigError(f"{name} has the shape {self.parameters[name].shape}; expected {shape}")
            if not np.isfinite(self.parameters[name]).all():
                raise ConfigError(f"{name} has a parameter that is not finite")
        if (n_parameters := sum(map(math.prod, shapes.values()))) > MAX_PARAMETERS:
            raise ConfigError(f"{n_parameters:,} parameters; expected at most {MAX_PARAMETERS:,}")

    @property
    def members(self) -> int:
        """M."""
        return len(self.parameters["linear"])

    @property
    def features(self) -> int:
        """F."""
        return self.sizes.features

    @property
    def encoding(self) -> int:
        """K, length of the encoding of the words; 0 without one."""
        return self.sizes.encoding

    @property
    def hidden_units(self) -> int:
        """U, those of the feed-forward part of a layer."""
        return self.sizes.units

    @property
    def is_linear(self) -> bool:
        return False

    def score(self, x: np.ndarray, encoding: np.ndarray | None = None) -> np.ndarray:
        """Score the hypotheses of one list; see ``Ensemble.score``.

        Raises:
            LimitExceeded: the list is too long, because the work grows with H².
        """
        n_weights = len(x) ** 2 * self.members * self.sizes.layers * self.sizes.heads
        if n_weights > MAX_ATTENTION_WEIGHTS:
            raise LimitExceeded(
                f"a transformer over {len(x):,} hypotheses has {n_weights:,} attention weights; expected at "
                f"most {MAX_ATTENTION_WEIGHTS:,}; send fewer hypotheses",
                field="hypotheses",
            )
        inputs = x if encoding is None else np.concatenate((x, encoding), axis=1)
        score: np.ndarray = inputs @ self.parameters["linear"].mean(axis=0)
        for member in range(self.members):
            parameters = {name: values[member] for name, values in self.parameters.items()}
            z = encode_list(inputs, parameters, self.sizes.heads)
            score += z @ parameters["output"] / self.members
        return score


def encode_list(inputs: np.ndarray, parameters: Parameters, heads: int) -> np.ndarray:
    """Compute what a member's output is linear in: the normalised vectors after its last layer, (H, W). The
    inputs, (H, F + K), are features and encodings; the parameters have no axis of members.
    """
    z = inputs @ parameters["input"] + parameters["input_bias"]
    for layer in range(len(parameters["attention"])):
        one = {name: values[layer] for name, values in parameters.items() if name in LAYER_PARAMETERS}
        mixed = attend(normalise(z) @ one["attention"] + one["attention_bias"], heads)
        z = z + mixed @ one["attention_output"] + one["attention_output_bias"]
        hidden = gelu(normalise(z) @ one["hidden"] + one["hidden_bias"])
        z = z + hidden @ one["hidden_output"] + one["hidden_output_bias"]
    return normalise(z)


LAYER_PARAMETERS = frozenset(
    f"{name}{suffix}"
    for name in ("attention", "attention_output", "hidden", "hidden_output")
    for suffix in ("", "_bias")
)


def attend(projected: np.ndarray, heads: int) -> np.ndarray:
    """Scaled dot-product attention of all hypotheses to all (Vaswani et al. 2017), (H, W), from queries, keys
    and values, (H, 3·W), each of which has ``heads`` parts.
    """
    n, width = len(projected), projected.shape[1] // 3
    parts = projected.reshape(n, 3, heads, width // heads).transpose(1, 2, 0, 3)  # (3, heads, H, W / heads)
    queries, keys, values = parts[0] / math.sqrt(width // heads), parts[1].transpose(0, 2, 1), parts[2]
    mixed = np.empty((heads, n, width // heads))
    rows = max(1, MAX_CELLS // (heads * n))
    for begin in range(0, n, rows):
        logits = queries[:, begin : begin + rows] @ keys
        logits -= logits.max(axis=2, keepdims=True)
        weights = np.exp(logits, out=logits)
        sums = weights.sum(axis=2, keepdims=True)
        mixed[:, begin : begin + rows] = weights @ values / sums
    joined: np.ndarray = mixed.transpose(1, 0, 2).reshape(n, width)
    return joined


def normalise(z: np.ndarray) -> np.ndarray:
    """Give each row mean 0 and variance 1."""
    centred = z - z.mean(axis=1, keepdims=True)
    variance = (centred * centred).mean(axis=1, keepdims=True)
    normalised: np.ndarray = centred / np.sqrt(variance + VARIANCE_FLOOR)
    return normalised


def gelu(x: np.ndarray) -> np.ndarray:
    """Gaussian error linear unit by its tanh approximation (Hendrycks and Gimpel 2016, arXiv 1606.08415)."""
    activated: np.ndarray = 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    return activated

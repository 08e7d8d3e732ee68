"""The networks of rerankers, in NumPy: linear ones, multilayer perceptrons and small transformers.

A network scores the hypotheses of one list. Its input for hypothesis i is the vector x_i of the hypothesis's
features, which are centred in the list and divided by their scales. Some networks also read an encoding of
the words, e_i, which is centred in the list too; see ``rescorer.trie.WordEncoder``. [x, e] is the vector that
joins x_i and e_i.

The score of a linear network is u·[x, e]. A multilayer perceptron adds v·tanh([x, e] W + b). In a
transformer, every hypothesis attends to all hypotheses of its list, whatever their order:

    z = [x, e] W_input + b_input
    z = z + attention(normalise(z))                                                       in each layer
    z = z + gelu(normalise(z) W_hidden + b_hidden) W_hidden_output + b_hidden_output
    score = u · [x, e] + v · normalise(z)

The layers have pre-layer normalisation (Xiong et al. 2020, arXiv 2002.04745) without gains and biases, which
would only repeat the matrices that follow. An ensemble consists of several networks of the same sizes, its
members. The score of the ensemble is the mean of their scores.
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
TRANSFORMER_LIMITS = {"layers": (1, 4), "width": (1, 128), "heads": (1, 8)}
MAX_UNITS = 512
MAX_ATTENTION_WEIGHTS = 1 << 28
"""Largest number of attention weights of all members, layers and heads: some seconds of work."""
MAX_CELLS = 1 << 20  # largest number of attention weights in memory at a time: 8 MB
VARIANCE_FLOOR = 1e-5  # added to the variance in layer normalisation

Parameters = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class PerceptronSizes:
    """Sizes of linear networks and multilayer perceptrons.

    Raises:
        ConfigError: a size is not within its limits.
    """

    features: int  # F, number of features of a hypothesis
    encoding: int  # K, length of the encoding of its words; 0 without one
    units: int  # U, number of hidden units; 0 for linear networks

    def __post_init__(self) -> None:
        _check_sizes(self, {"units": (0, MAX_HIDDEN)})

    def parameter_shapes(self, members: int) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter of an ensemble of M members, by name."""
        inputs, units = self.features + self.encoding, self.units
        shapes: dict[str, tuple[int, ...]] = {"linear": (members, inputs)}  # u
        if units:
            shapes |= {"hidden": (members, inputs, units), "bias": (members, units)}  # W, b
            shapes["output"] = (members, units)  # v
        return shapes

    def hidden_vectors(self, inputs: np.ndarray, parameters: Parameters) -> np.ndarray:
        """The vectors that v is multiplied by, (H, U); see ``TransformerSizes.hidden_vectors``."""
        activated: np.ndarray = np.tanh(inputs @ parameters["hidden"] + parameters["bias"])
        return activated


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """Sizes of transformers.

    Raises:
        ConfigError: a size is not within its limits, or the heads do not divide the width.
    """

    features: int  # F, number of features of a hypothesis
    encoding: int  # K, length of the encoding of its words; 0 without one
    layers: int  # L
    width: int  # W, length of the vector z of a hypothesis
    heads: int  # number of attention heads, which divide that vector evenly
    units: int  # U, hidden units of the feed-forward part of a layer

    def __post_init__(self) -> None:
        _check_sizes(self, TRANSFORMER_LIMITS | {"units": (1, MAX_UNITS)})
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

    def hidden_vectors(self, inputs: np.ndarray, parameters: Parameters) -> np.ndarray:
        """The vectors that v is multiplied by: the normalised z after the last layer, (H, W).

        Args:
            inputs: (H, F + K) features and encodings of the hypotheses of a list.
            parameters: parameters of one member, without the axis of members.
        """
        z = inputs @ parameters["input"] + parameters["input_bias"]
        for layer in range(self.layers):
            one = {name: values[layer] for name, values in parameters.items() if name in LAYER_PARAMETERS}
            mixed = attend(normalise(z) @ one["attention"] + one["attention_bias"], self.heads)
            z = z + mixed @ one["attention_output"] + one["attention_output_bias"]
            hidden = gelu(normalise(z) @ one["hidden"] + one["hidden_bias"])
            z = z + hidden @ one["hidden_output"] + one["hidden_output_bias"]
        return normalise(z)

    def check_length(self, n_hypotheses: int, members: int) -> None:
        """Raise LimitExceeded if a list is too long. The work of a member grows with its length squared."""
        n_weights = n_hypotheses**2 * members * self.layers * self.heads
        if n_weights > MAX_ATTENTION_WEIGHTS:
            raise LimitExceeded(
                f"a transformer over {n_hypotheses:,} hypotheses has {n_weights:,} attention weights; "
                f"expected at most {MAX_ATTENTION_WEIGHTS:,}; send fewer hypotheses",
                field="hypotheses",
            )


def _check_sizes(sizes: PerceptronSizes | TransformerSizes, limits: Mapping[str, tuple[int, int]]) -> None:
    network = "transformer" if isinstance(sizes, TransformerSizes) else "network"
    limits = {"features": (1, MAX_FEATURES), "encoding": (0, MAX_ENCODING_SIZE), **limits}
    for name, (least, most) in limits.items():
        if not least <= getattr(sizes, name) <= most:
            raise ConfigError(f"a {network} with {getattr(sizes, name):,} {name}; expected {least} to {most}")


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The parameters of M networks of the same sizes.

    Raises:
        ConfigError: a parameter is missing, or has another shape or a value that is not finite.
    """

    sizes: PerceptronSizes | TransformerSizes
    parameters: Parameters  # float64, by name; their shapes are ``sizes.parameter_shapes(M)``

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
        """M, the number of networks."""
        return len(self.parameters["linear"])

    @property
    def is_linear(self) -> bool:
        """Whether the networks are linear ones."""
        return not self.sizes.units

    def score(self, x: np.ndarray, encoding: np.ndarray | None = None) -> np.ndarray:
        """Score the hypotheses of one list, (H,) float64.

        Args:
            x: (H, F) float64 features, centred and scaled.
            encoding: (H, K) float64 encodings of the words, centred; None if K is 0.

        Raises:
            LimitExceeded: the list is too long for a transformer.
        """
        if isinstance(self.sizes, TransformerSizes):
            self.sizes.check_length(len(x), self.members)
        inputs = x if encoding is None else np.concatenate((x, encoding), axis=1)
        score: np.ndarray = inputs @ self.parameters["linear"].mean(axis=0)
        for member in range(0 if self.is_linear else self.members):
            parameters = {name: values[member] for name, values in self.parameters.items()}
            vectors = self.sizes.hidden_vectors(inputs, parameters)
            score += vectors @ parameters["output"] / self.members
        return score


LAYER_PARAMETERS = frozenset(
    f"{name}{suffix}"
    for name in ("attention", "attention_output", "hidden", "hidden_output")
    for suffix in ("", "_bias")
)


def attend(projected: np.ndarray, heads: int) -> np.ndarray:
    """Scaled dot-product attention of all hypotheses to all (Vaswani et al. 2017), (H, W).

    Args:
        projected: (H, 3·W) queries, keys and values, one after the other.
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

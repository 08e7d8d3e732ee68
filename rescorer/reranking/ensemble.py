"""An ensemble of linear networks or multilayer perceptrons, which score hypotheses by their features.

The score of hypothesis i is the mean over the members of u·x_i + v·tanh(W·x_i + b), where x_i are its
features, centred in the list and divided by their scales, and after them the encoding of its words, if there
is one, centred too. The linear part has one weight per input; the second part, with U hidden units, is
missing in linear networks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError
from rescorer.reranking.features import MAX_FEATURES
from rescorer.word_encoder import MAX_ENCODING_SIZE

MAX_MEMBERS, MAX_HIDDEN = 64, 1024
MAX_PARAMETERS = 1 << 20
"""Largest number of parameters of all members: 8 MB."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The parameters of M networks with U hidden units each; U is 0 for linear ones.

    The I inputs are F features and an encoding of length K.

    Raises:
        ConfigError: shapes do not match, or a parameter is not finite.
    """

    linear: np.ndarray
    """(M, I) float64, u."""
    hidden: np.ndarray
    """(M, I, U) float64, W."""
    bias: np.ndarray
    """(M, U) float64, b."""
    output: np.ndarray
    """(M, U) float64, v."""
    encoding: int = 0
    """K, length of the encoding of the words; 0 without one."""

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
        """Score hypotheses by their features and the encodings of their words.

        Args:
            x: (H, F) float64, centred and scaled.
            encoding: (H, K) float64, centred; None if K is 0.

        Returns:
            (H,) float64.
        """
        inputs = x if encoding is None else np.concatenate((x, encoding), axis=1)
        score: np.ndarray = inputs @ self.linear.mean(axis=0)
        if self.output.shape[1]:
            for hidden, bias, output in zip(self.hidden, self.bias, self.output, strict=True):
                score += np.tanh(inputs @ hidden + bias) @ output / len(self.output)
        return score


def linear_ensemble(weights: np.ndarray) -> Ensemble:
    """An ensemble of linear networks with weights of (M, F), without an encoding."""
    members, inputs = weights.shape
    none = np.zeros((members, 0))
    return Ensemble(weights, np.zeros((members, inputs, 0)), none, none)

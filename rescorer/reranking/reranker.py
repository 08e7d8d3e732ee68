"""A reranker: its features, the weights of their total, and the networks that score them.

The score of hypothesis i is the mean over the members of an ensemble of u·x_i + v·tanh(W·x_i + b), where x_i
are its features, centred in the list and divided by their scales. The linear part has one weight per
feature; the second part, with K hidden units, is missing in linear rerankers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rescorer.errors import ConfigError, LimitExceeded, quote
from rescorer.ranking import MAX_TOTAL
from rescorer.reranking.features import (
    MAX_FEATURES,
    centre_features,
    check_feature,
    feature_matrix,
    needed_components,
)
from rescorer.reranking.list_view import ListView
from rescorer.score_combination import OOV, RERANKER, totals
from rescorer.trie import Words
from rescorer.types import Weights

MAX_MEMBERS, MAX_HIDDEN = 64, 1024
MAX_PARAMETERS = 1 << 20
"""Largest number of parameters of all members: 8 MB."""


@dataclass(frozen=True, slots=True)
class Ensemble:
    """The parameters of M networks with F inputs and K hidden units each; K is 0 for linear ones.

    Raises:
        ConfigError: shapes do not match, or a parameter is not finite.
    """

    linear: np.ndarray
    """(M, F) float64, u."""
    hidden: np.ndarray
    """(M, F, K) float64, W."""
    bias: np.ndarray
    """(M, K) float64, b."""
    output: np.ndarray
    """(M, K) float64, v."""

    def __post_init__(self) -> None:
        members, inputs = self.linear.shape
        units = self.output.shape[-1]
        expected = {"hidden": (members, inputs, units), "bias": (members, units), "output": (members, units)}
        for name, shape in expected.items():
            if getattr(self, name).shape != shape:
                raise ConfigError(f"{name} has the shape {getattr(self, name).shape}; expected {shape}")
        if not (0 < members <= MAX_MEMBERS and 0 < inputs <= MAX_FEATURES and units <= MAX_HIDDEN):
            raise ConfigError(
                f"{members} networks with {inputs} features and {units} hidden units; expected 1 to "
                f"{MAX_MEMBERS}, 1 to {MAX_FEATURES} and at most {MAX_HIDDEN}"
            )
        n_parameters = sum(getattr(self, name).size for name in ("linear", *expected))
        if n_parameters > MAX_PARAMETERS:
            raise ConfigError(f"{n_parameters:,} parameters; expected at most {MAX_PARAMETERS:,}")
        for name in ("linear", *expected):
            if not np.isfinite(getattr(self, name)).all():
                raise ConfigError(f"{name} has a parameter that is not finite")

    def score(self, x: np.ndarray) -> np.ndarray:
        """Score hypotheses by their features.

        Args:
            x: (H, F) float64, centred and scaled.

        Returns:
            (H,) float64.
        """
        score: np.ndarray = x @ self.linear.mean(axis=0)
        if self.output.shape[1]:
            for hidden, bias, output in zip(self.hidden, self.bias, self.output, strict=True):
                score += np.tanh(x @ hidden + bias) @ output / len(self.output)
        return score


def linear_ensemble(weights: np.ndarray) -> Ensemble:
    """An ensemble of linear networks with weights of (M, F)."""
    members, inputs = weights.shape
    none = np.zeros((members, 0))
    return Ensemble(weights, np.zeros((members, inputs, 0)), none, none)


@dataclass(frozen=True, slots=True)
class Reranker:
    """A trained model of the hypotheses of a list.

    Raises:
        ConfigError: a feature is unknown or stands twice, or shapes do not match.
    """

    name: str
    features: tuple[str, ...]
    """(F,) names as in ``features.check_feature``."""
    scales: np.ndarray
    """(F,) float64, above 0: each feature is divided by its scale."""
    base: Weights
    """Weights of the totals that features need: posteriors, distances and ``total`` itself; with the λ of the
    mixture."""
    ensemble: Ensemble
    models: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each language model, by its name, whose scores the reranker was trained on."""
    tuned_on: tuple[str, ...] = ()
    """Fingerprints of the lists that it was trained on."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """Error rates on lists that did not train it, as in ``Weights.held_out``."""

    def __post_init__(self) -> None:
        for feature in self.features:
            check_feature(feature)
        if len(set(self.features)) < len(self.features):
            raise ConfigError("a feature stands twice; expected each once")
        if self.scales.shape != (len(self.features),) or self.ensemble.linear.shape[1] != len(self.features):
            raise ConfigError(
                f"{len(self.features)} features, {self.scales.shape} scales and networks with "
                f"{self.ensemble.linear.shape[1]} inputs; expected as many of each"
            )
        if not (np.isfinite(self.scales).all() and (self.scales > 0).all()):
            raise ConfigError("a scale is not a finite number above 0")

    @property
    def component(self) -> str:
        """Name of the component that its score is."""
        return f"{RERANKER}{self.name}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Streams and language models that its features and base weights need, by component name."""
        base = [name for part in (self.base.streams, self.base.lm) for name, weight in part.items() if weight]
        return tuple(dict.fromkeys((*base, *needed_components(self.features))))

    @property
    def counts_unknown_words(self) -> bool:
        """Whether its scores depend on the vocabulary that says which words are unknown."""
        return OOV in self.features or self.base.oov != 0

    def feature_values(
        self, components: Mapping[str, np.ndarray], words: Sequence[Words], context: Words
    ) -> np.ndarray:
        """Compute the features of a list in their units, (H, F) float64, not finite if scores are too large.

        Args:
            components: (H,) float64 by name; those of ``needs`` must be among them.
            words: canonical words of each hypothesis.
            context: canonical words of what was said before.

        Raises:
            LimitExceeded: the list is too long for the features, or its scores are too large.
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
        """Compute the centred and scaled features of a list, (H, F); arguments as for ``feature_values``."""
        values = self.feature_values(components, words, context)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled: np.ndarray = centre_features(values) / self.scales
        return scaled

    def score(
        self, components: Mapping[str, np.ndarray], words: Sequence[Words], context: Words
    ) -> np.ndarray:
        """Score each hypothesis of a list, (H,) float64, not finite if its scores are too large.

        Arguments and errors are those of ``feature_values``.
        """
        x = self.inputs(components, words, context)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.ensemble.score(x)

    def contributions(self, x: np.ndarray) -> np.ndarray:
        """What each feature adds to each score: the score minus that without the feature, (H, F).

        In a linear reranker they add up to the score.

        Args:
            x: result of ``inputs``.
        """
        score = self.ensemble.score(x)
        parts = np.empty_like(x)
        for column in range(x.shape[1]):
            without = x.copy()
            without[:, column] = 0.0
            parts[:, column] = score - self.ensemble.score(without)
        return parts


def replace_by_base(weights: Weights, rerankers: Sequence[Reranker]) -> Weights:
    """Put the base weights of rerankers, times the weights of their scores, in the place of the scores.

    These weights rank where rerankers cannot run because the scores of a model are missing.

    Args:
        weights: weights that may name other rerankers, too.
        rerankers: those to replace.
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
    """Sum of weights by name, each part times its factor."""
    total = dict(own)
    for factor, values in parts:
        for name, value in values.items():
            total[name] = total.get(name, 0.0) + factor * value
    return total

"""A reranker: its features, the weights of their total, and the networks that score them.

The networks are linear ones or multilayer perceptrons, which score each hypothesis by its own features, or
transformers over all hypotheses of a list. All of them may also have an encoding of the words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rescorer.decision.distances import count_steps
from rescorer.errors import ConfigError, LimitExceeded, quote
from rescorer.ranking import MAX_TOTAL
from rescorer.reranking.ensemble import Ensemble
from rescorer.reranking.features import (
    FEATURE_KINDS,
    centre_features,
    check_feature,
    feature_matrix,
    needed_components,
)
from rescorer.reranking.list_view import ListView
from rescorer.reranking.slots import count_slot_steps
from rescorer.reranking.transformer import TransformerEnsemble, TransformerSizes
from rescorer.score_combination import OOV, RERANKER, totals
from rescorer.trie import Words
from rescorer.types import Weights
from rescorer.word_encoder import ENCODING, WordEncoder


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
    ensemble: Ensemble | TransformerEnsemble
    models: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each language model, by its name, whose scores the reranker was trained on."""
    tuned_on: tuple[str, ...] = ()
    """Fingerprints of the lists that it was trained on."""
    held_out: Mapping[str, float] = field(default_factory=dict)
    """Error rates on lists that did not train it, as in ``Weights.held_out``."""
    encoder: WordEncoder | None = None
    """Encodes the words for its networks; None if they see features alone."""

    def __post_init__(self) -> None:
        for feature in self.features:
            check_feature(feature)
        if len(set(self.features)) < len(self.features):
            raise ConfigError("a feature stands twice; expected each once")
        if self.scales.shape != (len(self.features),) or self.ensemble.features != len(self.features):
            raise ConfigError(
                f"{len(self.features)} features, {self.scales.shape} scales and networks with "
                f"{self.ensemble.features} inputs; expected as many of each"
            )
        encoding = 0 if self.encoder is None else self.encoder.projection.shape[1]
        if encoding != self.ensemble.encoding:
            raise ConfigError(
                f"an encoding of words of length {encoding} and networks for one of length "
                f"{self.ensemble.encoding}; expected the same"
            )
        if not (np.isfinite(self.scales).all() and (self.scales > 0).all()):
            raise ConfigError("a scale is not a finite number above 0")

    @property
    def component(self) -> str:
        """Name of the component that its score is."""
        return f"{RERANKER}{self.name}"

    @property
    def needs(self) -> tuple[str, ...]:
        """Streams and language models that its features, base weights and encoder need, by component name."""
        base = [name for part in (self.base.streams, self.base.lm) for name, weight in part.items() if weight]
        encoders = () if self.encoder is None else (self.encoder.model,)
        return tuple(dict.fromkeys((*base, *needed_components(self.features), *encoders)))

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
        self,
        components: Mapping[str, np.ndarray],
        words: Sequence[Words],
        context: Words,
        encoding: np.ndarray | None = None,
    ) -> np.ndarray:
        """Score each hypothesis of a list, (H,) float64, not finite if its scores are too large.

        Arguments and errors are those of ``feature_values``, besides the encoding.

        Args:
            encoding: (H, K) float64, encodings of the words by ``encoder``; None if there is none.
        """
        x = self.inputs(components, words, context)
        with np.errstate(over="ignore", invalid="ignore"):
            return self.ensemble.score(x, self.centre_encoding(encoding))

    def centre_encoding(self, encoding: np.ndarray | None) -> np.ndarray | None:
        """Subtract the mean of the list from the (H, K) encodings of its words; None without an encoder."""
        if self.encoder is None:
            return None
        if encoding is None:
            raise ValueError(f"reranker {self.name!r} needs the encodings of its words")
        return centre_features(encoding)

    @property
    def inputs_by_name(self) -> tuple[str, ...]:
        """Names of what ``contributions`` tells apart: the features, and ``encoding:MODEL`` if it has one."""
        encodings = () if self.encoder is None else (f"{ENCODING}{self.encoder.model}",)
        return (*self.features, *encodings)

    def contributions(self, x: np.ndarray, encoding: np.ndarray | None = None) -> np.ndarray:
        """What each feature adds to each score: the score minus that without the feature.

        In a linear reranker the contributions add up to the score.

        Args:
            x: result of ``inputs``.
            encoding: result of ``centre_encoding``.

        Returns:
            (H, F) float64, or (H, F + 1) where the last one is that of the encoding.
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


STEPS_PER_LIST = 10_000
"""Time that any reranker takes for any list."""
STEPS_PER_NETWORK = 1500
"""Time that any network with hidden units takes for any list."""
STEPS_PER_WORD = 25
"""Time that a word takes in features whose cost is H · N, such as looking up its code."""
STEPS_PER_ALIGNMENT = 1500
"""Least time of aligning one hypothesis with another."""
STEPS_PER_FEATURE = 2000
"""Time that a feature takes for any list."""
STEPS_PER_VALUE = 5
"""Time of computing a feature of a hypothesis from numbers that are known, at each temperature."""
PRODUCTS_PER_STEP = 2
"""Products of a network that take as long as a step."""
PRODUCTS_PER_UNIT = 20
"""Products that take as long as the hyperbolic tangent of a hidden unit."""
STEPS_PER_LAYER = 40_000
"""Time that any layer of a transformer takes for any list."""
STEPS_PER_WEIGHT, STEPS_PER_UNIT = 2, 8
"""Times of an attention weight, mostly its exponential function, and of a hidden unit of a layer."""
PRODUCTS_OF_MATRICES_PER_STEP = 8
"""Products of the large matrices of a transformer that take as long as a step."""


def estimate_steps(reranker: Reranker, words: Sequence[Words], context: Words) -> int:
    """Estimate the work of scoring a list, as an upper bound for hypotheses that differ everywhere.

    Args:
        words: canonical words of each hypothesis.
        context: canonical words of what was said before.
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
    return steps + _count_network_steps(reranker.ensemble, n_rows)


def _count_network_steps(ensemble: Ensemble | TransformerEnsemble, n_rows: int) -> int:
    """Estimate the work of the networks of a reranker for a list of some hypotheses."""
    members, units = ensemble.members, ensemble.hidden_units
    if isinstance(ensemble, TransformerEnsemble):
        return members * _count_transformer_steps(ensemble.sizes, n_rows)
    inputs = ensemble.features + ensemble.encoding
    products = n_rows * (inputs + members * units * (inputs + PRODUCTS_PER_UNIT))
    return (members * STEPS_PER_NETWORK if units else 0) + products // PRODUCTS_PER_STEP


def _count_transformer_steps(sizes: TransformerSizes, n_rows: int) -> int:
    """Estimate the work of one transformer."""
    width, units = sizes.width, sizes.units
    products_by_row = width * (4 * width + 2 * units)
    products_by_pair = 2 * width
    products = sizes.layers * n_rows * (products_by_row + n_rows * products_by_pair)
    products += n_rows * width * (sizes.features + sizes.encoding)
    activations = sizes.layers * n_rows * (STEPS_PER_WEIGHT * n_rows * sizes.heads + STEPS_PER_UNIT * units)
    return sizes.layers * STEPS_PER_LAYER + activations + products // PRODUCTS_OF_MATRICES_PER_STEP

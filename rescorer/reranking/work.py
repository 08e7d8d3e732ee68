"""Estimate the work of a reranker before it is done, in units of ``distances.count_steps``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rescorer.decision.distances import count_steps
from rescorer.reranking.ensemble import Ensemble
from rescorer.reranking.features import FEATURE_KINDS
from rescorer.reranking.reranker import Reranker
from rescorer.reranking.slots import count_slot_steps
from rescorer.reranking.transformer import TransformerEnsemble, TransformerSizes
from rescorer.trie import Words

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

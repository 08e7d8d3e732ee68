"""Arrays for training rerankers, losses that are minimised, and candidates: the rerankers to choose from.

Arrays hold the features, encodings and errors of every hypothesis of every list. A loss is the plain sum of
the losses of lists. With expected errors and with pairs, a list therefore counts more if more errors are at
stake. With the cross entropy, all lists in which errors differ count alike.

A candidate is one way of training a reranker. The most cautious candidates come first, because the first of
several equally good ones is chosen: strong penalties before weak ones, small sets of features before large
ones, and expected errors, the objective that matters in the end, before its convex relatives.

Encodings are the principal components of a language model's mean context vectors. A fitted reranker uses only
a few combinations of these components, so the runtime computes the combinations instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from rescorer.evaluation.weight_search import (
    first_maximum_per_list,
    make_offsets,
    maximum_per_list,
    softmax_per_list,
    spread_over,
    sum_per_list,
)
from rescorer.models.language_model import LanguageModel, VectorModel
from rescorer.pipeline import Rescorer
from rescorer.ranking import TIE_DECIMALS
from rescorer.reranking.features import centre_features
from rescorer.reranking.networks import Ensemble, TransformerSizes
from rescorer.trie import ENCODING, WordEncoder
from rescorer.types import NBestList

MIN_SCALE = 1e-9
"""A feature counts as constant if its standard deviation within lists is below this.

If a feature has values above 1, the limit is relative to its largest value."""


@dataclass(frozen=True, slots=True)
class TrainingArrays:
    """L lists with F features per hypothesis. Arrays have the H hypotheses of all lists, list after list."""

    features: tuple[str, ...]
    """(F,) names."""
    scales: np.ndarray
    """(F,) float64 positive numbers by which the features were divided."""
    x: np.ndarray
    """(H, F) float64 features, centred within each list and divided by the scales."""
    errors: np.ndarray
    """(H,) float64 number of errors of each hypothesis, in words or other units."""
    empty: np.ndarray
    """(H,) bool: True for a hypothesis without words in a list in which others have words."""
    offsets: np.ndarray
    """(L + 1,) int64 index of the first hypothesis of each list, and H at the end."""

    @property
    def n_lists(self) -> int:
        return len(self.offsets) - 1

    def select(self, lists: np.ndarray) -> TrainingArrays:
        """Copy the lists of the given indices."""
        lengths = np.diff(self.offsets)[lists]
        offsets = make_offsets(lengths)
        rows = np.repeat(self.offsets[lists] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return self._select_rows(rows, offsets)

    def drop_empty(self) -> TrainingArrays:
        """Copy without empty hypotheses; lists in which all hypotheses are empty stay whole."""
        rows = np.flatnonzero(~self.empty)
        return self._select_rows(rows, np.searchsorted(rows, self.offsets))

    def _select_rows(self, rows: np.ndarray, offsets: np.ndarray) -> TrainingArrays:
        return replace(
            self, x=self.x[rows], errors=self.errors[rows], empty=self.empty[rows], offsets=offsets
        )

    def keep_features(self, names: Sequence[str]) -> TrainingArrays:
        """Copy with only the features of the given names. They stay in the order of the arrays."""
        columns = [index for index, name in enumerate(self.features) if name in names]
        features = tuple(self.features[index] for index in columns)
        return replace(
            self, features=features, scales=self.scales[columns], x=np.ascontiguousarray(self.x[:, columns])
        )

    def choose(self, scores: np.ndarray) -> np.ndarray:
        """Return for each list the index in ``scores``, (H,), of the best hypothesis; the first if equal."""
        return first_maximum_per_list(np.round(scores, TIE_DECIMALS), self.offsets)

    def list_errors(self, scores: np.ndarray) -> np.ndarray:
        """Return the errors of the best-scored hypothesis of each list, (L,) int64."""
        return self.errors[self.choose(scores)].astype(np.int64)

    def least_errors(self) -> np.ndarray:
        """Return whether each hypothesis has as few errors as any of its list, (H,) bool."""
        least: np.ndarray = -maximum_per_list(-self.errors, self.offsets)
        return self.errors == spread_over(least, self.offsets)

    def spread(self, scores: np.ndarray) -> float:
        """Return the standard deviation of scores, (H,), within lists."""
        return float(_measure(_centre(scores[:, None], self.offsets))[0])

    def claims(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the posterior of the best-scored hypothesis of each list, and whether this choice is right.

        Returns:
            (L,) float64 posterior of the hypothesis, and (L,) bool, whether no other one has fewer errors.
        """
        chosen = self.choose(scores)
        return softmax_per_list(scores, self.offsets)[chosen], self.least_errors()[chosen]


def make_arrays(
    features: Sequence[str],
    matrices: Sequence[np.ndarray],
    errors: Sequence[np.ndarray],
    empty: Sequence[np.ndarray],
) -> TrainingArrays:
    """Centre the features of all lists and divide them by their standard deviations within lists.

    The standard deviation is taken over the hypotheses with words. If a feature has the same value for all of
    these, it is taken over all hypotheses. Features that
    are constant in each list are left out, as are features that are proportional to an earlier one.

    Args:
        matrices: for each list, (H, F) finite features.
        errors: for each list, (H,) errors.
        empty: for each list, (H,) bool, whether a hypothesis has no words.
    """
    offsets = make_offsets(np.array([len(matrix) for matrix in matrices]))
    is_empty = np.concatenate([flags & ~flags.all() for flags in empty])
    raw = np.concatenate(matrices)
    x = _centre(raw, offsets)
    kept_offsets = np.searchsorted(np.flatnonzero(~is_empty), offsets)
    scales, spread = _measure(_centre(raw[~is_empty], kept_offsets)), _measure(x)
    least = MIN_SCALE * np.maximum(np.abs(raw).max(axis=0, initial=0.0), 1.0)
    scales = np.where(scales > least, scales, spread)
    x /= np.where(spread > least, scales, 1.0)
    correlation = (x.T @ x) / np.sqrt(np.outer((x**2).sum(axis=0), (x**2).sum(axis=0)) + 1e-300)
    kept: list[int] = []
    for column in np.flatnonzero(spread > least).tolist():
        if not kept or np.abs(correlation[column, kept]).max() < 1.0 - MIN_SCALE:
            kept.append(column)
    return TrainingArrays(
        tuple(features[column] for column in kept),
        scales[kept],
        np.ascontiguousarray(x[:, kept]),
        np.concatenate(errors).astype(np.float64),
        is_empty,
        offsets,
    )


def _centre(values: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Subtract the mean of each list from its values, (H, F)."""
    lengths = np.diff(offsets)[:, None]
    means = np.add.reduceat(values, offsets[:-1], axis=0) / lengths
    return values - np.repeat(means, lengths[:, 0], axis=0)


def _measure(centred: np.ndarray) -> np.ndarray:
    """Return the standard deviation within lists, (F,)."""
    deviation: np.ndarray = np.sqrt((centred**2).mean(axis=0))
    return deviation


ObjectiveName = Literal["expected errors", "cross entropy", "pairwise"]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
"""Names of the objectives. The first one is what matters in the end; the others are convex."""
MAX_PAIR_DISTANCE = 16
"""Largest distance between the ranks of a pair's hypotheses. The number of pairs then grows linearly."""

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""A function that returns the loss of scores, (H,), and its gradient, (H,)."""


def make_loss(objective: ObjectiveName, arrays: TrainingArrays) -> Loss:
    """Prepare an objective for some lists."""
    return _LOSSES[objective](arrays)


def _make_expected_errors(arrays: TrainingArrays) -> Loss:
    """Σ_i p_i·errors_i, where p is the softmax of the scores of a list: minimum word error training.

    After Prabhavalkar et al. (2018), "Minimum Word Error Rate Training for Attention-based
    Sequence-to-Sequence Models".
    """
    errors, offsets = arrays.errors, arrays.offsets

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        posteriors = softmax_per_list(scores, offsets)
        weighted = posteriors * errors
        expected = sum_per_list(weighted, offsets)
        return float(expected.sum()), weighted - posteriors * spread_over(expected, offsets)

    return loss


def _make_cross_entropy(arrays: TrainingArrays) -> Loss:
    """-Σ_i q_i·ln p_i, where q is uniform over the hypotheses with the fewest errors of a list.

    Lists in which all hypotheses have equally many errors are left out. After Cao et al. (2007), "Learning to
    Rank: From Pairwise Approach to Listwise Approach".
    """
    offsets, target = arrays.offsets, arrays.least_errors().astype(np.float64)
    n_least = sum_per_list(target, offsets)
    is_used = spread_over(n_least < np.diff(offsets), offsets).astype(np.float64)
    target *= is_used / spread_over(n_least, offsets)

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        relative = scores - spread_over(maximum_per_list(scores, offsets), offsets)
        exponentials = np.exp(relative)
        sums = spread_over(sum_per_list(exponentials, offsets), offsets)
        value = float(target @ (np.log(sums) - relative))
        return value, is_used * exponentials / sums - target

    return loss


def _make_pairwise(arrays: TrainingArrays) -> Loss:
    """Mean over the pairs of a list of Δerrors·ln(1 + exp(-Δscore)), for pairs with different errors.

    Pairs lie at most ``MAX_PAIR_DISTANCE`` apart. After Burges et al. (2005), "Learning to Rank using
    Gradient Descent", but weighted by the difference of the errors.
    """
    better, worse, weight = find_pairs(arrays)
    n_scores = len(arrays.errors)

    def loss(scores: np.ndarray) -> tuple[float, np.ndarray]:
        margin = scores[better] - scores[worse]
        value = float(weight @ np.logaddexp(0.0, -margin))
        slope = weight * np.exp(-np.logaddexp(0.0, margin))
        gradient = np.bincount(worse, slope, n_scores) - np.bincount(better, slope, n_scores)
        return value, gradient

    return loss


def find_pairs(arrays: TrainingArrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the indices of the better and the worse hypothesis of each pair, and its weight, (P,) each."""
    errors, lengths = arrays.errors, np.diff(arrays.offsets)
    list_of = np.repeat(np.arange(arrays.n_lists), lengths)
    firsts, seconds = [], []
    for distance in range(1, min(MAX_PAIR_DISTANCE, int(lengths.max()) - 1) + 1):
        first = np.flatnonzero(
            (list_of[:-distance] == list_of[distance:]) & (errors[:-distance] != errors[distance:])
        )
        firsts.append(first)
        seconds.append(first + distance)
    none = [np.zeros(0, dtype=np.int64)]
    first, second = np.concatenate([*firsts, *none]), np.concatenate([*seconds, *none])
    is_ordered = errors[first] < errors[second]
    better, worse = np.where(is_ordered, first, second), np.where(is_ordered, second, first)
    n_pairs = np.bincount(list_of[better], minlength=arrays.n_lists)
    return better, worse, (errors[worse] - errors[better]) / n_pairs[list_of[better]]


_LOSSES: dict[ObjectiveName, Callable[[TrainingArrays], Loss]] = {
    "expected errors": _make_expected_errors,
    "cross entropy": _make_cross_entropy,
    "pairwise": _make_pairwise,
}


TOTAL = "total"
"""Name of the feature with the totals under the base weights. Its weight in the prior is 1."""
EMPTY = "empty"
EMPTY_PRIOR = -1000.0
"""Prior weight of the feature ``empty``, before scaling, if empty hypotheses are left out.

It exceeds all other scores, since totals have a standard deviation of 1 in the prior."""
TEMPERATURE_STEPS = (0.125, 0.25, 0.5, 1.0, 2.0)
"""Temperatures of posteriors, relative to the spread of the totals within lists."""
MIDDLE_STEPS = (0.25, 1.0)
STRENGTHS = (10.0, 3.0, 1.0)
PRIOR_LIST_STRENGTHS = (100.0, 10.0)
"""Strengths of the penalty that keeps weights close to the reranker of prior lists; 100 nearly fixes them."""
NETWORK_STRENGTH, N_HIDDEN, N_MEMBERS, N_LAYERS = 1.0, 6, 3, 1
"""Settings of perceptrons and transformers: penalty, hidden units, networks to average, layers."""
MIN_LISTS_FOR_NETWORKS = 500
"""Smallest number of lists for which perceptrons, transformers and encodings of words are tried.

Fewer lists cannot show that they differ from linear networks."""
START, START_EMPTY_OUT = "base weights", "base weights, empty left out"
"""Feature sets that are not fitted: the base weights, and the base weights without empty hypotheses."""
WITH_ENCODING = "all features and encoding"
"""Name of the feature set that has all features, followed by an encoding of the words."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of training a reranker."""

    feature_set: str
    """Name of the feature set."""
    objective: ObjectiveName = "cross entropy"
    strength: float = 1.0
    """Strength of the penalty. A weight moves by 1 only if this saves as much: so many errors, or nats."""
    n_hidden: int = 0
    """Hidden units of each perceptron; 0 for other networks."""
    n_layers: int = 0
    """Layers of each transformer; 0 for other networks."""
    members: int = 1
    """Number of networks whose scores are averaged."""
    from_prior_lists: bool = False
    """Whether the weights keep close to those of a first reranker, which is trained on the prior lists."""

    @property
    def is_fitted(self) -> bool:
        """Whether weights are fitted. Otherwise they are those of the prior."""
        return self.feature_set not in (START, START_EMPTY_OUT)

    @property
    def is_linear(self) -> bool:
        """Whether the candidate is a linear network."""
        return not self.n_hidden and not self.n_layers

    def __str__(self) -> str:
        if not self.is_fitted:
            return self.feature_set
        model = "linear"
        if self.n_layers:
            layers = "1 layer" if self.n_layers == 1 else f"{self.n_layers} layers"
            model = f"transformer of {layers}, {self.members} networks"
        elif self.n_hidden:
            model = f"MLP of {self.n_hidden} units, {self.members} networks"
        towards = " towards the prior lists" if self.from_prior_lists else ""
        return f"{self.feature_set}; {model}; {self.objective}; L2 {self.strength:g}{towards}"


@dataclass(frozen=True, slots=True)
class Average:
    """Several linear candidates, whose weights are averaged."""

    candidates: tuple[Candidate, ...]

    @property
    def from_prior_lists(self) -> bool:
        """Whether any candidate keeps its weights close to those of a reranker of prior lists."""
        return any(candidate.from_prior_lists for candidate in self.candidates)

    def __str__(self) -> str:
        first, *_, last = self.candidates
        return f"average of {len(self.candidates)} linear candidates from {str(first)!r} to {str(last)!r}"


Choice = Candidate | Average
"""What cross-validation chooses."""


def average(candidates: Sequence[Candidate]) -> Choice:
    """Return the average of linear candidates, or the candidate itself if there is only one."""
    return Average(tuple(candidates)) if len(candidates) > 1 else candidates[0]


def make_candidates(
    feature_sets: Iterable[str], n_lists: int, *, has_prior_lists: bool = False
) -> tuple[Candidate, ...]:
    """Return all candidates, the most cautious first.

    Args:
        feature_sets: names of the feature sets, the smallest first.
        n_lists: number of lists to train on.
        has_prior_lists: whether there are prior lists.
    """
    names = list(feature_sets)
    sets = [name for name in names if name not in (START, START_EMPTY_OUT, WITH_ENCODING)]
    linear = [
        Candidate(feature_set, objective, strength)
        for strength in STRENGTHS
        for feature_set in sets
        for objective in OBJECTIVES
    ]
    towards_prior_lists = [
        Candidate(feature_set, "expected errors", strength, from_prior_lists=True)
        for strength in PRIOR_LIST_STRENGTHS
        for feature_set in sets
        if has_prior_lists
    ]
    linear = sorted([*linear, *towards_prior_lists], key=lambda candidate: -candidate.strength)
    large = [sets[-1], *(name for name in names if name == WITH_ENCODING)]
    encoded = [
        Candidate(name, "expected errors", strength) for strength in STRENGTHS[1:] for name in large[1:]
    ]
    network = Candidate(sets[-1], "expected errors", NETWORK_STRENGTH, members=N_MEMBERS)
    perceptrons = [replace(network, feature_set=name, n_hidden=N_HIDDEN) for name in large]
    transformers = [replace(network, feature_set=name, n_layers=N_LAYERS) for name in large]
    more = [*encoded, *perceptrons, *transformers] if n_lists >= MIN_LISTS_FOR_NETWORKS else []
    return (Candidate(START), Candidate(START_EMPTY_OUT), *linear, *more)


def make_feature_sets(
    streams: Sequence[str], models: Sequence[str], spread: float, *, has_context: bool
) -> Mapping[str, tuple[str, ...]]:
    """Return sets of features by name. Each set has all features of the set before.

    Args:
        streams: streams that all lists have. Without streams, features of the position in the list are used.
        models: language models and, if there are several, their mixture.
        spread: standard deviation of the base totals within lists, in nats.
        has_context: whether lists have the words that were said before.
    """
    scores = [*streams, *models]
    temperatures = [f"{spread * step:.2g}" for step in TEMPERATURE_STEPS]
    middle = [f"{spread * step:.2g}" for step in MIDDLE_STEPS]
    order = [] if streams else ["log_rank", "first"]
    basic = [TOTAL, *(f"score:{name}" for name in scores), "words", "oov", EMPTY, *order]
    agreement = [*(f"distance:{t}" for t in temperatures), *(f"posterior:{t}" for t in middle), "copies"]
    details = [
        *(f"score_per_word:{name}" for name in scores),
        *(f"{kind}:{t}" for kind in ("word_mean", "word_least") for t in middle),
        "characters",
        "repeats",
        *(["overlap:1", "overlap:2"] if has_context else []),
    ]
    return {
        START: (TOTAL,),
        START_EMPTY_OUT: (TOTAL, EMPTY),
        "scores": tuple(basic),
        "scores and agreement": (*basic, *agreement),
        "all features": (*basic, *agreement, *details),
    }


MAX_COMPONENTS = 96
"""Largest number of principal components."""
N_SAMPLE_LISTS = 500
"""Largest number of lists from which components are computed, chosen at even distances."""
MIN_VARIANCE = 1e-9
"""A component is left out if its variance is below this share of the largest variance."""


@dataclass(frozen=True, slots=True)
class EncodedLists:
    """Encodings of the words of all hypotheses of some lists."""

    encoder: WordEncoder
    """Encoder with a projection, (D, C), onto C principal components."""
    encodings: Sequence[np.ndarray]
    """For each list, (H, C) float64 encodings, not centred."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names that the C components have as features in training."""
        return tuple(f"{ENCODING}{self.encoder.model}:{k}" for k in range(self.encoder.projection.shape[1]))

    def append_to(self, arrays: TrainingArrays) -> TrainingArrays:
        """Append the components, centred within lists, to the features of the same lists."""
        centred = np.concatenate([centre_features(encoding) for encoding in self.encodings])
        return replace(
            arrays,
            features=(*arrays.features, *self.names),
            scales=np.concatenate((arrays.scales, np.ones(centred.shape[1]))),
            x=np.concatenate((arrays.x, centred), axis=1),
        )


def is_encoding(feature: str) -> bool:
    """Whether a feature of training is a component of an encoding."""
    return feature.startswith(ENCODING)


def encode_lists(rescorer: Rescorer, lists: Sequence[NBestList]) -> EncodedLists | None:
    """Encode the words of lists by the network of a bundle with the longest context vectors.

    All components are scaled by the same number, so that their mean variance within lists is 1.

    Returns:
        None if the bundle has no network, or if there are too few lists to try encodings.
    """
    sizes = {name: _vector_size(model) for name, model in rescorer.models.items()}
    name = max(sizes, key=sizes.__getitem__) if any(sizes.values()) else None
    if name is None or len(lists) < MIN_LISTS_FOR_NETWORKS:
        return None
    sample = [lists[int(i)] for i in np.linspace(0, len(lists) - 1, min(N_SAMPLE_LISTS, len(lists)))]
    size = _vector_size(rescorer.models[name])
    vectors = rescorer.encode(sample, WordEncoder(name, np.eye(size)))
    projection = find_components(np.concatenate([centre_features(part) for part in vectors]))
    encoder = WordEncoder(name, projection)
    return EncodedLists(encoder, rescorer.encode(lists, encoder)) if projection.shape[1] else None


def _vector_size(model: LanguageModel) -> int:
    return model.vector_size if isinstance(model, VectorModel) else 0


def find_components(centred: np.ndarray) -> np.ndarray:
    """Return the projection (D, C) onto the principal components of vectors (N, D) with mean 0."""
    variances, directions = np.linalg.eigh(centred.T @ centred / len(centred))
    largest = np.argsort(-variances, kind="stable")[:MAX_COMPONENTS]
    largest = largest[variances[largest] > MIN_VARIANCE * max(variances.max(initial=0.0), 1e-300)]
    projection: np.ndarray = directions[:, largest]
    return projection / np.sqrt(variances[largest].mean()) if len(largest) else projection


def compress_encoding(ensemble: Ensemble, encoder: WordEncoder) -> tuple[Ensemble, WordEncoder]:
    """Replace the components, the last C inputs of the networks, by the combinations that the networks use.

    The combinations span the columns of all matrices by which the components are multiplied, so that scores
    change only by rounding. Linear weights are averaged over the members first.

    Args:
        encoder: encoder with a projection (D, C).
    """
    n_features = ensemble.sizes.features - encoder.projection.shape[1]
    linear = ensemble.parameters["linear"]
    linear = np.broadcast_to(linear.mean(axis=0), linear.shape)
    name = "input" if isinstance(ensemble.sizes, TransformerSizes) else "hidden"
    first = {} if ensemble.is_linear else {name: ensemble.parameters[name]}
    of_members = [part[n_features:] for values in first.values() for part in values]  # (C, U) each
    basis, _ = np.linalg.qr(np.concatenate([linear[0, n_features:, None], *of_members], axis=1))  # (C, K)
    compressed = {"linear": np.concatenate((linear[:, :n_features], linear[:, n_features:] @ basis), axis=1)}
    for name, values in first.items():
        compressed[name] = np.concatenate((values[:, :n_features], basis.T @ values[:, n_features:]), axis=1)
    sizes = replace(ensemble.sizes, features=n_features, encoding=basis.shape[1])
    parameters = {**ensemble.parameters, **compressed}
    return Ensemble(sizes, parameters), replace(encoder, projection=encoder.projection @ basis)

"""Fit rerankers: linear networks, perceptrons and transformers, priors, and nested cross-validation.

The score of a multilayer perceptron (MLP) for the features x is u·x + v·tanh(W·x + b). A linear network has
no hidden units, so that its score is u·x. The parameters are fitted by L-BFGS with exact gradients, in
float64 and deterministically. The minimised function is an objective, plus ``strength`` times the squared
distance of u from the prior and of W, b and v from 0.

Transformers over the hypotheses of a list are those of ``rescorer.reranking.networks``, with the same names
of parameters. A transformer starts as the fitted linear network, because its output weights v start from 0.
The minimised function is an objective, plus ``strength`` times the squared distance of the linear weights
from the prior, plus ``NETWORK_STRENGTH`` times the squares of all other parameters. Adam (Kingma and Ba 2015)
descends in small batches of lists, with dropout, in float32. It runs in one thread, so that results follow
from the seed.

By default, the prior is the base total. It may also come from lists of another kind, such as made lists or
lists that lack a stream. Then a first reranker is trained on these lists, with the features that both kinds
have, and the final weights keep close to the weights of the first reranker (Chelba and Acero, 2004,
"Adaptation of maximum entropy capitalizer: Little data can help a lot").

In cross-validation, a list that is ranked has taken no part in training the reranker or in choosing it among
candidates (Varma and Simon, 2006, "Bias in error estimation when using cross-validation for model
selection").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rescorer.errors import ConfigError
from rescorer.evaluation.folds import N_FOLDS, Folds
from rescorer.evaluation.tuning import is_as_good
from rescorer.progress import track
from rescorer.reranking.networks import (
    LAYER_PARAMETERS,
    VARIANCE_FLOOR,
    Ensemble,
    PerceptronSizes,
    TransformerSizes,
)
from rescorer_training.reranker.arrays import (
    EMPTY,
    EMPTY_PRIOR,
    STRENGTHS,
    TOTAL,
    Average,
    Candidate,
    Choice,
    Loss,
    ObjectiveName,
    TrainingArrays,
    average,
    make_loss,
)

MAX_ITERATIONS = 60
TOLERANCE = 1e-6
"""Fitting ends when a step lowers the loss by less than this, relative to the loss."""


@dataclass(frozen=True, slots=True)
class NetworkParameters:
    """Parameters of one network with F inputs and K hidden units; an ``Ensemble`` has several networks."""

    linear: np.ndarray
    """(F,) u."""
    hidden: np.ndarray
    """(F, K) W."""
    bias: np.ndarray
    """(K,) b."""
    output: np.ndarray
    """(K,) v."""

    def flatten(self) -> np.ndarray:
        """Return all parameters as one array."""
        return np.concatenate([self.linear, self.hidden.ravel(), self.bias, self.output])

    def unflatten(self, flat: np.ndarray) -> NetworkParameters:
        """Make parameters of the same shapes from one array, the inverse of ``flatten``."""
        inputs, units = self.hidden.shape
        ends = np.cumsum([inputs, inputs * units, units])
        linear, hidden, bias, output = np.split(flat, ends)
        return NetworkParameters(linear, hidden.reshape(inputs, units), bias, output)

    def score(self, x: np.ndarray) -> np.ndarray:
        """Score hypotheses (H, F) by their features: (H,)."""
        score: np.ndarray = x @ self.linear
        if len(self.output):
            score += np.tanh(x @ self.hidden + self.bias) @ self.output
        return score


def linear_parameters(weights: np.ndarray) -> NetworkParameters:
    """Make a network without hidden units."""
    none = np.zeros(0)
    return NetworkParameters(weights, np.zeros((len(weights), 0)), none, none)


def draw_parameters(weights: np.ndarray, n_hidden: int, seed: int) -> NetworkParameters:
    """Make a network with random hidden units. At first, it scores like a linear network with ``weights``."""
    hidden = np.random.default_rng(seed).normal(size=(len(weights), n_hidden)) / np.sqrt(len(weights))
    return NetworkParameters(weights, hidden, np.zeros(n_hidden), np.zeros(n_hidden))


def make_ensemble(members: list[NetworkParameters]) -> Ensemble:
    """Stack networks of the same shape."""
    sizes = PerceptronSizes(len(members[0].linear), 0, len(members[0].output))
    names = sizes.parameter_shapes(len(members))
    return Ensemble(sizes, {name: np.stack([getattr(member, name) for member in members]) for name in names})


class PenalisedLoss:
    """The objective plus the penalty, as a function of the flat parameters.

    Args:
        x: (H, F) features.
        prior: (F,) weights that the linear part keeps close to.
    """

    def __init__(self, x: np.ndarray, loss: Loss, strength: float, prior: np.ndarray) -> None:
        self.x, self.loss, self.strength, self.prior = x, loss, strength, prior

    def __call__(self, parameters: NetworkParameters) -> tuple[float, np.ndarray]:
        """Return the penalised loss, and its gradient with respect to the flat parameters."""
        x, units = self.x, len(parameters.output)
        activations = np.tanh(x @ parameters.hidden + parameters.bias) if units else np.zeros((len(x), 0))
        value, by_score = self.loss(x @ parameters.linear + activations @ parameters.output)
        by_unit = by_score[:, None] * parameters.output * (1.0 - activations**2)
        gradient = NetworkParameters(by_score @ x, x.T @ by_unit, by_unit.sum(axis=0), by_score @ activations)
        moves = parameters.flatten()
        moves[: len(self.prior)] -= self.prior
        penalty = self.strength * float(moves @ moves)
        return value + penalty, gradient.flatten() + 2.0 * self.strength * moves


def fit(
    arrays: TrainingArrays,
    objective: ObjectiveName,
    strength: float,
    prior: np.ndarray,
    start: NetworkParameters,
) -> NetworkParameters:
    """Minimise the penalised loss, starting from given parameters.

    Args:
        strength: strength of the penalty, above 0: a parameter moves by 1 only if this saves so much loss.
        prior: (F,) weights that the linear part keeps close to.
    """
    from scipy.optimize import minimize  # only training needs it

    penalised = PenalisedLoss(arrays.x, make_loss(objective, arrays), strength, prior)
    result = minimize(
        lambda flat: penalised(start.unflatten(flat)),
        start.flatten(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MAX_ITERATIONS, "ftol": TOLERANCE},
    )
    return start.unflatten(result.x)


WIDTH, HEADS, UNITS = 10, 2, 32
NETWORK_STRENGTH, DROPOUT = 0.3, 0.1
N_EPOCHS, BATCH_LISTS, LEARNING_RATE, N_WARM_UP_STEPS = 10, 128, 3e-3, 20
BETAS = (0.9, 0.98)
MAX_BATCH_CELLS = 1 << 21
"""Largest number of attention weights per batch, layer and head."""

TransformerParameters = Mapping[str, Tensor]
"""Parameters of one transformer, by name.

Names and shapes are those of ``TransformerSizes.parameter_shapes``, without the first axis, the members."""


@dataclass(frozen=True, slots=True)
class Batch:
    """B lists, padded to H hypotheses each."""

    inputs: Tensor
    """(B, H, I) inputs of each hypothesis; 0 after the end of a list."""
    is_present: Tensor
    """(B, H) bool, True for hypotheses; False after the end of a list."""
    loss: Loss
    """Loss as a function of scores, those of the hypotheses that are present, list by list."""


def fit_transformer(
    arrays: TrainingArrays,
    objective: ObjectiveName,
    strength: float,
    prior: np.ndarray,
    start: np.ndarray,
    n_layers: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """Train one transformer. The same seed gives the same parameters.

    Args:
        strength: strength of the penalty on linear weights, as for ``fit``.
        prior: (F,) weights that the linear part keeps close to.
        start: (F,) weights from which the linear part starts.

    Returns:
        The parameters of one member of an ``Ensemble``, by name, in float64.
    """
    sizes = TransformerSizes(arrays.x.shape[1], 0, n_layers, WIDTH, HEADS, UNITS)
    random = np.random.default_rng(seed)
    with _seeded(seed):
        parameters = draw_transformer(sizes, start, random)
        batches = make_batches(arrays, objective, random)
        linear, target = parameters["linear"], torch.from_numpy(prior).float()
        others = [values for name, values in parameters.items() if name != "linear"]
        optimizer = torch.optim.Adam(parameters.values(), lr=LEARNING_RATE, betas=BETAS)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, _make_rate(N_EPOCHS * len(batches)))
        for _ in range(N_EPOCHS):
            for index in random.permutation(len(batches)):
                optimizer.zero_grad()
                penalty = strength * ((linear - target) ** 2).sum()
                penalty = penalty + NETWORK_STRENGTH * sum((values**2).sum() for values in others)
                (penalty / arrays.n_lists).backward()
                _descend(parameters, batches[index])
                optimizer.step()
                schedule.step()
    return {name: values.detach().double().numpy() for name, values in parameters.items()}


def make_transformer_ensemble(members: list[dict[str, np.ndarray]]) -> Ensemble:
    """Stack transformers of the same sizes that ``fit_transformer`` has returned."""
    stacked = {name: np.stack([member[name] for member in members]) for name in members[0]}
    n_inputs, n_layers = stacked["linear"].shape[1], stacked["attention"].shape[1]
    sizes = TransformerSizes(n_inputs, 0, n_layers, WIDTH, HEADS, UNITS)
    return Ensemble(sizes, stacked)


def draw_transformer(
    sizes: TransformerSizes, linear: np.ndarray, random: np.random.Generator
) -> dict[str, Tensor]:
    """Make a transformer with random layers. At first, it scores like a linear network with ``linear``."""
    drawn = {}
    for name, (_, *shape) in sizes.parameter_shapes(1).items():
        if name == "linear":
            values = linear
        elif name == "output" or name.endswith("_bias"):
            values = np.zeros(shape)
        else:
            values = random.normal(size=shape) / math.sqrt(shape[-2])
        drawn[name] = torch.from_numpy(values).float().requires_grad_()
    return drawn


def score_batch(
    parameters: TransformerParameters, inputs: Tensor, is_present: Tensor, heads: int, dropout: float = 0.0
) -> Tensor:
    """Score the hypotheses of padded lists, (B, H). Scores after the end of a list are meaningless.

    Args:
        inputs: (B, H, I) features and encodings.
        is_present: (B, H) bool.
        dropout: probability of setting an input or the output of a sublayer to 0.
    """
    z = functional.dropout(inputs, dropout) @ parameters["input"] + parameters["input_bias"]
    for layer in range(len(parameters["attention"])):
        one = {name: parameters[name][layer] for name in LAYER_PARAMETERS}
        projected = _normalise(z) @ one["attention"] + one["attention_bias"]
        mixed = _attend(projected, is_present, heads) @ one["attention_output"]
        z = z + functional.dropout(mixed + one["attention_output_bias"], dropout)
        hidden = _normalise(z) @ one["hidden"] + one["hidden_bias"]
        hidden = functional.gelu(hidden, approximate="tanh") @ one["hidden_output"]
        z = z + functional.dropout(hidden + one["hidden_output_bias"], dropout)
    return inputs @ parameters["linear"] + _normalise(z) @ parameters["output"]


def _attend(projected: Tensor, is_present: Tensor, heads: int) -> Tensor:
    """Compute attention, (B, H, W): each hypothesis attends to those of its list that are present."""
    n_lists, n, width = projected.shape[0], projected.shape[1], projected.shape[2] // 3
    parts = projected.view(n_lists, n, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    queries, keys, values = parts.unbind()  # (B, heads, H, W / heads) each
    logits = queries @ keys.transpose(-1, -2) / math.sqrt(width // heads)
    weights = logits.masked_fill(~is_present[:, None, None, :], -torch.inf).softmax(dim=-1)
    return (weights @ values).transpose(1, 2).reshape(n_lists, n, width)


def _normalise(z: Tensor) -> Tensor:
    return functional.layer_norm(z, z.shape[-1:], eps=VARIANCE_FLOOR)


def make_batches(
    arrays: TrainingArrays, objective: ObjectiveName, random: np.random.Generator
) -> list[Batch]:
    """Divide lists at random into batches of about equal numbers."""
    longest = int(np.diff(arrays.offsets).max())
    n_lists = max(1, min(BATCH_LISTS, MAX_BATCH_CELLS // longest**2))
    parts = np.array_split(random.permutation(arrays.n_lists), math.ceil(arrays.n_lists / n_lists))
    return [_make_batch(arrays.select(part), objective) for part in parts]


def _make_batch(arrays: TrainingArrays, objective: ObjectiveName) -> Batch:
    lengths = np.diff(arrays.offsets)
    is_present = np.arange(lengths.max()) < lengths[:, None]
    inputs = np.zeros((*is_present.shape, arrays.x.shape[1]), dtype=np.float32)
    inputs[is_present] = arrays.x
    return Batch(torch.from_numpy(inputs), torch.from_numpy(is_present), make_loss(objective, arrays))


def _descend(parameters: TransformerParameters, batch: Batch) -> None:
    """Add the gradient of a batch's mean loss to the gradients of the parameters."""
    scores = score_batch(parameters, batch.inputs, batch.is_present, HEADS, DROPOUT)[batch.is_present]
    _, by_score = batch.loss(scores.detach().double().numpy())
    scores.backward(torch.from_numpy(by_score / len(batch.inputs)).float())  # type: ignore[no-untyped-call]


def _make_rate(n_steps: int) -> Callable[[int], float]:
    """Make the factor of the learning rate at each step: a linear warm-up times a cosine decay to 0."""
    return lambda step: (
        min(1.0, (step + 1) / N_WARM_UP_STEPS) * 0.5 * (1.0 + math.cos(math.pi * step / n_steps))
    )


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed torch and use one thread within the context; restore both afterwards."""
    n_threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(n_threads)


MIN_PRIOR_LISTS = 20
"""Smallest number of prior lists to train on. With fewer, the prior is the base total."""
ORDER_FEATURES = ("log_rank", "first")
"""Features that stand for streams that prior lists lack.

These streams decided the order of the hypotheses. Without the features, weights of language models would be
fitted to explain this order."""


class ListKeys(NamedTuple):
    """Keys that related lists have in common. Each field is a sequence with one entry per list."""

    ids: Sequence[str]
    groups: Sequence[str]
    """Group of each list, such as its speaker; empty for lists without a group."""
    references: Sequence[str]
    """Normalised words of each reference; empty if lists may share references."""


@dataclass(frozen=True, slots=True)
class PriorLists:
    """Lists of another kind, to train a first reranker on, and their relations to the lists to train on."""

    arrays: TrainingArrays
    """Features and errors of the prior lists, scaled by their own standard deviations."""
    feature_sets: Mapping[str, Sequence[str]]
    """Features of each set, by the name of the set."""
    own: ListKeys
    """Keys of the prior lists."""
    others: ListKeys
    """Keys of the lists to train on."""

    def find_allowed(self, lists: np.ndarray) -> np.ndarray:
        """Find the prior lists that may be used while some of the lists to train on are held out.

        Held out are all that are not in ``lists``. A prior list must not share an id, a group or a reference
        with any of these.

        Args:
            lists: indices of the lists that are not held out.

        Returns:
            Indices of the prior lists.
        """
        used = set(lists.tolist())
        held_out = [{key for i, key in enumerate(keys) if key and i not in used} for keys in self.others]
        is_shared = [[key in out for key in keys] for keys, out in zip(self.own, held_out, strict=True)]
        return np.flatnonzero(~np.any(is_shared, axis=0))

    def describe(self) -> str:
        """Say how many prior lists there are, and how many are left out where related lists are held out."""
        n_lists, n_free = self.arrays.n_lists, len(self.find_allowed(np.zeros(0, dtype=np.int64)))
        return (
            f"{n_lists:,} lists of another kind; {n_lists - n_free:,} share an id, a group or a reference "
            "with the lists to train on, and are left out where these are held out"
        )

    def select(self, lists: np.ndarray) -> TrainingArrays | None:
        """Return the allowed prior lists, see ``find_allowed``; None if they are too few to train on."""
        allowed = self.find_allowed(lists)
        return self.arrays.select(allowed) if len(allowed) >= MIN_PRIOR_LISTS else None


class Fitter:
    """Fits candidates on the same lists, deterministically.

    Args:
        folds: folds of these lists. Each network of an ensemble is trained without one of the folds.
        feature_sets: features of each set, by the name of the set.
        prior: fitter on prior lists, for candidates with the prior of a first reranker; None without any.
    """

    def __init__(
        self,
        arrays: TrainingArrays,
        folds: Folds,
        feature_sets: Mapping[str, Sequence[str]],
        seed: int,
        prior: Fitter | None = None,
    ) -> None:
        self.folds, self.feature_sets, self.seed, self.prior = folds, feature_sets, seed, prior
        self.leaves_empty_out = is_better_without_empty(arrays)
        self.arrays = arrays.drop_empty() if self.leaves_empty_out else arrays
        self._sets: dict[str, TrainingArrays] = {}
        self._linear: dict[Candidate, NetworkParameters] = {}

    def fit(self, candidate: Choice) -> Fitted:
        """Fit a candidate; or fit several candidates and average their weights."""
        if isinstance(candidate, Average):
            return self._fit_average(candidate)
        arrays = self._select_features(candidate.feature_set)
        if not candidate.is_fitted:
            ensemble = make_ensemble([linear_parameters(self._make_prior(arrays, candidate))])
        elif candidate.is_linear:
            ensemble = make_ensemble([self._fit_linear(candidate)])
        else:
            ensemble = self._fit_members(candidate)
        return Fitted(arrays.features, ensemble)

    def _fit_average(self, average: Average) -> Fitted:
        """Fit linear candidates and average their weights, with 0 for features that a candidate lacks."""
        fitted = [self.fit(candidate) for candidate in average.candidates]
        used = {name for part in fitted for name in part.features}
        features = tuple(name for name in self.arrays.features if name in used)
        weights = np.zeros(len(features))
        for part in fitted:
            weights[[features.index(name) for name in part.features]] += part.linear
        return Fitted(features, make_ensemble([linear_parameters(weights / len(fitted))]))

    def _fit_linear(self, candidate: Candidate) -> NetworkParameters:
        """Fit a linear network, starting from an easier fit: a stronger penalty, or a convex objective."""
        if candidate not in self._linear:
            arrays = self._select_features(candidate.feature_set)
            prior = self._make_prior(arrays, candidate)
            start = linear_parameters(prior)
            if stronger := [strength for strength in STRENGTHS if strength > candidate.strength]:
                start = self._fit_linear(replace(candidate, strength=stronger[-1]))
            elif candidate.objective == "expected errors":
                start = self._fit_linear(replace(candidate, objective="cross entropy"))
            self._linear[candidate] = fit(arrays, candidate.objective, candidate.strength, prior, start)
        return self._linear[candidate]

    def _fit_members(self, candidate: Candidate) -> Ensemble:
        """Fit the networks of an ensemble, each without another fold, and from other random hidden values."""
        arrays = self._select_features(candidate.feature_set)
        objective, strength = candidate.objective, candidate.strength
        prior = self._make_prior(arrays, candidate)
        linear = self._fit_linear(replace(candidate, n_hidden=0, n_layers=0, members=1)).linear
        perceptrons, transformers = [], []
        for member in range(candidate.members):
            seed, kept = self.seed + member, np.flatnonzero(self.folds.fold != member % self.folds.n_folds)
            part = arrays.select(kept) if len(kept) else arrays
            if n_layers := candidate.n_layers:
                fitted = fit_transformer(part, objective, strength, prior, linear, n_layers, seed)
                transformers.append(fitted)
            else:
                start = draw_parameters(linear, candidate.n_hidden, seed)
                perceptrons.append(fit(part, objective, strength, prior, start))
        return make_transformer_ensemble(transformers) if transformers else make_ensemble(perceptrons)

    def _make_prior(self, arrays: TrainingArrays, candidate: Candidate) -> np.ndarray:
        """Return the weights that fitting keeps close to, (F,).

        They are those of the base total or of the reranker that was trained on prior lists, scaled to scores
        with a standard deviation of 1 within lists. If the candidate leaves out empty hypotheses, their
        penalty is added.
        """
        scale_of = dict(zip(arrays.features, arrays.scales.tolist(), strict=True))
        weights = {TOTAL: 1.0}
        if self.prior and candidate.from_prior_lists:
            known = self.prior._select_features(candidate.feature_set)
            fitted = self.prior._fit_linear(replace(candidate, from_prior_lists=False))
            taught = zip(known.features, (fitted.linear / known.scales).tolist(), strict=True)
            weights |= {name: weight * scale_of.get(name, 0.0) for name, weight in taught}
            weights[EMPTY] = 0.0
            spread = arrays.spread(arrays.x @ _arrange(weights, arrays))
            weights = {name: weight / (spread or 1.0) for name, weight in weights.items()}
        if self.leaves_empty_out:
            weights[EMPTY] = EMPTY_PRIOR * scale_of.get(EMPTY, 0.0)
        return _arrange(weights, arrays)

    def _select_features(self, feature_set: str) -> TrainingArrays:
        if feature_set not in self._sets:
            self._sets[feature_set] = self.arrays.keep_features(self.feature_sets[feature_set])
        return self._sets[feature_set]


class Fitted:
    """A fitted candidate: the features that it uses, and its networks."""

    def __init__(self, features: tuple[str, ...], ensemble: Ensemble) -> None:
        self.features, self.ensemble = features, ensemble

    @property
    def linear(self) -> np.ndarray:
        """Linear weight of each feature, averaged over the networks, (F,)."""
        return self.ensemble.parameters["linear"].mean(axis=0)

    def score(self, arrays: TrainingArrays) -> np.ndarray:
        """Score all hypotheses of some lists, (H,)."""
        x = arrays.keep_features(self.features).x
        if not isinstance(self.ensemble.sizes, TransformerSizes):
            return self.ensemble.score(x)
        return np.concatenate(
            [self.ensemble.score(x[begin:end]) for begin, end in pairwise(arrays.offsets.tolist())]
        )


def is_better_without_empty(arrays: TrainingArrays) -> bool:
    """Whether the base weights make fewer or equally many errors if empty hypotheses are left out.

    Empty hypotheses are unlike all others, and language models favour them strongly. If a weight for them is
    learnt from few examples, it can cost more errors than all other weights save.
    """
    total = arrays.keep_features([TOTAL]).x.sum(axis=1)  # 0 where the total tells no hypotheses apart
    without = np.where(arrays.empty, -np.inf, total)
    return int(arrays.list_errors(without).sum()) <= int(arrays.list_errors(total).sum())


def _arrange(weights: Mapping[str, float], arrays: TrainingArrays) -> np.ndarray:
    """Return the weight of each feature, (F,); 0 for features without a weight."""
    return np.array([weights.get(name, 0.0) for name in arrays.features])


OnProgress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """Scores of lists. Each list was scored by a reranker that was chosen and trained without it."""

    chosen: tuple[Choice, ...]
    """What was chosen for each fold."""
    scores: np.ndarray
    """(H,) float64 score of each hypothesis."""
    errors: np.ndarray
    """(L,) int64, errors of the first-ranked hypothesis of each list."""


class NestedTraining:
    """Trains and judges candidates on the same lists, by cross-validation.

    Args:
        feature_sets: features of each set, by the name of the set.
        candidates: candidates to choose from, the most cautious first.
        seed: random seed of perceptrons and transformers.
        prior_lists: lists of another kind, for candidates with the prior of a first reranker.
    """

    def __init__(
        self,
        arrays: TrainingArrays,
        folds: Folds,
        feature_sets: Mapping[str, Sequence[str]],
        candidates: Sequence[Candidate],
        seed: int = 0,
        prior_lists: PriorLists | None = None,
    ) -> None:
        self.arrays, self.folds, self.seed, self.prior_lists = arrays, folds, seed, prior_lists
        self.feature_sets, self.candidates = feature_sets, candidates

    def cross_validate(self) -> CrossValidation:
        """Hold out each fold in turn: choose and train a candidate on the other folds, and score the fold."""
        with track("cross-validating", "folds", self.folds.n_folds * N_FOLDS) as task:
            return self._hold_out(self.folds, lambda lists: self.choose(lists, task.advance))

    def cross_validate_candidate(self, candidate: Choice, without: Sequence[str] = ()) -> CrossValidation:
        """Hold out each fold in turn, and train one candidate on the other folds.

        The errors are optimistic (too few) if the candidate was chosen on the same lists.

        Args:
            without: features to leave out.
        """
        return self._hold_out(self.folds, lambda _: candidate, without)

    def choose(self, lists: np.ndarray, on_fold: OnProgress | None = None) -> Choice:
        """Choose among the candidates by cross-validation within some lists.

        Candidates whose errors are within one standard error of the best candidate count as equally good. If
        all candidates are linear, as with few lists, the equally good ones are averaged, because a choice
        among them would be left to chance (Breiman, 1996, "Stacked regressions"). Otherwise the most cautious
        of them is chosen.

        Args:
            lists: indices of the lists.
            on_fold: called after each fold.
        """
        folds = self.folds.subdivide(lists)
        if folds.n_folds < 2:
            return self.candidates[0]
        arrays = self.arrays.select(lists)
        errors = np.zeros((len(self.candidates), len(lists)), dtype=np.int64)
        for fold in range(folds.n_folds):
            training, held_out = folds.split(fold)
            if len(training):
                fitter, judged = self._fitter(lists[training]), arrays.select(held_out)
                errors[:, held_out] = [
                    judged.list_errors(fitter.fit(candidate).score(judged)) for candidate in self.candidates
                ]
            if on_fold:
                on_fold()
        as_good = np.flatnonzero(is_as_good(errors, folds.unit)).tolist()
        if not all(candidate.is_linear for candidate in self.candidates):
            return self.candidates[as_good[0]]
        return average([self.candidates[index] for index in as_good])

    def fit_all(self, candidate: Choice) -> Fitted:
        """Fit a candidate on all lists."""
        return self._fitter(np.arange(self.arrays.n_lists)).fit(candidate)

    def fit_folds(self, candidate: Choice) -> list[Fitted]:
        """Fit a candidate several times, each time without another fold."""
        parts = (self.folds.split(fold)[0] for fold in range(self.folds.n_folds))
        return [self._fitter(lists).fit(candidate) for lists in parts]

    def _fitter(self, lists: np.ndarray, without: Sequence[str] = ()) -> Fitter:
        """Prepare to fit candidates on some lists."""
        arrays, folds = self.arrays.select(lists), self.folds.subdivide(lists)
        prior = None
        if self.prior_lists and (prior_arrays := self.prior_lists.select(lists)):
            prior = Fitter(prior_arrays, folds, _leave_out(self.prior_lists.feature_sets, without), self.seed)
        return Fitter(arrays, folds, _leave_out(self.feature_sets, without), self.seed, prior)

    def _hold_out(
        self, folds: Folds, choose: Callable[[np.ndarray], Choice], without: Sequence[str] = ()
    ) -> CrossValidation:
        arrays = self.arrays
        scores, chosen = np.zeros(len(arrays.errors)), []
        for fold in range(folds.n_folds):
            training, held_out = folds.split(fold)
            if not len(training):
                raise ConfigError(
                    "no lists are left to train on without one of the folds: all others share a reference "
                    "with it"
                )
            candidate = choose(training)
            fitted = self._fitter(training, without).fit(candidate)
            is_held_out = np.repeat(np.isin(np.arange(arrays.n_lists), held_out), np.diff(arrays.offsets))
            scores[is_held_out] = fitted.score(arrays.select(held_out))
            chosen.append(candidate)
        return CrossValidation(tuple(chosen), scores, arrays.list_errors(scores))


def _leave_out(feature_sets: Mapping[str, Sequence[str]], without: Sequence[str]) -> Mapping[str, list[str]]:
    return {
        name: [part for part in features if part not in without] for name, features in feature_sets.items()
    }

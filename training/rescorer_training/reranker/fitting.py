"""Fit candidates on some lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from rescorer.evaluation.tuning.folds import Folds
from rescorer.reranking.ensemble import Ensemble
from rescorer.reranking.transformer import TransformerEnsemble
from rescorer_training.reranker.arrays import TrainingArrays
from rescorer_training.reranker.candidates import (
    EMPTY,
    EMPTY_PRIOR,
    STRENGTHS,
    TOTAL,
    Average,
    Candidate,
    Choice,
)
from rescorer_training.reranker.networks import (
    Parameters,
    draw_parameters,
    fit,
    linear_parameters,
    make_ensemble,
)


class Fitter:
    """Fit candidates on the same lists; deterministic.

    Args:
        folds: of these lists; each network of an ensemble leaves out another one.
        feature_sets: features of each set, by its name.
        prior: fits the candidates on lists of another kind first, for those that start from these.
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
        self._linear: dict[Candidate, Parameters] = {}

    def fit(self, candidate: Choice) -> Fitted:
        """Fit a candidate, or several and average their weights."""
        if isinstance(candidate, Average):
            return self._fit_average(candidate)
        arrays = self._select_features(candidate.feature_set)
        ensemble: Ensemble | TransformerEnsemble
        if not candidate.is_fitted:
            ensemble = make_ensemble([linear_parameters(self._make_prior(arrays, candidate))])
        elif candidate.n_layers:
            ensemble = self._fit_transformers(candidate)
        elif candidate.n_hidden:
            ensemble = make_ensemble([self._fit_member(candidate, k) for k in range(candidate.members)])
        else:
            ensemble = make_ensemble([self._fit_linear(candidate)])
        return Fitted(arrays.features, ensemble)

    def _fit_average(self, average: Average) -> Fitted:
        """Fit linear candidates and average their weights; those of features that one lacks are 0."""
        fitted = [self.fit(candidate) for candidate in average.candidates]
        used = {name for part in fitted for name in part.features}
        features = tuple(name for name in self.arrays.features if name in used)
        weights = np.zeros(len(features))
        for part in fitted:
            weights[[features.index(name) for name in part.features]] += part.linear
        return Fitted(features, make_ensemble([linear_parameters(weights / len(fitted))]))

    def _fit_linear(self, candidate: Candidate) -> Parameters:
        """Fit a linear network, from the next stronger penalty, or first of all from a convex objective."""
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

    def _fit_member(self, candidate: Candidate, member: int) -> Parameters:
        """Fit one perceptron of an ensemble, without one fold, from its own random hidden units."""
        prior = self._make_prior(self._select_features(candidate.feature_set), candidate)
        start = draw_parameters(self._fit_start(candidate), candidate.n_hidden, self.seed + member)
        part = self._leave_fold_out(candidate, member)
        return fit(part, candidate.objective, candidate.strength, prior, start)

    def _fit_transformers(self, candidate: Candidate) -> TransformerEnsemble:
        """Fit transformers, each without one fold, from their own random layers."""
        from rescorer_training.reranker.transformer import fit_transformer, make_transformer_ensemble

        prior = self._make_prior(self._select_features(candidate.feature_set), candidate)
        start = self._fit_start(candidate)
        return make_transformer_ensemble(
            [
                fit_transformer(
                    self._leave_fold_out(candidate, member),
                    candidate.objective,
                    candidate.strength,
                    prior,
                    start,
                    candidate.n_layers,
                    self.seed + member,
                )
                for member in range(candidate.members)
            ]
        )

    def _fit_start(self, candidate: Candidate) -> np.ndarray:
        """Weights (F,) of the linear network that other networks start from."""
        return self._fit_linear(replace(candidate, n_hidden=0, n_layers=0, members=1)).linear

    def _leave_fold_out(self, candidate: Candidate, member: int) -> TrainingArrays:
        """The lists that a member of an ensemble is trained on."""
        arrays = self._select_features(candidate.feature_set)
        kept = np.flatnonzero(self.folds.fold != member % self.folds.n_folds)
        return arrays.select(kept) if len(kept) else arrays

    def _make_prior(self, arrays: TrainingArrays, candidate: Candidate) -> np.ndarray:
        """Weights that fitting keeps close to, (F,): the total, or what prior lists have taught, at a
        sharpness of one standard deviation of its values within lists, and a penalty for empty hypotheses if
        these are left out."""
        scale_of = dict(zip(arrays.features, arrays.scales.tolist(), strict=True))
        weights = {TOTAL: 1.0}
        if self.prior and candidate.from_prior_lists:
            taught = self.prior._fit_per_unit(replace(candidate, from_prior_lists=False))
            weights |= {name: weight * scale_of.get(name, 0.0) for name, weight in taught.items()}
            weights[EMPTY] = 0.0
            spread = arrays.spread(arrays.x @ _arrange(weights, arrays))
            weights = {name: weight / (spread or 1.0) for name, weight in weights.items()}
        if self.leaves_empty_out:
            weights[EMPTY] = EMPTY_PRIOR * scale_of.get(EMPTY, 0.0)
        return _arrange(weights, arrays)

    def _fit_per_unit(self, candidate: Candidate) -> dict[str, float]:
        """Fit a linear candidate; return the weights of the features as they are before scaling."""
        arrays = self._select_features(candidate.feature_set)
        weights = self._fit_linear(candidate).linear / arrays.scales
        return dict(zip(arrays.features, weights.tolist(), strict=True))

    def _select_features(self, feature_set: str) -> TrainingArrays:
        if feature_set not in self._sets:
            self._sets[feature_set] = self.arrays.keep_features(self.feature_sets[feature_set])
        return self._sets[feature_set]


class Fitted:
    """A fitted candidate: its features, of those in the arrays, and its networks."""

    def __init__(self, features: tuple[str, ...], ensemble: Ensemble | TransformerEnsemble) -> None:
        self.features, self.ensemble = features, ensemble

    @property
    def linear(self) -> np.ndarray:
        """Mean over the networks of the linear weight of each feature, (F,)."""
        if isinstance(self.ensemble, TransformerEnsemble):
            return self.ensemble.parameters["linear"].mean(axis=0)
        return self.ensemble.linear.mean(axis=0)

    def score(self, arrays: TrainingArrays) -> np.ndarray:
        """Score all hypotheses of some lists, (H,)."""
        x = arrays.keep_features(self.features).x
        if not isinstance(self.ensemble, TransformerEnsemble):
            return self.ensemble.score(x)
        return np.concatenate(
            [self.ensemble.score(x[begin:end]) for begin, end in pairwise(arrays.offsets.tolist())]
        )


def is_better_without_empty(arrays: TrainingArrays) -> bool:
    """Whether the base weights make no more errors if they leave out empty hypotheses.

    These are so unlike all others, and language models like them so much, that a weight for them that is
    learnt from few examples can cost more errors than all other weights save.
    """
    total = arrays.keep_features([TOTAL]).x.sum(axis=1)  # 0 where the total tells no hypotheses apart
    without = np.where(arrays.empty, -np.inf, total)
    return int(arrays.list_errors(without).sum()) <= int(arrays.list_errors(total).sum())


def _arrange(weights: Mapping[str, float], arrays: TrainingArrays) -> np.ndarray:
    """The weight of each feature, (F,); 0 for those without one."""
    return np.array([weights.get(name, 0.0) for name in arrays.features])

"""What is known about a trained reranker: held-out error rates, weights, worth of features, calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rescorer.evaluation.calibration.measures import expected_calibration_error
from rescorer.evaluation.comparison.scored_lists import ScoredList
from rescorer.evaluation.error_rate.report import to_percent
from rescorer.evaluation.figures import gain_to_dict, interval_to_list
from rescorer.evaluation.statistics.bootstrap import Bootstrap, bootstrap, choose_units
from rescorer.evaluation.tuning.judgement import Judgement, judge
from rescorer.reranking.features import FEATURE_KINDS
from rescorer_training.reranker.arrays import TrainingArrays
from rescorer_training.reranker.candidates import EMPTY, TOTAL, Choice
from rescorer_training.reranker.cross_validation import CrossValidation, NestedTraining
from rescorer_training.reranker.encoding import is_encoding
from rescorer_training.reranker.fitting import Fitted

RERANKER = "reranker"
"""Name of its row."""


@dataclass(frozen=True, slots=True)
class System:
    """The errors of a way of choosing hypotheses."""

    name: str
    errors: np.ndarray
    """(L,) int64."""
    words: np.ndarray
    """(L,) int64, reference words."""
    held_out: bool
    """Whether what chose the hypothesis of a list was tuned without it."""
    is_rule: bool = True
    """Whether a reranker must beat it."""


@dataclass(frozen=True, slots=True)
class FeatureWeight:
    """The weight of a feature in the linear part; features have a spread of 1 within lists."""

    name: str
    weight: float
    """Mean over the networks."""
    fold_mean: float
    fold_spread: float
    """Standard deviation over the folds."""


@dataclass(frozen=True, slots=True)
class FeatureWorth:
    """What is lost, held out, if a reranker of the same kind is trained without some features."""

    name: str
    """Kind of the features, or the stream or model that they are about."""
    features: tuple[str, ...]
    loss: float
    """Error rate without them minus error rate with them."""


@dataclass(frozen=True, slots=True)
class RerankerReport:
    """Figures about a reranker and the rules that it must beat."""

    systems: tuple[System, ...]
    """The first pass, the simple rules, the oracle and, last, the reranker."""
    bootstrap: Bootstrap
    """Draws of all systems together."""
    best_rule: str
    """The simple rule with the fewest errors."""
    judgement: Judgement
    """The reranker against the best simple rule."""
    candidate: Choice
    """Chosen for the reranker, by cross-validation on all lists."""
    fold_candidates: tuple[Choice, ...]
    """Chosen in each fold without it."""
    folds: str
    """By what the lists were divided."""
    weights: tuple[FeatureWeight, ...]
    worth: tuple[FeatureWorth, ...]
    calibration_error: float
    """Expected calibration error of the held-out posterior of each first-ranked hypothesis, as the
    probability that no hypothesis of the list has fewer errors."""
    mean_posterior: float
    share_right: float
    """Share of the lists whose first-ranked hypothesis has the fewest errors, held out."""
    n_seen: int = 0
    """Number of lists that the base weights were tuned on, so that nothing is held out from these."""
    prior_lists: str = ""
    """Lists of another kind from which a prior could be taken; empty without any."""

    @property
    def is_better(self) -> bool:
        """Whether it beats the best simple rule by more than chance."""
        return self.judgement.is_better

    def explain(self) -> str:
        """One sentence: what the reranker gains, or why it is not written."""
        gain, low = 100 * self.judgement.gain.gain, 100 * self.judgement.gain.lower_bound
        rule = f"the best simple rule ({self.best_rule!r})"
        if self.is_better:
            return (
                f"held out, the reranker gains {gain:.2f} points over {rule}, at least {low:.2f} with 97.5 % "
                "confidence"
            )
        if not self.judgement.gain.gain:
            return f"held out, the reranker makes as many errors as {rule}"
        if gain < 0:
            return f"held out, the reranker loses {-gain:.2f} points against {rule}"
        bound = (
            f"the lower bound is {low:.2f}"
            if np.isfinite(low)
            else f"the two differ in too few {self.judgement.unit}s"
        )
        return f"the held-out gain of {gain:.2f} points over {rule} may be chance, because {bound}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data; rates in percent."""
        judgement = self.judgement
        return {
            "better": self.is_better,
            "reason": self.explain(),
            "lists": judgement.n_lists,
            "lists_needed": judgement.n_lists_needed,
            "units": judgement.n_units,
            "folds": self.folds,
            "warning": judgement.warning,
            "base_tuned_on": self.n_seen,
            "prior_lists": self.prior_lists,
            "best_rule": self.best_rule,
            "gain_over_best_rule": gain_to_dict(judgement.gain),
            "systems": [
                {
                    "name": system.name,
                    "wer": to_percent(float(self.bootstrap.rates[index])),
                    "interval": interval_to_list(self.bootstrap.interval(index)),
                    "errors": int(system.errors.sum()),
                    "reference_words": int(system.words.sum()),
                    "held_out": system.held_out,
                    **gain_to_dict(self.bootstrap.gain(0, index)),
                }
                for index, system in enumerate(self.systems)
            ],
            "candidate": str(self.candidate),
            "fold_candidates": list(map(str, self.fold_candidates)),
            "weights": {
                weight.name: {
                    "weight": weight.weight,
                    "fold_mean": weight.fold_mean,
                    "fold_spread": weight.fold_spread,
                }
                for weight in self.weights
            },
            "worth": {
                worth.name: {"features": list(worth.features), "loss": to_percent(worth.loss)}
                for worth in self.worth
            },
            "calibration": {
                "expected_calibration_error": self.calibration_error,
                "mean_posterior": self.mean_posterior,
                "share_right": self.share_right,
            },
        }


def build_report(
    scored: Sequence[ScoredList],
    training: NestedTraining,
    held_out: CrossValidation,
    candidate: Choice,
    fitted: Fitted,
    systems: Sequence[System],
) -> RerankerReport:
    """Judge held-out choices of rerankers, and describe the one that was fitted on all lists.

    Args:
        systems: simple rules on the same lists, the first pass first; and the oracle.
    """
    arrays, folds = training.arrays, training.folds
    chosen = arrays.choose(held_out.scores) - arrays.offsets[:-1]
    counts = [item.evaluated.hypotheses[i] for item, i in zip(scored, chosen.tolist(), strict=True)]
    words = np.array([count.reference_words for count in counts], dtype=np.int64)
    own = System(RERANKER, held_out.errors, words, held_out=True, is_rule=False)
    best = min((system for system in systems if system.is_rule), key=lambda system: system.errors.sum())
    everything = (*systems, own)
    groups = [item.evaluated.group for item in scored]
    claims, right = arrays.claims(held_out.scores)
    return RerankerReport(
        systems=everything,
        bootstrap=bootstrap(
            np.stack([system.errors for system in everything]),
            np.stack([system.words for system in everything]),
            choose_units(groups),
        ),
        best_rule=best.name,
        judgement=judge(best.errors, own.errors, np.stack([best.words, own.words]), groups),
        candidate=candidate,
        fold_candidates=held_out.chosen,
        folds=folds.describe(),
        weights=_describe_weights(training, candidate, fitted),
        worth=_measure_worth(training, candidate, fitted, words),
        calibration_error=expected_calibration_error(claims, right),
        mean_posterior=float(claims.mean()),
        share_right=float(right.mean()),
    )


def _describe_weights(
    training: NestedTraining, candidate: Choice, fitted: Fitted
) -> tuple[FeatureWeight, ...]:
    weights = summarise_weights(fitted, training.arrays)
    folds = [summarise_weights(fold, training.arrays) for fold in training.fit_folds(candidate)]
    in_folds = {name: np.array([fold[name] for fold in folds]) for name in weights}
    return tuple(
        FeatureWeight(name, weight, float(in_folds[name].mean()), float(in_folds[name].std()))
        for name, weight in weights.items()
    )


def summarise_weights(fitted: Fitted, arrays: TrainingArrays) -> dict[str, float]:
    """The linear weight of each feature, and for an encoding the spread within lists that it gives scores."""
    linear, columns = fitted.linear, [is_encoding(feature) for feature in fitted.features]
    weights = {
        feature: float(weight)
        for feature, weight in zip(fitted.features, linear, strict=True)
        if not is_encoding(feature)
    }
    if any(columns):
        encoded = arrays.keep_features([name for name in fitted.features if is_encoding(name)])
        name = encoded.features[0].rpartition(":")[0]
        weights[name] = encoded.spread(encoded.x @ linear[columns])
    return weights


def _measure_worth(
    training: NestedTraining, candidate: Choice, fitted: Fitted, words: np.ndarray
) -> tuple[FeatureWorth, ...]:
    """Leave out, in turn, all features about one stream or model, or of one other kind."""
    if len(fitted.features) < 2:
        return ()
    groups = group_features(fitted.features)
    with_all = training.cross_validate_candidate(candidate).errors.sum()
    worth = []
    for name, features in groups.items():
        errors = training.cross_validate_candidate(candidate, features).errors.sum()
        worth.append(FeatureWorth(name, features, float(errors - with_all) / max(int(words.sum()), 1)))
    return tuple(sorted(worth, key=lambda part: -part.loss))


def group_features(features: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """Features that are left out together: those about a stream or model, or else of a kind.

    What training starts from, the total and the penalty of empty hypotheses, is never left out. All of an
    encoding is left out together.
    """
    groups: dict[str, list[str]] = {}
    for feature in features:
        kind, _, argument = feature.partition(":")
        is_score = not is_encoding(feature) and FEATURE_KINDS[kind].argument == "component"
        if feature not in (TOTAL, EMPTY):
            groups.setdefault(argument if is_score else kind, []).append(feature)
    return {name: tuple(names) for name, names in groups.items()}

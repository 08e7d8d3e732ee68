"""Combine the scores of several models: weights by maximum likelihood, judged by nested cross-validation.

P(candidate) ∝ exp Σ_m w_m s_m over the candidates of a question, where s_m are the scores of model m, less
their mean over the question, in units of their standard deviation over the training questions. The weights
maximise the mean log-probability of the answers, less a penalty of strength/2 · Σ w² (McFadden 1974).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.errors import ConfigError

STRENGTHS = (0.001, 0.01, 0.1, 1.0)
"""Strengths of the penalty to choose from."""
OUTER_FOLDS, INNER_FOLDS = 10, 5
MAX_STEPS = 100
TOLERANCE = 1e-10
"""Training ends when a step gains less than so many nats per question."""


@dataclass(frozen=True, eq=False)
class Combination:
    """Scores of candidates by weights that were learned without their question."""

    values: np.ndarray
    """(Q, C) float64."""
    weights: np.ndarray
    """(folds, M): weights of standardised scores that each fold was judged with."""
    strengths: tuple[float, ...]
    """Strength of the penalty that was chosen for each fold."""


def cross_validate(scores: np.ndarray, answers: np.ndarray, seed: int = 1) -> Combination:
    """Hold out each of ten folds in turn, learn on the others, and score the fold.

    The strength of the penalty is the one that predicts the answers of five inner folds best.

    Args:
        scores: (Q, C, M) scores of the candidates by each model.
        answers: (Q,) index of the answer of each question.
        seed: of the division into folds.

    Raises:
        ConfigError: there are fewer questions than folds.
    """
    if len(scores) < OUTER_FOLDS:
        raise ConfigError(
            f"{len(scores)} questions are too few to learn a combination; expected at least {OUTER_FOLDS}"
        )
    generator = np.random.default_rng(seed)
    values, weights, strengths = np.zeros(scores.shape[:2]), [], []
    for held_out, training in _split(generator.permutation(len(scores)), OUTER_FOLDS):
        strength = _choose_strength(scores[training], answers[training], generator)
        fitted = fit(scores[training], answers[training], strength)
        values[held_out] = fitted.score(scores[held_out])
        weights.append(fitted.weights)
        strengths.append(strength)
    return Combination(values, np.array(weights), tuple(strengths))


def _choose_strength(scores: np.ndarray, answers: np.ndarray, generator: np.random.Generator) -> float:
    """Choose the strength under which held-out answers are most probable."""
    folds = _split(generator.permutation(len(scores)), INNER_FOLDS)

    def loss(strength: float) -> float:
        return sum(
            -log_probs(fit(scores[training], answers[training], strength).score(scores[held_out]))[
                np.arange(len(held_out)), answers[held_out]
            ].sum()
            for held_out, training in folds
        )

    return min(STRENGTHS, key=loss)


def _split(order: np.ndarray, n_folds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Divide questions into folds: those of each fold, and all others."""
    folds = np.array_split(order, n_folds)
    return [(fold, np.concatenate(folds[:i] + folds[i + 1 :])) for i, fold in enumerate(folds)]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of standardised scores."""

    weights: np.ndarray
    """(M,)."""
    deviations: np.ndarray
    """(M,) standard deviation of the scores of each model within the training questions."""

    def score(self, scores: np.ndarray) -> np.ndarray:
        """Combine scores, (Q, C, M) → (Q, C)."""
        return np.asarray(scores @ (self.weights / self.deviations))


def fit(scores: np.ndarray, answers: np.ndarray, strength: float) -> Weights:
    """Learn weights by Newton's method, whose step is halved until it gains.

    Args:
        scores: (Q, C, M).
        strength: of the penalty, above 0.
    """
    centred = scores - scores.mean(axis=1, keepdims=True)
    deviations = np.sqrt((centred**2).mean(axis=(0, 1)))
    deviations[deviations == 0] = 1  # the scores of such a model say nothing
    inputs = centred / deviations
    weights = np.zeros(inputs.shape[2])
    loss = penalised_loss(inputs, answers, weights, strength)
    for _ in range(MAX_STEPS):
        step = _newton_step(inputs, answers, weights, strength)
        while (new_loss := penalised_loss(inputs, answers, weights - step, strength)) > loss:
            step = step / 2
        weights, gain, loss = weights - step, loss - new_loss, new_loss
        if gain < TOLERANCE:
            break
    return Weights(weights, deviations)


def penalised_loss(inputs: np.ndarray, answers: np.ndarray, weights: np.ndarray, strength: float) -> float:
    """Mean of -ln P(answer), and the penalty."""
    chosen = log_probs(inputs @ weights)[np.arange(len(answers)), answers]
    return float(-chosen.mean() + strength / 2 * (weights @ weights))


def log_probs(values: np.ndarray) -> np.ndarray:
    """Normalise scores to log-probabilities over the candidates, (Q, C)."""
    values = values - values.max(axis=1, keepdims=True)
    return np.asarray(values - np.log(np.exp(values).sum(axis=1, keepdims=True)))


def _newton_step(inputs: np.ndarray, answers: np.ndarray, weights: np.ndarray, strength: float) -> np.ndarray:
    n, _, n_models = inputs.shape
    probs = np.exp(log_probs(inputs @ weights))
    expected = np.einsum("qc,qcm->qm", probs, inputs)
    gradient = (expected - inputs[np.arange(n), answers]).mean(axis=0) + strength * weights
    spread = inputs - expected[:, None]
    hessian = np.einsum("qc,qcm,qck->mk", probs, spread, spread) / n + strength * np.eye(n_models)
    return np.asarray(np.linalg.solve(hessian, gradient))

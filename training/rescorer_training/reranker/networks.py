"""Fit the parameters of one linear network or multilayer perceptron (MLP) by L-BFGS with exact gradients.

The score is u·x + v·tanh(W·x + b); a linear network has no hidden units. What is minimised is an objective
plus ``strength`` times the squared distance of u from the prior and of W, b, v from 0. Everything is float64
and deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rescorer.reranking.ensemble import Ensemble
from rescorer_training.reranker.arrays import TrainingArrays
from rescorer_training.reranker.objectives import Loss, ObjectiveName, make_loss

MAX_ITERATIONS = 60
TOLERANCE = 1e-6
"""Relative decrease of the loss at which the search ends."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters of one network with F inputs and K hidden units, as in ``reranker.Ensemble``."""

    linear: np.ndarray
    """(F,) u."""
    hidden: np.ndarray
    """(F, K) W."""
    bias: np.ndarray
    """(K,) b."""
    output: np.ndarray
    """(K,) v."""

    def flatten(self) -> np.ndarray:
        """All parameters in one array."""
        return np.concatenate([self.linear, self.hidden.ravel(), self.bias, self.output])

    def unflatten(self, flat: np.ndarray) -> Parameters:
        """Parameters of the same shapes from one array."""
        inputs, units = self.hidden.shape
        ends = np.cumsum([inputs, inputs * units, units])
        linear, hidden, bias, output = np.split(flat, ends)
        return Parameters(linear, hidden.reshape(inputs, units), bias, output)

    def score(self, x: np.ndarray) -> np.ndarray:
        """Score hypotheses (H, F) by their features: (H,)."""
        score: np.ndarray = x @ self.linear
        if len(self.output):
            score += np.tanh(x @ self.hidden + self.bias) @ self.output
        return score


def linear_parameters(weights: np.ndarray) -> Parameters:
    """A network without hidden units."""
    none = np.zeros(0)
    return Parameters(weights, np.zeros((len(weights), 0)), none, none)


def draw_parameters(weights: np.ndarray, n_hidden: int, seed: int) -> Parameters:
    """A network that scores as the linear one with these weights, and hidden units drawn at random."""
    hidden = np.random.default_rng(seed).normal(size=(len(weights), n_hidden)) / np.sqrt(len(weights))
    return Parameters(weights, hidden, np.zeros(n_hidden), np.zeros(n_hidden))


def make_ensemble(members: list[Parameters]) -> Ensemble:
    """Stack networks of the same shape."""
    return Ensemble(
        linear=np.stack([member.linear for member in members]),
        hidden=np.stack([member.hidden for member in members]),
        bias=np.stack([member.bias for member in members]),
        output=np.stack([member.output for member in members]),
    )


class PenalisedLoss:
    """The objective plus the penalty, as a function of the flat parameters."""

    def __init__(self, x: np.ndarray, loss: Loss, strength: float, prior: np.ndarray) -> None:
        """Args: x: (H, F). prior: (F,) weights that the linear part keeps close to."""
        self.x, self.loss, self.strength, self.prior = x, loss, strength, prior

    def __call__(self, parameters: Parameters) -> tuple[float, np.ndarray]:
        """The penalised loss, and its gradient by the flat parameters."""
        x, units = self.x, len(parameters.output)
        activations = np.tanh(x @ parameters.hidden + parameters.bias) if units else np.zeros((len(x), 0))
        value, by_score = self.loss(x @ parameters.linear + activations @ parameters.output)
        by_unit = by_score[:, None] * parameters.output * (1.0 - activations**2)
        gradient = Parameters(by_score @ x, x.T @ by_unit, by_unit.sum(axis=0), by_score @ activations)
        moves = parameters.flatten()
        moves[: len(self.prior)] -= self.prior
        penalty = self.strength * float(moves @ moves)
        return value + penalty, gradient.flatten() + 2.0 * self.strength * moves


def fit(
    arrays: TrainingArrays,
    objective: ObjectiveName,
    strength: float,
    prior: np.ndarray,
    start: Parameters,
) -> Parameters:
    """Descend from a start to parameters with a low penalised loss.

    Args:
        strength: loss that a move of one parameter by 1 must save, above 0.
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

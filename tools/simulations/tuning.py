"""Does tuning keep the start where there is nothing to gain, and find a gain as often as a test can?

    python -m tools.simulations.tuning --draws 200

Two worlds: in one, the scores of a language model are noise; in the other, the best weight of the language
model changes which hypotheses win, so that 15 % of the errors change hands and 5 % of them are gained net.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from rescorer.evaluation.tuning.folds import make_folds
from rescorer.evaluation.tuning.judgement import judge
from rescorer.evaluation.tuning.nested import cross_validate_problem
from rescorer.evaluation.weight_search.problem import TuningProblem, make_problem

N_LISTS = 500
N_WORDS = 10
ERROR_RATE = 0.30
CHANGED, GAINED = 0.15, 0.05
"""Shares of the errors that change hands, and that are gained net."""
N_HYPOTHESES = 10
UNBOUNDED = (-np.inf, np.inf)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How often the weights were changed."""

    changed: int
    draws: int
    expected_power: float
    """Mean power of the test at the best weight: how often it must find the gain."""


def draw_noise(random: np.random.Generator) -> TuningProblem:
    """Lists whose acoustic scores say something about errors, and whose other scores are noise."""
    n = N_LISTS * N_HYPOTHESES
    errors = random.binomial(N_WORDS, ERROR_RATE, size=n)
    acoustic = random.normal(size=n) - 0.3 * errors
    noise = random.normal(size=(2, n))
    bounds = [(1.0, 1.0), (0.0, np.inf), UNBOUNDED]
    return make_problem(
        ["acoustic", "lm", "word"],
        np.stack([acoustic, *noise]),
        errors,
        [N_HYPOTHESES] * N_LISTS,
        [1.0, 0.0, 0.0],
        bounds,
    )


def draw_gain(random: np.random.Generator) -> tuple[TuningProblem, np.ndarray]:
    """Lists of two hypotheses, whose second wins under a good language-model weight in some of the lists.

    Where it wins, it has one error less, or more often than not: so that shares of the errors are fixed and
    broken. Elsewhere the language model prefers the first hypothesis, too.

    Returns:
        The problem, and the change of errors of each list at the best weight, (L,).
    """
    first = random.binomial(N_WORDS, ERROR_RATE, size=N_LISTS)
    rate = ERROR_RATE * N_WORDS
    fixed, broken = rate * (CHANGED + GAINED) / 2, rate * (CHANGED - GAINED) / 2
    kind = random.choice(3, size=N_LISTS, p=[fixed, broken, 1 - fixed - broken])
    kind = np.where((kind == 0) & (first == 0), 2, kind)
    change = np.array([-1, 1, 0])[kind]
    second = np.where(kind == 2, first + random.choice([-1, 1], size=N_LISTS), first + change).clip(0)
    margin = random.uniform(0.5, 1.5, size=N_LISTS)  # by which the acoustic score prefers the first
    support = np.where(kind == 2, -1.0, 2.0) * margin  # of the language model for the second
    components = np.zeros((3, 2 * N_LISTS))
    components[0, 1::2], components[1, 1::2] = -margin, support
    components[2] = random.normal(size=2 * N_LISTS)
    errors = np.stack([first, second], axis=1).ravel()
    bounds = [(1.0, 1.0), (0.0, np.inf), UNBOUNDED]
    names = ["acoustic", "lm", "word"]
    problem = make_problem(names, components, errors, [2] * N_LISTS, [1.0, 0.0, 0.0], bounds)
    return problem, change


def find_power(change: np.ndarray) -> float:
    """Power of a one-sided test of level 2.5 % of the mean change, by the normal approximation."""
    from scipy.stats import norm

    standard_error = change.std(ddof=1) * np.sqrt(len(change))
    return float(norm.sf(norm.ppf(0.975) - (GAINED * ERROR_RATE * N_WORDS * len(change)) / standard_error))


def changes_weights(problem: TuningProblem) -> bool:
    """Whether `rescorer tune` would write other weights than those of the start."""
    ids = [str(index) for index in range(problem.n_lists)]
    folds = make_folds(ids, [""] * problem.n_lists, ids)
    result = cross_validate_problem(problem, folds)
    words = np.full(problem.n_lists, N_WORDS)
    return judge(result.start_errors, result.errors, words, [""] * problem.n_lists).is_better


def simulate_noise(draws: int, seed: int) -> Outcome:
    """Count how often noise changes the weights."""
    changed = sum(changes_weights(draw_noise(np.random.default_rng([seed, draw]))) for draw in range(draws))
    return Outcome(changed, draws, 0.025)


def simulate_gain(draws: int, seed: int) -> Outcome:
    """Count how often a real gain changes the weights."""
    drawn = [draw_gain(np.random.default_rng([seed, draw])) for draw in range(draws)]
    changed = sum(changes_weights(problem) for problem, _ in drawn)
    return Outcome(changed, draws, float(np.mean([find_power(change) for _, change in drawn])))


def main(
    draws: Annotated[int, typer.Option(min=1, help="Number of draws of each world.")] = 200,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
) -> None:
    """Simulate tuning where the truth is known."""
    noise = simulate_noise(draws, seed)
    typer.echo(f"noise: the start is kept in {draws - noise.changed} of {draws} draws")
    gain = simulate_gain(draws, seed)
    typer.echo(
        f"gain of 5 %: found in {gain.changed} of {draws} draws ({100 * gain.changed / draws:.1f} %); "
        f"power of the test {100 * gain.expected_power:.1f} %"
    )


if __name__ == "__main__":
    typer.run(main)

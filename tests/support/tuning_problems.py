"""Small tuning problems, and the slow twins of what is computed on them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from rescorer.evaluation.weight_search import MixtureChoices, TuningProblem, make_problem

UNBOUNDED = (-np.inf, np.inf)
SMALL = st.integers(-3, 3)


@st.composite
def problems(draw, n_weights: int = 2, n_mixtures: int = 0) -> TuningProblem:
    """Draw a few lists of small integers; the first weight is fixed."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    n = sum(lengths)

    def row() -> list[int]:
        return draw(st.lists(SMALL, min_size=n, max_size=n))

    components = np.array([row() for _ in range(n_weights)], dtype=float)
    errors = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    start = [1.0, 0.5, 0.0, -0.5][:n_weights]
    bounds = [(1.0, 1.0)] + [UNBOUNDED] * (n_weights - 1)
    mixtures = None
    if n_mixtures:
        rows = [components[1], *(row() for _ in range(n_mixtures))]
        shares = np.linspace(0.2, 1.0, n_mixtures + 1)
        mixtures = MixtureChoices(1, tuple((s, 1 - s) for s in shares), np.array(rows, dtype=float))
    names = [f"w{k}" for k in range(n_weights)]
    return make_problem(names, components, errors, lengths, start, bounds, mixtures)


def pairs(*lists: tuple[float, tuple[int, int]], start: float = 0.0) -> TuningProblem:
    """Lists of two hypotheses: the first scores 1 more, the second has a higher language-model score.

    Args:
        lists: how much higher, and the errors of both hypotheses.
    """
    components = [[0.0, -1.0] * len(lists), [x for gain, _ in lists for x in (0.0, gain)]]
    errors = [count for _, counts in lists for count in counts]
    bounds = [(1.0, 1.0), UNBOUNDED]
    return make_problem(["am", "lm"], np.array(components), errors, [2] * len(lists), [1.0, start], bounds)


def count_one_by_one(problem: TuningProblem, weights: Sequence[float]) -> int:
    """Slow twin: rank each list and add up the errors of its top hypothesis."""
    total = 0
    for begin, end in pairwise(problem.offsets.tolist()):
        rows = problem.components[:, begin:end].T.tolist()
        scores = [sum(w * c for w, c in zip(weights, row, strict=True)) for row in rows]
        best = max(range(len(scores)), key=lambda h: (round(scores[h], 4), -h))
        total += int(problem.errors[begin + best])
    return total


def expect_one_by_one(problem: TuningProblem, weights: Sequence[float], sharpness: float) -> float:
    """Slow twin: softmax each list and add up the expected errors."""
    total = 0.0
    for begin, end in pairwise(problem.offsets.tolist()):
        scores = sharpness * np.asarray(weights) @ problem.components[:, begin:end]
        posteriors = np.exp(scores - np.logaddexp.reduce(scores))
        total += float(posteriors @ problem.errors[begin:end])
    return total

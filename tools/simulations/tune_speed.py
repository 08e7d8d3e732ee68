"""Measure how long tuning takes: 10,000 lists of 100 hypotheses with 6 weights, on random scores.

python -m tools.simulations.tune_speed
"""

from __future__ import annotations

import resource
import time
from typing import Annotated

import numpy as np
import typer

from rescorer.evaluation.tuning.folds import make_folds
from rescorer.evaluation.tuning.nested import cross_validate_problem, fit_all
from rescorer.evaluation.weight_search.fitting import METHODS, Fitter
from rescorer.evaluation.weight_search.problem import TuningProblem, make_problem
from rescorer.runtime.cpu_count import count_cpus

QUALITY = (1.0, 0.8, 0.5, 0.2, 0.1, 0.0)
"""How much each score says about the errors."""


def draw_problem(n_lists: int, n_hypotheses: int, seed: int) -> TuningProblem:
    """Lists with scores of different quality; the first weight is the scale."""
    random = np.random.default_rng(seed)
    n = n_lists * n_hypotheses
    errors = random.poisson(3, size=n)
    components = 3 * random.normal(size=(len(QUALITY), n)) - np.outer(QUALITY, errors)
    start = [1.0] + [0.0] * (len(QUALITY) - 1)
    bounds = [(1.0, 1.0)] + [(-np.inf, np.inf)] * (len(QUALITY) - 1)
    names = [f"w{k}" for k in range(len(QUALITY))]
    return make_problem(names, components, errors, [n_hypotheses] * n_lists, start, bounds)


def main(
    lists: Annotated[int, typer.Option(min=10, help="Number of lists.")] = 10_000,
    hypotheses: Annotated[int, typer.Option(min=2, help="Hypotheses per list.")] = 100,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
    nested: Annotated[bool, typer.Option(help="Also measure the nested cross-validation.")] = True,
) -> None:
    """Print the time of a fit by each method, and of the nested cross-validation."""
    problem = draw_problem(lists, hypotheses, seed)
    typer.echo(f"{lists:,} lists of {hypotheses} hypotheses, {len(QUALITY)} weights, {count_cpus()} cores")
    fitter = Fitter(problem)
    for method in METHODS:
        begin, cpu = time.perf_counter(), time.process_time()
        errors = int(fitter.fit(method).list_errors(problem).sum())
        typer.echo(f"{method!s:32} {_seconds(begin, cpu)}  {errors:,} errors")
    if nested:
        ids = [str(index) for index in range(lists)]
        folds = make_folds(ids, [""] * lists, ids)
        begin, cpu = time.perf_counter(), time.process_time()
        cross_validate_problem(problem, folds)
        typer.echo(f"{'nested, five by five':32} {_seconds(begin, cpu)}")
        begin, cpu = time.perf_counter(), time.process_time()
        fit_all(problem, folds)
        typer.echo(f"{'choice of method and final fit':32} {_seconds(begin, cpu)}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    typer.echo(f"peak memory {peak:,.0f} MiB")


def _seconds(begin: float, cpu: float) -> str:
    return f"{time.perf_counter() - begin:7.1f} s, {time.process_time() - cpu:7.1f} s of processor time"


if __name__ == "__main__":
    typer.run(main)

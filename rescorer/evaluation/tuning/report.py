"""What a tuning found, as plain data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rescorer.evaluation.error_rate.report import to_percent
from rescorer.evaluation.figures import gain_to_dict, interval_to_list
from rescorer.evaluation.tuning.flatness import FlatDirection
from rescorer.evaluation.tuning.judgement import Judgement
from rescorer.evaluation.tuning.mixture_choices import CACHE_SHARES, NEURAL_CACHES
from rescorer.evaluation.tuning.parameters import Parameters
from rescorer.evaluation.weight_search.fitting import Method
from rescorer.score_combination import CACHE, NEURAL_CACHE
from rescorer.types import Weights

EDGE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class TunedWeight:
    """One weight before and after tuning."""

    name: str
    start: float
    tuned: float
    fold_mean: float
    fold_spread: float
    """Standard deviation over the folds."""
    note: str = ""
    """``fixed: the scale``, ``at 0``, ``on an edge`` or ``on an edge: at its search bound``; may be empty."""


@dataclass(frozen=True, slots=True)
class TuningReport:
    """The effect of tuning, and the weights."""

    start: Weights
    tuned: Weights
    """Fitted on all lists; to be used only if ``judgement.is_better``."""
    weights: tuple[TunedWeight, ...]
    judgement: Judgement
    method: Method
    """Objective and strength of the tuned weights."""
    fold_methods: tuple[Method, ...]
    flat: tuple[FlatDirection, ...]
    """How far each weight can move alone without an effect beyond the noise."""
    flattest: FlatDirection | None
    folds: str
    """By what the lists were divided."""

    def decide(self, force: bool = False) -> Weights:
        """The weights to use: the tuned ones if they are better beyond chance, or if forced, else the
        start."""
        chosen = self.tuned if self.judgement.is_better or force else self.start
        return replace(chosen, held_out=self.held_out(chosen is self.tuned))

    def held_out(self, tuned: bool) -> dict[str, float]:
        """Figures for the weights file, in percent; see ``Weights.held_out``."""
        figures = self.judgement.figures()
        return figures if tuned else {"start_wer": figures["start_wer"]}

    def to_dict(self, force: bool = False) -> dict[str, Any]:
        """Convert to JSON data; rates in percent, intervals and p-value null if unknown.

        Args:
            force: as in ``decide``.
        """
        return {
            "changed": self.judgement.is_better,
            "reason": self.judgement.explain(force),
            "start_wer": to_percent(self.judgement.start_rate),
            "held_out_wer": to_percent(self.judgement.rate),
            "held_out_wer_interval": interval_to_list(self.judgement.interval),
            **gain_to_dict(self.judgement.gain),
            "lists": self.judgement.n_lists,
            "lists_needed": self.judgement.n_lists_needed,
            "lists_for_test": self.judgement.n_lists_for_test,
            "lists_needed_sentence": self.judgement.describe_lists_needed(),
            "units": self.judgement.n_units,
            "folds": self.folds,
            "method": str(self.method),
            "fold_methods": dict(Counter(map(str, self.fold_methods))),
            "weights": {
                weight.name: {
                    "start": weight.start,
                    "tuned": weight.tuned,
                    "fold_mean": weight.fold_mean,
                    "fold_spread": weight.fold_spread,
                    "note": weight.note,
                }
                for weight in self.weights
            },
            "flat": [_to_ranges(direction) for direction in self.flat],
            "flattest": _to_ranges(self.flattest) if self.flattest else None,
        }


def describe_weights(
    parameters: Parameters, tuned: Weights, fold_weights: Sequence[Weights], bounds: np.ndarray
) -> tuple[TunedWeight, ...]:
    """Compare each weight that is free, or the scale, with its value in the folds; λ follow as ``mix:NAME``,
    and those of caches as ``cache`` and ``neural_cache``, with its θ as ``flatness``.

    Args:
        bounds: (K, 2) or more rows, lowest and highest value that was tried of each weight.
    """
    rows = []
    start, values = parameters.values(parameters.start), parameters.values(tuned)
    in_folds = np.array([parameters.values(weights) for weights in fold_weights])
    for k, name in enumerate(parameters.names):
        if name not in parameters.free and name != parameters.scale:
            continue
        note = "fixed: the scale" if name == parameters.scale else _note(values[k], start[k], bounds[k])
        spread = in_folds[:, k].std()
        rows.append(
            TunedWeight(
                name, float(start[k]), float(values[k]), float(in_folds[:, k].mean()), float(spread), note
            )
        )
    if parameters.tunes_mixture:
        for model in parameters.models:
            shares = np.array([weights.mixture[model] for weights in fold_weights])
            share = tuned.mixture[model]
            note = "on an edge" if min(share, 1 - share) < EDGE_TOLERANCE else ""
            own = parameters.start.mixture[model]
            rows.append(
                TunedWeight(f"mix:{model}", own, share, float(shares.mean()), float(shares.std()), note)
            )
    edges = {CACHE: max(CACHE_SHARES)} if parameters.tunes_cache else {}
    if parameters.tunes_neural_cache:
        edges |= {NEURAL_CACHE: max(NEURAL_CACHES)[0], "flatness": math.inf}
    for name, edge in edges.items():
        shares = np.array([getattr(weights, name) for weights in fold_weights])
        share = getattr(tuned, name)
        note = "at 0" if not share else "on an edge" if share == edge else ""
        own = getattr(parameters.start, name)
        rows.append(TunedWeight(name, own, share, float(shares.mean()), float(shares.std()), note))
    return tuple(rows)


def _note(value: float, start: float, bounds: np.ndarray) -> str:
    if abs(value) <= EDGE_TOLERANCE:
        return "at 0" if abs(start) <= EDGE_TOLERANCE else "on an edge: at 0"
    low, high = bounds
    is_near = np.isclose(value, bounds, rtol=EDGE_TOLERANCE, atol=EDGE_TOLERANCE).any()
    return "on an edge: at its search bound" if low < high and is_near else ""


def _to_ranges(direction: FlatDirection) -> dict[str, list[float]]:
    return {name: [value, direction.high[name]] for name, value in direction.low.items()}

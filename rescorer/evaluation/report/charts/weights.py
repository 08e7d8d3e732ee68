"""Draw the error rate along one weight, and over two weights at once."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from markupsafe import Markup

from rescorer.evaluation.report.charts.drawing import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Plot, element
from rescorer.evaluation.report.charts.scale import Scale, padded
from rescorer.evaluation.report.data import ShareCurve, Surface, WeightCurve

MAX_SHOWN_EXCESS = 3.0
"""Height of a curve's plot: this many times the distance from the lowest error rate to that of the chosen
weight, or at least ``MIN_HEIGHT_POINTS``; errors far from the chosen weight would hide the steps near it."""
MIN_HEIGHT_POINTS = 4.0
N_LEVELS = 7
"""Number of colours of a surface."""
LEVEL_STEPS = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Possible widths of the first level in points; each further level is twice as wide."""


def draw_weight_curve(curve: WeightCurve, reference_words: int, rate_name: str) -> Markup:
    """Steps of the error rate, the folds' values as a band with ticks, and the chosen value as a dot."""
    low, high = curve.shown
    rates = [100.0 * errors / reference_words for errors in curve.errors]
    chosen_rate = rate_at(curve, reference_words)
    floor = min(rates)
    height = max(MAX_SHOWN_EXCESS * (chosen_rate - floor), MIN_HEIGHT_POINTS)
    plot = Plot(curve.shown, padded(floor, min(max(rates), floor + height)), curve.weight, f"{rate_name} %")
    _mark_folds(plot, curve.fold_values)
    edges = [low, *curve.corners, high]
    xs = [edge for edge in edges for _ in range(2)][1:-1]
    ys = [rate for rate in rates for _ in range(2)]
    plot.line(xs, ys, "series-1")
    plot.point(
        curve.chosen, chosen_rate, "series-2", f"{curve.weight} = {curve.chosen:g}: {chosen_rate:.2f} %"
    )
    return plot.render(
        f"{rate_name} by the weight {curve.weight}: {chosen_rate:.2f} % at the chosen value "
        f"{curve.chosen:.4g}, at least {floor:.2f} % between {low:.4g} and {high:.4g}."
        f"{_describe_folds(curve.fold_values)}"
    )


def draw_share_curve(curve: ShareCurve, reference_words: int, rate_name: str) -> Markup:
    """Error rates at values of λ joined by lines, with the folds' values and the chosen one."""
    rates = [100.0 * errors / reference_words for errors in curve.errors]
    chosen_rate = rates[curve.values.index(curve.chosen)]
    label = f"λ of {curve.model}"
    plot = Plot((0.0, 1.0), padded(min(rates), max(rates)), label, f"{rate_name} %")
    _mark_folds(plot, curve.fold_values)
    plot.line(curve.values, rates, "series-1")
    for value, rate in zip(curve.values, rates, strict=True):
        plot.point(value, rate, "series-1", f"{label} = {value:g}: {rate:.2f} %", radius=2.5)
    plot.point(curve.chosen, chosen_rate, "series-2", f"{label} = {curve.chosen:g}: {chosen_rate:.2f} %")
    return plot.render(
        f"{rate_name} by the {label}: {chosen_rate:.2f} % at the chosen value {curve.chosen:.4g}, at least "
        f"{min(rates):.2f} % among {len(rates)} values.{_describe_folds(curve.fold_values)}"
    )


def _mark_folds(plot: Plot, values: Sequence[float]) -> None:
    """Draw the range of the folds' values as a band, and each of them as a tick."""
    if not values:
        return
    left, right = plot.x(min(values)), plot.x(max(values))
    band = {"x": left, "width": max(right - left, 1.0), "y": TOP, "height": HEIGHT - TOP - BOTTOM}
    plot.add_background(element("rect", **band, class_="fold-band"))
    for value in values:
        x = plot.x(value)
        plot.add(element("line", x1=x, x2=x, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM - 9, class_="fold-tick"))


def _describe_folds(values: Sequence[float]) -> str:
    return f" The folds chose {min(values):.4g} to {max(values):.4g}." if values else ""


def rate_at(curve: WeightCurve, reference_words: int) -> float:
    """Error rate at the chosen value, in percent."""
    return 100.0 * curve.errors[bisect.bisect_left(curve.corners, curve.chosen)] / reference_words


def choose_levels(surface: Surface, reference_words: int) -> list[float]:
    """Upper bounds of the levels in points above the lowest rate; the last level has none."""
    errors = [value for row in surface.errors for value in row]
    span = 100.0 * (max(errors) - min(errors)) / reference_words
    first = next((step for step in LEVEL_STEPS if step * 2 ** (N_LEVELS - 1) >= span), LEVEL_STEPS[-1])
    return [first * 2**level for level in range(N_LEVELS - 1)]


def draw_surface(surface: Surface, reference_words: int, rate_name: str) -> Markup:
    """Levels of the error rate over two weights, with the chosen weights and those of the folds."""
    plot = Plot(_edges(surface.x), _edges(surface.y), surface.x_weight, surface.y_weight)
    lowest = min(min(row) for row in surface.errors)
    levels = choose_levels(surface, reference_words)
    cells: list[list[str]] = [[] for _ in range(N_LEVELS)]
    columns = _borders(surface.x, plot.x)
    rows = _borders(surface.y, plot.y)
    for row, (bottom, top) in zip(surface.errors, itertools.pairwise(rows), strict=True):
        excess = [100.0 * (errors - lowest) / reference_words for errors in row]
        for level, start, end in _runs([bisect.bisect_left(levels, value - 1e-9) for value in excess]):
            left, right = columns[start], columns[end]
            cells[level].append(f"M{left:.1f} {top:.1f}H{right:.1f}V{bottom:.1f}H{left:.1f}Z")
    plot.add(
        *(
            element("path", d="".join(parts), class_=f"level level-{level}")
            for level, parts in enumerate(cells)
            if parts
        )
    )
    plot.add(
        element(
            "rect", x=LEFT, y=TOP, width=WIDTH - LEFT - RIGHT, height=HEIGHT - TOP - BOTTOM, class_="frame"
        )
    )
    for x, y in surface.fold_values:
        plot.point(x, y, "fold-dot", "a fold's choice", radius=2.5)
    plot.point(*surface.chosen, "series-2", "chosen weights", radius=5)
    return plot.render(
        f"{rate_name} by {surface.x_weight} and {surface.y_weight}: lowest "
        f"{100.0 * lowest / reference_words:.2f} %; chosen "
        f"{surface.chosen[0]:.4g} and {surface.chosen[1]:.4g}."
    )


def _runs(levels: Sequence[int]) -> list[tuple[int, int, int]]:
    """Stretches of equal levels, as level, start and end."""
    runs: list[tuple[int, int, int]] = []
    for index, level in enumerate(levels):
        if runs and runs[-1][0] == level:
            runs[-1] = (level, runs[-1][1], index + 1)
        else:
            runs.append((level, index, index + 1))
    return runs


def _edges(values: Sequence[float]) -> tuple[float, float]:
    """Outer borders of equally spaced cells."""
    half = (values[1] - values[0]) / 2 if len(values) > 1 else 0.5
    return values[0] - half, values[-1] + half


def _borders(values: Sequence[float], scale: Scale) -> list[float]:
    """Pixels of the borders of equally spaced cells, one more than there are cells."""
    low, high = _edges(values)
    step = (high - low) / len(values)
    return [scale(low + index * step) for index in range(len(values) + 1)]

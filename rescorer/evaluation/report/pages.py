"""Render a report as one HTML file with charts in SVG, or as Markdown without charts and utterances.

The input is ``report.data.ReportData``. Charts name their colours by CSS classes, so that the style of the
page decides how they look on light and dark backgrounds and on paper.

The page needs no network and no server; without JavaScript, it shows only the first utterances. All text that
comes from lists is escaped. The Content-Security-Policy of the page forbids everything except the page's own
style and script, which it names by their hashes, so that text in a hypothesis cannot run or load anything.
Unknown numbers become a dash.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rescorer.errors import pluralise
from rescorer.escapes import LINE_END, escape_controls
from rescorer.evaluation.list_errors import PERCENT_DECIMALS, format_number, format_p, format_signed
from rescorer.evaluation.report import data
from rescorer.evaluation.report.build import Slot, make_slots
from rescorer.evaluation.report.data import Range, ReportData, SystemRow

STEPS = (1.0, 2.0, 5.0, 10.0)
"""Possible distances between ticks: these numbers, times a power of ten."""
MAX_DECIMALS = 9


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear or logarithmic map from values to pixels."""

    low: float
    high: float
    start_px: float
    end_px: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Convert a value to a pixel; a value outside the scale is moved to the nearest end."""
        value = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self, count: int = 5) -> list[float]:
        """Return about ``count`` round values within the scale."""
        if self.is_log:
            return log_ticks(self.low, self.high, count)
        return round_ticks(self.low, self.high, count)


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return round numbers between ``low`` and ``high`` at equal distances, at most ``count + 1``.

    Their distance is 1, 2 or 5 times a power of ten.

    >>> round_ticks(17.9, 27.2)
    [18.0, 20.0, 22.0, 24.0, 26.0]
    """
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next((s * power for s in STEPS if (high - low) / (s * power) <= count + 0.5), 10 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return the powers of ten between ``low`` and ``high``, and their multiples by 2 and 5 if there is room.

    >>> log_ticks(1, 100, 7)
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f * 10**p) for p in powers for f in factors if low <= f * 10**p <= high]
        if len(ticks) <= count + 1:
            return ticks
    return ticks


def format_ticks(ticks: Sequence[float]) -> list[str]:
    """Format ticks, all with the same number of decimals, as many as the ticks need.

    >>> format_ticks([0.0, 0.5, 1.0])
    ['0.0', '0.5', '1.0']
    """
    gap = min((b - a for a, b in itertools.pairwise(ticks)), default=1.0)
    decimals = 0
    while decimals < MAX_DECIMALS and any(abs(tick - round(tick, decimals)) > 0.01 * gap for tick in ticks):
        decimals += 1
    return [format_number(tick, decimals) for tick in ticks]


def padded(low: float, high: float, share: float = 0.06) -> tuple[float, float]:
    """Extend a range a little on both sides, so that it is never empty."""
    margin = (high - low) * share or abs(high) * share or 1.0
    return low - margin, high + margin


WIDTH, HEIGHT = 380, 270
"""Size of a plot in CSS pixels."""
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 14, 42
"""Margins around the plot area, for the labels of the axes."""


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Write an SVG element; text and values are escaped.

    In names of attributes, ``class_`` stands for ``class`` and ``x_y`` for ``x-y``.
    """
    written = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _short(value))
        for name, value in attributes.items()
        if value is not None
    )
    return Markup("<{}{}>{}</{}>").format(
        Markup(tag), written, Markup("").join(map(escape, children)), Markup(tag)
    )


def _short(value: str | float) -> str:
    """Write a number of pixels with at most two decimals, which is fine enough."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def picture(width: float, height: float, description: str, parts: Iterable[str], class_: str) -> Markup:
    """Write an SVG image with a description for screen readers."""
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {_short(width)} {_short(height)}",
        width=width,
        height=height,
        class_=class_,
        role="img",
        aria_label=description,
    )


class Plot:
    """A plot with two numeric axes."""

    def __init__(
        self,
        x_range: tuple[float, float],
        y_range: tuple[float, float],
        x_label: str,
        y_label: str,
        *,
        log_x: bool = False,
    ) -> None:
        self.x = Scale(*x_range, LEFT, WIDTH - RIGHT, log_x)
        self.y = Scale(*y_range, HEIGHT - BOTTOM, TOP)
        self._labels = x_label, y_label
        self.below: list[Markup] = []
        """Elements that the grid covers."""
        self._parts: list[Markup] = []

    def add(self, *parts: Markup) -> None:
        """Draw parts on top of those that were drawn before."""
        self._parts += parts

    def line(self, xs: Sequence[float], ys: Sequence[float], class_: str) -> None:
        """Draw a polyline through points."""
        points = [(self.x(x), self.y(y)) for x, y in zip(xs, ys, strict=True)]
        path = "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)
        self.add(element("path", d=path, class_=f"line {class_}"))

    def point(self, x: float, y: float, class_: str, text: str = "", radius: float = 4.5) -> None:
        """Draw a dot; ``text`` appears under the mouse."""
        tip = [element("title", text)] if text else []
        self.add(element("circle", *tip, cx=self.x(x), cy=self.y(y), r=radius, class_=f"dot {class_}"))

    def horizontal(self, y: float, class_: str, label: str = "", above: bool = True) -> None:
        """Draw a horizontal line, with a label at its right end."""
        self.add(
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=self.y(y), y2=self.y(y), class_=f"rule {class_}")
        )
        if label:
            shift = -5 if above else 14
            self.text(WIDTH - RIGHT - 4, self.y(y) + shift, label, anchor="end", class_=f"halo {class_}")

    def text(self, x_px: float, y_px: float, text: str, *, anchor: str = "start", class_: str = "") -> None:
        """Write a label at a pixel."""
        self.add(element("text", text, x=x_px, y=y_px, text_anchor=anchor, class_=f"label {class_}".strip()))

    def render(self, description: str) -> Markup:
        """Write the whole plot as an image; ``description`` tells screen readers what it shows."""
        axes = [*self._x_axis(), *self._y_axis()]
        return picture(WIDTH, HEIGHT, description, [*self.below, *axes, *self._parts], "plot")

    def _x_axis(self) -> Iterable[Markup]:
        ticks = self.x.ticks(6 if self.x.is_log else 5)
        baseline = HEIGHT - BOTTOM
        yield element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=baseline, y2=baseline, class_="axis")
        for tick, label in zip(ticks, format_ticks(ticks), strict=True):
            x = self.x(tick)
            yield element("line", x1=x, x2=x, y1=baseline, y2=baseline + 4, class_="axis")
            yield element("text", label, x=x, y=baseline + 17, text_anchor="middle", class_="tick")
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield element(
            "text", self._labels[0], x=middle, y=HEIGHT - 6, text_anchor="middle", class_="axis-label"
        )

    def _y_axis(self) -> Iterable[Markup]:
        ticks = self.y.ticks(5)
        for tick, label in zip(ticks, format_ticks(ticks), strict=True):
            y = self.y(tick)
            yield element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid")
            yield element("text", label, x=LEFT - 7, y=y + 4, text_anchor="end", class_="tick")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        turn = f"rotate(-90 12 {_short(middle)})"
        yield element(
            "text", self._labels[1], x=12, y=middle, transform=turn, text_anchor="middle", class_="axis-label"
        )


MIN_BIN_RADIUS, MAX_BIN_RADIUS = 3.0, 9.0


def draw_depth(depth: data.DepthCurve, reference_words: int, rate_name: str) -> Markup:
    """Draw the oracle error rate of the first n hypotheses, and the rates of first pass and system."""
    rates = [100.0 * errors / reference_words for errors in depth.oracle_errors]
    first_pass = 100.0 * depth.first_pass_errors / reference_words
    system = 100.0 * depth.system_errors / reference_words
    y_range = padded(min(rates[-1], system), max(first_pass, system, rates[0]))
    deepest = max(depth.depths[-1], 2)
    plot = Plot((1, deepest), y_range, "hypotheses per list", f"{rate_name} %", log_x=True)
    plot.horizontal(first_pass, "series-muted", "first pass", above=first_pass >= system)
    plot.horizontal(system, "series-2", depth.system, above=first_pass < system)
    plot.line(depth.depths, rates, "series-1")
    for n, rate in zip(depth.depths, rates, strict=True):
        plot.point(n, rate, "series-1", f"best of {n}: {rate:.2f} %", radius=2.5)
    return plot.render(
        f"Oracle {rate_name} by number of hypotheses: {rates[0]:.2f} % with 1, {rates[-1]:.2f} % with "
        f"{depth.depths[-1]}; first pass {first_pass:.2f} %, {depth.system} {system:.2f} %."
    )


def draw_reliability(calibrations: tuple[data.Calibration, ...]) -> Markup:
    """Draw the share of right hypotheses by confidence, with dots whose area grows with the count."""
    plot = Plot((0.0, 1.0), (0.0, 1.0), "confidence", "share that is right")
    plot.line([0, 1], [0, 1], "series-muted dashed")
    sentences = []
    for number, calibration in enumerate(calibrations, 1):
        series = f"series-{number}"
        bins = calibration.bins
        plot.line([item.confidence for item in bins], [item.correct for item in bins], series)
        largest = max((item.count for item in bins), default=1)
        for item in bins:
            share = (item.count / largest) ** 0.5
            radius = MIN_BIN_RADIUS + (MAX_BIN_RADIUS - MIN_BIN_RADIUS) * share
            facts = f"confidence {item.confidence:.2f}, {item.correct:.2f} right, n = {item.count:,}"
            plot.point(item.confidence, item.correct, series, f"{calibration.name}: {facts}", radius)
        error = calibration.expected_calibration_error
        sentences.append(f"{calibration.name}: expected calibration error {error:.3f}")
    return plot.render(f"Reliability diagram. {'; '.join(sentences)}.")


ROW_WIDTH, ROW_HEIGHT = 150, 22
MIDDLE = ROW_HEIGHT / 2
MARGIN = 12


class IntervalColumn:
    """A column of error rates with their intervals."""

    def __init__(self, rows: Iterable[data.SystemRow]) -> None:
        rows = [row for row in rows if row.wer is not None]
        values = [value for row in rows for value in (row.wer or 0.0, *(row.wer_interval or ()))]
        self._scale = Scale(*padded(min(values), max(values), 0.03), MARGIN, ROW_WIDTH - MARGIN)
        self._baseline = next((row.wer for row in rows if row.role == "baseline"), None)

    def axis(self) -> Markup:
        """Draw the ticks, for the head of the column."""
        ticks = self._scale.ticks(4)
        labels = zip(ticks, format_ticks(ticks), strict=True)
        parts = [
            element("text", label, x=self._scale(tick), y=14, text_anchor="middle", class_="tick")
            for tick, label in labels
        ]
        return picture(ROW_WIDTH, ROW_HEIGHT, "scale of the error rates in percent", parts, "strip")

    def draw(self, row: data.SystemRow) -> Markup:
        """Draw a dot at the rate, a line over its interval, and a thin line at the rate of the baseline."""
        if row.wer is None:
            return Markup("")
        parts = []
        if self._baseline is not None:
            x = self._scale(self._baseline)
            parts.append(element("line", x1=x, x2=x, y1=0, y2=ROW_HEIGHT, class_="rule series-muted"))
        text = f"{row.wer:.2f} %"
        if row.wer_interval:
            low, high = map(self._scale, row.wer_interval)
            parts.append(element("line", x1=low, x2=high, y1=MIDDLE, y2=MIDDLE, class_="whisker"))
            text += f", interval {row.wer_interval[0]:.2f} to {row.wer_interval[1]:.2f}"
        series = {"baseline": "series-muted", "oracle": "series-3"}.get(row.role, "series-1")
        parts.append(element("circle", cx=self._scale(row.wer), cy=MIDDLE, r=4.5, class_=f"dot {series}"))
        return picture(ROW_WIDTH, ROW_HEIGHT, text, parts, "strip")


class ChangeColumn:
    """A column of error rates before and after rescoring, joined by a line."""

    def __init__(self, rows: Iterable[data.GroupRow]) -> None:
        values = [value for row in rows for value in rates_of(row)]
        self._scale = Scale(*padded(min(values), max(values), 0.03), MARGIN, ROW_WIDTH - MARGIN)

    def draw(self, row: data.GroupRow) -> Markup:
        """Draw a grey dot before and a coloured dot after rescoring."""
        before, after = rates_of(row)
        start, end = self._scale(before), self._scale(after)
        change = "better" if after < before else "worse" if after > before else "same"
        parts = [
            element("line", x1=start, x2=end, y1=MIDDLE, y2=MIDDLE, class_=f"joint {change}"),
            element("circle", cx=start, cy=MIDDLE, r=3.5, class_="dot series-muted"),
            element("circle", cx=end, cy=MIDDLE, r=4.5, class_=f"dot {change}"),
        ]
        return picture(ROW_WIDTH, ROW_HEIGHT, f"from {before:.1f} to {after:.1f} %", parts, "strip")


def rates_of(row: data.GroupRow) -> tuple[float, float]:
    """Return the error rates of baseline and system in percent; without reference words, the errors."""
    words = row.reference_words or 100.0
    return 100.0 * row.baseline_errors / words, 100.0 * row.system_errors / words


class BalanceColumn:
    """A column of counts on both sides of a middle line: broken words left, fixed words right."""

    def __init__(self, rows: Iterable[data.WordChange]) -> None:
        largest = max((count for row in rows for count in (row.fixed, row.broken)), default=1)
        self._unit = (ROW_WIDTH / 2 - 4) / max(largest, 1)

    def draw(self, row: data.WordChange) -> Markup:
        """Draw two bars from the middle."""
        left, right = row.broken * self._unit, row.fixed * self._unit
        middle = ROW_WIDTH / 2
        parts = [
            element("rect", x=middle - left, y=5, width=left, height=12, class_="bar worse"),
            element("rect", x=middle, y=5, width=right, height=12, class_="bar better"),
            element("line", x1=middle, x2=middle, y1=1, y2=ROW_HEIGHT - 1, class_="axis"),
        ]
        return picture(ROW_WIDTH, ROW_HEIGHT, f"{row.fixed} fixed, {row.broken} broken", parts, "strip")


MAX_SHOWN_EXCESS = 3.0
"""A plot of a curve shows rates up to this many times the distance from the lowest rate to that at the chosen
weight. Higher rates, far from the chosen weight, would make the steps near it invisible."""
MIN_HEIGHT_POINTS = 4.0
"""Smallest height of such a plot."""
N_LEVELS = 7
"""Number of colours of a surface."""
LEVEL_STEPS = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Possible widths, in points, of the first level of a surface. Each further level is twice as wide."""


def draw_weight_curve(curve: data.WeightCurve, reference_words: int, rate_name: str) -> Markup:
    """Draw the error rate as steps, the folds' values as a band with ticks, and the chosen value as a dot."""
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


def draw_share_curve(curve: data.ShareCurve, reference_words: int, rate_name: str) -> Markup:
    """Draw the error rates at values of λ as dots joined by lines, with the folds' and the chosen values."""
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
    plot.below.append(element("rect", **band, class_="fold-band"))
    for value in values:
        x = plot.x(value)
        plot.add(element("line", x1=x, x2=x, y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM - 9, class_="fold-tick"))


def _describe_folds(values: Sequence[float]) -> str:
    return f" The folds chose {min(values):.4g} to {max(values):.4g}." if values else ""


def rate_at(curve: data.WeightCurve, reference_words: int) -> float:
    """Return the error rate at the chosen value, in percent."""
    return 100.0 * curve.errors[bisect.bisect_left(curve.corners, curve.chosen)] / reference_words


def choose_levels(surface: data.Surface, reference_words: int) -> list[float]:
    """Return the upper bounds of the levels, in points above the lowest rate; the last level has no bound."""
    errors = [value for row in surface.errors for value in row]
    span = 100.0 * (max(errors) - min(errors)) / reference_words
    first = next((step for step in LEVEL_STEPS if step * 2 ** (N_LEVELS - 1) >= span), LEVEL_STEPS[-1])
    return [first * 2**level for level in range(N_LEVELS - 1)]


def draw_surface(surface: data.Surface, reference_words: int, rate_name: str) -> Markup:
    """Draw levels of the error rate over two weights, with the chosen weights and those of the folds."""
    plot = Plot(_edges(surface.x), _edges(surface.y), surface.x_weight, surface.y_weight)
    lowest = min(min(row) for row in surface.errors)
    levels = choose_levels(surface, reference_words)
    cells: list[list[str]] = [[] for _ in range(N_LEVELS)]
    columns = _borders(surface.x, plot.x)
    rows = _borders(surface.y, plot.y)
    for row, (bottom, top) in zip(surface.errors, itertools.pairwise(rows), strict=True):
        excess = [100.0 * (errors - lowest) / reference_words for errors in row]
        reached = [bisect.bisect_left(levels, value - 1e-9) for value in excess]
        for level, stretch in itertools.groupby(range(len(reached)), reached.__getitem__):
            indices = list(stretch)
            left, right = columns[indices[0]], columns[indices[-1] + 1]
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


def _edges(values: Sequence[float]) -> tuple[float, float]:
    """Return the outer borders of cells around equally spaced values."""
    half = (values[1] - values[0]) / 2 if len(values) > 1 else 0.5
    return values[0] - half, values[-1] + half


def _borders(values: Sequence[float], scale: Scale) -> list[float]:
    """Return the pixels of all borders of the cells, one more than there are cells."""
    low, high = _edges(values)
    step = (high - low) / len(values)
    return [scale(low + index * step) for index in range(len(values) + 1)]


UNKNOWN = "–"


def or_unknown(form: Callable[..., str]) -> Callable[..., str]:
    """Extend a function that formats numbers, so that it formats None as a dash."""
    return lambda value, *options: UNKNOWN if value is None else form(value, *options)


def format_range(interval: Range, signed: bool = False) -> str:
    """Format both ends of an interval."""
    form = format_signed if signed else format_number
    return f"{form(interval[0])} to {form(interval[1])}"


def format_compact(value: float) -> str:
    """Format a component with two decimals, or without decimals if it is a whole number, such as a count.

    >>> format_compact(-310.257), format_compact(12.0)
    ('−310.26', '12')
    """
    return format_number(value, 0 if value == int(value) else PERCENT_DECIMALS)


def verdict_class(row: SystemRow) -> str:
    """Return the CSS class of a gain: ``better`` or ``worse`` if the gain is significant, otherwise empty."""
    if not row.mark or row.gain is None:
        return ""
    return "better" if row.gain > 0 else "worse"


N_STATIC = 40
"""Number of utterances whose words and scores are elements of the page: those that can be read without
JavaScript. As many are printed. Browsers take seconds to build 10,000, and a minute with all their scores, so
the page has all utterances as data, from which the script builds the elements of those that are seen."""


def name_reading(reading: data.Reading) -> str:
    """Return the names of the systems that chose a reading, and how it was generated."""
    names = " · ".join(reading.systems)
    return f"{names} (generated: {reading.generated})" if reading.generated else names


def pack_utterances(report: ReportData) -> Markup:
    """Write the utterances as JSON for the script, with the texts that it shows; each name is written once.

    Control characters in texts are escaped as everywhere on the page. No text ends the element that holds the
    JSON, because ``<`` is written as an escape.
    """
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        return numbers.setdefault(name, len(numbers))

    utterances = report.utterances.rows if report.utterances else ()
    rows = [_pack_utterance(item, report.system, number) for item in utterances]
    packed = {"names": list(numbers), "hasFiles": len(report.files) > 1, "rows": rows}
    text = json.dumps(_escape_texts(packed), ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c"))


def _pack_utterance(item: data.Utterance, system: str, number: Callable[[str], int]) -> list[object]:
    shown = next((i for i, reading in enumerate(item.readings) if system in reading.systems), -1)
    readings = [[reading.errors, number(name_reading(reading))] for reading in item.readings]
    slots = [_pack_slot(slot) for slot in make_slots(item.readings)]
    tables = [
        [
            number(table.file),
            list(map(number, table.components)),
            table.hypotheses,
            [_pack_hypothesis(row, number) for row in table.rows],
        ]
        for table in item.tables
    ]
    return [item.id, item.group, item.baseline_errors, item.system_errors, shown, readings, slots, tables]


def _pack_slot(slot: Slot) -> str | list[str]:
    """Write a slot as its reference word if every reading has it, else as that word and a text per reading.

    This text is empty if the reading has the reference word; else it is the first letter of the kind of the
    cell and the word.
    """
    cells = ["" if cell == ("correct", slot.reference) else cell[0][0] + cell[1] for cell in slot.cells]
    return [slot.reference, *cells] if any(cells) else slot.reference


def _pack_hypothesis(row: data.HypothesisRow, number: Callable[[str], int]) -> list[object]:
    by = number(" · ".join(row.chosen_by))
    numbers = [format_number(row.total), *map(format_compact, row.components)]
    return ["generated" if row.generated else row.rank, row.errors, row.text, row.generated, by, numbers]


def _escape_texts(value: Any) -> Any:
    """Escape the control characters of every text in nested lists and the values of dicts."""
    if isinstance(value, str):
        return escape_controls(value, LINE_END)
    if isinstance(value, list):
        return [_escape_texts(one) for one in value]
    return {key: _escape_texts(one) for key, one in value.items()} if isinstance(value, dict) else value


PACKAGE = "rescorer.evaluation.report"
TEMPLATES = "templates"


@cache
def make_environment() -> Environment:
    """Load the templates and the functions that they call. Values that are not markup are escaped."""
    environment = Environment(
        loader=PackageLoader(PACKAGE, TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "rate": or_unknown(format_number),
        "signed": or_unknown(format_signed),
        "interval": or_unknown(format_range),
        "p": or_unknown(format_p),
        "count": "{:,}".format,
        "compact": format_compact,
    }
    environment.globals |= {
        "pluralise": pluralise,
        "draw_weight_curve": draw_weight_curve,
        "draw_share_curve": draw_share_curve,
        "draw_surface": draw_surface,
        "choose_levels": choose_levels,
        "draw_depth": draw_depth,
        "draw_reliability": draw_reliability,
        "rates_of": rates_of,
        "BalanceColumn": BalanceColumn,
        "N_STATIC": N_STATIC,
        "name_reading": name_reading,
        "pack_utterances": pack_utterances,
        "make_slots": make_slots,
        "verdict": verdict_class,
    }
    return environment


def render_html(data: ReportData) -> str:
    """Write the whole page."""
    style, script = read_asset("style.css"), read_asset("script.js")
    policy = f"default-src 'none'; style-src {source_hash(style)}; script-src {source_hash(script)}; "
    template = make_environment().get_template("report.html.j2")
    page = template.render(
        data=data,
        policy=Markup(policy + "base-uri 'none'; form-action 'none'"),
        style=Markup(style),
        script=Markup(script),
        baseline=data.row(data.baseline),
        system=data.row(data.system),
        interval_column=IntervalColumn(data.systems),
        change_column=ChangeColumn(data.groups.rows) if data.groups else None,
    )
    return escape_controls(page, LINE_END)


@cache
def read_asset(name: str) -> str:
    """Read a file of the templates' folder as it is."""
    return resources.files(PACKAGE).joinpath(TEMPLATES, name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """Return the expression by which a Content-Security-Policy allows an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render_markdown(data: ReportData) -> str:
    """Write a section of Markdown with the tables of a report."""
    environment = make_environment().overlay(autoescape=False)
    environment.filters["cell"] = escape_cell
    return escape_controls(environment.get_template("report.md.j2").render(data=data), LINE_END)


def escape_cell(text: str) -> str:
    r"""Escape text for a cell of a Markdown table, so that it neither ends the cell nor is read as HTML.

    >>> escape_cell("a | <b>")
    'a \\| &lt;b>'
    """
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())

"""Draw what the lists contain: the oracle by depth, and how often confident hypotheses are right."""

from __future__ import annotations

from markupsafe import Markup

from rescorer.evaluation.report.charts.drawing import Plot
from rescorer.evaluation.report.charts.scale import padded
from rescorer.evaluation.report.data import Calibration, DepthCurve

MIN_BIN_RADIUS, MAX_BIN_RADIUS = 3.0, 9.0


def draw_depth(depth: DepthCurve, reference_words: int, rate_name: str) -> Markup:
    """Oracle error rate of the first n hypotheses, with the rates of the first pass and the system."""
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


def draw_reliability(calibrations: tuple[Calibration, ...]) -> Markup:
    """Share of right hypotheses by confidence; the area of a dot grows with the number of hypotheses."""
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

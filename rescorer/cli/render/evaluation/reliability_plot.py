"""Draw a reliability diagram as SVG: how often claims are right, against how sure they were."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from rescorer.evaluation.calibration.judging import Judgement, Measures

PANEL, MARGIN, GAP = 300, 56, 40
"""Side of a panel, its distance from the edges of the drawing, and from the next panel, in pixels."""
MIN_RADIUS, MAX_RADIUS = 2.5, 12.0
"""Radius of the point of a bin, in pixels; its area grows with the number of claims."""
STYLE = (
    "<style>text{font:12px sans-serif;fill:#333}.frame{fill:none;stroke:#999}.ideal{stroke:#999;"
    "stroke-dasharray:4 4}.before{stroke:#b45f06;fill:#b45f06}.held-out{stroke:#0b5394;fill:#0b5394}"
    "polyline{fill:none!important;stroke-width:1.5}circle{fill-opacity:.6}</style>"
)


def draw_reliability(judgements: Mapping[str, Judgement]) -> str:
    """Draw one panel per kind of claim, with the posteriors and the held-out confidences.

    Returns:
        An SVG file.
    """
    width = 2 * MARGIN + len(judgements) * (PANEL + GAP) - GAP
    height = 2 * MARGIN + PANEL + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="Reliability diagram">',
        STYLE,
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for number, (name, judgement) in enumerate(judgements.items()):
        lines.append(f'<g transform="translate({MARGIN + number * (PANEL + GAP)} {MARGIN})">')
        lines += _draw_axes(name)
        lines += _draw_bins(judgement.before, "before")
        lines += _draw_bins(judgement.held_out, "held-out")
        lines.append("</g>")
    lines.append(
        f'<text x="{MARGIN}" y="{height - 12}"><tspan class="before" stroke="none">● posterior</tspan>'
        '<tspan class="held-out" stroke="none" dx="16">● calibrated, held out</tspan></text></svg>'
    )
    return "\n".join(lines) + "\n"


def _draw_axes(name: str) -> Iterator[str]:
    yield f'<text x="0" y="-14">{name}s: share that is right, by confidence</text>'
    yield f'<rect class="frame" width="{PANEL}" height="{PANEL}"/>'
    yield f'<line class="ideal" x1="0" y1="{PANEL}" x2="{PANEL}" y2="0"/>'
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        yield f'<text x="{tick * PANEL:.0f}" y="{PANEL + 18}" text-anchor="middle">{tick:g}</text>'
        yield f'<text x="-8" y="{(1 - tick) * PANEL + 4:.0f}" text-anchor="end">{tick:g}</text>'


def _draw_bins(measures: Measures, style: str) -> Iterator[str]:
    bins = [part for part in measures.bins if part.claims]
    most = max((part.claims for part in bins), default=1)
    points = [(part.confidence * PANEL, (1 - part.right) * PANEL) for part in bins]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="{style}" points="{path}"/>'
    for part, (x, y) in zip(bins, points, strict=True):
        radius = max(MIN_RADIUS, MAX_RADIUS * math.sqrt(part.claims / most))
        label = f"{part.claims} claims of mean confidence {part.confidence:.3f}: {part.right:.3f} right"
        place = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        yield f'<circle class="{style}" {place}><title>{label}</title></circle>'

"""Draw a picture as PNG, by matplotlib; only labels that do not overlap others are written."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np

from rescorer_training.vectors.plots.picture import COLOURS, Picture
from rescorer_training.vectors.plots.projection import Projection

MARKERS = "os^DvPX"
SIZE_INCHES = (10.0, 8.0)
DOTS_PER_INCH = 150
LABEL_POINTS = 8.0
LABEL_PLACES = ((4, 3, "left"), (-4, 3, "right"), (4, -8, "left"), (-4, -8, "right"))
"""Offsets in points that are tried for a label, and its alignment."""


def draw_png(picture: Picture, projection: Projection, stream: BinaryIO) -> int:
    """Write a PNG; return the number of labels, the most frequent words first, that had room."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    points, group_of = picture.points[projection], np.array(picture.group_of)
    size = 22.0 if len(points) <= 300 else 8.0
    for place, group in enumerate(picture.groups):
        chosen = points[group_of == place]
        axes.scatter(
            chosen[:, 0], chosen[:, 1], s=size, c=COLOURS[place], marker=MARKERS[place], alpha=0.75,
            linewidths=0, label=_escape(group),
        )  # fmt: skip
    axes.set_title(f"{_escape(picture.title)}: {len(points):,} words, {projection}", fontsize=11, loc="left")
    axes.set(xticks=[], yticks=[])
    axes.margins(0.04)
    axes.spines[:].set_color("#cccccc")
    if any(picture.groups):
        axes.legend(frameon=True, fontsize=9, loc="best")
    canvas.draw()
    n_labels = _label(picture, points, figure, axes)
    figure.savefig(stream, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return n_labels


def _label(picture: Picture, points: np.ndarray, figure: Any, axes: Any) -> int:
    """Write each word at the first place around its point where nothing else is."""
    figure.set_layout_engine("none")  # what has been measured must not move
    scale = 72 / figure.dpi
    pixels = axes.transData.transform(points) * scale
    frame = axes.get_window_extent()
    left, bottom, right, top = (value * scale for value in (frame.x0, frame.y0, frame.x1, frame.y1))
    taken: list[tuple[float, float, float, float]] = []
    if legend := axes.get_legend():
        box = legend.get_window_extent()
        taken.append((box.x0 * scale, box.y0 * scale, box.x1 * scale, box.y1 * scale))
    n_labels = 0
    for word, point, (x, y) in zip(picture.words, points, pixels, strict=True):
        width = 0.58 * LABEL_POINTS * len(word) + 1
        for dx, dy, alignment in LABEL_PLACES:
            start = x + dx - (width if alignment == "right" else 0)
            box = (start, y + dy - 1, start + width, y + dy + LABEL_POINTS)
            is_inside = box[0] > left and box[1] > bottom and box[2] < right and box[3] < top
            if is_inside and not any(_overlaps(box, other) for other in taken):
                axes.annotate(
                    _escape(word), point, (dx, dy), textcoords="offset points", ha=alignment,
                    fontsize=LABEL_POINTS, color="#222222",
                )  # fmt: skip
                taken.append(box)
                n_labels += 1
                break
    return n_labels


def _overlaps(box: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]


def _escape(text: str) -> str:
    """Keep matplotlib from reading a formula between dollar signs."""
    return text.replace("$", r"\$")

"""Write SVG elements, and a plot with two axes to draw into."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from rescorer.evaluation.report.charts.scale import Scale, format_ticks

WIDTH, HEIGHT = 380, 270
"""Size of a plot in CSS pixels at which its labels have their natural size."""
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 14, 42
"""Margins around the plot area, for the labels of the axes."""


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """One SVG element; text and values are escaped, ``class_`` stands for ``class``, ``x_y`` for ``x-y``."""
    written = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _short(value))
        for name, value in attributes.items()
        if value is not None
    )
    return Markup("<{}{}>{}</{}>").format(
        Markup(tag), written, Markup("").join(map(escape, children)), Markup(tag)
    )


def _short(value: str | float) -> str:
    """At most two decimals, which is far finer than a pixel."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def path_data(points: Iterable[tuple[float, float]]) -> str:
    """A polyline as the data of a path."""
    return "M" + "L".join(f"{_short(x)} {_short(y)}" for x, y in points)


def picture(width: float, height: float, description: str, parts: Iterable[str], class_: str) -> Markup:
    """An SVG image with a description for screen readers."""
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
    """A plot area with an axis of numbers on two sides."""

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
        self._below: list[Markup] = []
        self._parts: list[Markup] = []

    def add(self, *parts: Markup) -> None:
        """Draw over what was drawn before."""
        self._parts += parts

    def add_background(self, *parts: Markup) -> None:
        """Draw below the grid."""
        self._below += parts

    def line(self, xs: Sequence[float], ys: Sequence[float], class_: str) -> None:
        """A polyline through points."""
        points = [(self.x(x), self.y(y)) for x, y in zip(xs, ys, strict=True)]
        self.add(element("path", d=path_data(points), class_=f"line {class_}"))

    def point(self, x: float, y: float, class_: str, text: str = "", radius: float = 4.5) -> None:
        """A dot; ``text`` appears under the mouse."""
        tip = [element("title", text)] if text else []
        self.add(element("circle", *tip, cx=self.x(x), cy=self.y(y), r=radius, class_=f"dot {class_}"))

    def vertical(self, x: float, class_: str) -> None:
        """A line from the bottom to the top."""
        self.add(
            element("line", x1=self.x(x), x2=self.x(x), y1=HEIGHT - BOTTOM, y2=TOP, class_=f"rule {class_}")
        )

    def horizontal(self, y: float, class_: str, label: str = "", above: bool = True) -> None:
        """A line from the left to the right, with a label at its right end."""
        self.add(
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=self.y(y), y2=self.y(y), class_=f"rule {class_}")
        )
        if label:
            shift = -5 if above else 14
            self.text(WIDTH - RIGHT - 4, self.y(y) + shift, label, anchor="end", class_=f"halo {class_}")

    def text(self, x_px: float, y_px: float, text: str, *, anchor: str = "start", class_: str = "") -> None:
        """A label at a pixel."""
        self.add(element("text", text, x=x_px, y=y_px, text_anchor=anchor, class_=f"label {class_}".strip()))

    def render(self, description: str) -> Markup:
        """The whole plot as an image; ``description`` is what it shows, for screen readers."""
        axes = [*self._x_axis(), *self._y_axis()]
        return picture(WIDTH, HEIGHT, description, [*self._below, *axes, *self._parts], "plot")

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

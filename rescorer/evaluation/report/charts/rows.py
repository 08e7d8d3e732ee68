"""Draw small charts for the rows of tables, all with the scale of their table."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup

from rescorer.evaluation.report.charts.drawing import element, picture
from rescorer.evaluation.report.charts.scale import Scale, format_ticks, padded
from rescorer.evaluation.report.data import GroupRow, SystemRow, WordChange

WIDTH, HEIGHT = 150, 22
MIDDLE = HEIGHT / 2
MARGIN = 12


class IntervalColumn:
    """A column of error rates with their intervals."""

    def __init__(self, rows: Iterable[SystemRow]) -> None:
        rows = [row for row in rows if row.wer is not None]
        values = [value for row in rows for value in (row.wer or 0.0, *(row.wer_interval or ()))]
        self._scale = Scale(*padded(min(values), max(values), 0.03), MARGIN, WIDTH - MARGIN)
        self._baseline = next((row.wer for row in rows if row.role == "baseline"), None)

    def axis(self) -> Markup:
        """Ticks, for the head of the column."""
        ticks = self._scale.ticks(4)
        labels = zip(ticks, format_ticks(ticks), strict=True)
        parts = [
            element("text", label, x=self._scale(tick), y=14, text_anchor="middle", class_="tick")
            for tick, label in labels
        ]
        return picture(WIDTH, HEIGHT, "scale of the error rates in percent", parts, "strip")

    def draw(self, row: SystemRow) -> Markup:
        """A dot at the rate, a line over its interval, and a thin rule at the rate of the baseline."""
        if row.wer is None:
            return Markup("")
        parts = []
        if self._baseline is not None:
            x = self._scale(self._baseline)
            parts.append(element("line", x1=x, x2=x, y1=0, y2=HEIGHT, class_="rule series-muted"))
        text = f"{row.wer:.2f} %"
        if row.wer_interval:
            low, high = map(self._scale, row.wer_interval)
            parts.append(element("line", x1=low, x2=high, y1=MIDDLE, y2=MIDDLE, class_="whisker"))
            text += f", interval {row.wer_interval[0]:.2f} to {row.wer_interval[1]:.2f}"
        series = {"baseline": "series-muted", "oracle": "series-3"}.get(row.role, "series-1")
        parts.append(element("circle", cx=self._scale(row.wer), cy=MIDDLE, r=4.5, class_=f"dot {series}"))
        return picture(WIDTH, HEIGHT, text, parts, "strip")


class ChangeColumn:
    """A column of error rates before and after rescoring, joined by a line."""

    def __init__(self, rows: Iterable[GroupRow]) -> None:
        values = [value for row in rows for value in rates_of(row)]
        self._scale = Scale(*padded(min(values), max(values), 0.03), MARGIN, WIDTH - MARGIN)

    def draw(self, row: GroupRow) -> Markup:
        """A grey dot before and a coloured dot after rescoring."""
        before, after = rates_of(row)
        start, end = self._scale(before), self._scale(after)
        change = "better" if after < before else "worse" if after > before else "same"
        parts = [
            element("line", x1=start, x2=end, y1=MIDDLE, y2=MIDDLE, class_=f"joint {change}"),
            element("circle", cx=start, cy=MIDDLE, r=3.5, class_="dot series-muted"),
            element("circle", cx=end, cy=MIDDLE, r=4.5, class_=f"dot {change}"),
        ]
        return picture(WIDTH, HEIGHT, f"from {before:.1f} to {after:.1f} %", parts, "strip")


def rates_of(row: GroupRow) -> tuple[float, float]:
    """Error rates of the baseline and the system in percent; the number of errors, if there are no words."""
    words = row.reference_words or 100.0
    return 100.0 * row.baseline_errors / words, 100.0 * row.system_errors / words


class BalanceColumn:
    """A column of counts to both sides of a middle line: broken to the left, fixed to the right."""

    def __init__(self, rows: Iterable[WordChange]) -> None:
        largest = max((count for row in rows for count in (row.fixed, row.broken)), default=1)
        self._unit = (WIDTH / 2 - 4) / max(largest, 1)

    def draw(self, row: WordChange) -> Markup:
        """Two bars from the middle."""
        left, right = row.broken * self._unit, row.fixed * self._unit
        middle = WIDTH / 2
        parts = [
            element("rect", x=middle - left, y=5, width=left, height=12, class_="bar worse"),
            element("rect", x=middle, y=5, width=right, height=12, class_="bar better"),
            element("line", x1=middle, x2=middle, y1=1, y2=HEIGHT - 1, class_="axis"),
        ]
        return picture(WIDTH, HEIGHT, f"{row.fixed} fixed, {row.broken} broken", parts, "strip")

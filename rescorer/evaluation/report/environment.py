"""The templates of reports, with the filters and functions that they use."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from rescorer.errors import pluralise
from rescorer.evaluation.report import numbers
from rescorer.evaluation.report.charts import lists, rows, weights
from rescorer.evaluation.report.data import SystemRow
from rescorer.evaluation.report.slots import make_slots

PACKAGE = "rescorer.evaluation.report"
TEMPLATES = "templates"


@cache
def make_environment() -> Environment:
    """The templates with everything that they call; all values are escaped unless they are markup."""
    environment = Environment(
        loader=PackageLoader(PACKAGE, TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "rate": numbers.format_rate,
        "signed": numbers.format_signed,
        "interval": numbers.format_range,
        "p": numbers.format_p,
        "count": numbers.format_count,
        "compact": numbers.format_compact,
    }
    environment.globals |= {
        "pluralise": pluralise,
        "draw_weight_curve": weights.draw_weight_curve,
        "draw_share_curve": weights.draw_share_curve,
        "draw_surface": weights.draw_surface,
        "choose_levels": weights.choose_levels,
        "draw_depth": lists.draw_depth,
        "draw_reliability": lists.draw_reliability,
        "rates_of": rows.rates_of,
        "BalanceColumn": rows.BalanceColumn,
        "make_slots": make_slots,
        "verdict": verdict_class,
    }
    return environment


def verdict_class(row: SystemRow) -> str:
    """CSS class of a gain: ``better`` or ``worse`` if it is significant, otherwise empty."""
    if not row.mark or row.gain is None:
        return ""
    return "better" if row.gain > 0 else "worse"

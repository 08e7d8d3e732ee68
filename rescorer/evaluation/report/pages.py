"""Render a report as one HTML file that needs no network, or as Markdown without charts and utterances.

The page needs no server, and no JavaScript to be read. Everything that comes from lists is escaped, and the
page's Content-Security-Policy forbids everything except its own style and script, which it names by their
hashes: text in a hypothesis cannot run or load anything. Numbers that are not known become a dash.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from rescorer.errors import pluralise
from rescorer.evaluation import figures
from rescorer.evaluation.list_errors import PERCENT_DECIMALS
from rescorer.evaluation.report import charts
from rescorer.evaluation.report.build import make_slots
from rescorer.evaluation.report.charts import ChangeColumn, IntervalColumn
from rescorer.evaluation.report.data import Range, ReportData, SystemRow

UNKNOWN = "–"


def format_rate(value: float | None) -> str:
    """A rate in percent without the sign %."""
    return UNKNOWN if value is None else figures.format_number(value)


def format_signed(value: float | None, decimals: int = PERCENT_DECIMALS) -> str:
    """A number with its sign, also if it is positive."""
    return UNKNOWN if value is None else figures.format_signed(value, decimals)


def format_range(interval: Range | None, signed: bool = False) -> str:
    """Both ends of an interval."""
    if interval is None:
        return UNKNOWN
    form = format_signed if signed else format_rate
    return f"{form(interval[0])} to {form(interval[1])}"


def format_p(value: float | None) -> str:
    """A p-value with three decimals."""
    return UNKNOWN if value is None else figures.format_p(value)


def format_compact(value: float) -> str:
    """A component: two decimals, none for whole numbers such as counts.

    >>> format_compact(-310.257), format_compact(12.0)
    ('−310.26', '12')
    """
    return figures.format_number(value, 0 if value == int(value) else PERCENT_DECIMALS)


def verdict_class(row: SystemRow) -> str:
    """CSS class of a gain: ``better`` or ``worse`` if it is significant, otherwise empty."""
    if not row.mark or row.gain is None:
        return ""
    return "better" if row.gain > 0 else "worse"


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
        "rate": format_rate,
        "signed": format_signed,
        "interval": format_range,
        "p": format_p,
        "count": "{:,}".format,
        "compact": format_compact,
    }
    environment.globals |= {
        "pluralise": pluralise,
        "draw_weight_curve": charts.draw_weight_curve,
        "draw_share_curve": charts.draw_share_curve,
        "draw_surface": charts.draw_surface,
        "choose_levels": charts.choose_levels,
        "draw_depth": charts.draw_depth,
        "draw_reliability": charts.draw_reliability,
        "rates_of": charts.rates_of,
        "BalanceColumn": charts.BalanceColumn,
        "make_slots": make_slots,
        "verdict": verdict_class,
    }
    return environment


def render_html(data: ReportData) -> str:
    """The whole page."""
    style, script = read_asset("style.css"), read_asset("script.js")
    policy = f"default-src 'none'; style-src {source_hash(style)}; script-src {source_hash(script)}; "
    template = make_environment().get_template("report.html.j2")
    return template.render(
        data=data,
        policy=Markup(policy + "base-uri 'none'; form-action 'none'"),
        style=Markup(style),
        script=Markup(script),
        baseline=data.row(data.baseline),
        system=data.row(data.system),
        interval_column=IntervalColumn(data.systems),
        change_column=ChangeColumn(data.groups.rows) if data.groups else None,
    )


@cache
def read_asset(name: str) -> str:
    """A file of the templates' folder as it is."""
    return resources.files(PACKAGE).joinpath(TEMPLATES, name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """The expression by which a Content-Security-Policy admits an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def render_markdown(data: ReportData) -> str:
    """A section of Markdown with the tables of a report; the filter ``cell`` escapes text for tables."""
    environment = make_environment().overlay(autoescape=False)
    environment.filters["cell"] = escape_cell
    return environment.get_template("report.md.j2").render(data=data)


def escape_cell(text: str) -> str:
    r"""Text that neither ends a cell of a table nor is read as HTML.

    >>> escape_cell("a | <b>")
    'a \\| &lt;b>'
    """
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())

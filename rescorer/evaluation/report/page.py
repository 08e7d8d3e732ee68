"""Render a report as one HTML file that needs no network, no server and no JavaScript to be read.

Everything that comes from lists is escaped, and the page's Content-Security-Policy forbids everything except
its own style and script, which it names by their hashes: text in a hypothesis cannot run or load anything.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib import resources

from markupsafe import Markup

from rescorer.evaluation.report.charts.rows import ChangeColumn, IntervalColumn
from rescorer.evaluation.report.data import ReportData
from rescorer.evaluation.report.environment import PACKAGE, TEMPLATES, make_environment


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

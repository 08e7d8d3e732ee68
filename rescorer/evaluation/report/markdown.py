"""Render a report as Markdown: the figures without charts and utterances, to be read as text or put into a
page."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment

from rescorer.evaluation.report.data import ReportData
from rescorer.evaluation.report.environment import make_environment


def render_markdown(data: ReportData) -> str:
    """A section of Markdown with the tables of a report."""
    return make_markdown_environment().get_template("report.md.j2").render(data=data)


@cache
def make_markdown_environment() -> Environment:
    """The templates without escaping for HTML; the filter ``cell`` escapes text for tables of Markdown."""
    environment = make_environment().overlay(autoescape=False)
    environment.filters["cell"] = escape_cell
    return environment


def escape_cell(text: str) -> str:
    r"""Text that neither ends a cell of a table nor is read as HTML.

    >>> escape_cell("a | <b>")
    'a \\| &lt;b>'
    """
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())

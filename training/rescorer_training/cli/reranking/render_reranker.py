"""Tables and lines about a trained reranker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import RenderableType

from rescorer.cli.render.exports import to_markdown
from rescorer.cli.render.tables import FoldingTable
from rescorer.evaluation.figures import (
    describe_p,
    format_gain,
    format_interval,
    format_p,
    format_percent,
    format_signed,
)
from rescorer_training.reranker.report import RerankerReport


def make_tables(report: RerankerReport) -> Iterator[RenderableType]:
    """Yield the tables and lines of a report."""
    for heading, table in make_sections(report):
        yield _fill(heading, table)
        yield ""
    yield from describe(report)


Section = tuple[str, list[list[str]]]
"""A title, and the lines of a table, of which the first has the headings."""


def make_page(report: RerankerReport, title: str) -> str:
    """A Markdown page with the tables and lines of a report."""
    parts = [f"# {title}", *(f"- {line}" for line in describe(report))]
    for heading, (headings, *lines) in make_sections(report):
        parts += ["", f"## {heading.capitalize()}", "", to_markdown(headings, lines).rstrip()]
    return "\n".join([parts[0], "", *parts[1:]]) + "\n"


def make_sections(report: RerankerReport) -> Iterator[Section]:
    """Yield the tables of a report as text."""
    yield (
        "error rates",
        [
            ["system", "WER %", "95 %", "saved, points", "p", "held out"],
            *(
                [
                    system.name,
                    format_percent(float(report.bootstrap.rates[index])),
                    format_interval(report.bootstrap.interval(index)),
                    format_gain(gain),
                    format_p(gain.p_value) if gain.interval.is_finite else "-",
                    "yes" if system.held_out else "-",
                ]
                for index, system in enumerate(report.systems)
                for gain in [report.bootstrap.gain(0, index)]
            ),
        ],
    )
    yield (
        "weights per standard deviation of the feature within lists",
        [
            ["feature", "weight", "mean of folds", "± over folds"],
            *(
                [part.name, *(f"{value:.3f}" for value in (part.weight, part.fold_mean, part.fold_spread))]
                for part in report.weights
            ),
        ],
    )
    yield (
        "lost by training without these features",
        [
            ["without", "points", "features"],
            *([part.name, format_signed(100 * part.loss), str(len(part.features))] for part in report.worth),
        ],
    )


def describe(report: RerankerReport) -> Iterator[str]:
    """Yield lines about the judgement, the choices in the folds and the calibration."""
    judgement = report.judgement
    p_value = f" ({describe_p(judgement.gain.p_value)})" if judgement.gain.interval.is_finite else ""
    yield f"{report.explain()}{p_value}"
    if report.n_seen:
        yield (
            f"warning: the base weights were tuned on {report.n_seen:,} of these lists, from which they are "
            "therefore not held out: error rates may be too low"
        )
    yield from judgement.caveats()
    yield f"cross-validation: {report.folds}"
    if report.prior_lists:
        yield f"prior: {report.prior_lists}"
    in_folds = "; ".join(
        f"{count}× {name}" for name, count in Counter(map(str, report.fold_candidates)).items()
    )
    yield f"chosen: {report.candidate}; in the folds: {in_folds}"
    yield (
        f"calibration: mean posterior {report.mean_posterior:.3f} of the first-ranked hypothesis, which has "
        f"the fewest errors of its list in {100 * report.share_right:.1f} % of the lists; expected "
        f"calibration error {report.calibration_error:.3f}"
    )


def _fill(title: str, lines: list[list[str]]) -> FoldingTable:
    table = FoldingTable(*lines[0], title=title)
    for line in lines[1:]:
        table.add_row(line[0], *line[1:])
    return table

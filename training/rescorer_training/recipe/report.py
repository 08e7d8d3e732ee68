"""Write the report of a recipe: a table of perplexities, training curves and a description of the machine."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from rescorer.errors import ConfigError
from rescorer.escapes import LINE_END, escape_controls

REPORT_FILE, FIGURES_FILE, CURVES_FILE = "report.md", "report.json", "curves.png"
LINE_STYLES, N_COLOURS = ("-", "--", ":", "-."), 10
"""Line styles and number of colours of curves. Their combinations distinguish 40 networks."""
TICK_MULTIPLES = (1, 1.2, 1.5, 2, 3, 4, 5, 6, 8)
"""Multiples of powers of ten that are labelled on the axis of perplexities."""
LOWER_PANELS = {"training_loss": "training loss", "gradient_norms": "gradient norm before clipping"}
"""Keys of a network's log that are plotted below the perplexities, and the labels of their axes."""
TRAINING_LOOK = {"linewidth": 0.8, "alpha": 0.7}


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """One row of the report's table."""

    name: str
    perplexity: Mapping[str, float]
    """Perplexity by text, including ``</s>``."""
    with_ngram: Mapping[str, float]
    """Perplexity of the mixture with the n-gram model, by text; empty for the n-gram model itself."""
    network_share: float | None = None
    """Interpolation weight λ of the network in that mixture, fitted on the validation text."""
    n_parameters: int | None = None
    minutes: float | None = None
    """Training time, including validation."""
    words_per_s: float | None = None
    note: str = ""
    members: tuple[str, ...] = ()
    """Names of the rows that are averaged, if this row is a mean over seeds; otherwise empty."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Perplexities of a model relative to those of another."""

    name: str
    base: str
    relative: Mapping[str, tuple[float, ...]]
    """For each text, the relative difference with each seed, such as 0.02 if the perplexity is 2 % higher."""


@dataclass(frozen=True, slots=True)
class Report:
    """The models trained by a recipe, with their perplexities and training curves."""

    title: str
    texts: tuple[str, ...]
    """Names of the texts, validation first."""
    models: tuple[MeasuredModel, ...]
    curves: Mapping[str, Sequence[Mapping[str, Any]]]
    """Validation entries of the training log, by network."""
    machine: str
    unknown: str
    """Explanation of how unknown words are counted."""
    comparisons: tuple[Comparison, ...] = ()


def describe_machine(threads: int) -> str:
    """Describe processor, GPUs, threads and torch version in one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        model = f"{len(names)} × {names[0]}" if names else model
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join([model, *devices, f"{threads} threads", f"torch {torch.__version__}"])


def check_plotting() -> None:
    """Raise ConfigError if the training curves could not be plotted."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("the report's training curves need matplotlib: pip install 'rescorer[training]'")


def write_report(report: Report, folder: Path) -> None:
    """Write ``report.md``, ``report.json`` and, if networks were trained, ``curves.png``."""
    text = escape_controls(render_markdown(report), LINE_END)
    (folder / REPORT_FILE).write_text(text, encoding="utf-8")
    facts = json.dumps(asdict(report), indent=2, ensure_ascii=False)
    (folder / FIGURES_FILE).write_text(facts + "\n", encoding="utf-8")
    if report.curves:
        plot_curves(report.curves, folder / CURVES_FILE)


def render_markdown(report: Report) -> str:
    """Render the report as a Markdown page."""
    introduction = "Perplexity, `</s>` counted. " + report.unknown
    lines = [f"# {report.title}", "", introduction, "", *render_cells(table_cells(report)), ""]
    if report.comparisons:
        lines += ["Perplexity relative to another network:", "", *render_cells(comparison_cells(report)), ""]
    if report.curves:
        lines += [f"![training curves]({CURVES_FILE})", ""]
    return "\n".join([*lines, f"Machine: {report.machine}.", ""])


def render_cells(cells: Sequence[Sequence[str]]) -> list[str]:
    """Render headings and rows as the lines of a Markdown table."""
    header, *rows = cells
    rows = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]


def table_cells(report: Report) -> list[list[str]]:
    """Return the cells of the table of models: the headings, then one row per model."""
    text_columns = [column for text in report.texts for column in (text, f"{text} + n-gram")]
    header = ["model", *text_columns, "λ", "parameters", "training", "words/s"]
    rows, by_name = [header], {model.name: model for model in report.models}
    for model in report.models:
        members = [by_name[name] for name in model.members]
        rows.append([
            f"{model.name}: {model.note}" if model.note else model.name,
            *(
                _format(getattr(model, measure).get(text), "{:.2f}")
                + _format_range([getattr(member, measure)[text] for member in members])
                for text in report.texts
                for measure in ("perplexity", "with_ngram")
            ),
            _format(model.network_share, "{:.2f}"),
            _format(model.n_parameters, "{:,}"),
            _format(model.minutes, "{:.1f} min"),
            _format(model.words_per_s, "{:,.0f}"),
        ])  # fmt: skip
    return rows


def comparison_cells(report: Report) -> list[list[str]]:
    """Return the cells of the table of comparisons: the headings, then one row per comparison."""
    rows = [["model", "relative to", *report.texts]]
    for comparison in report.comparisons:
        cells = [
            f"{sum(values) / len(values):+.1%}"
            + _format_range([100 * value for value in values] if len(values) > 1 else [], "{:+.1f}")
            for values in (comparison.relative[text] for text in report.texts)
        ]
        rows.append([comparison.name, comparison.base, *cells])
    return rows


def _format_range(values: Sequence[float], form: str = "{:.2f}") -> str:
    return f" ({form.format(min(values))} … {form.format(max(values))})" if values else ""


def _format(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def plot_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], file: Path) -> None:
    """Plot both perplexities over training time, a colour per network: validation thick, training thin.

    Training losses that are no perplexities, such as those of noise contrast, and gradient norms have panels
    below, where they are logged.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    logged = {key for entries in curves.values() for entry in entries for key in entry}
    shown = [panel for panel in LOWER_PANELS if panel in logged]
    figure = Figure(figsize=(8, 4.5 + 3 * len(shown)), layout="constrained")
    ratios = [3, *(2 for _ in shown)]
    axes, *below = figure.subplots(len(ratios), sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    looks = itertools.cycle(itertools.product(LINE_STYLES, range(N_COLOURS)))
    for (style, colour), (name, entries) in zip(looks, curves.items(), strict=False):
        minutes = [entry["seconds"] / 60 for entry in entries]
        perplexities = [entry["validation_perplexity"] for entry in entries]
        label = f"{name} ({min(perplexities):.1f})"
        look = {"color": f"C{colour}", "linestyle": style}
        axes.plot(minutes, perplexities, label=label, marker=".", **look)
        axes.plot(minutes, _values(entries, "training_perplexity"), **TRAINING_LOOK, **look)
        for panel, lower_axes in zip(shown, below, strict=True):
            lower_axes.plot(minutes, _values(entries, panel), marker=".", **look)
    for panel, lower_axes in zip(shown, below, strict=True):
        lower_axes.set(ylabel=LOWER_PANELS[panel], yscale="log" if panel == "gradient_norms" else "linear")
        lower_axes.grid(visible=True, which="both", alpha=0.3)
    axes.set(ylabel="perplexity", yscale="log")
    [axes, *below][-1].set(xlabel="minutes of training")
    axes.yaxis.set_major_locator(LogLocator(subs=TICK_MULTIPLES))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))  # 370, not 3.7 × 10²
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(visible=True, which="both", alpha=0.3)
    thin = "; thin: training text" if "training_perplexity" in logged else ""
    axes.legend(title=f"validation text (lowest){thin}")
    figure.savefig(file, dpi=120)


def _values(entries: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """Return a number of each entry of a log, or NaN; of gradient norms, that of all weights."""
    values = (entry.get(key, math.nan) for entry in entries)
    return [value.get("all", math.nan) if isinstance(value, Mapping) else value for value in values]


def add_means(rows: Sequence[MeasuredModel], groups: Mapping[str, str]) -> list[MeasuredModel]:
    """Add a row with the mean after the rows of each group. A group is a network with several seeds.

    Args:
        groups: for each network, the name of its group; empty for a network without a group.
    """
    complete = []
    for group, members in groupby(rows, lambda row: groups.get(row.name, "")):
        of_group = list(members)
        complete += of_group
        if group:
            complete.append(_mean_row(group, of_group))
    return complete


def _mean_row(name: str, rows: Sequence[MeasuredModel]) -> MeasuredModel:
    return MeasuredModel(
        name=name,
        perplexity=_means(row.perplexity for row in rows),
        with_ngram=_means(row.with_ngram for row in rows),
        network_share=_mean([row.network_share or 0.0 for row in rows]),
        n_parameters=rows[0].n_parameters,
        minutes=_mean([row.minutes or 0.0 for row in rows]),
        words_per_s=_mean([row.words_per_s or 0.0 for row in rows]),
        note=f"mean of {len(rows)} seeds",
        members=tuple(row.name for row in rows),
    )


def _means(perplexities: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Mean of each text's perplexities."""
    of_seeds = list(perplexities)
    return {text: _mean([of_seed[text] for of_seed in of_seeds]) for text in of_seeds[0]}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def compare(rows: Sequence[MeasuredModel], bases: Mapping[str, str]) -> tuple[Comparison, ...]:
    """Compare the perplexities of models with those of other models.

    Two groups of networks with equally many seeds are compared seed by seed.

    Args:
        bases: for each model, the name of the model to compare it with. Names may be those of groups.
    """
    by_name = {row.name: row for row in rows}
    comparisons = []
    for name, base in bases.items():
        members, others = by_name[name].members or (name,), by_name[base].members or (base,)
        if len(members) != len(others):
            members, others = (name,), (base,)
        pairs = [(by_name[a].perplexity, by_name[b].perplexity) for a, b in zip(members, others, strict=True)]
        relative = {text: [mine[text] / other[text] - 1 for mine, other in pairs] for text in pairs[0][0]}
        comparisons.append(Comparison(name, base, {text: tuple(values) for text, values in relative.items()}))
    return tuple(comparisons)

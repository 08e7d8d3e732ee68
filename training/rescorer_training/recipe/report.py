"""Owns the one-page report of a recipe: a table of perplexities, the training curves as a picture, and the
machine it ran on."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rescorer.errors import ConfigError

REPORT, FIGURES, CURVES = "report.md", "report.json", "curves.png"


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """One line of the table; perplexities by the name of the text, ``</s>`` counted."""

    name: str
    perplexity: Mapping[str, float]
    with_ngram: Mapping[str, float]
    """Mixed word by word with the n-gram; empty for the n-gram itself."""
    network_share: float | None = None
    """λ of the network in that mixture, fitted on the validation text."""
    n_parameters: int | None = None
    minutes: float | None = None
    """Of training, validations included."""
    words_per_s: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What a recipe made and how well it does."""

    title: str
    texts: tuple[str, ...]
    """Validation first, then the tests."""
    models: tuple[MeasuredModel, ...]
    curves: Mapping[str, Sequence[Mapping[str, Any]]]
    """The entries of each network's log."""
    machine: str
    unknown: str
    """How words outside the vocabularies are counted."""


def machine(threads: int) -> str:
    """The processor, the devices and the library that did the work, in one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        model = f"{len(names)} × {names[0]}" if names else model
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join([model, *devices, f"{threads} threads", f"torch {torch.__version__}"])


def write_report(report: Report, folder: Path) -> None:
    """Writes ``report.md``, ``report.json`` and, where a network was trained, ``curves.png``."""
    (folder / REPORT).write_text(markdown(report), encoding="utf-8")
    facts = json.dumps(asdict(report), indent=2, ensure_ascii=False)
    (folder / FIGURES).write_text(facts + "\n", encoding="utf-8")
    if report.curves:
        plot_curves(report.curves, folder / CURVES)


def markdown(report: Report) -> str:
    """The report as a page of Markdown."""
    lines = [f"# {report.title}", "", "Perplexity, `</s>` counted. " + report.unknown, "", *table(report), ""]
    if report.curves:
        lines += [f"![training curves]({CURVES})", ""]
    return "\n".join([*lines, f"Machine: {report.machine}.", ""])


def table(report: Report) -> list[str]:
    """The models as rows of a Markdown table."""
    measured = [column for text in report.texts for column in (text, f"{text} + n-gram")]
    head = ["model", *measured, "λ", "parameters", "training", "words/s"]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for model in report.models:
        values = [f"{each[text]:.2f}" if text in each else "–" for text in report.texts
                  for each in (model.perplexity, model.with_ngram)]  # fmt: skip
        rows.append([
            f"{model.name}: {model.note}" if model.note else model.name,
            *values,
            _or_dash(model.network_share, "{:.2f}"),
            _or_dash(model.n_parameters, "{:,}"),
            _or_dash(model.minutes, "{:.1f} min"),
            _or_dash(model.words_per_s, "{:,.0f}"),
        ])  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def plot_curves(curves: Mapping[str, Sequence[Mapping[str, Any]]], file: Path) -> None:
    """Validation perplexity over training time, a line a network.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("the training curves need matplotlib; pip install 'rescorer[training]'") from None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, entries in curves.items():
        minutes = [entry["seconds"] / 60 for entry in entries]
        perplexities = [entry["validation_perplexity"] for entry in entries]
        axes.plot(minutes, perplexities, marker=".", label=f"{name} ({min(perplexities):.1f})")
    axes.set(xlabel="minutes of training", ylabel="validation perplexity", yscale="log")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)

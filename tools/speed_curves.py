"""Measure words per second against one size at a time, and draw the curves with their slopes.

    python -m tools.speed_curves -o curves.png --json curves.json

The sizes are the number of words of a hypothesis, the number of hypotheses of a list, the vocabulary, and the
hidden size. The other sizes keep the values of ``BASE``. Lists and the network are random, as in
``rescorer bench``, and as many lists are scored as have about ``--words`` words. Times are processor times of
one thread: of the network with its output layer, of all else in the library, and of all from file to file.

The slope of a curve is the power of the size with which the time of a word grows, fitted to the last three
points: 0 means that a word takes as long whatever the size is, 1 that its time is proportional to the size.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import torch
import typer

from rescorer.bench.models import ModelSpec, build_rescorer
from rescorer.bench.scoring import (
    BenchOptions,
    ListShape,
    count_work,
    synthetic_lists,
    time_run,
    without_streams,
)
from rescorer.formats.jsonlines import read_lists, writer
from rescorer.runtime import Phase, keep_freed_memory
from rescorer.terminal.tables import FoldingTable, print_out


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of lists and of a network."""

    length: int
    """Number of words of a hypothesis."""
    hypotheses: int
    vocabulary: int
    hidden: int


BASE = Sizes(20, 100, 10_000, 200)
VALUES: Mapping[str, Sequence[int]] = {
    "length": (5, 10, 20, 40, 80),
    "hypotheses": (1, 3, 10, 30, 100, 300),
    "vocabulary": (1_000, 3_000, 10_000, 30_000, 100_000),
    "hidden": (64, 128, 256, 512, 1024),
}
TITLES = {
    "length": "words of a hypothesis",
    "hypotheses": "hypotheses of a list",
    "vocabulary": "words of the vocabulary",
    "hidden": "hidden size",
}
PARTS: Mapping[str, frozenset[Phase]] = {
    "network and output": frozenset({Phase.NETWORK, Phase.OUTPUT}),
    "the rest of the library": frozenset({Phase.TEXT, Phase.TRIE, Phase.NGRAM, Phase.RANK}),
    "file to file": frozenset(Phase),
}
FITTED = 3
"""Number of points to which a slope is fitted."""

Rates = Mapping[str, float]
"""Words per second, by the names of ``PARTS``."""


def measure(sizes: Sizes, network: str, n_words: int, repetitions: int, folder: Path) -> Rates:
    """Measure the words per second of each part at given sizes."""
    per_list = (sizes.length + 1) * sizes.hypotheses
    shape = ListShape(max(1, round(n_words / per_list)), sizes.hypotheses, sizes.length)
    lists, file = [*synthetic_lists(shape)], folder / "lists.jsonl"
    with writer(file) as write:
        for nbest in lists:
            write(nbest)
    spec = ModelSpec(network, sizes.hidden, vocabulary=sizes.vocabulary)
    rescorer = without_streams(build_rescorer(spec, lists, folder))
    options = BenchOptions(repetitions=repetitions, processor_time=True)
    run = partial(time_run, rescorer, partial(read_lists, file), folder, options)
    run()
    runs = [run() for _ in range(repetitions)]
    words = count_work(lists, rescorer).words
    return {
        part: words / statistics.median(sum(seconds[phase] for phase in phases) for seconds in runs)
        for part, phases in PARTS.items()
    }


def fit_slope(sizes: Sequence[int], rates: Sequence[float]) -> float:
    """Fit the power of the size with which the time of a word grows, to the last ``FITTED`` points."""
    x, y = (np.log(values[-FITTED:]) for values in (sizes, rates))
    return -float(np.polyfit(x, y, 1)[0])


def draw(curves: Mapping[str, Mapping[int, Rates]], network: str, path: Path) -> None:
    """Draw one panel for each size, both axes logarithmic, and write the picture."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    panels = figure.subplots(2, 2, sharey=True).flat
    for panel, (name, points) in zip(panels, curves.items(), strict=True):
        sizes = [*points]
        for part, marker in zip(PARTS, "o^s", strict=True):
            rates = [points[size][part] for size in sizes]
            panel.loglog(
                sizes, rates, marker=marker, label=f"{part} ({round(fit_slope(sizes, rates), 2) + 0.0:.2f})"
            )
        panel.set_xlabel(TITLES[name])
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        panel.axvline(getattr(BASE, name), color="0.8", zorder=0)
        panel.grid(visible=True, axis="y", color="0.9")
        panel.legend(title="(growth of the time of a word)", fontsize="small", title_fontsize="small")
    for panel in figure.axes[::2]:
        panel.set_ylabel("words per second")
    figure.suptitle(f"{network.upper()}, one thread; grey lines: the sizes that the other panels have")
    figure.savefig(path, dpi=110)


def main(
    output: Annotated[Path, typer.Option("--output", "-o", help="PNG or SVG to write.")],
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    network: Annotated[str, typer.Option(help="Kind of network.")] = "gru",
    words: Annotated[int, typer.Option(help="Number of words to score for each point.")] = 100_000,
    repetitions: Annotated[int, typer.Option(help="Number of measured runs; the median counts.")] = 3,
) -> None:
    """Measure and draw words per second against sizes of lists and networks."""
    torch.set_num_threads(1)
    keep_freed_memory()
    curves: dict[str, dict[int, Rates]] = {}
    with TemporaryDirectory() as folder:
        for name, values in VALUES.items():
            curves[name] = {
                value: measure(replace(BASE, **{name: value}), network, words, repetitions, Path(folder))
                for value in values
            }
    table = FoldingTable("size", "", *PARTS)
    for name, points in curves.items():
        for size, rates in points.items():
            table.add_row(TITLES[name], f"{size:,}", *(f"{rates[part]:,.0f}" for part in PARTS))
    print_out(table)
    if json_file is not None:
        json_file.write_text(json.dumps(curves, indent=2) + "\n", encoding="utf-8")
    draw(curves, network, output)


if __name__ == "__main__":
    typer.run(main)

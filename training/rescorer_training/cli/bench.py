"""Owns the command ``rescorer-train bench``: how fast the models train on this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from rescorer_training.cli.options import NormaliserOption, read_normaliser

if TYPE_CHECKING:
    from rescorer_training.bench.run import Speed


WIDTH = 100
"""Of the table, whatever the terminal's."""


def bench(
    text: Annotated[
        Path | None, typer.Option(help="Text to train on, one sentence a line. Default: random Zipf words.")
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("--model", help="Measure this model; repeat for more. Default: all.")
    ] = None,
    vocabulary_size: Annotated[int, typer.Option(help="Words, the most frequent ones.")] = 10_000,
    size: Annotated[int, typer.Option(help="Of word vectors and hidden states.")] = 200,
    classes: Annotated[int, typer.Option(help="Output classes.")] = 100,
    window: Annotated[int, typer.Option(help="Words that models without recurrence see.")] = 4,
    noise_samples: Annotated[int, typer.Option(help="Noise words a batch, of noise contrast.")] = 512,
    batch_words: Annotated[int, typer.Option(help="Words a batch of ours, padding included.")] = 4096,
    seconds: Annotated[float, typer.Option(help="For each model in each round.")] = 5.0,
    rounds: Annotated[int, typer.Option(help="All take turns; the median round counts.")] = 3,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all.")] = None,
    processor_time: Annotated[
        bool,
        typer.Option("--processor-time", help="With --threads 1, on a busy machine: time of the processor."),
    ] = False,
    normaliser: NormaliserOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure training speed beside a plain PyTorch loop and the time of the matrix products alone.

    Example: rescorer-train bench --text train.txt --model lstm --model elman
    """
    import torch

    from rescorer.lm.device import use_threads
    from rescorer.lm.malloc import keep_freed_memory
    from rescorer_training.bench import run

    use_threads(threads or 0)
    keep_freed_memory()  # as in training; the plain loop has the benefit too
    chosen = tuple(models) if models else tuple(run.MODELS)
    options = run.BenchmarkOptions(
        chosen, size, classes, window, noise_samples, batch_words, seconds, rounds, processor_time
    )
    encoded, n_words = (
        run.file_text(text, read_normaliser(normaliser), vocabulary_size)
        if text
        else run.zipf_text(vocabulary_size)
    )
    speeds = run.run_benchmark(encoded, n_words, options)
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "vocabulary_size": n_words}
    if as_json:
        facts = {"options": asdict(options), "speeds": [asdict(speed) for speed in speeds]}
        typer.echo(json.dumps(machine | facts))
    else:
        show(speeds)
        typer.echo(f"{n_words:,} words, {torch.get_num_threads()} threads, torch {torch.__version__}")


def show(speeds: list[Speed]) -> None:
    """Prints a line a model."""
    table = Table(box=None, pad_edge=False)
    table.add_column("model", no_wrap=True)
    for name in ("words/s", "ratio", "floor, words/s", "× floor", "GFLOP/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for speed in speeds:
        table.add_row(
            speed.name,
            f"{speed.words_per_second:,.0f}",
            f"{speed.ratio:.2f}",
            f"{speed.floor_words_per_second:,.0f}",
            f"{speed.floor_multiple:.2f}",
            f"{speed.floor_gflops_per_second:.0f}",
        )
    Console(highlight=False, width=WIDTH).print(table)

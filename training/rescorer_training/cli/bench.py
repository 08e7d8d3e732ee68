"""The command ``rescorer-train bench``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer_training.cli.options import JsonOption, NormaliserOption, ThreadsOption
from rescorer_training.data.normalisation import choose_normaliser

if TYPE_CHECKING:
    from rescorer_training.bench.run import Speed


@dataclass(frozen=True, slots=True)
class MeasuredModels:
    """Models to measure, and their sizes."""

    models: Annotated[
        list[str] | None, typer.Option("--model", help="Model to measure; repeat for more. Default: all.")
    ] = None
    vocabulary_size: Annotated[
        int, typer.Option(help="Number of words in the vocabulary, the most frequent ones.")
    ] = 10_000
    size: Annotated[int, typer.Option(help="Size of word vectors and hidden states.")] = 200
    classes: Annotated[int, typer.Option(help="Number of output classes.")] = 100
    window: Annotated[
        int, typer.Option(help="Number of context words of feed-forward and log-bilinear models.")
    ] = 4


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Words and noise of each training step."""

    noise_samples: Annotated[
        int, typer.Option(help="Noise words per batch for noise-contrastive estimation.")
    ] = 512
    batch_words: Annotated[
        int, typer.Option(help="Words per batch, including padding; the plain PyTorch loop ignores it.")
    ] = 4096


@dataclass(frozen=True, slots=True)
class ClockOptions:
    """How speed is measured."""

    seconds: Annotated[float, typer.Option(help="Seconds to measure each model in each round.")] = 5.0
    rounds: Annotated[
        int, typer.Option(help="Number of rounds; each measures every model, and the median is reported.")
    ] = 3
    threads: ThreadsOption = None
    processor_time: Annotated[
        bool,
        typer.Option(
            "--processor-time",
            help="Measure processor time instead of elapsed time, for busy machines; needs --threads 1.",
        ),
    ] = False


@expand_options
def bench(
    text: Annotated[
        Path | None,
        typer.Option(help="Text to train on, one sentence per line. Default: random Zipf-distributed words."),
    ] = None,
    *,
    models: MeasuredModels,
    batches: BatchOptions,
    clock: ClockOptions,
    normaliser: NormaliserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare training speed with a plain PyTorch loop and with the time that the matrix products alone take.

    Example: rescorer-train bench --text train.txt --model lstm --model elman
    """
    # deferred, because importing torch takes seconds
    import torch

    from rescorer.lm.malloc import keep_freed_memory
    from rescorer.lm.threads import use_threads
    from rescorer_training.bench import run

    use_threads(clock.threads or 0)
    keep_freed_memory()  # as in training; the plain loop benefits too
    options = run.BenchmarkOptions(
        tuple(models.models or run.MODELS), models.size, models.classes, models.window,
        batches.noise_samples, batches.batch_words, clock.seconds, clock.rounds, clock.processor_time,
    )  # fmt: skip
    encoded, n_words = (
        run.read_text(text, choose_normaliser(normaliser), models.vocabulary_size)
        if text
        else run.make_zipf_text(models.vocabulary_size)
    )
    speeds = run.run_benchmark(encoded, n_words, options)
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "vocabulary_size": n_words}
    if as_json:
        facts = {"options": asdict(options), "speeds": [asdict(speed) for speed in speeds]}
        typer.echo(json.dumps(machine | facts))
    else:
        print_speeds(speeds)
        print_out(f"{n_words:,} words, {torch.get_num_threads()} threads, torch {torch.__version__}")


def print_speeds(speeds: list[Speed]) -> None:
    """Print a table with one row per model."""
    table = FoldingTable("model", "words/s", "ratio", "floor, words/s", "× floor", "GFLOP/s")
    for speed in speeds:
        table.add_row(
            speed.name,
            f"{speed.words_per_second:,.0f}",
            f"{speed.ratio:.2f}",
            f"{speed.floor_words_per_second:,.0f}",
            f"{speed.floor_multiple:.2f}",
            f"{speed.floor_gflops_per_second:.0f}",
        )
    print_out(table)

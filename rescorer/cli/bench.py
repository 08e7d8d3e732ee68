"""Owns the command ``rescorer bench``: how fast this machine scores."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from rescorer.cli.options import DtypeOption, FormatOption, MapOption, StreamOption, lists_from
from rescorer.errors import ConfigError, InputError
from rescorer.parallel_rescoring import RescoringProcesses
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer
from rescorer.types import NBestList

if TYPE_CHECKING:
    from rescorer.bench.run import BenchReport

WIDTH = 100
"""Of the table, whatever the terminal's."""


def bench(
    lists: Annotated[
        str | None, typer.Argument(metavar="[LISTS]", help="Lists to score; or --synthetic.")
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(metavar="LISTSxHYPSxWORDS", help="Random lists that share prefixes as real ones do."),
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option("--bundle", "-b", help="Folder of a model bundle. Default: random models.")
    ] = None,
    network: Annotated[str, typer.Option(help="lstm, gru, elman, feedforward or lbl.")] = "lstm",
    hidden: Annotated[int, typer.Option(help="Size of word vectors and hidden states.")] = 200,
    layers: Annotated[int, typer.Option(help="Layers of the network.")] = 1,
    output: Annotated[str, typer.Option(help="classes, full or tree.")] = "classes",
    classes: Annotated[int, typer.Option(help="Output classes; 0: √V.")] = 0,
    vocabulary: Annotated[int, typer.Option(help="Words of the network.")] = 10_000,
    maps: MapOption = None,
    streams: StreamOption = None,
    format_: FormatOption = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    dtype: DtypeOption = "float32",
    threads: Annotated[int, typer.Option(help="CPU threads; 0: one a core.")] = 0,
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Run it in so many processes, too, as `rescorer rescore` can, the cores shared out.",
        ),
    ] = 1,
    batch_words: Annotated[int, typer.Option(help="Words scored at once.")] = MAX_BATCH_WORDS,
    warm_up: Annotated[int, typer.Option(help="Runs that do not count.")] = 1,
    repetitions: Annotated[int, typer.Option(help="Runs that do; the median counts.")] = 3,
    peer_seconds: Annotated[float, typer.Option(help="For the plain PyTorch scorer; 0: none.")] = 5.0,
    processor_time: Annotated[
        bool,
        typer.Option("--processor-time", help="With --threads 1, on a busy machine: time of the processor."),
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Measure each phase of scoring beside the machine's matrix products, plain PyTorch and KenLM.

    Example: rescorer bench --synthetic 100x100x20 --network lstm --hidden 200 --classes 100

    The network named by its shape has random weights: it costs what a trained one does.
    """
    from rescorer.bench.lists import ListShape, synthetic_lists
    from rescorer.bench.models import ModelSpec, build_rescorer
    from rescorer.bench.run import BenchOptions, load_rescoring, run_benchmark
    from rescorer.formats.nbest.jsonlines import writer
    from rescorer.lm.device import use_threads
    from rescorer.lm.malloc import keep_freed_memory

    if (lists is None) == (synthetic is None):
        raise ConfigError("expected a file of lists or --synthetic, one of them")
    use_threads(threads)
    keep_freed_memory()  # as in `rescorer rescore`; the plain scorer has the benefit too
    options = BenchOptions(warm_up, repetitions, peer_seconds=peer_seconds, processor_time=processor_time)
    with TemporaryDirectory() as name:
        folder = Path(name)
        source = lists or str(folder / "lists.jsonl")
        if synthetic is not None:
            with writer(source) as write:
                for nbest in synthetic_lists(ListShape.parse(synthetic)):
                    write(nbest)

        def read() -> Iterable[NBestList | InputError]:
            return lists_from(source, maps, streams, None, format_)

        if bundle:
            load = partial(Rescorer.load, bundle, device, batch_words, dtype, context_cache_bytes=0)
        else:
            spec = ModelSpec(network, hidden, classes, vocabulary, output, layers)
            good = [item for item in read() if isinstance(item, NBestList)]
            load = partial(build_rescorer, spec, good, folder, device, dtype, batch_words)
        start = partial(RescoringProcesses, partial(load_rescoring, load), processes, batch_words=batch_words)
        report = run_benchmark(load(), read, folder, options, start if processes > 1 else None)
    show(report)
    if json_file:
        json_file.write_text(json.dumps(asdict(report), indent=2) + "\n", encoding="utf-8")


def show(report: BenchReport) -> None:
    """Prints a line a phase and what they are compared with."""
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("seconds", "share", "words/s", "prefixes/s", "× floor"):
        table.add_column(name, justify="right", no_wrap=True)
    whole = report.speed("end to end").seconds
    for each in report.speeds:
        table.add_row(
            each.name,
            f"{each.seconds:.3f}",
            f"{each.seconds / whole:.1%}",
            f"{each.words_per_second:,.0f}",
            f"{each.prefixes_per_second:,.0f}",
            "" if each.floor_multiple is None else f"{each.floor_multiple:.2f}",
        )
    Console(highlight=False, width=WIDTH).print(table)
    for line in footnotes(report):
        typer.echo(line)


def footnotes(report: BenchReport) -> list[str]:
    """What was scored, and what others do."""
    lines = [
        f"{report.lists:,} lists, {report.hypotheses:,} hypotheses, {report.words:,} words, "
        f"{report.prefixes:,} distinct prefixes ({report.words / report.prefixes:.2f} words each)"
    ]
    if report.gemm_gflops_per_second and report.floor_gflops:
        lines.append(
            f"floor: {report.floor_gflops:,.1f} GFLOP at {report.gemm_gflops_per_second:,.0f} GFLOP/s, "
            "this machine's rate for matrices of these sizes"
        )
    if report.plain_words_per_second:
        times = report.speed("end to end").words_per_second / report.plain_words_per_second
        lines.append(
            f"plain PyTorch LSTM, full softmax, padded: {report.plain_words_per_second:,.0f} words/s, "
            f"end to end {times:.1f} times as fast"
        )
    if report.in_processes:
        speed, plain = report.in_processes, report.plain_words_per_second
        beside = f", {speed.words_per_second / plain:.1f} times plain PyTorch" if plain else ""
        lines.append(f"{speed.name}: {speed.words_per_second:,.0f} words/s end to end{beside}")
    if report.kenlm_words_per_second:
        lines.append(f"KenLM, a sentence a call: {report.kenlm_words_per_second:,.0f} words/s")
    if report.single_list_ms is not None:
        lines.append(f"one list alone: {report.single_list_ms:.1f} ms in the library")
    facts = report.machine
    lines.append(
        f"{facts['threads']} threads of {facts['cores']} cores, torch {facts['torch']}, {facts['clock']} time"
    )
    return lines

"""The commands ``rescorer bench``, which measures scoring, and ``rescorer load``, which measures a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import typer

from rescorer.errors import ConfigError, InputError, pluralise
from rescorer.formats.io.text_io import write_text
from rescorer.jobs.processes import ProcessPoolRescorer
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer
from rescorer.terminal.list_options import ListFormatOptions, ListInputOptions
from rescorer.terminal.options import (
    DeviceOption,
    DtypeOption,
    SelectionOptions,
    argument,
    expand_options,
    option,
)
from rescorer.terminal.program import check_output_path, or_dash
from rescorer.terminal.progress import progress_bar
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer.types import NBestList

if TYPE_CHECKING:
    from rescorer.bench.load import LoadPlan, StageResult
    from rescorer.bench.scoring import BenchReport


@dataclass(frozen=True, slots=True)
class MeasuredModelOptions:
    """The models that are measured: those of a bundle, or a network with random weights and its shape."""

    bundle: Path | None = option(None, "Folder of a model bundle; default: random models.", "--bundle", "-b")
    network: str = option(
        "lstm", "Kind of random network: lstm, gru, elman, feedforward, lbl or transformer."
    )
    hidden: int = option(200, "Size of word vectors and hidden states.")
    layers: int = option(1, "Number of layers of the network.")
    output: str = option("classes", "Output layer: classes, full or tree.")
    classes: int = option(0, "Number of output classes; 0: √V.")
    vocabulary: int = option(10_000, "Number of words that the network knows.")


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """The device, precision, threads and processes of the models, and the size of batches."""

    device: DeviceOption = "cpu"
    dtype: DtypeOption = "float32"
    threads: int = option(0, "CPU threads; 0: one per core.")
    processes: int = option(
        1,
        "Number of processes of an additional run, like `rescorer rescore --workers`; they share the cores.",
        min=1,
    )
    batch_words: int = option(MAX_BATCH_WORDS, "Number of words per batch.")


@dataclass(frozen=True, slots=True)
class MeasurementOptions(SelectionOptions):
    """Which hypotheses are ranked, what is measured, and how often."""

    warm_up: int = option(1, "Number of warm-up runs, which are not measured.")
    repetitions: int = option(3, "Number of measured runs; the median is reported.")
    peer_seconds: float = option(5.0, "Seconds to run the plain PyTorch scorer; 0 skips it.")
    peer_command: str | None = option(
        None,
        "Command of another program to time as often: it reads the sentences, one per line and normalised, "
        "from standard input or from the file {texts}. Its start counts; its output is discarded.",
        metavar="COMMAND",
    )
    processor_time: bool = option(False, "Measure CPU time, for busy machines; needs --threads 1.")


@expand_options
def bench(
    *,
    lists: str | None = argument("Lists to score; or give --synthetic.", "[LISTS]", default=None),
    synthetic: str | None = option(
        None, "Size of random lists whose prefixes are shared as in real ones.", metavar="LISTSxHYPSxWORDS"
    ),
    models: MeasuredModelOptions,
    list_format: ListFormatOptions,
    machine: MachineOptions,
    measurement: MeasurementOptions,
    json_file: Path | None = option(None, "Write the figures to this file.", "--json"),
) -> None:
    """Compare each phase of scoring with the machine's matrix products, plain PyTorch and KenLM.

    Example: rescorer bench --synthetic 100x100x20 --network lstm --hidden 200 --classes 100

    Without --bundle the network has random weights; a trained network of the same shape takes equally long.
    """
    from rescorer.bench.models import ModelSpec, build_rescorer
    from rescorer.bench.scoring import BenchOptions, ListShape, load_rescorer, run_benchmark, synthetic_lists
    from rescorer.formats.jsonlines import writer
    from rescorer.runtime import keep_freed_memory, use_threads

    if (lists is None) == (synthetic is None):
        raise ConfigError("expected either a file of lists or --synthetic")
    if json_file:
        check_output_path("--json", json_file)
    use_threads(machine.threads)
    keep_freed_memory()  # as in `rescorer rescore`; the plain PyTorch scorer benefits too
    options = BenchOptions(**asdict(measurement))
    with TemporaryDirectory() as name:
        folder = Path(name)
        source = lists or str(folder / "lists.jsonl")
        if synthetic is not None:
            with writer(source) as write:
                for nbest in synthetic_lists(ListShape.parse(synthetic)):
                    write(nbest)
        read = partial(ListInputOptions(**asdict(list_format)).read, source)
        device, dtype, batch_words = machine.device, machine.dtype, machine.batch_words
        if models.bundle:
            load = partial(Rescorer.load, models.bundle, device, batch_words, dtype, context_cache_bytes=0)
        else:
            shape = asdict(models)
            del shape["bundle"]
            good = [item for item in read() if isinstance(item, NBestList)]
            load = partial(build_rescorer, ModelSpec(**shape), good, folder, device, dtype, batch_words)
        processes = machine.processes
        start = partial(
            ProcessPoolRescorer, partial(load_rescorer, load, options), processes, batch_words=batch_words
        )
        report = run_benchmark(load(), read, folder, options, start if processes > 1 else None)
    print_report(report)
    if json_file:
        write_text(json_file, json.dumps(asdict(report), indent=2) + "\n")


def print_report(report: BenchReport) -> None:
    """Print one row per phase of scoring, followed by the lines of ``describe_comparisons``."""
    table = FoldingTable("phase", "seconds", "share", "words/s", "prefixes/s", "× floor")
    total_seconds = report.speed("end to end").seconds
    for speed in report.speeds:
        table.add_row(
            speed.name,
            f"{speed.seconds:.3f}",
            f"{speed.seconds / total_seconds:.1%}",
            f"{speed.words_per_second:,.0f}",
            f"{speed.prefixes_per_second:,.0f}",
            "" if speed.floor_multiple is None else f"{speed.floor_multiple:.2f}",
        )
    print_out(table, *describe_comparisons(report))


def describe_comparisons(report: BenchReport) -> list[str]:
    """Describe in one line each: the lists, comparisons such as that with plain PyTorch, and the machine."""
    lines = [
        f"{pluralise(report.lists, 'list')}, {pluralise(report.hypotheses, 'hypothesis', 'hypotheses')}, "
        f"{pluralise(report.words, 'word')}, "
        f"{report.prefixes:,} distinct prefixes ({report.words / report.prefixes:.2f} words per prefix)"
    ]
    if report.gemm_gflops_per_second and report.floor_gflops:
        lines.append(
            f"floor: {report.floor_gflops:,.1f} GFLOP at {report.gemm_gflops_per_second:,.0f} GFLOP/s, "
            "the rate of this machine for matrices of these sizes"
        )
    if network := report.speed("neural").seconds:
        share = network / report.speed("end to end").seconds
        lines.append(
            f"end to end is {share:.2f} of the speed of the networks alone; all else takes "
            f"{1 - share:.1%} of the time"
        )
    if report.plain_words_per_second:
        ratio = report.speed("end to end").words_per_second / report.plain_words_per_second
        lines.append(
            f"plain PyTorch {report.plain_network}, full softmax, padded: "
            f"{report.plain_words_per_second:,.0f} words/s; end to end is {ratio:.1f} times as fast"
        )
    if report.peer_words_per_second:
        ratio = report.speed("end to end").words_per_second / report.peer_words_per_second
        lines.append(
            f"peer, with its start: {report.peer_words_per_second:,.0f} words/s; "
            f"end to end is {ratio:.2f} times as fast"
        )
    if report.in_processes:
        speed, plain = report.in_processes, report.plain_words_per_second
        comparison = f", {speed.words_per_second / plain:.1f} times plain PyTorch" if plain else ""
        lines.append(f"{speed.name}: {speed.words_per_second:,.0f} words/s end to end{comparison}")
    if report.ngram_words_per_second:
        lines.append(f"the n-gram, tries built beforehand: {report.ngram_words_per_second:,.0f} words/s")
    if report.ngram_device_words_per_second:
        lines.append(f"the same on the models' device: {report.ngram_device_words_per_second:,.0f} words/s")
    if report.kenlm_loop_words_per_second and report.kenlm_words_per_second:
        lines.append(
            f"KenLM's binding with this n-gram: {report.kenlm_loop_words_per_second:,.0f} words/s edge by "
            f"edge of the tries, {report.kenlm_words_per_second:,.0f} words/s sentence by sentence"
        )
    if report.single_list_ms is not None:
        lines.append(f"one list alone: {report.single_list_ms:.1f} ms in the library")
    machine = report.machine
    lines.append(
        f"{machine['threads']} threads of {machine['cores']} cores, torch {machine['torch']}, "
        f"{machine['clock']} time"
    )
    return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The load that clients send, and its duration."""

    seconds: float = option(10.0, "Duration of each stage in seconds.", min=0.1)
    clients: int = option(2, "Number of client processes.", min=1)
    list_format: ListFormatOptions
    calls_per_client: int = option(
        16, "Number of calls that each client keeps in flight while the peak is measured.", "--at-once", min=1
    )
    lists_per_call: int = option(1, "Number of lists per call.", "--lists-a-call", min=1)
    deadline_s: float = option(5.0, "Deadline of each call in seconds.", min=0.01)
    overload: float = option(3.0, "Load of the last stage relative to the peak.", min=1)
    overload_seconds: float = option(
        0.0, "Duration of the last stage in seconds; 0: same as the others.", min=0
    )
    client_niceness: int = option(
        0,
        "Niceness of the clients: with more than 0, the server goes first where cores are scarce.",
        min=0,
        max=19,
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of the server and the library, and the file for measurements of the server alone."""

    service_times: Path | None = option(
        None,
        "File for the times that the server takes for lists that come alone and in batches, for "
        "simulations of many servers.",
    )
    dtype: DtypeOption = "float32"
    serve: str = option("", "Options for the server, such as '--workers 2'.")


@expand_options
def load(
    *,
    lists: str = argument("N-best lists to send."),
    bundle: Path = option(..., "Folder of the bundle to serve.", "--bundle", "-b"),
    weights: str = option("default", "Name of a weights set of the bundle."),
    clients: ClientOptions,
    server: ServerOptions,
    as_json: bool = option(False, "Write one JSON object per stage.", "--json"),
) -> None:
    """Start a server, put it under load over loopback, and compare it with the library.

    Example: rescorer load demo/lists.jsonl.gz --bundle models/starter/1 --seconds 3

    The stages are: the library in this process with all cores and with one thread (its latencies are those of
    single lists), as much load as the server can take (the peak), half of the peak, and an overload. Clients
    send calls on schedule whether or not answers arrive, and measure latency from the time a call was due.

    \b
    offered/s    lists per second that the clients send; a dash if they wait for answers
    lists/s      lists answered per second
    lists/CPU-s  lists answered per second of the server's CPU time
    p50, p99 ms  latency of answered calls
    MB           peak memory of the server
    calls        calls that have ended
    refused      calls that the server refused immediately as overloaded
    failed       other calls without an answer, most of them late
    late ms      delay before a client started a call that was due (p99): not the
                 server's, but a sign of too few cores for the clients
    refused ms   latency of refused calls (p99)
    health ms    latency of health checks (p99)
    """
    from rescorer.bench.load import LoadPlan

    valid_lists = read_valid_lists(lists, ListInputOptions(**asdict(clients.list_format)))
    plan = LoadPlan(
        clients.seconds,
        clients.clients,
        clients.calls_per_client,
        clients.lists_per_call,
        clients.deadline_s,
        clients.overload,
        tuple(server.serve.split()),
        server.dtype,
        clients.overload_seconds,
        clients.client_niceness,
        server.service_times,
    )
    run_load_test(bundle, valid_lists, weights, plan, as_json)


def read_valid_lists(source: str, options: ListInputOptions) -> list[NBestList]:
    """Read the valid lists of a file; raise InputError if there are none."""
    valid_lists = [nbest for nbest in options.read(source) if isinstance(nbest, NBestList)]
    if not valid_lists:
        raise InputError(f"{source}: no valid lists; expected at least one")
    return valid_lists


def run_load_test(
    bundle: Path, lists: Sequence[NBestList], weights: str, plan: LoadPlan, as_json: bool
) -> None:
    """Run all stages. Print each result when it is known; on a terminal, also show the current stage."""
    from rescorer.bench.load import run_stages
    from rescorer.runtime import keep_freed_memory

    keep_freed_memory()  # as the server does
    if not as_json:
        typer.echo(HEADER)
    with progress_bar(bar_format="{n_fmt} stages done in {elapsed}; now {desc}", leave=False) as progress:

        def show_stage(name: str, duration_s: float) -> None:
            progress.set_description_str(f"{name}, {duration_s:g} s")

        for result in run_stages(bundle, lists, weights, plan, show_stage):
            with progress.external_write_mode():
                typer.echo(json.dumps(asdict(result)) if as_json else format_stage(result))
            progress.update()


def format_stage(result: StageResult) -> str:
    """Format the measurements of a stage as two lines, which fit below the two lines of ``HEADER``."""
    rss_mb = None if result.max_rss_bytes is None else result.max_rss_bytes / 1e6
    return format_lines(
        (
            result.name,
            or_dash(result.offered_lists_per_s, ".1f"),
            f"{result.lists_per_s:.1f}",
            f"{result.lists_per_cpu_s:.1f}",
            or_dash(result.p50_ms, ".1f"),
            or_dash(result.p99_ms, ".1f"),
            or_dash(rss_mb, ".0f"),
        ),
        (
            "",
            str(result.calls),
            str(result.refused),
            str(result.failed),
            or_dash(result.late_p99_ms, ".1f"),
            or_dash(result.refused_p99_ms, ".1f"),
            or_dash(result.health_p99_ms, ".1f"),
        ),
    )


def format_lines(*rows: tuple[str, ...]) -> str:
    """Align the cells of rows in columns; each line has 79 characters."""
    return "\n".join(
        f"{name:<19}{cells[0]:>10}{cells[1]:>9}{cells[2]:>12}{cells[3]:>8}{cells[4]:>11}{cells[5]:>10}"
        for name, *cells in rows
    )


HEADER = format_lines(
    ("stage", "offered/s", "lists/s", "lists/CPU-s", "p50 ms", "p99 ms", "MB"),
    ("", "calls", "refused", "failed", "late ms", "refused ms", "health ms"),
)

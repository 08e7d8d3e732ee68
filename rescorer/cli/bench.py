"""The command ``rescorer bench``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListFormatOptions, ListInputOptions
from rescorer.cli.options.models import DeviceOption, DtypeOption
from rescorer.cli.options.selection import SelectionOptions
from rescorer.cli.output import check_output_path
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import ConfigError, InputError, pluralise
from rescorer.files.parallel import ProcessPoolRescorer
from rescorer.formats.io.text_io import write_text
from rescorer.pipeline import MAX_BATCH_WORDS, Rescorer
from rescorer.types import NBestList

if TYPE_CHECKING:
    from rescorer.bench.run import BenchReport


@dataclass(frozen=True, slots=True)
class MeasuredModelOptions:
    """The models that are measured: those of a bundle, or a network with random weights and its shape."""

    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", "-b", help="Folder of a model bundle; default: random models."),
    ] = None
    network: Annotated[
        str,
        typer.Option(help="Kind of random network: lstm, gru, elman, feedforward, lbl or transformer."),
    ] = "lstm"
    hidden: Annotated[int, typer.Option(help="Size of word vectors and hidden states.")] = 200
    layers: Annotated[int, typer.Option(help="Number of layers of the network.")] = 1
    output: Annotated[str, typer.Option(help="Output layer: classes, full or tree.")] = "classes"
    classes: Annotated[int, typer.Option(help="Number of output classes; 0: √V.")] = 0
    vocabulary: Annotated[int, typer.Option(help="Number of words that the network knows.")] = 10_000


@dataclass(frozen=True, slots=True)
class MachineOptions:
    """Where the models run, and how much they get at a time."""

    device: DeviceOption = "cpu"
    dtype: DtypeOption = "float32"
    threads: Annotated[int, typer.Option(help="CPU threads; 0: one per core.")] = 0
    processes: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of processes of an additional run, like `rescorer rescore --processes`; they share "
            "the cores.",
        ),
    ] = 1
    batch_words: Annotated[int, typer.Option(help="Number of words per batch.")] = MAX_BATCH_WORDS


@dataclass(frozen=True, slots=True)
class MeasurementOptions(SelectionOptions):
    """Which hypotheses are ranked, what is measured, and how often."""

    warm_up: Annotated[int, typer.Option(help="Number of warm-up runs, which are not measured.")] = 1
    repetitions: Annotated[int, typer.Option(help="Number of measured runs; the median is reported.")] = 3
    peer_seconds: Annotated[
        float, typer.Option(help="Seconds to run the plain PyTorch scorer; 0 skips it.")
    ] = 5.0
    processor_time: Annotated[
        bool,
        typer.Option("--processor-time", help="Measure CPU time, for busy machines; needs --threads 1."),
    ] = False


@expand_options
def bench(
    lists: Annotated[
        str | None, typer.Argument(metavar="[LISTS]", help="Lists to score; or give --synthetic.")
    ] = None,
    *,
    synthetic: Annotated[
        str | None,
        typer.Option(
            metavar="LISTSxHYPSxWORDS", help="Size of random lists whose prefixes are shared as in real ones."
        ),
    ] = None,
    models: MeasuredModelOptions,
    list_format: ListFormatOptions,
    machine: MachineOptions,
    measurement: MeasurementOptions,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Compare each phase of scoring with the machine's matrix products, plain PyTorch and KenLM.

    Example: rescorer bench --synthetic 100x100x20 --network lstm --hidden 200 --classes 100

    Without --bundle the network has random weights; a trained network of the same shape takes equally long.
    """
    from rescorer.bench.lists import ListShape, synthetic_lists
    from rescorer.bench.models import ModelSpec, build_rescorer
    from rescorer.bench.run import BenchOptions, load_rescorer, run_benchmark
    from rescorer.formats.nbest.jsonlines import writer
    from rescorer.lm.malloc import keep_freed_memory
    from rescorer.lm.threads import use_threads

    check_files(lists, synthetic, json_file)
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

        def read() -> Iterable[NBestList | InputError]:
            return ListInputOptions(**asdict(list_format)).read(source)

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


def check_files(lists: str | None, synthetic: str | None, json_file: Path | None) -> None:
    """Raise ConfigError unless lists come from one source, and the figures can be written."""
    if (lists is None) == (synthetic is None):
        raise ConfigError("expected either a file of lists or --synthetic")
    if json_file:
        check_output_path("--json", json_file)


def print_report(report: BenchReport) -> None:
    """Print one row per phase, followed by the comparisons."""
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


def describe_network_share(report: BenchReport) -> list[str]:
    """One line that compares the whole path with the networks alone; none if there is no network."""
    network, whole = report.speed("neural").seconds, report.speed("end to end").seconds
    if not network:
        return []
    return [
        f"end to end is {network / whole:.2f} of the speed of the networks alone; all else takes "
        f"{1 - network / whole:.1%} of the time"
    ]


def describe_comparisons(report: BenchReport) -> list[str]:
    """One line each for the lists, the comparisons and the machine."""
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
    lines += describe_network_share(report)
    if report.plain_words_per_second:
        ratio = report.speed("end to end").words_per_second / report.plain_words_per_second
        lines.append(
            f"plain PyTorch {report.plain_network}, full softmax, padded: "
            f"{report.plain_words_per_second:,.0f} words/s; end to end is {ratio:.1f} times as fast"
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

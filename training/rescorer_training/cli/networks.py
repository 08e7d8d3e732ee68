"""Commands that train networks and follow recipes, and that measure training."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.errors import ConfigError
from rescorer.evaluation.list_errors import format_size
from rescorer.models.bundle import TEXT
from rescorer.terminal.options import expand_options
from rescorer.terminal.tables import FoldingTable, print_out
from rescorer.text import Normaliser
from rescorer_training.cli.options import (
    DeviceOption,
    JsonOption,
    NormaliserOption,
    ThreadsOption,
    check_run_output,
    parse_number,
)
from rescorer_training.corpus import choose_normaliser, read_sentences, record_normaliser
from rescorer_training.evaluation.perplexity import load_models, measure, resolve_model_folder, score_tokens
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.prepare import (
    TRAIN_FILE,
    VALIDATION_FILE,
    VOCABULARY_FILE,
    RunInputs,
    load_prepared,
)
from rescorer_training.progress import option
from rescorer_training.recipe.config import list_shipped_recipes, load_recipe_file

if TYPE_CHECKING:
    from rescorer_training.bench import Speed
    from rescorer_training.recipe.report import Report


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Texts to train on, and the text that says when to stop."""

    texts: Annotated[
        list[str],
        typer.Argument(
            help="Training texts, one sentence per line; gzip or plain. TEXT:0.5 draws half of a text's "
            "sentences per epoch, different ones each time; TEXT:2 draws each sentence twice."
        ),
    ]
    validation: Annotated[Path, typer.Option(help="Held-out text for early stopping.")]


@dataclass(frozen=True, slots=True)
class PreparationOptions:
    """Preparation of texts: their words, their normaliser, and how long sentences may be."""

    vocabulary: Path | None = option(None, "File of the words to model, one per line.")
    vocabulary_size: int = option(
        50_000, "Number of words to model without --vocabulary, the most frequent ones."
    )
    normaliser: NormaliserOption = None
    start_from: Path | None = option(
        None,
        "Folder of a run whose best model and vocabulary to start from. To adapt a model to a "
        "domain, train it on all text, then start from it on the text of the domain.",
    )
    longest: int = option(
        200, "Maximum number of words per training sentence; longer sentences are truncated."
    )


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Reports of a run."""

    tensorboard: bool = option(False, "Write TensorBoard scalars into the folder of the run.")
    as_json: JsonOption = False


@expand_options
def neural(
    data: TextOptions,
    output_folder: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the run: models, log and state.")
    ],
    *,
    preparation: PreparationOptions,
    run: RunOptions,
    reports: ReportOptions,
    network: NetworkOptions,
    options: TrainingOptions,
) -> None:
    """Train a neural language model.

    To share a run among several processes or GPUs, start it with torchrun --nproc-per-node 2 -m
    rescorer_training neural …

    Example: rescorer-train neural train.txt.gz --validation valid.txt -o runs/lstm --hidden 200
    """
    # deferred, because importing torch takes seconds
    from rescorer_training.neural import train
    from rescorer_training.neural.checkpoint import STATE_FILE, ProcessGroup

    processes = ProcessGroup.join()
    paths, weights = zip(*map(parse_weighted_text, data.texts), strict=True)
    start_from, longest = preparation.start_from, preparation.longest
    run = replace(run, resume=processes.choose_resumption(run.resume, output_folder / STATE_FILE))
    begun = output_folder if run.resume else start_from
    chosen = choose_normaliser(preparation.normaliser, [begun] if begun else [])
    inputs = RunInputs(list(paths), data.validation, output_folder, chosen, longest, start_from, weights)
    if processes.is_first and not run.resume:
        check_run_output("-o", output_folder, (TEXT, VOCABULARY_FILE, TRAIN_FILE, VALIDATION_FILE))
        train.prepare_run(inputs, preparation.vocabulary, preparation.vocabulary_size, network)
    processes.wait_for(output_folder / VALIDATION_FILE)
    text = load_prepared(output_folder, longest)
    processes.check_same(text.train.n_words, "words of training text")
    facts = train.train(
        inputs, text, network, options, run, tensorboard=reports.tensorboard, processes=processes
    )
    processes.leave()
    if processes.is_first:
        best = facts["validation_perplexity"]
        typer.echo(json.dumps(facts) if reports.as_json else f"best validation perplexity {best:.2f}")


def parse_weighted_text(text: str) -> tuple[Path, float]:
    """Parse TEXT or TEXT:WEIGHT. If the whole argument names an existing file, it is not split at the colon.

    Raises:
        ConfigError: the weight is not a positive number.
    """
    name, colon, weight = text.rpartition(":")
    if not colon or Path(text).exists():
        return Path(text), 1.0
    if not parse_number(weight) > 0:
        raise ConfigError(f"{text!r}: expected a weight above 0, got {weight}")
    return Path(name), parse_number(weight)


OutputOption = Annotated[Path, typer.Option("-o", "--output", help="Folder of the model to write.")]
TestOption = Annotated[Path | None, typer.Option(help="Text on which to measure the perplexities.")]


def quantise_command(
    model: Annotated[Path, typer.Argument(help="Folder of a trained network or of its run.")],
    output: OutputOption,
    precision: Annotated[
        str,
        typer.Option(
            metavar="int8|float16|float32",
            help="Precision of the stored weights; int8 has one scale per matrix row.",
        ),
    ] = "int8",
    test: TestOption = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Store a network's weights in fewer bits; scoring still computes in float32.

    Example: rescorer-train quantise runs/lstm -o runs/lstm-int8 --precision int8 --test test.txt
    """
    from rescorer_training.neural.checkpoint import quantise  # deferred, importing torch takes seconds

    folder = resolve_model_folder(model)
    before, after = quantise(folder, output, precision)
    chosen = choose_normaliser(normaliser, [folder])
    record_normaliser(output, chosen)
    perplexities = measure_perplexities([folder, output], test, chosen, device)
    if as_json:
        facts = {"precision": precision, "bytes_before": before, "bytes": after, "perplexity": perplexities}
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"weights: {before / 1e6:.1f} → {after / 1e6:.1f} MB")
    print_perplexities(perplexities)


def average_command(
    models: Annotated[list[Path], typer.Argument(help="Folders of trained networks or of their runs.")],
    output: OutputOption,
    test: TestOption = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Average the weights of several networks into one network.

    The networks must have the same configuration and vocabulary. Average checkpoints of one run, or runs that
    started from the same model.

    Example: rescorer-train average runs/a runs/b runs/c -o runs/mean --test valid.txt
    """
    from rescorer_training.neural.checkpoint import average  # deferred, importing torch takes seconds

    folders = [resolve_model_folder(model) for model in models]
    average(folders, output)
    chosen = choose_normaliser(normaliser, folders)
    record_normaliser(output, chosen)
    perplexities = measure_perplexities([*folders, output], test, chosen, device)
    if as_json:
        typer.echo(json.dumps({"models": [str(folder) for folder in folders], "perplexity": perplexities}))
        return
    typer.echo(f"{output}: average of {len(folders)} models")
    print_perplexities(perplexities)


def measure_perplexities(
    folders: list[Path], test: Path | None, normaliser: Normaliser, device: str
) -> dict[str, float]:
    """Return the perplexity of each model by its folder; empty if there is no text."""
    if test is None:
        return {}
    words = list(read_sentences([test], normaliser))
    perplexities = {}
    for folder in folders:
        models = load_models(None, (), [folder], device=device)
        scores = score_tokens(models.models, words, f"scoring {folder}", in_order=True)
        perplexities[str(folder)] = measure(scores).models["neural"].shared
    return perplexities


def print_perplexities(perplexities: dict[str, float]) -> None:
    """Print one line per model."""
    for folder, value in perplexities.items():
        typer.echo(f"perplexity {format_size(value, 3)}  {folder}")


def run(
    recipe: Annotated[
        str, typer.Argument(help=f"Recipe to follow: {', '.join(list_shipped_recipes())}, or a TOML file.")
    ],
    data: Annotated[Path | None, typer.Option(help="Folder that contains the recipe's texts.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to write models, bundle and report into.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the recipe instead, to copy it.")] = False,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Follow a recipe from raw text to a verified bundle and a one-page report.

    To continue an interrupted run, repeat the command: finished steps are skipped, and the training of a
    network continues where it stopped. Recipes are commented TOML files; to change one, edit a copy (--show)
    and give the path of the copy.

    Example: rescorer-train run ptb --data ~/text -o ptb
    """
    if show:
        typer.echo(load_recipe_file(recipe)[1], nl=False)
        return
    if data is None or output is None:
        raise ConfigError("a run needs --data, the folder of the texts, and --output (-o)")
    # deferred, because importing torch takes seconds
    from rescorer_training.recipe.config import read_recipe
    from rescorer_training.recipe.report import REPORT_FILE
    from rescorer_training.recipe.run import run_recipe

    report = run_recipe(read_recipe(recipe), data, output, device=device, threads=threads)
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        print_report(report, output / REPORT_FILE)


def print_report(report: Report, file: Path) -> None:
    """Print the table of models, how unknown words were counted, and where the report is."""
    from rescorer_training.recipe.report import table_cells

    header, *rows = table_cells(report)
    table = FoldingTable(*header, title=report.title)
    for row in rows:
        table.add_row(*row)
    print_out(table, report.unknown, f"report: {file}")


@dataclass(frozen=True, slots=True)
class MeasuringOptions:
    """Models to measure, their sizes and training steps, and how speed is measured."""

    models: list[str] | None = option(None, "Model to measure; repeat for more. Default: all.", "--model")
    vocabulary_size: int = option(10_000, "Number of words in the vocabulary, the most frequent ones.")
    size: int = option(200, "Size of word vectors and hidden states.")
    classes: int = option(100, "Number of output classes.")
    window: int = option(4, "Number of context words of feed-forward and log-bilinear models.")
    noise_samples: int = option(512, "Noise words per batch for noise-contrastive estimation.")
    batch_words: int = option(4096, "Words per batch, including padding; the plain PyTorch loop ignores it.")
    seconds: float = option(5.0, "Seconds to measure each model in each round.")
    rounds: int = option(3, "Number of rounds; each measures every model, and the median is reported.")
    threads: ThreadsOption = None
    processor_time: bool = option(
        False,
        "Measure processor time instead of elapsed time, for busy machines; needs --threads 1.",
        "--processor-time",
    )


@expand_options
def bench(
    text: Annotated[
        Path | None,
        typer.Option(help="Text to train on, one sentence per line. Default: random Zipf-distributed words."),
    ] = None,
    *,
    measuring: MeasuringOptions,
    normaliser: NormaliserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare training speed with a plain PyTorch loop and with the time that the matrix products alone take.

    Example: rescorer-train bench --text train.txt --model lstm --model elman
    """
    # deferred, because importing torch takes seconds
    import torch

    from rescorer.runtime import keep_freed_memory, use_threads
    from rescorer_training import bench as bench_module

    use_threads(measuring.threads or 0)
    keep_freed_memory()  # as in training; the plain loop benefits too
    options = bench_module.BenchmarkOptions(
        tuple(measuring.models or bench_module.MODELS), measuring.size, measuring.classes, measuring.window,
        measuring.noise_samples, measuring.batch_words, measuring.seconds, measuring.rounds,
        measuring.processor_time,
    )  # fmt: skip
    encoded, n_words = (
        bench_module.read_text(text, choose_normaliser(normaliser), measuring.vocabulary_size)
        if text
        else bench_module.make_zipf_text(measuring.vocabulary_size)
    )
    speeds = bench_module.run_benchmark(encoded, n_words, options)
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

"""Commands that train networks and follow recipes, and that measure training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from rescorer.errors import ConfigError
from rescorer.evaluation.list_errors import format_size
from rescorer.models.bundle import TEXT
from rescorer.runtime import keep_freed_memory, use_threads
from rescorer.terminal.options import expand_options
from rescorer.terminal.tables import print_out
from rescorer.text import Normaliser
from rescorer_training import bench as benchmark
from rescorer_training.cli.options import (
    DeviceOption,
    JsonOption,
    NormaliserOption,
    ThreadsOption,
    check_run_output,
    check_vocabulary,
    describe_next_step,
    make_table,
    parse_number,
    train_in,
)
from rescorer_training.corpus import choose_normaliser, read_sentences
from rescorer_training.evaluation.perplexity import (
    find_pieces,
    load_models,
    measure,
    resolve_model_folder,
    score_tokens,
)
from rescorer_training.neural import checkpoint, prepare, train
from rescorer_training.neural.options import NetworkOptions, RunOptions, TeacherOptions, TrainingOptions
from rescorer_training.progress import option
from rescorer_training.recipe.config import list_shipped_recipes, load_recipe_file, read_recipe
from rescorer_training.recipe.report import REPORT_FILE, Report, table_cells
from rescorer_training.recipe.run import run_recipe


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
    units: str | None = option(
        None,
        "Pieces of words to model in place of words, found in the training text: byte-pair encoding or a "
        "unigram model, and their number. The run's folder units is then a model for rescorer-train bundle "
        "--units.",
        metavar="bpe:N|unigram:N",
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
    teacher: TeacherOptions,
) -> None:
    """Train a neural language model.

    To share a run among several processes or GPUs, start it with torchrun --nproc-per-node 2 -m
    rescorer_training neural …

    Example: rescorer-train neural train.txt.gz --validation valid.txt -o runs/lstm --hidden 200
    """
    processes = checkpoint.ProcessGroup.join()
    paths, weights = zip(*map(parse_weighted_text, data.texts), strict=True)
    start_from, longest = preparation.start_from, preparation.longest
    state = output_folder / checkpoint.STATE_FILE
    run = replace(run, resume=processes.choose_resumption(run.resume, state))
    begun = output_folder if run.resume else start_from
    chosen = choose_normaliser(preparation.normaliser, [begun] if begun else [])
    inputs = prepare.RunInputs(
        list(paths),
        data.validation,
        output_folder,
        chosen,
        longest,
        start_from,
        weights,
        teacher,
        preparation.units,
    )
    if processes.is_first and not run.resume:
        files = (TEXT, prepare.VOCABULARY_FILE, prepare.TRAIN_FILE, prepare.VALIDATION_FILE)
        if preparation.units and preparation.vocabulary:
            raise ConfigError("--units finds its own vocabulary; leave out --vocabulary or --units")
        check_vocabulary(preparation.vocabulary)
        check_run_output("-o", output_folder, files)
    with ExitStack() as stack:
        if processes.is_first:
            stack.enter_context(train_in(output_folder, checkpoint.STATE_FILE, resume=run.resume))
            if not run.resume:
                train.prepare_run(inputs, preparation.vocabulary, preparation.vocabulary_size, network)
        processes.wait_for(output_folder / prepare.VALIDATION_FILE)
        text = prepare.load_prepared(output_folder, longest)
        processes.check_same(text.train.n_words, "words of training text")
        facts = train.train(
            inputs, text, network, options, run, tensorboard=reports.tensorboard, processes=processes
        )
    processes.leave()
    if processes.is_first:
        if reports.as_json:
            typer.echo(json.dumps(facts))
        else:
            print_end(output_folder, data.validation, facts)


def print_end(folder: Path, validation: Path, facts: Mapping[str, Any]) -> None:
    """Print the result of a training, the folder of the best model, and the command that makes a bundle."""
    pieces = find_pieces(folder)
    option, best = ("--units", pieces) if pieces else ("--neural", resolve_model_folder(folder))
    typer.echo(f"best validation perplexity {facts['validation_perplexity']:.2f}: {best}")
    typer.echo(describe_next_step(folder.resolve().name, option, best, validation), err=True)


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
    folder = resolve_model_folder(model)
    chosen = choose_normaliser(normaliser, [folder])
    before, after = checkpoint.quantise(folder, output, precision, chosen)
    perplexities = measure_models([folder, output], test, chosen, device)
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
    folders = [resolve_model_folder(model) for model in models]
    chosen = choose_normaliser(normaliser, folders)
    checkpoint.average(folders, output, chosen)
    perplexities = measure_models([*folders, output], test, chosen, device)
    if as_json:
        typer.echo(json.dumps({"models": [str(folder) for folder in folders], "perplexity": perplexities}))
        return
    typer.echo(f"{output}: average of {len(folders)} models")
    print_perplexities(perplexities)


def measure_models(
    folders: list[Path], test: Path | None, normaliser: Normaliser, device: str
) -> dict[str, float]:
    """Measure the perplexity of each model on a text, by the model's folder; empty without a text."""
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
    try:
        report = run_recipe(read_recipe(recipe), data, output, device=device, threads=threads)
    except (KeyboardInterrupt, SystemExit):
        typer.echo("stopped; repeat the command to continue", err=True)
        raise
    if as_json:
        typer.echo(json.dumps(asdict(report), indent=2, ensure_ascii=False))
    else:
        print_report(report, output / REPORT_FILE)


def print_report(report: Report, file: Path) -> None:
    """Print the table of models, how unknown words were counted, and where the report is."""
    header, *rows = table_cells(report)
    print_out(make_table(header, rows, report.title), report.unknown, f"report: {file}")


@expand_options
def bench(
    text: Annotated[
        Path | None,
        typer.Option(help="Text to train on, one sentence per line. Default: random Zipf-distributed words."),
    ] = None,
    *,
    options: benchmark.BenchmarkOptions,
    normaliser: NormaliserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare training speed with a plain PyTorch loop and with the time that the matrix products alone take.

    Example: rescorer-train bench --text train.txt --model lstm --model elman
    """
    use_threads(options.threads or 0)
    keep_freed_memory()  # as in training; the plain loop benefits too
    encoded, n_words = (
        benchmark.read_text(text, choose_normaliser(normaliser), options.vocabulary_size)
        if text
        else benchmark.make_zipf_text(options.vocabulary_size)
    )
    speeds = benchmark.run_benchmark(encoded, n_words, options)
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__, "vocabulary_size": n_words}
    if as_json:
        settings = {name: value for name, value in asdict(options).items() if name not in machine}
        typer.echo(
            json.dumps({**machine, "options": settings, "speeds": [asdict(speed) for speed in speeds]})
        )
        return
    rows = [
        (
            speed.name,
            f"{speed.words_per_second:,.0f}",
            f"{speed.ratio:.2f}",
            f"{speed.floor_words_per_second:,.0f}",
            f"{speed.floor_multiple:.2f}",
            f"{speed.floor_gflops_per_second:.0f}",
        )
        for speed in speeds
    ]
    print_out(
        make_table(("model", "words/s", "ratio", "floor, words/s", "× floor", "GFLOP/s"), rows),
        f"{n_words:,} words, {torch.get_num_threads()} threads, torch {torch.__version__}",
    )

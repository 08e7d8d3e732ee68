"""The command ``rescorer rescore``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import read_bundle
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.models import BundleOption
from rescorer.cli.options.rescoring.loading import AnswerOptions, MachineOptions, RescorerLoader
from rescorer.cli.options.rescoring.plan import PlanOptions
from rescorer.cli.options.rescoring.shards import ShardOptions, check_unsharded_options
from rescorer.cli.options.selection import warn_if_tuned_otherwise
from rescorer.cli.options.weights import check_first_lists
from rescorer.cli.output import SOME_REJECTED, check_not_an_input
from rescorer.cli.plan import print_plan, read_sample
from rescorer.cli.render.progress import show_rescoring
from rescorer.cli.shards.rescoring import ShardRun
from rescorer.errors import ConfigError, pluralise
from rescorer.extensions import make_ranker
from rescorer.files.parallel import MAX_BATCH_WORDS as MAX_PROCESS_BATCH_WORDS
from rescorer.files.parallel import open_rescorer
from rescorer.files.rejects_file import RejectsFile
from rescorer.files.rescoring import FileSummary, rescore_lists
from rescorer.formats.io.targets import is_stream
from rescorer.formats.io.utterance_folder import list_files
from rescorer.formats.parts import expand_globs
from rescorer.formats.rescored import get_renderer, rescored_writer
from rescorer.options import RescoreOptions
from rescorer.runtime.cpu_count import count_cpus
from rescorer.shards.object_store import open_store
from rescorer.storage.urls import as_local, is_url

MIN_LISTS_TO_JUDGE = 10
"""Number of lists from which the choices of the weights are judged."""
MAX_LOWER_HALF, MAX_CHANGED = 0.5, 0.9
"""Shares of lists whose best hypothesis comes from the lower half of the list, or is not the first one, above
which together a warning is due."""

SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="IN...",
        help="Lists to re-rank, gzip or plain: files, globs, and folders, also those of jobs (output.1, "
        "output.2, …), read as one; - for a pipe; s3://… for an object.",
    ),
]


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is written, and where."""

    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            help="File of re-ranked lists; .gz compresses; - for a pipe. Folder of shards, or "
            "s3://BUCKET/PREFIX.",
        ),
    ] = "-"
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="Output format: jsonl for whole lists; trn, ctm or stm for the best hypothesis of each, or "
            "its consensus. ctm needs the hypothesis field words, stm the list fields start_s and end_s. "
            "manifest:manifest=FILE adds it to the lines of a NeMo manifest, as pred_text.",
        ),
    ] = "jsonl"
    rejects: Annotated[
        Path | None,
        typer.Option(
            help="File of lists that could not be scored or written, with reasons; default: OUT.rejects, or "
            "stderr for a pipe."
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DisplayOptions:
    """What is shown of a run: a forecast instead of it, or its progress and a summary."""

    plan: PlanOptions
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show neither a progress bar nor a summary.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, on stderr.")] = False


@expand_options
def rescore(
    sources: SourcesArgument,
    bundle: BundleOption,
    *,
    written: OutputOptions,
    answers: AnswerOptions,
    shards: ShardOptions,
    machine: MachineOptions,
    display: DisplayOptions,
) -> None:
    """Re-rank n-best lists, or an archive of them in shards.

    Example: rescorer rescore demo/lists.jsonl.gz -o out.jsonl --bundle models/starter/1 --weights
    pocketsphinx

    Memory use does not grow with the file. Exit code 1 means that some lists were rejected. A file without
    lists gives a warning and exit code 0, for pipelines whose recogniser heard nothing.
    """
    sources, output, to = list(map(as_local, sources)), as_local(written.output), written.to
    ranker = make_ranker(read_bundle(bundle))
    weights = answers.weights.resolve(ranker.bundle.weights)
    selection, session = answers.selection, answers.session
    warn_if_tuned_otherwise(weights, selection.selection())
    ranker.effective_weights(weights)  # reject invalid weights and formats before writing anything
    decision = answers.decision.resolve(weights)
    session.warn_if_unread(ranker, weights)
    answers.apply(ranker)  # reject invalid phrases and dictionaries, too
    get_renderer(to)
    processes = machine.processes
    if processes != 1:
        machine = replace(machine, batch_words=min(machine.batch_words, MAX_PROCESS_BATCH_WORDS))
    generate = answers.candidates.generate
    options = RescoreOptions(weights, decision, selection.merge, selection.drop_empty, generate)
    load = RescorerLoader(bundle, machine, options, answers, to)
    if display.plan.plan:
        session.forbid("--plan")
        sample = read_sample(display.plan, sources, answers.lists, weights, to)
        print_plan(display.plan, sample, load, output, as_json=display.as_json)
        return
    shards.engine.check(machine.device, is_sharded=shards.is_set)
    if shards.is_set:
        check_unsharded_options(output, written.rejects, processes)
        with open_store(output) as store:
            run = ShardRun(sources, store, shards, answers, load, ranker.bundle, weights)
            if (total := run.rescore()) is not None:
                finish(total, "in the rejects of their shards", display)
        return
    shards.check_unset()
    rejects_path = written.rejects or (None if is_stream(output) else Path(f"{output}.rejects"))
    check_paths(sources, output, rejects_path)
    warnings: list[str] = []
    lists = check_first_lists(answers.lists.read(sources), weights, answers.lists, sources[0], to, warnings)
    with ExitStack() as stack:
        rescorer = stack.enter_context(
            open_rescorer(load, processes or count_cpus(), machine.threads, machine.batch_words)
        )
        rescorer = session.keep_order(rescorer)
        write = stack.enter_context(rescored_writer(to, output))
        rejects_file = stack.enter_context(RejectsFile(rejects_path))
        update_bar = stack.enter_context(show_rescoring(not display.quiet and sys.stderr.isatty(), sources))
        summary = rescore_lists(rescorer, lists, write, rejects_file, on_batch=update_bar)
    finish(summary, f"see {rejects_path}" if rejects_path else "", display, warnings)


def finish(summary: FileSummary, see: str, display: DisplayOptions, warnings: Sequence[str] = ()) -> None:
    """Print what was done, and end the command with the exit code that says whether lists were rejected.

    Args:
        see: says where the rejected lists are, if they are in a file.
        warnings: what was warned about the weights before, for JSON.
    """
    warn_if_order_is_reversed(summary)
    if display.as_json or not display.quiet:
        print_summary(summary, see, warnings, as_json=display.as_json)
    if summary.rejected:
        raise typer.Exit(SOME_REJECTED)


def warn_if_order_is_reversed(summary: FileSummary) -> None:
    """Warn on stderr if nearly every best hypothesis changed, mostly to one of the lower half of its list."""
    n = summary.lists
    is_odd = summary.from_lower_half > MAX_LOWER_HALF * n and summary.changed > MAX_CHANGED * n
    if n >= MIN_LISTS_TO_JUDGE and is_odd:
        typer.echo(
            f"warning: in {summary.from_lower_half:,} of {n:,} lists the best hypothesis comes from the "
            "lower half of the list: is a cost read as a log-probability, or a weight wrong? "
            "`rescorer inspect` finds such errors",
            err=True,
        )


def check_paths(sources: Sequence[str], output: str, rejects_path: Path | None) -> None:
    """Raise ConfigError if an output folder does not exist, or if an input would be overwritten."""
    if is_url(output):
        raise ConfigError(
            f"--output {output}: an object is written only for shards: give --shards N too, or the name "
            "of a file"
        )
    if output != "-" and not Path(output).parent.is_dir():
        raise ConfigError(f"--output {output}: no such folder")
    if rejects_path and not rejects_path.parent.is_dir():
        raise ConfigError(f"--rejects {rejects_path}: no such folder")
    files = [file for source in expand_globs(sources) for file in list_files(source)]
    check_not_an_input("--output", output, files)
    if rejects_path:
        check_not_an_input("--rejects", rejects_path, files)


def print_summary(summary: FileSummary, see: str, warnings: Sequence[str] = (), *, as_json: bool) -> None:
    """Print one line to stderr."""
    if as_json:
        noted = {"warnings": list(warnings)} if warnings else {}
        typer.echo(json.dumps(summary.to_dict() | noted, ensure_ascii=False), err=True)
        return
    see = f" ({see})" if see and summary.rejected else ""
    typer.echo(
        f"{pluralise(summary.lists, 'list')}, {pluralise(summary.hypotheses, 'hypothesis', 'hypotheses')}, "
        f"{pluralise(summary.words, 'word')}; the best hypothesis changed in {summary.changed:,}; "
        f"{summary.rejected:,} rejected{see}",
        err=True,
    )

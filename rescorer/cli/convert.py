"""The commands ``rescorer convert``, ``score``, ``seal`` and ``shards …``."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList, pluralise
from rescorer.evaluation.scored_lists import TextTotals, sum_scores
from rescorer.formats.inputs import expand_globs
from rescorer.formats.io.folders import list_files
from rescorer.formats.io.text_io import is_stream, read_lines_strict
from rescorer.formats.registry import FORMATS, choose
from rescorer.formats.rescored import RESCORED_LISTS_MESSAGE, is_rescored
from rescorer.jobs.files import RejectsFile, format_reject
from rescorer.jobs.plan import read_plan
from rescorer.jobs.shards import Status, clean, merge, read_status, verify
from rescorer.jobs.store import Store, open_store
from rescorer.models.arpa import LOG_ZERO
from rescorer.models.bundle import newest_version, read_bundle, seal
from rescorer.pipeline import Rescorer
from rescorer.storage import as_local, is_url
from rescorer.terminal.list_options import (
    GroupsOption,
    JoinPiecesOption,
    ListInputOptions,
    Lists,
    MapOption,
    StreamOption,
)
from rescorer.terminal.options import BundleOption, DeviceOption, argument, expand_options, option
from rescorer.terminal.program import PLAIN_HELP, SOME_REJECTED, Rejections, check_not_an_input, warn
from rescorer.terminal.progress import count_lists, progress_bar
from rescorer.terminal.tables import FoldingTable, make_text_grid, print_out
from rescorer.types import NBestList, TextScore


def print_formats(value: bool) -> None:
    """Print the table of formats and exit if ``--formats`` was given."""
    if not value:
        return
    rows = []
    for format_ in FORMATS.values():
        options = ", ".join(dict.fromkeys([*format_.read_options, *format_.write_options]))
        rows += [(format_.name, format_.description), ("  base and sign", format_.units)]
        rows += [("  can hold", format_.describe_contents())]
        rows += [("  options", options)] if options else []
    print_out(make_text_grid(rows))
    raise typer.Exit


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """The formats of the input and the output, new names of streams, and the file of rejected lists."""

    from_: str | None = option(
        None, "Format of IN; default: detected from its content.", "--from", "--format", metavar="FORMAT"
    )
    to: str = option("jsonl", "Format of OUT: NAME[:OPTION=VALUE,…].", metavar="FORMAT")
    rename: list[str] | None = option(None, "New name of a score stream.", metavar="OLD=NEW")
    rejects: Path | None = option(
        None, "File of lists that could not be read or written; default: OUT.rejects."
    )
    maps: MapOption = None
    streams: StreamOption = None
    join_pieces: JoinPiecesOption = False
    groups: GroupsOption = None

    def read(self, sources: Sequence[str]) -> Lists:
        """Read the lists, and rename their streams. Print the formats that were detected."""
        options = ListInputOptions(self.maps, self.streams, self.from_, self.join_pieces, self.groups)
        if self.from_ is None and not self.maps and not self.streams:
            for source in sources:
                typer.echo(f"{source}: {options.find_parts(source, warn=False).describe()}", err=True)
        lists = options.read(sources)
        return rename_streams(warn_if_rescored(lists, ", ".join(sources)), parse_renames(self.rename))


@expand_options
def convert(
    *,
    sources: list[str] = argument(
        "Lists, read as one: files, folders, also those of jobs; - for a pipe.", "IN..."
    ),
    target: str = argument("File or folder to write; - for a pipe.", "OUT"),
    options: ConversionOptions,
    formats: bool = option(False, "List the formats and exit.", is_eager=True, callback=print_formats),
) -> None:
    """Convert n-best lists from one format to another.

    Example: rescorer convert demo/lists.jsonl.gz nbest/ --to srilm

    Several inputs, and folders of jobs, are read as one, in the order of their numbers. Parts that the other
    format cannot hold are left out, with a warning on stderr. Exit code 1 means that
    some lists were rejected.
    """
    output, sources, target = choose(options.to), expand_globs(map(as_local, sources)), as_local(target)
    if is_url(target):
        raise ConfigError(f"{target}: expected a file or folder of this machine; objects can only be read")
    rejects_path = options.rejects or (None if is_stream(target) else Path(f"{target.rstrip('/')}.rejects"))
    check_new(target, sources, is_folder=output.format.is_folder)
    files = [file for source in sources for file in list_files(source)]
    for name, path in (("target", target), ("--rejects", rejects_path)):
        if path is not None:
            check_not_an_input(name, path, files)
    lists = options.read(sources)
    n_written = 0
    rejected = Rejections()
    losses: Counter[str] = Counter()
    with ExitStack() as stack:
        rejects_file = stack.enter_context(RejectsFile(rejects_path)) if rejects_path else None
        write = stack.enter_context(output.writer(target))
        total = count_lists(sources)
        bar = stack.enter_context(progress_bar("converting", unit=" lists", total=total, leave=False))
        for item in lists:
            bar.update()
            error = item if isinstance(item, InputError) else None
            if isinstance(item, NBestList):
                try:
                    write(item)
                    n_written += 1
                    losses.update(output.find_losses(item))
                except InvalidList as invalid:
                    error = invalid
            if error is not None:
                rejected.add(error)
                if rejects_file is not None:
                    rejects_file.write(format_reject(error, item) + "\n")
    rejected.report(f"; all are in {rejects_path}" if rejects_path else "")
    for part, count in sorted(losses.items()):
        what = f"scores of the {part}" if part.startswith("stream ") else part
        warn(f"{what} of {pluralise(count, 'list')} left out: {options.to} cannot store this")
    typer.echo(
        f"{pluralise(n_written, 'list')} written as {options.to}; {len(rejected):,} rejected", err=True
    )
    rejected.end()


def check_new(target: str, sources: Sequence[str], *, is_folder: bool) -> None:
    """Raise ConfigError if the output exists and is probably one of the inputs, because OUT was forgotten.

    Args:
        is_folder: whether the output format is a folder of files.
    """
    is_job = is_folder and re.sub("[0-9]+", "0", target) == re.sub("[0-9]+", "0", sources[-1])
    if (len(sources) > 1 or is_job) and not is_stream(target) and Path(target).exists():
        raise ConfigError(
            f"target {target}: exists, though the last name is that of the output: was OUT forgotten? "
            "Several inputs are written only to a new file or folder"
        )


def warn_if_rescored(lists: Lists, source: str) -> Lists:
    """Yield the lists. Warn once if they are output of `rescorer rescore`, which has totals, not scores."""
    has_warned = False
    for item in lists:
        if not has_warned and isinstance(item, NBestList) and is_rescored(item):
            has_warned = True
            message = f"{RESCORED_LISTS_MESSAGE}; convert the lists that it read instead"
            warn(f"{source}: {message}")
        yield item


def parse_renames(options: list[str] | None) -> dict[str, str]:
    """Parse options such as ``am=acoustic`` into the new name of each stream, by its old name.

    Raises:
        ConfigError: an option is malformed, or has a name that another option has.
    """
    names: dict[str, str] = {}
    for rename in options or ():
        old, equals, new = rename.partition("=")
        if not equals or not old or not new or old in names or new in names.values():
            raise ConfigError(f"--rename {rename!r}: expected OLD=NEW, each name once")
        names[old] = new
    return names


def rename_streams(lists: Lists, names: dict[str, str]) -> Lists:
    """Yield the lists with renamed streams. Put an error in place of a list if two of its streams would have
    the same name."""
    for item in lists:
        if names and isinstance(item, NBestList):
            streams = {names.get(name, name): values for name, values in item.streams.items()}
            if len(streams) < len(item.streams):
                yield InvalidList(
                    "--rename gives two streams the same name", list_id=item.id, field="streams"
                )
                continue
            item = replace(item, streams=streams)
        yield item


LINES_PER_BATCH = 1_000


@expand_options
def score(
    *,
    source: str = argument("One sentence per line, gzip or plain; - for a pipe.", "TEXT"),
    bundle: BundleOption,
    context: str = option("", "Words before each sentence."),
    words: bool = option(False, "Print the log-probability of every word."),
    sentences: bool = option(False, "Print the log-probability of every sentence."),
    device: DeviceOption = "cpu",
    as_json: bool = option(False, "Print JSON lines; the last one holds the totals.", "--json"),
) -> None:
    """Compute the log-probability (natural log) and perplexity of text under every model of a bundle.

    Example: echo "the ship lay at anchor" | rescorer score - --bundle models/starter/1 --words
    """
    rescorer = Rescorer.load(bundle, device)
    if rescorer.bundle.whole.issuperset(rescorer.bundle.model_kinds):
        raise ConfigError(
            f"{rescorer.bundle.label}: its models score whole hypotheses and no words; rescore lists instead"
        )
    totals = TextTotals()
    lines = (line for _, line in read_lines_strict(source))
    while batch := list(islice(lines, LINES_PER_BATCH)):
        scores = [text_score for text_score in rescorer.score_text(batch, context) if text_score.words]
        totals += sum_scores(scores)
        for text_score in scores if words or sentences else ():
            if as_json:
                typer.echo(json.dumps(score_to_dict(text_score, words), ensure_ascii=False))
            else:
                print_out(render_score(text_score, words))
    if not totals.n_tokens:
        raise FormatError("no words in it", file=source)
    if unread := rescorer.bundle.model_kinds.keys() - rescorer.bundle.whole - totals.log_probs.keys():
        warn(
            f"{source}: has sentences that are too long for {', '.join(sorted(unread))} "
            f"({rescorer.bundle.describe_lengths()}), and are not scored by it; it has no totals. Divide them"
        )
    if as_json:
        typer.echo(json.dumps(totals.to_dict()))
    else:
        counts = {"sentence": totals.n_sentences, "token": totals.n_tokens, "unknown word": totals.n_unknown}
        parts = [f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in counts.items()]
        print_out(", ".join(parts) + " (sentence ends count as tokens)")
        print_out(render_totals(totals))


def score_to_dict(score: TextScore, with_words: bool) -> dict[str, object]:
    """Convert the scores of one sentence to JSON data."""
    record: dict[str, object] = {
        "text": score.text,
        "log_prob": {name: round(math.fsum(values), 6) for name, values in score.log_probs.items()},
    }
    if with_words:
        record["words"] = [*score.words, "</s>"]
        record["word_log_probs"] = {
            name: [round(value, 6) for value in values] for name, values in score.log_probs.items()
        }
        record["unknown"] = [*score.unknown, False]
    return record


def render_score(score: TextScore, with_words: bool) -> FoldingTable:
    """Make a table of one sentence's scores: their sum for each model and, if asked for, a row per word."""
    table = FoldingTable("ln P", *score.log_probs, title=score.text.strip())
    if with_words:
        for i, word in enumerate((*score.words, "</s>")):
            mark = " (unknown)" if i < len(score.unknown) and score.unknown[i] else ""
            table.add_row(word + mark, *(format_log_prob(values[i]) for values in score.log_probs.values()))
    table.add_row("sum", *(format_log_prob(*values) for values in score.log_probs.values()))
    return table


def format_log_prob(*values: float) -> str:
    """Format a sum of values of ln P; ``-inf`` if one of them stands for the probability 0."""
    return "-inf" if min(values) <= LOG_ZERO else f"{math.fsum(values):.4f}"


def render_totals(totals: TextTotals) -> FoldingTable:
    """Make a table of the totals over all sentences, with one row per model."""
    table = FoldingTable("model", "ln P", "perplexity")
    for name, value in totals.log_probs.items():
        table.add_row(name, f"{value:,.2f}", f"{totals.perplexity(name):,.2f}")
    return table


def seal_bundle(
    folder: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle, or folder of its versions.")],
) -> None:
    """List and hash files that were added to a bundle, such as weights sets and lists of phrases.

    Example: rescorer seal models/starter/1

    A bundle is served only if its manifest lists every file with its hash. This adds files that are not
    listed, and takes weights sets and lists of phrases as they are now. It refuses a bundle whose models or
    normaliser have changed.
    """
    folder = newest_version(folder)
    changed = seal(folder)
    read_bundle(folder)
    for name in changed:
        typer.echo(name)


FolderArgument = Annotated[
    str,
    typer.Argument(metavar="FOLDER", help="Folder of `rescorer rescore --shards`, or s3://BUCKET/PREFIX."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MAX_ROWS = 20
"""Maximum number of files, left by killed processes, that are listed."""

shards = typer.Typer(
    **PLAIN_HELP,
    help="Look at shards of `rescorer rescore --shards`, and join them.\n\n"
    "Example: rescorer shards status out",
)


@shards.command("status")
def show_status(folder: FolderArgument, as_json: JsonOption = False) -> None:
    """Show what is committed, and what killed processes left.

    Example: rescorer shards status out
    """
    with open_store(folder) as store:
        status = read_status(store)
    if as_json:
        typer.echo(json.dumps(_to_dict(status)))
        return
    n, total, done = len(status.plan.shards), status.summary, len(status.records)
    table = FoldingTable("", "shards", "lists", "hypotheses", "rejected", "MB", "hours")
    planned = [status.plan.count_lists(index) for index in range(n)]
    table.add_row(
        "planned", f"{n:,}", "" if None in planned else f"{sum(filter(None, planned)):,}", *[""] * 4
    )
    numbers = f"{total.lists:,}", f"{total.hypotheses:,}", f"{total.rejected:,}"
    table.add_row(
        "committed", f"{done:,}", *numbers, f"{status.n_bytes / 1e6:,.1f}", f"{status.seconds / 3600:,.3f}"
    )
    print_out(table)
    rows = [("damaged", text) for text in status.damaged]
    rows += [
        ("attempt", f"{file.name}: {file.n_bytes:,} bytes, written {file.age_s:,.0f} s ago")
        for file in status.leftovers[:MAX_ROWS]
    ]
    if (more := len(status.leftovers) - MAX_ROWS) > 0:
        rows.append(("", f"{more:,} more"))
    if rows:
        print_out("", make_text_grid(rows))
    if status.leftovers:
        print_out("", "Attempts are of running processes, or left by killed ones: `rescorer shards clean`.")


def _to_dict(status: Status) -> dict[str, Any]:
    return {
        "shards": len(status.plan.shards),
        "committed": len(status.records),
        "missing": status.missing,
        **status.summary.to_dict(),
        "bytes": status.n_bytes,
        "seconds": round(status.seconds, 3),
        "damaged": list(status.damaged),
        "attempts": [
            {"name": file.name, "bytes": file.n_bytes, "age_s": round(file.age_s, 1)}
            for file in status.leftovers
        ],
    }


def _progress(what: str, store: Store) -> tqdm[Any]:
    """Make a progress bar that counts the shards of a plan."""
    return progress_bar(what, total=len(read_plan(store).shards), unit=" shards")


@shards.command("verify")
@expand_options
def show_verification(
    *,
    folder: FolderArgument,
    inputs: bool = option(False, "Also hash the input files again, and compare with the plan."),
    as_json: JsonOption = False,
) -> None:
    """Read all output again and compare it with the records; exit code 1 if anything is wrong or missing.

    Example: rescorer shards verify out
    """
    with open_store(folder) as store, _progress("verifying", store) as bar:
        n = int(bar.total or 0)
        problems = list(verify(store, inputs=inputs, on_shard=bar.update))
    if as_json:
        typer.echo(json.dumps({"shards": n, "problems": problems}))
    else:
        for problem in problems:
            typer.echo(problem)
        found = pluralise(len(problems), "problem") if problems else "all committed and intact"
        typer.echo(f"{pluralise(n, 'shard')}, {found}")
    if problems:
        raise typer.Exit(SOME_REJECTED)


@shards.command("merge")
@expand_options
def merge_shards(
    *,
    folder: FolderArgument,
    output: str = option(..., "File of re-ranked lists; .gz compresses; - for a pipe.", "-o", "--output"),
    as_json: JsonOption = False,
) -> None:
    """Join all shards in the order of the input, and their rejected lists into OUT.rejects.

    Example: rescorer shards merge out -o out.jsonl

    The result is what `rescorer rescore` writes for the undivided input. All is verified while it is copied.
    """
    if is_url(output := as_local(output)):
        raise ConfigError(
            f"--output {output}: expected a file of this machine, or - for a pipe to another tool"
        )
    rejects = None if is_stream(output) else Path(f"{output}.rejects")
    for path in (output, rejects):
        if path is not None:
            check_not_an_input("--output", path, Path(folder).rglob("*"))
    with open_store(folder) as store, _progress("merging", store) as bar:
        n = int(bar.total or 0)
        summary = merge(store, output, rejects, bar.update)
    if as_json:
        typer.echo(json.dumps({"shards": n, **summary.to_dict()}), err=True)
    else:
        see = f" (see {rejects})" if summary.rejected and rejects else ""
        counts = f"{pluralise(n, 'shard')}, {pluralise(summary.lists, 'list')}"
        typer.echo(f"{counts}; {summary.rejected:,} rejected{see}", err=True)


@shards.command("clean")
@expand_options
def clean_attempts(
    *,
    folder: FolderArgument,
    older_than: float = option(
        60.0,
        "Minutes without a write after which an attempt counts as left behind; 0 only if no process "
        "is running.",
        min=0,
    ),
    as_json: JsonOption = False,
) -> None:
    """Delete what killed processes left: files of attempts that no record names.

    Example: rescorer shards clean out
    """
    with open_store(folder) as store:
        deleted = clean(store, 60 * older_than)
    n_bytes = sum(file.n_bytes for file in deleted)
    if as_json:
        typer.echo(json.dumps({"deleted": [file.name for file in deleted], "bytes": n_bytes}))
    else:
        typer.echo(f"{pluralise(len(deleted), 'file')} deleted, {n_bytes / 1e6:,.1f} MB")

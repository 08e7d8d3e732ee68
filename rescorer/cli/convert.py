"""The command ``rescorer convert``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import (
    GroupsOption,
    JoinPiecesOption,
    ListInputOptions,
    Lists,
    MapOption,
    StreamOption,
)
from rescorer.cli.output import SOME_REJECTED, Rejections, check_not_an_input
from rescorer.cli.render.tables import make_text_grid, print_out
from rescorer.errors import ConfigError, InputError, InvalidList, pluralise
from rescorer.files.rejects_file import RejectsFile
from rescorer.files.rescoring import format_reject
from rescorer.formats.io.targets import is_stream
from rescorer.formats.io.utterance_folder import list_files
from rescorer.formats.parts import expand_globs
from rescorer.formats.registry import FORMATS, choose
from rescorer.formats.rescored import RESCORED_LISTS_MESSAGE, is_rescored
from rescorer.storage.urls import as_local, is_url
from rescorer.types import NBestList


def print_formats(value: bool) -> None:
    """Print the table of formats and exit, if the option was given."""
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
    """What is read and written, apart from the files."""

    from_: Annotated[
        str | None,
        typer.Option(
            "--from", "--format", metavar="FORMAT", help="Format of IN; default: detected from its content."
        ),
    ] = None
    to: Annotated[
        str, typer.Option("--to", metavar="FORMAT", help="Format of OUT: NAME[:OPTION=VALUE,…].")
    ] = "jsonl"
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="New name of a score stream.")
    ] = None
    rejects: Annotated[
        Path | None,
        typer.Option(help="File of lists that could not be read or written; default: OUT.rejects."),
    ] = None
    maps: MapOption = None
    streams: StreamOption = None
    join_pieces: JoinPiecesOption = False
    groups: GroupsOption = None

    def read(self, sources: Sequence[str]) -> Lists:
        """Read the lists with their new names of streams; print on stderr which formats were detected."""
        options = ListInputOptions(self.maps, self.streams, self.from_, self.join_pieces, self.groups)
        if self.from_ is None and not self.maps and not self.streams:
            for source in sources:
                typer.echo(f"{source}: {options.find_parts(source, warn=False).describe()}", err=True)
        lists = options.read(sources)
        return rename_streams(warn_if_rescored(lists, ", ".join(sources)), parse_renames(self.rename))


@expand_options
def convert(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="IN...", help="Lists, read as one: files, folders, also those of jobs; - for a pipe."
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="OUT", help="File or folder to write; - for a pipe.")],
    *,
    options: ConversionOptions,
    formats: Annotated[
        bool,
        typer.Option("--formats", is_eager=True, callback=print_formats, help="List the formats and exit."),
    ] = False,
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
    for option, path in (("target", target), ("--rejects", rejects_path)):
        if path is not None:
            check_not_an_input(option, path, files)
    lists = options.read(sources)
    n_written = 0
    rejected = Rejections()
    losses: Counter[str] = Counter()
    with ExitStack() as stack:
        rejects_file = stack.enter_context(RejectsFile(rejects_path)) if rejects_path else None
        write = stack.enter_context(output.writer(target))
        for item in lists:
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
        typer.echo(
            f"warning: {what} of {pluralise(count, 'list')} left out: {options.to} cannot store this",
            err=True,
        )
    typer.echo(
        f"{pluralise(n_written, 'list')} written as {options.to}; {len(rejected):,} rejected", err=True
    )
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def check_new(target: str, sources: Sequence[str], *, is_folder: bool) -> None:
    """Raise ConfigError if the output exists and is probably the last of several inputs.

    Args:
        is_folder: the output is a folder, whose files would be replaced.
    """
    is_job = is_folder and re.sub("[0-9]+", "0", target) == re.sub("[0-9]+", "0", sources[-1])
    if (len(sources) > 1 or is_job) and not is_stream(target) and Path(target).exists():
        raise ConfigError(
            f"target {target}: exists, though the last name is that of the output: was OUT forgotten? "
            "Several inputs are written only to a new file or folder"
        )


def warn_if_rescored(lists: Lists, source: str) -> Lists:
    """Yield the lists; warn on stderr once if they are re-ranked, because these carry totals, not scores."""
    has_warned = False
    for item in lists:
        if not has_warned and isinstance(item, NBestList) and is_rescored(item):
            has_warned = True
            message = f"{RESCORED_LISTS_MESSAGE}; convert the lists that it read instead"
            typer.echo(f"warning: {source}: {message}", err=True)
        yield item


def parse_renames(options: list[str] | None) -> dict[str, str]:
    """New stream names by old ones; raises ConfigError if an option is malformed."""
    names: dict[str, str] = {}
    for option in options or ():
        old, equals, new = option.partition("=")
        if not equals or not old or not new or old in names or new in names.values():
            raise ConfigError(f"--rename {option!r}: expected OLD=NEW, each name once")
        names[old] = new
    return names


def rename_streams(lists: Lists, names: dict[str, str]) -> Lists:
    """Yield the lists with renamed streams; an error replaces a list whose streams would share a name."""
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

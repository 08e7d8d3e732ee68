"""Owns the command ``rescorer convert``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rescorer.cli.options import SOME_REJECTED, GroupsOption, MapOption, StreamOption, lists_from
from rescorer.cli.rescore import Rejects
from rescorer.errors import ConfigError, InputError, InvalidList
from rescorer.file_rescoring import reject_line
from rescorer.formats.registry import FORMATS, choose, detect
from rescorer.formats.rescored import RESCORED_LISTS_MESSAGE, is_rescored
from rescorer.types import NBestList


def show_formats(wanted: bool) -> None:
    """The table of formats, and the end."""
    if not wanted:
        return
    table = Table("name", "what", "base and sign", "can hold", "options")
    for each in FORMATS.values():
        options = ", ".join(dict.fromkeys([*each.read_options, *each.write_options]))
        table.add_row(each.name, each.description, each.units, each.describe_contents(), options)
    Console(width=130).print(table)
    raise typer.Exit


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="File or folder of lists; - for a pipe.")],
    target: Annotated[str, typer.Argument(metavar="OUT", help="File or folder to write; - for a pipe.")],
    from_: Annotated[
        str | None, typer.Option("--from", "--format", metavar="FORMAT", help="Default: what IN looks like.")
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="NAME[:OPTION=VALUE,…].")] = "jsonl",
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Another name for a score stream.")
    ] = None,
    rejects: Annotated[
        Path | None, typer.Option(help="Lists that could not be read or written. Default: OUT.rejects.")
    ] = None,
    maps: MapOption = None,
    streams: StreamOption = None,
    groups: GroupsOption = None,
    formats: Annotated[
        bool, typer.Option("--formats", is_eager=True, callback=show_formats, help="List the formats.")
    ] = False,
) -> None:
    """Turn n-best lists from one format into another.

    Example: rescorer convert demo/lists.jsonl.gz nbest/ --to srilm

    What the other format cannot hold is left out, and told on stderr. Exit code 1 says that some lists went
    to the rejects.
    """
    output = choose(to)
    if from_ is None and not maps and not streams:
        name, saw = detect(source)
        typer.echo(f"{source}: {name} ({saw})", err=True)
    lists = with_rescored_told(lists_from(source, maps, streams, groups, from_), source)
    lists = renamed(lists, stream_names(rename))
    reject_file = rejects or (Path(f"{target.rstrip('/')}.rejects") if target != "-" else None)
    written, rejected = 0, 0
    lost: Counter[str] = Counter()
    with ExitStack() as stack:
        reject_out = stack.enter_context(Rejects(reject_file)) if reject_file else None
        write = stack.enter_context(output.writer(target))
        for item in lists:
            fault = item if isinstance(item, InputError) else None
            if isinstance(item, NBestList):
                try:
                    write(item)
                    written += 1
                    lost.update(output.find_losses(item))
                except InvalidList as unfit:
                    fault = unfit
            if fault is not None:
                rejected += 1
                typer.echo(f"rejected: {fault}", err=True)
                if reject_out is not None:
                    reject_out.write(reject_line(fault, item) + "\n")
    for part, count in sorted(lost.items()):
        what = f"scores of the {part}" if part.startswith("stream ") else part
        typer.echo(f"warning: {to} cannot hold it: {what} of {count:,} lists left out", err=True)
    typer.echo(f"{written:,} lists written as {to}; {rejected:,} rejected", err=True)
    if rejected:
        raise typer.Exit(SOME_REJECTED)


def with_rescored_told(
    lists: Iterator[NBestList | InputError], source: str
) -> Iterator[NBestList | InputError]:
    """The lists; a warning on stderr at the first that was re-ranked, for its scores are none to convert."""
    told = False
    for item in lists:
        if not told and isinstance(item, NBestList) and is_rescored(item):
            told = True
            typer.echo(f"warning: {source}: {RESCORED_LISTS_MESSAGE}; convert those that it read", err=True)
        yield item


def stream_names(options: list[str] | None) -> dict[str, str]:
    """New names by old ones; raises ConfigError where an option is malformed."""
    names: dict[str, str] = {}
    for option in options or ():
        old, equals, new = option.partition("=")
        if not equals or not old or not new or old in names or new in names.values():
            raise ConfigError(f"--rename {option!r}: expected OLD=NEW, each name once")
        names[old] = new
    return names


def renamed(
    lists: Iterator[NBestList | InputError], names: dict[str, str]
) -> Iterator[NBestList | InputError]:
    """The lists with other names for their streams; one that would then have a name twice is a fault."""
    for item in lists:
        if names and isinstance(item, NBestList):
            streams = {names.get(name, name): values for name, values in item.streams.items()}
            if len(streams) < len(item.streams):
                yield InvalidList("--rename gives two streams one name", list_id=item.id, field="streams")
                continue
            item = replace(item, streams=streams)
        yield item

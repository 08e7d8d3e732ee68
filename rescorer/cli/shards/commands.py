"""The commands ``rescorer shards status``, ``verify``, ``merge`` and ``clean``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from rescorer.cli.output import PLAIN_HELP, SOME_REJECTED, check_not_an_input
from rescorer.cli.render.tables import FoldingTable, make_text_grid, print_out
from rescorer.errors import ConfigError, pluralise
from rescorer.formats.io.targets import is_stream
from rescorer.shards.inspection import Status, clean, read_status, verify
from rescorer.shards.merge import merge
from rescorer.shards.object_store import open_store
from rescorer.shards.planning.plan import read_plan
from rescorer.shards.store import Store
from rescorer.storage.urls import as_local, is_url

FolderArgument = Annotated[
    str,
    typer.Argument(metavar="FOLDER", help="Folder of `rescorer rescore --shards`, or s3://BUCKET/PREFIX."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MAX_ROWS = 20
"""Largest number of leftovers that are named."""

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
    if more := len(status.leftovers) - MAX_ROWS:
        rows += [("", f"{more:,} more")] if more > 0 else []
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


@contextmanager
def _progress(what: str, store: Store) -> Iterator[tqdm[Any]]:
    """A bar of the shards of a plan, on stderr if it is a terminal."""
    n = len(read_plan(store)[0].shards)
    with tqdm(desc=what, total=n, unit=" shards", disable=not sys.stderr.isatty()) as bar:
        yield bar


@shards.command("verify")
def show_verification(
    folder: FolderArgument,
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Also hash the input files again, and compare with the plan.")
    ] = False,
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
        typer.echo(
            f"{pluralise(n, 'shard')}, "
            + (pluralise(len(problems), "problem") if problems else "all committed and intact")
        )
    if problems:
        raise typer.Exit(SOME_REJECTED)


@shards.command("merge")
def merge_shards(
    folder: FolderArgument,
    output: Annotated[
        str, typer.Option("-o", "--output", help="File of re-ranked lists; .gz compresses; - for a pipe.")
    ],
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
def clean_attempts(
    folder: FolderArgument,
    older_than: Annotated[
        float,
        typer.Option(
            min=0,
            help="Minutes without a write after which an attempt counts as left behind; 0 only if no process "
            "is running.",
        ),
    ] = 60.0,
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

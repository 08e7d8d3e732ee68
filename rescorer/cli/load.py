"""Owns the command ``rescorer load``."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from rescorer.cli.options import DtypeOption, FormatOption, MapOption, StreamOption, lists_from
from rescorer.cli.output import shown
from rescorer.types import NBestList

if TYPE_CHECKING:
    from rescorer.load.stages import Stage


def load(
    lists: Annotated[str, typer.Argument(help="Lists to send.")],
    bundle: Annotated[Path, typer.Option("--bundle", "-b", help="Folder of the bundle to serve.")],
    weights: Annotated[str, typer.Option(help="Name of one of the bundle's sets of weights.")] = "default",
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each stage takes.")] = 10.0,
    clients: Annotated[int, typer.Option(min=1, help="Client processes.")] = 2,
    maps: MapOption = None,
    streams: StreamOption = None,
    format_: FormatOption = None,
    at_once: Annotated[int, typer.Option(min=1, help="Calls a client has open to find the peak.")] = 16,
    lists_a_call: Annotated[int, typer.Option(min=1, help="Lists of one call.")] = 1,
    deadline_s: Annotated[float, typer.Option(min=0.01, help="Deadline of each call.")] = 5.0,
    overload: Annotated[float, typer.Option(min=1, help="Load of the last stage, in peaks.")] = 3.0,
    overload_seconds: Annotated[
        float, typer.Option(min=0, help="How long that one takes; 0: as long as the others.")
    ] = 0.0,
    dtype: DtypeOption = "float32",
    serve: Annotated[str, typer.Option(help="Options for the server, such as '--scorers 2'.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object a stage.")] = False,
) -> None:
    """Load a server of its own over loopback, and set what it does beside the library's speed.

    Example: rescorer load demo/lists.jsonl.gz --bundle models/starter/1 --seconds 3

    Client processes send on schedule whether or not answers come. The stages are the library in this process,
    with a thread a core and with one (its times are of one list alone), as much as the server can do, half of
    that, and more than it can do.

    offered/s: lists that the clients set out to send, a dash where they send the next when one is answered;
    refused: calls told at once that there is no room or no time; failed: all others without an answer, most
    at their deadline. Times are counted from when a call was due; late: how much after that the clients began
    it, for want of a processor, which is no doing of the server's.
    """
    from rescorer.errors import InputError
    from rescorer.lm.malloc import keep_freed_memory
    from rescorer.load.stages import Plan, stages

    keep_freed_memory()  # as the server does
    some = [each for each in lists_from(lists, maps, streams, None, format_) if isinstance(each, NBestList)]
    if not some:
        raise InputError(f"{lists}: no lists; expected at least one")
    options = tuple(serve.split())
    plan = Plan(
        seconds, clients, at_once, lists_a_call, deadline_s, overload, options, dtype, overload_seconds
    )
    if not as_json:
        typer.echo(HEADER)
    form = "{n_fmt} stages done in {elapsed}; now {desc}"
    with tqdm(bar_format=form, leave=False, disable=not sys.stderr.isatty()) as bar:
        for stage in stages(
            bundle, some, weights, plan, lambda name, s: bar.set_description_str(f"{name}, {s:g} s")
        ):
            with bar.external_write_mode():
                typer.echo(json.dumps(asdict(stage)) if as_json else row(stage))
            bar.update()


def row(stage: Stage) -> str:
    """A stage under ``HEADER``."""
    rss_mb = None if stage.max_rss_bytes is None else stage.max_rss_bytes / 1e6
    return (
        f"{stage.name:<20}{shown(stage.offered_lists_per_s, '.1f'):>11}{stage.calls:>7}{stage.refused:>9}"
        f"{stage.failed:>8}{stage.lists_per_s:>9.1f}"
        f"{stage.lists_per_cpu_s:>13.1f}{shown(stage.p50_ms, '.1f'):>9}{shown(stage.p99_ms, '.1f'):>9}"
        f"{shown(stage.late_p99_ms, '.1f'):>10}{shown(stage.refused_p99_ms, '.1f'):>13}"
        f"{shown(stage.health_p99_ms, '.1f'):>12}{shown(rss_mb, '.0f'):>7}"
    )


HEADER = (
    f"{'stage':<20}{'offered/s':>11}{'calls':>7}{'refused':>9}{'failed':>8}{'lists/s':>9}{'lists/CPU-s':>13}"
    f"{'p50 ms':>9}{'p99 ms':>9}{'late p99':>10}{'refused p99':>13}{'health p99':>12}{'MB':>7}"
)

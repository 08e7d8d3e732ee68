"""Owns the command ``rescorer top``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rescorer.cli.output import shown

if TYPE_CHECKING:
    from rescorer.cli.top.scrape import Picture, Quantiles


def top(
    address: Annotated[str, typer.Argument(help="Where the server tells its metrics, HOST:PORT.")],
    every_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between pictures.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one picture and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON object a picture.")] = False,
) -> None:
    """Watch a running server in the terminal.

    Example: rescorer top 127.0.0.1:9464

    The server needs --metrics-port. A picture is of what happened since the one before. It ends at Ctrl-C, or
    when the server is gone.
    """
    some = pictures(address, every_s)
    if as_json:
        for picture in some:
            typer.echo(json.dumps(asdict(picture)))
            if once:
                return
    if once:
        Console().print(view(address, next(some)))
        return
    try:
        with Live(Text(f"reading {address} …"), auto_refresh=False) as live:
            for picture in some:
                live.update(view(address, picture), refresh=True)
    except KeyboardInterrupt:
        return


def pictures(address: str, every_s: float) -> Iterator[Picture]:
    """One after each interval, for ever; raises Unavailable when the server cannot be read."""
    from rescorer.cli.top.scrape import compare, read

    before = read(address)
    while True:
        time.sleep(every_s)
        after = read(address)
        yield compare(before, after)
        before = after


def view(address: str, picture: Picture) -> Group:
    """A picture for people."""
    state = ("serving", "bold green") if picture.ready else ("not serving", "bold red")
    head = Text.assemble(
        (address, "bold"),
        "  ",
        state,
        f"  {picture.lists_per_s:,.1f} lists/s  scorers {picture.scorers} ({picture.restarts} restarts)  "
        f"{picture.memory_bytes / 1e6:,.0f} MB",
    )
    load = Text(
        f"waiting {picture.waiting:,}  in flight {picture.in_flight_lists:,} lists, "
        f"{picture.in_flight_tokens:,} words  streams {picture.streams:,}  "
        f"a batch {shown(picture.batch_lists, '.1f')} lists, {shown(picture.batch_edges, ',.0f')} edges  "
        f"distinct {shown(picture.distinct, '.0%')}"
    )
    times = table("time", "p50 ms", "p99 ms")
    for name, each in (
        ("call", picture.call_ms),
        ("queue", picture.queue_ms),
        ("compute, a batch", picture.compute_ms),
    ):
        times.add_row(name, *milliseconds(each))
    codes = table("code", "calls/s")
    for code, rate in picture.calls_per_s.items():
        codes.add_row(code, f"{rate:,.1f}")
    phases = table("phase", "of a core")
    for phase, share in sorted(picture.phase_shares.items(), key=lambda each: -each[1]):
        phases.add_row(phase, f"{share:.1%}")
    models = table("model", "lists/s", "best changed", "unknown words", "MB")
    for model, of_model in picture.models.items():
        models.add_row(
            model,
            f"{of_model.lists_per_s:,.1f}",
            shown(of_model.best_changed, ".1%"),
            shown(of_model.unknown_words, ".2%"),
            f"{of_model.memory_bytes / 1e6:,.0f}",
        )
    side_by_side = Table.grid(padding=(0, 3))
    side_by_side.add_row(times, codes, phases)
    return Group(head, load, "", side_by_side, "", models)


def table(first: str, *others: str) -> Table:
    made = Table(first, box=None, pad_edge=False, header_style="dim")
    for name in others:
        made.add_column(name, justify="right")
    return made


def milliseconds(times: Quantiles) -> tuple[str, str]:
    return shown(times.p50, ",.1f"), shown(times.p99, ",.1f")

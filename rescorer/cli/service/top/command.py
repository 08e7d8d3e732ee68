"""Show the activity of a running server in the terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.columns import Columns
from rich.console import Group
from rich.live import Live
from rich.text import Text

from rescorer.cli.output import or_dash
from rescorer.cli.render.tables import FoldingTable, print_out

if TYPE_CHECKING:
    from rescorer.cli.service.top.scrape import Quantiles, Snapshot


def top(
    address: Annotated[str, typer.Argument(help="Address of the server's metrics, HOST:PORT.")],
    interval_s: Annotated[float, typer.Option("--every", min=0.1, help="Seconds between snapshots.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Show one snapshot and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per snapshot.")] = False,
) -> None:
    """Watch a running server in the terminal.

    Example: rescorer top 127.0.0.1:9464

    The server must run with --metrics-port. Each snapshot covers the time since the previous one. Ends at
    Ctrl-C, or when the server can no longer be reached.
    """
    snapshots = take_snapshots(address, interval_s)
    if as_json:
        for snapshot in snapshots:
            typer.echo(json.dumps(asdict(snapshot)))
            if once:
                return
    if once:
        print_out(render(address, next(snapshots)))
        return
    try:
        with Live(Text(f"reading {address} …"), auto_refresh=False) as live:
            for snapshot in snapshots:
                live.update(render(address, snapshot), refresh=True)
    except KeyboardInterrupt:
        return


def take_snapshots(address: str, interval_s: float) -> Iterator[Snapshot]:
    """Yield a snapshot after each interval, endlessly; raise Unavailable if the metrics cannot be read."""
    from rescorer.cli.service.top.scrape import compare, read_metrics

    before = read_metrics(address)
    while True:
        time.sleep(interval_s)
        after = read_metrics(address)
        yield compare(before, after)
        before = after


def render(address: str, snapshot: Snapshot) -> Group:
    """Lay out a snapshot as text and tables."""
    tables = [latency_table(snapshot), code_table(snapshot), phase_table(snapshot)]
    side_by_side = Columns(tables, padding=(0, 3))
    return Group(
        status_line(address, snapshot), load_line(snapshot), "", side_by_side, "", model_table(snapshot)
    )


def status_line(address: str, snapshot: Snapshot) -> Text:
    state = ("serving", "bold green") if snapshot.ready else ("not serving", "bold red")
    return Text.assemble(
        (address, "bold"),
        "  ",
        state,
        f"  {snapshot.lists_per_s:,.1f} lists/s  workers {snapshot.workers} ({snapshot.restarts} restarts)  "
        f"{snapshot.memory_bytes / 1e6:,.0f} MB",
    )


def load_line(snapshot: Snapshot) -> Text:
    return Text(
        f"waiting {snapshot.waiting:,}  in flight {snapshot.in_flight_lists:,} lists, "
        f"{snapshot.in_flight_tokens:,} words  streams {snapshot.streams:,}  "
        f"per batch {or_dash(snapshot.batch_lists, '.1f')} lists, "
        f"{or_dash(snapshot.batch_edges, ',.0f')} edges  "
        f"distinct {or_dash(snapshot.distinct, '.0%')}"
    )


def latency_table(snapshot: Snapshot) -> FoldingTable:
    table = FoldingTable("time", "p50 ms", "p99 ms")
    table.add_row("call", *format_quantiles(snapshot.call_ms))
    table.add_row("queue", *format_quantiles(snapshot.queue_ms))
    table.add_row("compute per batch", *format_quantiles(snapshot.compute_ms))
    return table


def code_table(snapshot: Snapshot) -> FoldingTable:
    table = FoldingTable("code", "calls/s")
    for code, calls_per_s in snapshot.calls_per_s.items():
        table.add_row(code, f"{calls_per_s:,.1f}")
    return table


def phase_table(snapshot: Snapshot) -> FoldingTable:
    table = FoldingTable("phase", "of a core")
    for phase, share in sorted(snapshot.phase_shares.items(), key=lambda item: -item[1]):
        table.add_row(phase, f"{share:.1%}")
    return table


def model_table(snapshot: Snapshot) -> FoldingTable:
    table = FoldingTable("model", "lists/s", "best changed", "unknown words", "MB")
    for label, model in snapshot.models.items():
        table.add_row(
            label,
            f"{model.lists_per_s:,.1f}",
            or_dash(model.best_changed, ".1%"),
            or_dash(model.unknown_words, ".2%"),
            f"{model.memory_bytes / 1e6:,.0f}",
        )
    return table


def format_quantiles(quantiles: Quantiles) -> tuple[str, str]:
    return or_dash(quantiles.p50, ",.1f"), or_dash(quantiles.p99, ",.1f")

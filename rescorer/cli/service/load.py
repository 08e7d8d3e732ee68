"""Command ``rescorer load``: measure how many lists per second a server can rescore, and how it handles
overload."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from tqdm import tqdm

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListFormatOptions, ListInputOptions
from rescorer.cli.options.models import DtypeOption
from rescorer.cli.output import or_dash
from rescorer.errors import InputError
from rescorer.types import NBestList

if TYPE_CHECKING:
    from rescorer.load.stages import LoadPlan, StageResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What clients send, how much of it, and for how long."""

    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of each stage in seconds.")] = 10.0
    clients: Annotated[int, typer.Option(min=1, help="Number of client processes.")] = 2
    list_format: ListFormatOptions
    calls_per_client: Annotated[
        int,
        typer.Option(
            "--at-once",
            min=1,
            help="Number of calls that each client keeps in flight while the peak is measured.",
        ),
    ] = 16
    lists_per_call: Annotated[
        int, typer.Option("--lists-a-call", min=1, help="Number of lists per call.")
    ] = 1
    deadline_s: Annotated[float, typer.Option(min=0.01, help="Deadline of each call in seconds.")] = 5.0
    overload: Annotated[float, typer.Option(min=1, help="Load of the last stage relative to the peak.")] = 3.0
    overload_seconds: Annotated[
        float, typer.Option(min=0, help="Duration of the last stage in seconds; 0: same as the others.")
    ] = 0.0
    client_niceness: Annotated[
        int,
        typer.Option(
            min=0,
            max=19,
            help="Niceness of the clients: with more than 0, the server goes first where cores are scarce.",
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the server and the library run, and what is measured of the server alone."""

    service_times: Annotated[
        Path | None,
        typer.Option(
            help="File for the times that the server takes for lists that come alone and in batches, for "
            "simulations of many servers."
        ),
    ] = None
    dtype: DtypeOption = "float32"
    serve: Annotated[str, typer.Option(help="Options for the server, such as '--workers 2'.")] = ""


@expand_options
def load(
    lists: Annotated[str, typer.Argument(help="N-best lists to send.")],
    bundle: Annotated[Path, typer.Option("--bundle", "-b", help="Folder of the bundle to serve.")],
    weights: Annotated[str, typer.Option(help="Name of a weights set of the bundle.")] = "default",
    *,
    clients: ClientOptions,
    server: ServerOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per stage.")] = False,
) -> None:
    """Start a server, put it under load over loopback, and compare it with the library.

    Example: rescorer load demo/lists.jsonl.gz --bundle models/starter/1 --seconds 3

    The stages are: the library in this process with all cores and with one thread (its latencies are those of
    single lists), as much load as the server can take (the peak), half of the peak, and an overload. Clients
    send calls on schedule whether or not answers arrive, and measure latency from the time a call was due.

    \b
    offered/s    lists per second that the clients send; a dash if they wait for answers
    lists/s      lists answered per second
    lists/CPU-s  lists answered per second of the server's CPU time
    p50, p99 ms  latency of answered calls
    MB           peak memory of the server
    calls        calls that have ended
    refused      calls that the server refused immediately as overloaded
    failed       other calls without an answer, most of them late
    late ms      delay before a client started a call that was due (p99): not the
                 server's, but a sign of too few cores for the clients
    refused ms   latency of refused calls (p99)
    health ms    latency of health checks (p99)
    """
    from rescorer.load.stages import LoadPlan

    valid_lists = read_valid_lists(lists, ListInputOptions(**asdict(clients.list_format)))
    plan = LoadPlan(
        clients.seconds,
        clients.clients,
        clients.calls_per_client,
        clients.lists_per_call,
        clients.deadline_s,
        clients.overload,
        tuple(server.serve.split()),
        server.dtype,
        clients.overload_seconds,
        clients.client_niceness,
        server.service_times,
    )
    run_load_test(bundle, valid_lists, weights, plan, as_json)


def read_valid_lists(source: str, options: ListInputOptions) -> list[NBestList]:
    """Read the valid lists of a file; raise InputError if there are none."""
    valid_lists = [nbest for nbest in options.read(source) if isinstance(nbest, NBestList)]
    if not valid_lists:
        raise InputError(f"{source}: no valid lists; expected at least one")
    return valid_lists


def run_load_test(
    bundle: Path, lists: Sequence[NBestList], weights: str, plan: LoadPlan, as_json: bool
) -> None:
    """Run all stages; print each result when it is known, and the current stage on a terminal."""
    from rescorer.lm.malloc import keep_freed_memory
    from rescorer.load.stages import run_stages

    keep_freed_memory()  # as the server does
    if not as_json:
        typer.echo(HEADER)
    with tqdm(
        bar_format="{n_fmt} stages done in {elapsed}; now {desc}",
        leave=False,
        disable=not sys.stderr.isatty(),
    ) as progress:

        def show_stage(name: str, duration_s: float) -> None:
            progress.set_description_str(f"{name}, {duration_s:g} s")

        for result in run_stages(bundle, lists, weights, plan, show_stage):
            with progress.external_write_mode():
                typer.echo(json.dumps(asdict(result)) if as_json else format_stage(result))
            progress.update()


def format_stage(result: StageResult) -> str:
    """Format the measurements of a stage as two lines, for the two lines of ``HEADER``."""
    rss_mb = None if result.max_rss_bytes is None else result.max_rss_bytes / 1e6
    return format_lines(
        (
            result.name,
            or_dash(result.offered_lists_per_s, ".1f"),
            f"{result.lists_per_s:.1f}",
            f"{result.lists_per_cpu_s:.1f}",
            or_dash(result.p50_ms, ".1f"),
            or_dash(result.p99_ms, ".1f"),
            or_dash(rss_mb, ".0f"),
        ),
        (
            "",
            str(result.calls),
            str(result.refused),
            str(result.failed),
            or_dash(result.late_p99_ms, ".1f"),
            or_dash(result.refused_p99_ms, ".1f"),
            or_dash(result.health_p99_ms, ".1f"),
        ),
    )


def format_lines(*rows: tuple[str, ...]) -> str:
    """Align the cells of rows below each other; 79 columns wide."""
    return "\n".join(
        f"{name:<19}{cells[0]:>10}{cells[1]:>9}{cells[2]:>12}{cells[3]:>8}{cells[4]:>11}{cells[5]:>10}"
        for name, *cells in rows
    )


HEADER = format_lines(
    ("stage", "offered/s", "lists/s", "lists/CPU-s", "p50 ms", "p99 ms", "MB"),
    ("", "calls", "refused", "failed", "late ms", "refused ms", "health ms"),
)

"""Owns the commands ``python -m tools …``: runs that hold a server of their own to what it promises."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.cli import run
from rescorer.cli.options import FormatOption, lists_from
from rescorer.cli.output import PLAIN
from rescorer.types import NBestList

SHOWN = 10
"""Faults that are told; ``--json`` has them all."""
HYPOTHESES = 20
TERMINATED = 143
"""Exit code of what SIGTERM has ended, as shells have it."""

ListsArgument = Annotated[str, typer.Argument(help="Lists to send.")]
BundleOption = Annotated[Path, typer.Option("--bundle", "-b", help="Folder of the bundle to serve.")]
WeightsOption = Annotated[str, typer.Option(help="Name of one of the bundle's sets of weights.")]
HypothesesOption = Annotated[int, typer.Option(min=1, help="Of a list, at most.")]
ServeOption = Annotated[str, typer.Option(help="Options for the server, such as '--scorers 2'.")]
LimitOption = Annotated[float, typer.Option(min=1, help="Give up the run after so many seconds.")]
SecondsOption = Annotated[float, typer.Option(min=1, help="At most; what was done by then is told.")]
LogOption = Annotated[Path | None, typer.Option("--log", help="Keep the server's log in this file.")]
SeedOption = Annotated[int, typer.Option(help="Of what is left to chance.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON object.")]

app = typer.Typer(**PLAIN, no_args_is_help=True)


@app.callback()
def stress() -> None:
    """Hold a server of its own to what it promises, under faults, nonsense and for long.

    Example: python -m tools chaos demo/lists.jsonl.gz --bundle models/starter/1 --calls 1000

    Each run ends with exit code 5 where something was not as it should be. Linux only.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))  # so that the server is ended, too


@app.command()
def chaos(
    lists: ListsArgument,
    bundle: BundleOption,
    weights: WeightsOption = "default",
    calls: Annotated[int, typer.Option(min=1, help="Calls, at least.")] = 100_000,
    callers: Annotated[int, typer.Option(min=1, help="At a time, each with its own login.")] = 50,
    processes: Annotated[int, typer.Option(min=1, help="That the callers are in.")] = 4,
    seconds: SecondsOption = 86_400.0,
    reloads: Annotated[int, typer.Option(min=0, help="Exchanges of the model under load.")] = 20,
    kills: Annotated[int, typer.Option(min=0, help="Of scoring processes.")] = 5,
    scorers: Annotated[int, typer.Option(min=1, help="Scoring processes.")] = 2,
    hypotheses: HypothesesOption = HYPOTHESES,
    serve: ServeOption = "",
    log: LogOption = None,
    limit_s: LimitOption = 3600.0,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
    format_: FormatOption = None,
) -> None:
    """Exchange models and kill scorers under load; every list is answered once, with the library's scores.

    Example: python -m tools chaos demo/lists.jsonl.gz --bundle models/starter/1 --calls 1000

    One call in ten is a stream, one in twenty has a deadline that is too short, one in twenty is cancelled.
    """
    from tools.chaos.run import Plan
    from tools.chaos.run import chaos as run_chaos

    plan = Plan(calls, callers, min(processes, callers), reloads, kills, scorers)
    plan = replace(
        plan, seconds=seconds, limit_s=limit_s, seed=seed, server_options=tuple(serve.split()), log=log
    )
    tell(run_chaos(bundle, some(lists, hypotheses, format_), weights, plan), as_json)


@app.command()
def fuzz(
    lists: ListsArgument,
    bundle: BundleOption,
    weights: WeightsOption = "default",
    requests: Annotated[int, typer.Option(min=1, help="Messages and conversations.")] = 200_000,
    at_once: Annotated[int, typer.Option(min=1, help="Open at a time.")] = 16,
    seconds: SecondsOption = 86_400.0,
    hypotheses: HypothesesOption = 5,
    serve: ServeOption = "--scorers 1",
    log: LogOption = None,
    limit_s: LimitOption = 3600.0,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
    format_: FormatOption = None,
) -> None:
    """Send what makes no sense; the server is to refuse it or answer, and to go on as before.

    Example: python -m tools fuzz demo/lists.jsonl.gz --bundle models/starter/1 --requests 2000

    Messages with odd values in any field, bytes that are no messages, and conversations in broken HTTP/2.
    """
    from tools.fuzz.run import Plan
    from tools.fuzz.run import fuzz as run_fuzz

    plan = Plan(requests, at_once, seconds, limit_s, seed, tuple(serve.split()), log)
    tell(run_fuzz(bundle, some(lists, hypotheses, format_), weights, plan), as_json)


@app.command()
def soak(
    lists: ListsArgument,
    bundle: BundleOption,
    weights: WeightsOption = "default",
    seconds: SecondsOption = 3600.0,
    count: Annotated[int, typer.Option("--lists", min=1, help="At most.")] = 2_000_000,
    at_once: Annotated[int, typer.Option(min=1, help="Calls open at a time.")] = 8,
    hypotheses: HypothesesOption = HYPOTHESES,
    serve: ServeOption = "--scorers 1",
    log: LogOption = None,
    limit_s: LimitOption = 4500.0,
    as_json: JsonOption = False,
    format_: FormatOption = None,
) -> None:
    """Load a server for an hour or two million lists, and see whether memory, descriptors or threads grow.

    Example: python -m tools soak demo/lists.jsonl.gz --bundle models/starter/1 --seconds 60
    """
    from tools.soak.run import Plan
    from tools.soak.run import soak as run_soak

    plan = Plan(seconds, count, at_once, limit_s=limit_s, server_options=tuple(serve.split()), log=log)
    tell(run_soak(bundle, some(lists, hypotheses, format_), weights, plan), as_json)


def some(source: str, hypotheses: int, format_: str | None) -> list[NBestList]:
    """Lists cut to so many hypotheses; raises InputError where there are none."""
    from rescorer.errors import InputError

    found = [
        replace(
            each,
            hypotheses=each.hypotheses[:hypotheses],
            streams={name: values[:hypotheses] for name, values in each.streams.items()},
        )
        for each in lists_from(source, None, None, None, format_)
        if isinstance(each, NBestList)
    ]
    if not found:
        raise InputError(f"{source}: no lists; expected at least one")
    return found


def tell(report: Any, as_json: bool) -> None:
    """Prints a report; raises ServiceError where it has faults."""
    from rescorer.errors import ServiceError

    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        rows = list(rows_of(asdict(report)))
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            typer.echo(f"{name:<{width}}  {value}")
    if report.faults:
        more = f" … {len(report.faults)} in all" if len(report.faults) > SHOWN else ""
        raise ServiceError("; ".join(report.faults[:SHOWN]) + more)


def rows_of(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of a report, those inside others with both names; lists by how many they hold."""
    for key, value in values.items():
        name = f"{path} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping) and any(isinstance(each, Mapping) for each in value.values()):
            yield from rows_of(value, name)
        elif isinstance(value, Mapping) and all(isinstance(each, int) for each in value.values()):
            yield name, ", ".join(f"{code} {count:,}" for code, count in sorted(value.items())) or "none"
        elif isinstance(value, Mapping):
            yield from rows_of(value, name)
        elif isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value) and value:
            for number, each in enumerate(value):
                yield (
                    f"{name} {number}",
                    ", ".join(f"{key.replace('_', ' ')} {shown(of)}" for key, of in each.items()),
                )
        else:
            yield name, shown(value)


def shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    return (
        f"{len(value):,}"
        if isinstance(value, list | tuple)
        else f"{value:,}"
        if isinstance(value, int)
        else value
    )


if __name__ == "__main__":
    run(app, "python -m tools")

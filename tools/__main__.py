"""Commands ``python -m tools``: test a server under stress."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rescorer.cli import run
from rescorer.terminal.list_options import FormatOption, ListInputOptions
from rescorer.terminal.program import PLAIN_HELP, version_option
from rescorer.types import NBestList

MAX_SHOWN_ERRORS = 10
"""Maximum number of errors that the error message quotes; ``--json`` writes all of them."""
DEFAULT_MAX_HYPOTHESES = 20
SIGTERM_EXIT_CODE = 143
"""Exit code of processes ended by SIGTERM, as shells report it."""

ListsArgument = Annotated[str, typer.Argument(help="N-best lists to send.")]
BundleOption = Annotated[Path, typer.Option("--bundle", "-b", help="Folder of the bundle to serve.")]
WeightsOption = Annotated[str, typer.Option(help="Name of a weights set of the bundle.")]
HypothesesOption = Annotated[int, typer.Option(min=1, help="Maximum number of hypotheses per list.")]
ServeOption = Annotated[str, typer.Option(help="Options for the server, such as '--workers 2'.")]
LimitOption = Annotated[float, typer.Option(min=1, help="Fail if the run takes longer, in seconds.")]
SecondsOption = Annotated[float, typer.Option(min=1, help="Stop sending after this time and report.")]
LogOption = Annotated[Path | None, typer.Option("--log", help="File for the server's log.")]
SeedOption = Annotated[int, typer.Option(help="Random seed.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write the report as one JSON object.")]

app = typer.Typer(**PLAIN_HELP, no_args_is_help=True)


@app.callback()
def tools(version: Annotated[bool, version_option("python -m tools")] = False) -> None:
    """Test a server under stress: failing workers, malformed requests, long load.

    Example: python -m tools chaos demo/lists.jsonl.gz --bundle models/starter/1 --calls 1000

    Each command starts its own server, and ends with exit code 5 if it finds errors. Linux only.
    """
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(SIGTERM_EXIT_CODE)
    )  # so that the server is stopped, too


@app.command()
def chaos(
    lists: ListsArgument,
    bundle: BundleOption,
    weights: WeightsOption = "default",
    calls: Annotated[int, typer.Option(min=1, help="Minimum number of calls.")] = 100_000,
    callers: Annotated[
        int, typer.Option(min=1, help="Number of concurrent callers, each with its own token.")
    ] = 50,
    processes: Annotated[int, typer.Option(min=1, help="Number of processes for the callers.")] = 4,
    seconds: SecondsOption = 86_400.0,
    reloads: Annotated[int, typer.Option(min=0, help="Number of model reloads under load.")] = 20,
    kills: Annotated[int, typer.Option(min=0, help="Number of workers to kill.")] = 5,
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")] = 2,
    hypotheses: HypothesesOption = DEFAULT_MAX_HYPOTHESES,
    serve: ServeOption = "",
    log: LogOption = None,
    limit_s: LimitOption = 3600.0,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
    format_: FormatOption = None,
) -> None:
    """Reload models and kill workers under load; check that all answers match the library's.

    Example: python -m tools chaos demo/lists.jsonl.gz --bundle models/starter/1 --calls 1000

    One call in ten is a stream, one in twenty has a deadline that is too short, one in twenty is cancelled.
    """
    from tools.chaos.run import ChaosPlan, run_chaos

    plan = ChaosPlan(
        calls,
        callers,
        min(processes, callers),
        reloads,
        kills,
        workers,
        seconds=seconds,
        limit_s=limit_s,
        seed=seed,
        server_options=tuple(serve.split()),
        log=log,
    )
    print_report(run_chaos(bundle, read_short_lists(lists, hypotheses, format_), weights, plan), as_json)


@app.command()
def fuzz(
    lists: ListsArgument,
    bundle: BundleOption,
    weights: WeightsOption = "default",
    requests: Annotated[
        int, typer.Option(min=1, help="Total number of requests and malformed connections.")
    ] = 200_000,
    concurrency: Annotated[
        int, typer.Option("--at-once", min=1, help="Number of requests to keep in flight at once.")
    ] = 16,
    seconds: SecondsOption = 86_400.0,
    hypotheses: HypothesesOption = 5,
    serve: ServeOption = "--workers 1",
    log: LogOption = None,
    limit_s: LimitOption = 3600.0,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
    format_: FormatOption = None,
) -> None:
    """Send malformed requests; check that the server answers or refuses them and keeps serving.

    Example: python -m tools fuzz demo/lists.jsonl.gz --bundle models/starter/1 --requests 2000

    Requests are messages with unusual values in any field, mutated bytes, malformed HTTP/2 connections, and
    hostile clients that do not read, do not end, or ask for far too much.
    """
    from tools.fuzz.run import FuzzPlan, run_fuzz

    plan = FuzzPlan(requests, concurrency, seconds, limit_s, seed, tuple(serve.split()), log)
    print_report(run_fuzz(bundle, read_short_lists(lists, hypotheses, format_), weights, plan), as_json)


@app.command()
def fairness(
    lists: ListsArgument,
    bundle: BundleOption,
    weights: WeightsOption = "default",
    floods: Annotated[
        str, typer.Option(help="Kinds of floods, separated by commas; empty: all of them.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=1, help="Duration of each stage, two per flood.")] = 10.0,
    hypotheses: HypothesesOption = DEFAULT_MAX_HYPOTHESES,
    serve: ServeOption = "--workers 1",
    log: LogOption = None,
    limit_s: LimitOption = 3600.0,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
    format_: FormatOption = None,
) -> None:
    """Flood a server in several ways; check that ten polite callers hardly notice.

    Example: python -m tools fairness demo/lists.jsonl.gz --bundle models/starter/1 --floods long,small

    Polite callers may wait three times as long as they do alone (p99), and all of them must be answered. Work
    whose callers have gone must end soon, and so must a server that is asked to stop.
    """
    from rescorer.errors import ConfigError
    from tools.fairness import FLOODS, FairnessPlan, run_fairness

    names = tuple(floods.split(",")) if floods else tuple(FLOODS)
    if unknown := sorted(set(names) - FLOODS.keys()):
        raise ConfigError(f"--floods: {unknown[0]} is unknown; expected some of {', '.join(FLOODS)}")
    plan = FairnessPlan(names, seconds, limit_s, seed, tuple(serve.split()), log)
    print_report(run_fairness(bundle, read_short_lists(lists, hypotheses, format_), weights, plan), as_json)


@app.command()
def connections(
    bundle: BundleOption,
    seconds: Annotated[float, typer.Option(min=0.1, help="Duration of each attack.")] = 10.0,
    rest_s: Annotated[
        float, typer.Option("--rest-s", min=0, help="Time after each attack, until memory is measured.")
    ] = 15.0,
    serve: ServeOption = "--workers 1",
    as_json: JsonOption = False,
) -> None:
    """Attack a server by HTTP/2 connections; check that a polite caller's calls are answered.

    Example: python -m tools connections --bundle models/starter/1 --seconds 5

    The report shows the time of the polite caller's calls, and what the front end takes during and after
    each attack.
    """
    from tools.fuzz.connections import run_attacks

    print_report(run_attacks(bundle, seconds, rest_s, serve.split()), as_json)


@app.command()
def soak(
    lists: ListsArgument,
    bundle: BundleOption,
    weights: WeightsOption = "default",
    seconds: SecondsOption = 3600.0,
    count: Annotated[
        int, typer.Option("--lists", min=1, help="Maximum number of lists to send.")
    ] = 2_000_000,
    concurrency: Annotated[
        int, typer.Option("--at-once", min=1, help="Number of calls to keep in flight at once.")
    ] = 8,
    reloads: Annotated[
        int, typer.Option(min=0, help="Number of model reloads, evenly spread over --seconds.")
    ] = 0,
    hypotheses: HypothesesOption = DEFAULT_MAX_HYPOTHESES,
    serve: ServeOption = "--workers 1",
    log: LogOption = None,
    limit_s: LimitOption = 4500.0,
    as_json: JsonOption = False,
    format_: FormatOption = None,
) -> None:
    """Load a server for an hour or two million lists; check that descriptors and threads do not grow.

    Example: python -m tools soak demo/lists.jsonl.gz --bundle models/starter/1 --seconds 60

    The report also shows the growth of memory.
    """
    from tools.soak import SoakPlan, run_soak

    plan = SoakPlan(
        seconds,
        count,
        concurrency,
        limit_s=limit_s,
        reloads=reloads,
        server_options=tuple(serve.split()),
        log=log,
    )
    print_report(run_soak(bundle, read_short_lists(lists, hypotheses, format_), weights, plan), as_json)


@app.command()
def worst(
    bundle: Annotated[
        Path, typer.Argument(help="Folder of the bundle with whose models requests are scored.")
    ],
    requests: Annotated[int, typer.Option(min=1, help="Number of random requests.")] = 1000,
    seconds: SecondsOption = 3600.0,
    dictionary: Annotated[
        Path | None, typer.Option(help="File of pronunciations, to generate hypotheses.")
    ] = None,
    models: Annotated[
        bool, typer.Option("--models/--no-models", help="Whether the models score the requests.")
    ] = True,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Search for requests that take more processor time than a server admits them for.

    Example: python -m tools worst models/starter/1 --requests 200

    A token of a request may take three times as long as one of an ordinary request, in each of the jobs of
    reading, scoring and answering it.
    """
    from tools.fuzz.costs import search_costs

    print_report(search_costs(bundle, requests, seed, seconds, dictionary, models=models), as_json)


def read_short_lists(source: str, max_hypotheses: int, format_: str | None) -> list[NBestList]:
    """Read the valid lists of a file, cut to ``max_hypotheses``; raises InputError without valid lists."""
    from rescorer.errors import InputError

    short_lists = [
        replace(
            nbest,
            hypotheses=nbest.hypotheses[:max_hypotheses],
            streams={name: values[:max_hypotheses] for name, values in nbest.streams.items()},
        )
        for nbest in ListInputOptions(format_=format_).read(source)
        if isinstance(nbest, NBestList)
    ]
    if not short_lists:
        raise InputError(f"{source}: no valid lists; expected at least one")
    return short_lists


def print_report(report: Any, as_json: bool) -> None:
    """Print a report; raises ServiceError if the report contains errors."""
    from rescorer.errors import ServiceError

    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        rows = list(flatten_report(asdict(report)))
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            typer.echo(f"{name:<{width}}  {value}")
    if report.faults:
        more = f" … {len(report.faults)} errors in all" if len(report.faults) > MAX_SHOWN_ERRORS else ""
        raise ServiceError("; ".join(report.faults[:MAX_SHOWN_ERRORS]) + more)


def flatten_report(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the rows of a report. Nested names are joined by spaces, and lists become their lengths."""
    for key, value in values.items():
        name = f"{path} {key}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            if value and not all(isinstance(item, int) for item in value.values()):
                yield from flatten_report(value, name)
            else:
                yield name, ", ".join(f"{code} {count:,}" for code, count in sorted(value.items())) or "none"
        elif isinstance(value, Sequence) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                cells = (f"{key.replace('_', ' ')} {format_value(cell)}" for key, cell in item.items())
                yield f"{name} {number}", ", ".join(cells)
        else:
            yield name, format_value(value)


def format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list | tuple):
        return f"{len(value):,}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    run(app, "python -m tools")

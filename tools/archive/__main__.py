"""Commands ``python -m tools.archive``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli import run as run_app
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.options.models import BundleOption
from rescorer.cli.options.weights import WeightsOption
from rescorer.cli.output import PLAIN_HELP
from rescorer.errors import ConfigError, ScoringError
from rescorer.types import NBestList
from tools.archive.disturbances import SCENARIOS, Scenario, Timing
from tools.archive.lists import ListMaker, write_archive
from tools.archive.overhead import copy_lists, measure_pairs, median_ratio
from tools.archive.scenarios import Outcome, Setup, find_differences, run_scenario

COLUMNS = "scenario", "s", "lists/s", "cpu s", "hyp/cpu s", "MB", "grown", "kills", "again", "left", "hash"
ArchiveArgument = Annotated[
    list[Path], typer.Argument(help="Files of plain JSON lines, in order.", exists=True)
]
FolderOption = Annotated[Path, typer.Option("-o", "--output", help="Folder for what is written meanwhile.")]
WorkersOption = Annotated[int, typer.Option(min=2, help="Processes that rescore at the same time.")]
ShardsOption = Annotated[int, typer.Option(min=1, help="Number of shards.")]
SeedOption = Annotated[int, typer.Option(help="Random seed.")]

app = typer.Typer(**PLAIN_HELP, no_args_is_help=True)


@app.callback()
def archive() -> None:
    """Rescore a made archive in shards, and show that each list comes out once."""


@app.command()
@expand_options
def make(
    sources: Annotated[list[str], typer.Argument(help="Real lists, with the same score streams.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the archive.")],
    *,
    lists: Annotated[int, typer.Option(min=1, help="Number of lists.")] = 100_000,
    hypotheses: Annotated[int, typer.Option(min=1, help="Number of hypotheses of each list.")] = 100,
    files: Annotated[int, typer.Option(min=1, help="Number of files.")] = 2,
    seed: SeedOption = 1,
    list_options: ListInputOptions,
) -> None:
    """Make an archive from real lists: copies with perturbed words, and with ids of their own.

    Example: python -m tools.archive make demo/lists.jsonl.gz -o archive --lists 1000
    """
    real = [item for name in sources for item in list_options.read(name) if isinstance(item, NBestList)]
    maker = ListMaker(real, hypotheses, seed)
    typer.echo("| file | lists | hypotheses | bytes | sha256 |\n|---|---|---|---|---|")
    for file in write_archive(maker, lists, output, files):
        counts = f"{file.lists:,} | {file.hypotheses:,} | {file.n_bytes:,}"
        typer.echo(f"| {file.path.name} | {counts} | {file.sha256[:12]} |")
    typer.echo(f"{len(real):,} real lists; copies of a list are at least {maker.min_distance:,} lists apart")


@app.command()
@expand_options
def run(
    archive: ArchiveArgument,
    output: FolderOption,
    bundle: BundleOption,
    *,
    weights: WeightsOption = "default",
    scenarios: Annotated[
        str, typer.Option(help=f"What to run, in this order: {', '.join(SCENARIOS)}.")
    ] = ",".join(SCENARIOS),
    engine: Annotated[str, typer.Option(help="Engine of the shards: local, or ray.")] = "local",
    workers: WorkersOption = 2,
    shards: ShardsOption = 40,
    timing: Timing,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON object per row.")] = False,
) -> None:
    """Rescore an archive while processes are killed or the disk is full, and compare all outputs.

    Example: python -m tools.archive run archive/*.jsonl -o work --bundle models/starter/1

    Files are plain JSON lines, as `make` writes them. A name may occur several times in --scenarios, for
    comparisons.
    """
    chosen = parse_scenarios(scenarios)
    sharding = () if engine == "local" else ("--engine", engine)
    scoring = "--bundle", str(bundle), "--weights", weights
    setup = Setup(tuple(archive), output, scoring, sharding, workers, shards, timing)
    if not as_json:
        typer.echo(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    outcomes = []
    for scenario in chosen:
        outcomes.append(run_scenario(setup, scenario))
        typer.echo(json.dumps(asdict(outcomes[-1])) if as_json else format_row(outcomes[-1]))
    raise_faults(outcomes)


def parse_scenarios(text: str) -> list[Scenario]:
    """Find scenarios by their names, separated by commas; raises ConfigError."""
    names = text.split(",")
    if unknown := [name for name in names if name not in SCENARIOS]:
        raise ConfigError(f"--scenarios {unknown[0]!r}: expected some of {', '.join(SCENARIOS)}")
    return [SCENARIOS[name] for name in names]


def format_row(outcome: Outcome) -> str:
    """A row of the table, whose columns are ``COLUMNS``."""
    cells = (
        outcome.scenario,
        f"{outcome.seconds:.0f}",
        f"{outcome.lists / outcome.seconds:.0f}",
        f"{outcome.cpu_s:.0f}",
        f"{outcome.hypotheses / max(outcome.cpu_s, 0.01):,.0f}",
        f"{outcome.peak_mb:.0f}",
        f"{outcome.growth_mb:+.0f}",
        f"{outcome.kills}",
        f"{outcome.resumes}",
        f"{outcome.leftovers}",
        outcome.sha256[:8],
    )
    return f"| {' | '.join(cells)} |"


def raise_faults(outcomes: Sequence[Outcome]) -> None:
    """Raise ScoringError if any output is not what it should be."""
    faults = [f"{outcome.scenario}: {fault}" for outcome in outcomes for fault in outcome.faults]
    if faults := faults + find_differences(outcomes):
        raise ScoringError("; ".join(faults))
    typer.echo(
        f"{outcomes[0].lists:,} lists, each once and in order; the output is the same in all rows", err=True
    )


@app.command()
def overhead(
    archive: ArchiveArgument,
    output: FolderOption,
    bundle: BundleOption,
    weights: WeightsOption = "default",
    lists: Annotated[int, typer.Option(min=1, help="Number of lists, the first ones.")] = 5000,
    shards: ShardsOption = 4,
    pairs: Annotated[int, typer.Option(min=1, help="Number of pairs.")] = 10,
) -> None:
    """Print processor seconds of the plain command and of shards, one worker each, in alternating pairs.

    Example: python -m tools.archive overhead archive/*.jsonl -o work --bundle models/starter/1
    """
    part = copy_lists(archive, lists, output / "part.jsonl")
    scoring = "--bundle", str(bundle), "--weights", weights
    typer.echo("| plain, cpu s | shards, cpu s | ratio |\n|---|---|---|")
    ratios = []
    for pair in measure_pairs(part, output, scoring, shards, pairs):
        ratios.append(pair.ratio)
        typer.echo(f"| {pair.plain_s:.2f} | {pair.shards_s:.2f} | {pair.ratio:.3f} |")
    part.unlink()
    found = median_ratio(ratios)
    interval = f"{found.low:.3f} to {found.high:.3f}, which contain it with {100 * found.coverage:.1f} %"
    typer.echo(f"median {found.ratio:.3f} ({interval})")


if __name__ == "__main__":
    run_app(app, "python -m tools.archive")

"""Options for rescoring in shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.rescoring.engine import EngineOptions
from rescorer.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardOptions:
    """Into how many shards the input is divided, which of them this command runs, and what runs them."""

    shards: Annotated[
        int | None,
        typer.Option(min=1, help="Divide the input into this many shards of about equal size, in a folder."),
    ] = None
    shard_lists: Annotated[
        int | None, typer.Option(min=1, help="Divide the input into shards of about this many lists instead.")
    ] = None
    shard: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Run only this shard, counted from 0, as the tasks of array jobs do; the first task makes "
            "the plan if there is none.",
        ),
    ] = None
    resume: Annotated[
        bool, typer.Option("--resume", help="Run the shards of an existing plan that are not committed.")
    ] = False
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Make the plan, and run no shard.")] = False
    workers: Annotated[
        int,
        typer.Option(min=0, help="Number of processes that run shards on this machine; 0: one per core."),
    ] = 1
    engine: EngineOptions

    @property
    def is_set(self) -> bool:
        """Whether the input is rescored in shards."""
        return bool(self.shards or self.shard_lists or self.shard is not None or self.resume)

    @property
    def has_size(self) -> bool:
        """Whether the options say how to divide the input."""
        return self.shards is not None or self.shard_lists is not None

    def check(self) -> None:
        """Raise ConfigError if options contradict each other."""
        if self.shards is not None and self.shard_lists is not None:
            raise ConfigError("--shards and --shard-lists both say how to divide the input; give one of them")
        if self.resume and self.shard is not None:
            raise ConfigError(
                "--resume runs all shards that are not committed, --shard one; give one of them"
            )
        if self.plan_only and not self.has_size:
            raise ConfigError("--plan-only makes a plan; give --shards N or --shard-lists K too")
        if self.plan_only and (self.resume or self.shard is not None):
            raise ConfigError("--plan-only runs no shard; leave out --resume and --shard")

    def check_unset(self) -> None:
        """Raise ConfigError if an option needs shards, and there are none."""
        if self.workers != 1 or self.plan_only:
            option = "--plan-only" if self.plan_only else "--workers"
            raise ConfigError(
                f"{option} is for shards; give --shards N too, or --processes for a single file"
            )


def check_unsharded_options(output: str, rejects: Path | None, processes: int) -> None:
    """Raise ConfigError for options of ``rescorer rescore`` that mean nothing with shards."""
    if output == "-":
        raise ConfigError("shards are written into a folder; give -o FOLDER")
    if Path(output).is_file():
        raise ConfigError(f"--output {output}: is a file; shards are written into a folder")
    if rejects is not None:
        raise ConfigError(
            "--rejects is for one file; each shard has its rejects, and `shards merge` joins them"
        )
    if processes != 1:
        raise ConfigError("--processes is for one file; give --workers for shards")

"""Options for the device of models, and for the cache of their scores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.models import DeviceOption
from rescorer.evaluation.score_cache import find_cache_folder, load_cached_rescorer
from rescorer.pipeline import Rescorer


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """Where language model scores are cached."""

    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache",
            metavar="DIR",
            envvar="RESCORER_CACHE",
            show_envvar=True,
            help="Folder in which the scores of language models are cached by content; default: "
            "rescorer/scores in the user's cache folder.",
        ),
    ] = None
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Neither read nor write cached scores.")] = (
        False
    )

    def load_rescorer(self, bundle: Path, device: str) -> Rescorer:
        """Load a bundle; with a cache, its models are loaded when a score is missing."""
        if self.no_cache:
            return Rescorer.load(bundle, device)

        def note(line: str) -> None:
            typer.echo(f"note: {line}", err=True)

        return load_cached_rescorer(bundle, device, self.cache or find_cache_folder(), note)


@dataclass(frozen=True, slots=True)
class ModelOptions(CacheOptions):
    """Where language models run, and where their scores are cached."""

    device: DeviceOption = "cpu"

    def load(self, bundle: Path) -> Rescorer:
        """Load a bundle on the device; see ``load_rescorer``."""
        return self.load_rescorer(bundle, self.device)

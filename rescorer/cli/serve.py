"""Owns the command ``rescorer serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.settings import given

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file of settings, by the names of the options.")
]


def serve(ctx: typer.Context, config: ConfigOption = None) -> None:
    """Answer n-best lists over gRPC until SIGTERM or SIGINT.

    Example: rescorer serve --bundle models/starter/1 --port 50051

    Every option may also come from the environment (RESCORER_BUNDLE, RESCORER_PORT, …) and from a TOML file
    (bundle = "models/starter/1"); an option goes before the environment, the environment before the file.
    `rescorer config` shows what comes of it.
    """
    from rescorer.service.server import serve as run  # grpc is of no use to the other commands
    from rescorer.service.settings import load_settings

    options = given(ctx)
    run(load_settings(config, **options), lambda: load_settings(config, **options))

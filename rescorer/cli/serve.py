"""Owns the command ``rescorer serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.cli.settings_options import given

if TYPE_CHECKING:
    from rescorer.service.config_sources import Given

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
    from rescorer.service.config_sources import gather
    from rescorer.service.settings import ServiceSettings, checked

    options = given(ctx)

    def read() -> dict[str, list[Given]]:
        return gather(ServiceSettings, config, options)

    settings = checked(read(), here=True)
    if settings.front_ends > 1:
        from rescorer.service.frontends.supervisor import supervise

        supervise(settings, config, options)
    else:
        from rescorer.service.main import serve as run  # grpc is of no use to the other commands

        run(settings, lambda: checked(read()))

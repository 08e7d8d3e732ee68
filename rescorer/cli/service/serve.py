"""The command ``rescorer serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.cli.options.settings import collected_options

if TYPE_CHECKING:
    from rescorer.service.config_sources import Given

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file of settings, named like the options.")
]


def serve(ctx: typer.Context, config: ConfigOption = None) -> None:
    """Re-rank n-best lists over gRPC until SIGTERM or SIGINT.

    Example: rescorer serve --bundle models/starter/1 --port 50051

    Every option can also be set in the environment (RESCORER_BUNDLE, RESCORER_PORT, …) and in a TOML file
    (bundle = "models/starter/1"). Options take precedence over the environment, and the environment over the
    file. `rescorer config` shows the resulting settings.
    """
    from rescorer.service.config_sources import gather
    from rescorer.service.preflight import check_settings
    from rescorer.service.settings import ServiceSettings

    options = collected_options(ctx)

    def read_settings() -> dict[str, list[Given]]:
        return gather(ServiceSettings, config, options)

    settings = check_settings(read_settings(), check_machine=True)
    if settings.front_ends > 1:
        from rescorer.service.frontends.supervisor import supervise

        supervise(settings, config, options)
    else:
        from rescorer.service.main import serve as run  # imports grpc, which other commands do not need

        run(settings, lambda: check_settings(read_settings()))

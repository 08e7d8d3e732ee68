"""Owns the command ``rescorer serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

# Each option that is not given may come from the environment, and has its default in ServiceSettings.


def serve(
    bundle: Annotated[
        Path | None, typer.Option("--bundle", "-b", help="Folder of the bundle to serve.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. (default 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one. (default 50051)")] = None,
    port_file: Annotated[Path | None, typer.Option(help="Write the bound port there, for scripts.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, … (default cpu)")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; 0: one a core. (default 0)")] = None,
    max_lists: Annotated[int | None, typer.Option(help="Lists a message. (default 128)")] = None,
    max_hypotheses: Annotated[int | None, typer.Option(help="Hypotheses a list. (default 2000)")] = None,
    max_words: Annotated[int | None, typer.Option(help="Words a hypothesis. (default 1000)")] = None,
    max_in_flight_lists: Annotated[
        int | None, typer.Option(help="Lists accepted and not yet answered. (default 512)")
    ] = None,
    allow_insecure: Annotated[
        bool | None, typer.Option("--allow-insecure", help="Listen beyond this machine in plain text.")
    ] = None,
    grace_s: Annotated[
        float | None, typer.Option(help="Seconds to finish calls at the end. (default 30)")
    ] = None,
) -> None:
    """Answer n-best lists over gRPC until SIGTERM or SIGINT.

    Example: rescorer serve --bundle models/starter/1 --port 50051

    Every option may come from the environment too: RESCORER_BUNDLE, RESCORER_PORT, …
    """
    given = dict(locals())
    from rescorer.service.server import serve as run  # grpc is of no use to the other commands
    from rescorer.service.settings import load_settings

    run(load_settings(**given))

"""The command ``rescorer health``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer


def health(
    target: Annotated[str, typer.Argument(help="Address of the server, as host:port.")] = "127.0.0.1:50051",
    timeout_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds to wait for the server to be ready.")
    ] = 2.0,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS; implied by the options below.")] = False,
    ca: Annotated[
        Path | None, typer.Option(help="PEM file of the authorities that may sign the server's certificate.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file of the client certificate to present.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="PEM file of the client certificate's private key.")
    ] = None,
    server_name: Annotated[str, typer.Option(help="Expected name in the server's certificate.")] = "",
) -> None:
    """Check that a server is ready, for probes: exit code 0, or 5 if this is not confirmed in time.

    Example: rescorer health 127.0.0.1:50051

    Prints the reason if the server is not ready, and which models serve although its repository has lost
    them. No token is needed.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # our own message says what gRPC's log would
    from rescorer.client import NO_RETRY, Client, Tls

    use_tls = tls or ca is not None or certificate is not None or bool(server_name)
    identity = Tls(ca, certificate, key, server_name) if use_tls else None
    with Client(target, tls=identity, retry=NO_RETRY) as client:
        client.wait_ready(timeout_s)
        missing = client.missing_models(timeout_s)
    typer.echo(f"{target} serves")
    if missing:
        typer.echo(f"from memory only, because they are missing on its disk: {', '.join(missing)}")

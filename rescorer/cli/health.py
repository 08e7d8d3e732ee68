"""The command ``rescorer health``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def health(
    target: Annotated[str, typer.Argument(help="Server to ask, as host:port.")] = "127.0.0.1:50051",
    timeout_s: Annotated[float, typer.Option(min=0.01, help="Seconds to wait until it serves.")] = 2.0,
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS; implied by the options below.")] = False,
    ca: Annotated[
        Path | None, typer.Option(help="PEM file of the authorities that may sign its certificate.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file of the client certificate to present.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file of the key of that certificate.")] = None,
    server_name: Annotated[str, typer.Option(help="Name in the certificate of the server.")] = "",
) -> None:
    """Check that a server serves, for probes: exit code 0, or 5 if it does not confirm this in time.

    Example: rescorer health 127.0.0.1:50051

    If it does not serve, prints the reason. Needs no token.
    """
    from rescorer.client import NO_RETRY, Client, Tls

    use_tls = tls or ca is not None or certificate is not None or bool(server_name)
    identity = Tls(ca, certificate, key, server_name) if use_tls else None
    with Client(target, tls=identity, retry=NO_RETRY) as client:
        client.wait_ready(timeout_s)
    typer.echo(f"{target} serves")

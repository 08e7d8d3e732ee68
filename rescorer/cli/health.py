"""Owns the command ``rescorer health``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def health(
    target: Annotated[str, typer.Argument(help="host:port of the server.")] = "127.0.0.1:50051",
    timeout_s: Annotated[float, typer.Option(min=0.01, help="How long to wait for it to serve.")] = 2.0,
    tls: Annotated[bool, typer.Option("--tls", help="It speaks TLS.")] = False,
    ca: Annotated[Path | None, typer.Option(help="Authorities that vouch for it, PEM.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="Our own certificate, PEM.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its key, PEM.")] = None,
    server_name: Annotated[str, typer.Option(help="Name in the server's certificate.")] = "",
) -> None:
    """Say whether a server serves: exit code 0, or 5 where it does not say so in time. For probes.

    Example: rescorer health 127.0.0.1:50051

    Where it does not serve, the reason is told. Needs no token. Any option of TLS is as good as --tls.
    """
    from rescorer.client import NO_RETRY, Client, Tls

    secured = tls or ca is not None or certificate is not None or bool(server_name)
    identity = Tls(ca, certificate, key, server_name) if secured else None
    with Client(target, tls=identity, retry=NO_RETRY) as client:
        client.wait_ready(timeout_s)
    typer.echo(f"{target} serves")

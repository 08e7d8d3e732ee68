"""The command ``rescorer token``."""

from __future__ import annotations

from typing import Annotated

import typer


def token(
    name: Annotated[str, typer.Argument(help="Name of the client in logs.")],
    roles: Annotated[
        list[str] | None,
        typer.Option("--role", help="Role of the client: score or admin; may be repeated. (default score)"),
    ] = None,
) -> None:
    """Create a token for a client of the service; the server's clients file only gets its hash.

    Example: rescorer token captions --role score >> access.toml

    The token itself is printed once, on stderr.
    """
    from rescorer.service.net.clients_file import hash_token, new_token, parse_clients

    new = new_token()
    quoted = ", ".join(f'"{role}"' for role in roles or ["score"])
    entry = f'[[client]]\nname = "{name}"\nroles = [{quoted}]\ntoken_sha256 = ["{hash_token(new)}"]\n'
    parse_clients(entry, "the new entry")
    typer.echo(entry)
    typer.echo(f"token: {new}", err=True)

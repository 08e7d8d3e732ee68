"""Owns the command ``rescorer token``."""

from __future__ import annotations

from typing import Annotated

import typer


def token(
    name: Annotated[str, typer.Argument(help="What logs call the client.")],
    roles: Annotated[list[str] | None, typer.Option("--role", help="score or admin. (default score)")] = None,
) -> None:
    """Make a new token for a client of the service; only its hash goes into the server's access file.

    Example: rescorer token captions --role score >> access.toml

    The token itself is told once, on stderr.
    """
    from rescorer.service.net.clients_file import hash_of, new_token, parse_clients

    made = new_token()
    quoted = ", ".join(f'"{role}"' for role in roles or ["score"])
    entry = f'[[client]]\nname = "{name}"\nroles = [{quoted}]\ntoken_sha256 = ["{hash_of(made)}"]\n'
    parse_clients(entry, "the new entry")
    typer.echo(entry)
    typer.echo(f"token: {made}", err=True)

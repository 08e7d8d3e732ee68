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
    from rescorer.service.access_file import ClientEntry, hash_of, new_token

    made = new_token()
    entry = ClientEntry(name=name, roles=roles or ["score"], token_sha256=(hash_of(made),))
    quoted = ", ".join(f'"{role}"' for role in sorted(entry.roles))
    typer.echo(f'[[client]]\nname = "{entry.name}"\nroles = [{quoted}]\ntoken_sha256 = ["{hash_of(made)}"]\n')
    typer.echo(f"token: {made}", err=True)

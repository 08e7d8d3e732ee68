"""Read the file of clients: hashes of their tokens or names in their certificates, and their roles.

    [[client]]
    name = "captions"
    roles = ["score"]
    token_sha256 = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]

    [[client]]
    name = "operators"
    roles = ["score", "admin"]
    certificates = ["ops.example.org"]

A client may have several valid tokens at once, so that tokens can be rotated.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rescorer.errors import BundleError, ConfigError
from rescorer.safe_input.files import open_regular

Role = Literal["score", "admin"]
TOKEN_BYTES = 32
"""Random bytes per token: too many to guess, so that a plain, fast hash is safe."""


class ClientEntry(BaseModel):
    """One client."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[\w.@-]{1,64}$")]
    """The client's name in logs."""
    roles: Annotated[frozenset[Role], Field(min_length=1)]
    token_sha256: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...] = ()
    """SHA-256 of the token's UTF-8 bytes, in hexadecimal."""
    certificates: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Subject alternative names of its certificates, or their common names if they have none."""

    @model_validator(mode="after")
    def _has_credentials(self) -> ClientEntry:
        if not self.token_sha256 and not self.certificates:
            raise ValueError("expected token_sha256 or certificates")
        return self


class ClientEntries(BaseModel):
    """All clients; names, tokens and certificates are unique."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client: tuple[ClientEntry, ...]

    @model_validator(mode="after")
    def _are_unique(self) -> ClientEntries:
        for field in ("name", "token_sha256", "certificates"):
            values = [getattr(entry, field) for entry in self.client]
            flat = values if field == "name" else [item for items in values for item in items]
            duplicates = [value for value, count in Counter(flat).items() if count > 1]
            if duplicates:
                raise ValueError(f"{field} {', '.join(duplicates)} occurs twice")
        return self


def read_clients(path: Path) -> tuple[ClientEntry, ...]:
    """Read the clients from a file.

    Raises:
        ConfigError: If the file is invalid or not a regular file, or others may write it; the message lists
            all errors.
    """
    try:
        with open_regular(path) as file:
            check_permissions(path, os.fstat(file.fileno()).st_mode)
            return parse_clients(file.read().decode(), f"clients file {path}")
    except BundleError as error:
        raise ConfigError(f"clients file {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"clients file {path}: cannot be read: {error}") from None


def check_permissions(path: Path, mode: int) -> None:
    """Raise a ConfigError if others than the owner may write the file, and so admit themselves."""
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(
            f"clients file {path}: its permissions are {stat.S_IMODE(mode):04o}, so that others may add "
            f"clients; expected that only its owner may write it: chmod go-w {path.resolve()}"
        )


def parse_clients(text: str, name: str) -> tuple[ClientEntry, ...]:
    """Parse the text of a clients file, see ``read_clients``.

    Args:
        name: name of the file, for error messages.
    """
    try:
        return ClientEntries(**tomllib.loads(text)).client
    except ValidationError as error:
        messages = [
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg'].removeprefix('Value error, ')}".lstrip(": ")
            for detail in error.errors()
        ]
        raise ConfigError(f"{name}: " + "; ".join(messages)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: cannot be read as TOML: {error}") from None


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> str:
    """Return the hash of a token, as the file stores it."""
    return hashlib.sha256(token.encode()).hexdigest()

"""Owns the file that says who is let in: clients, their tokens' hashes or certificates' names, their roles.

    [[client]]
    name = "captions"
    roles = ["score"]
    token_sha256 = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]

    [[client]]
    name = "operators"
    roles = ["score", "admin"]
    certificates = ["ops.example.org"]

Several tokens of one client are valid at once, so that one can be exchanged for another.
"""

from __future__ import annotations

import hashlib
import secrets
import tomllib
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rescorer.errors import ConfigError

Role = Literal["score", "admin"]
TOKEN_BYTES = 32
"""Of chance: nobody guesses it, so a plain hash that costs nothing a call is enough."""


class ClientEntry(BaseModel):
    """One client."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[\w.@-]{1,64}$")]
    """What logs call it."""
    roles: Annotated[frozenset[Role], Field(min_length=1)]
    token_sha256: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...] = ()
    """Of the token's UTF-8 bytes, in hexadecimal."""
    certificates: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Subject alternative names of its certificates, or the common name where they have none."""

    @model_validator(mode="after")
    def _can_come_in(self) -> ClientEntry:
        if not self.token_sha256 and not self.certificates:
            raise ValueError("expected token_sha256 or certificates")
        return self


class ClientEntries(BaseModel):
    """All clients, no two of whom could be taken for each other."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client: tuple[ClientEntry, ...]

    @model_validator(mode="after")
    def _differ(self) -> ClientEntries:
        for field in ("name", "token_sha256", "certificates"):
            values = [getattr(each, field) for each in self.client]
            flat = values if field == "name" else [one for each in values for one in each]
            twice = [value for value, count in Counter(flat).items() if count > 1]
            if twice:
                raise ValueError(f"{field} {', '.join(twice)} is there twice")
        return self


def read_clients(path: Path) -> tuple[ClientEntry, ...]:
    """The clients that a file names; raises ConfigError with everything that is wrong in it."""
    try:
        return parse_clients(path.read_text(encoding="utf-8"), f"access file {path}")
    except (OSError, UnicodeDecodeError) as fault:
        raise ConfigError(f"access file {path}: cannot be read: {fault}") from None


def parse_clients(text: str, name: str) -> tuple[ClientEntry, ...]:
    """As ``read_clients``, of the text of a file.

    Args:
        name: what messages call it.
    """
    try:
        return ClientEntries(**tomllib.loads(text)).client
    except ValidationError as fault:
        wrong = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg'].removeprefix('Value error, ')}".lstrip(": ")
            for each in fault.errors()
        ]
        raise ConfigError(f"{name}: " + "; ".join(wrong)) from None
    except tomllib.TOMLDecodeError as fault:
        raise ConfigError(f"{name}: cannot be read as TOML: {fault}") from None


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> str:
    """What the file has instead of a token."""
    return hashlib.sha256(token.encode()).hexdigest()

"""Owns the service's settings: flat, typed, explained, and checked before anything starts."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from rescorer.errors import ConfigError
from rescorer.service import MAX_MESSAGE_BYTES


class ServiceSettings(BaseSettings):
    """Each may also come from the environment: ``RESCORER_PORT=50051``.

    ``load_settings`` makes one, with errors of our own tree.
    """

    model_config = SettingsConfigDict(env_prefix="RESCORER_", frozen=True, use_attribute_docstrings=True)

    bundle: Path
    """Folder of the model bundle to serve."""
    device: str = "cpu"
    """Where neural models run: cpu, cuda, cuda:1, …"""
    threads: int = Field(0, ge=0)
    """CPU threads of the neural models; 0: one a core."""
    host: str = "127.0.0.1"
    """Name or address to listen on. There is no encryption and no login yet, so others than loopback are
    refused unless ``allow_insecure``."""
    port: int = Field(50051, ge=0, le=65535)
    """0: any free port; the log and ``port_file`` say which."""
    port_file: Path | None = None
    """Where to write the bound port, for scripts that start a server."""
    allow_insecure: bool = False
    """Listen beyond this machine in plain text; for trusted networks or behind a proxy that encrypts."""
    max_message_bytes: int = Field(MAX_MESSAGE_BYTES, ge=1024)
    """Of one request; gRPC itself ends larger ones with RESOURCE_EXHAUSTED."""
    max_lists: int = Field(128, ge=1)
    """Lists of one message. 4 MiB holds some 300 lists of 100 hypotheses; at 128 an answer is still a matter
    of seconds on one core, and the cost of a round trip is spread thin."""
    max_hypotheses: int = Field(2000, ge=1)
    """Hypotheses of one list, and texts of one ScoreText: twice the longest n-best lists in common use."""
    max_words: int = Field(1000, ge=1)
    """Words of one hypothesis, text or context, counted at blanks, hyphens and underscores: minutes of
    speech."""
    max_in_flight_lists: int = Field(512, ge=1)
    """Lists accepted and not yet answered, over all calls; above it unary calls are refused as overload and
    streams wait. A ScoreText counts as one."""
    grace_s: float = Field(30.0, ge=0)
    """How long a server that was told to stop lets calls finish."""

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @model_validator(mode="after")
    def _fits_together(self) -> ServiceSettings:
        if self.max_in_flight_lists < self.max_lists:
            raise ValueError(
                f"max_in_flight_lists is {self.max_in_flight_lists}, less than the {self.max_lists} of "
                "max_lists: a full request would never be accepted"
            )
        if not is_loopback(self.host) and not self.allow_insecure:
            raise ValueError(
                f"host is {self.host!r}: the service speaks plain text and would listen beyond this machine; "
                "expected 127.0.0.1, ::1 or localhost, or allow_insecure"
            )
        return self


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def load_settings(**given: Any) -> ServiceSettings:
    """Settings from arguments first, the environment second, defaults last; an argument None is not given.

    Raises:
        ConfigError: naming every setting that is missing or wrong.
    """
    try:
        return ServiceSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as fault:
        wrong = [
            ": ".join([*(str(part) for part in each["loc"]), each["msg"].removeprefix("Value error, ")])
            for each in fault.errors()
        ]
        raise ConfigError("service settings: " + "; ".join(wrong)) from None

"""Owns how a client's channel is secured: who the server must be, and who the client says it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from rescorer.errors import ConfigError
from rescorer.protocol.addresses import is_local_target

Token = str | Callable[[], str]
"""A bearer token, or what is called for one at every call, for tokens that change."""


@dataclass(frozen=True)
class Tls:
    """An encrypted channel; all files are PEM.

    >>> Client("captions.example.org:443", tls=Tls(), token=token)                       # doctest: +SKIP
    >>> Client("10.0.0.5:50051", tls=Tls(ca="ca.pem", server_name="captions.internal"))  # doctest: +SKIP
    """

    ca: Path | str | None = None
    """Authorities that may vouch for the server; None: those that come with gRPC."""
    certificate: Path | str | None = None
    """The client's own chain, where the server asks for one."""
    key: Path | str | None = None
    server_name: str = ""
    """The name in the server's certificate, where it is not the one that is connected to."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises ConfigError where a file cannot be read, or a certificate comes without its key."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("tls: expected a certificate and its key, or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=read(self.ca),
            private_key=read(self.key),
            certificate_chain=read(self.certificate),
        )

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        return (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()


def read(path: Path | str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as fault:
        raise ConfigError(f"{path}: cannot be read: {fault.strerror}") from None


def check_token(target: str, tls: Tls | None, token: Token) -> None:
    """Raises ConfigError where a token would cross a network in plain text."""
    if token and tls is None and not is_local_target(target):
        raise ConfigError(f"a token for {target} would be sent in plain text; expected tls")


def metadata(token: Token) -> tuple[tuple[str, str], ...]:
    """What tells the server who calls."""
    value = token() if callable(token) else token
    return (("authorization", f"Bearer {value}"),) if value else ()

"""TLS options and bearer tokens: verify the server and authenticate the client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from rescorer.errors import ConfigError
from rescorer.protocol.addresses import is_local_target

Token = str | Callable[[], str]
"""A bearer token, or a function that returns the current one and is called for every call."""

CERTIFICATE_LABEL = b"CERTIFICATE-----"
"""End of the lines around a certificate in a PEM file."""


@dataclass(frozen=True)
class Tls:
    """Options of an encrypted channel; all files are in PEM format.

    >>> Client("captions.example.org:443", tls=Tls(), token=token)                       # doctest: +SKIP
    >>> Client("10.0.0.5:50051", tls=Tls(ca="ca.pem", server_name="captions.internal"))  # doctest: +SKIP
    """

    ca: Path | str | None = None
    """Certificates of the authorities to trust; None uses those that come with gRPC."""
    certificate: Path | str | None = None
    """Certificate chain of the client, for servers that require one."""
    key: Path | str | None = None
    """Private key of the client's certificate."""
    server_name: str = ""
    """Expected name in the server's certificate, if it differs from the name in the target."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the certificate and key files.

        Raises:
            ConfigError: If a file cannot be read, ``ca`` has no certificate, or only one of certificate and
                key is given.
        """
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("tls: expected both certificate and key, or neither")
        authorities = read_pem(self.ca)
        if authorities is not None and CERTIFICATE_LABEL not in authorities:
            raise ConfigError(
                f"{self.ca}: contains no certificate; expected those of authorities, in PEM format"
            )
        return grpc.ssl_channel_credentials(
            root_certificates=authorities,
            private_key=read_pem(self.key),
            certificate_chain=read_pem(self.certificate),
        )

    @property
    def options(self) -> tuple[tuple[str, str], ...]:
        """Channel options for gRPC."""
        return (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()


def read_pem(path: Path | str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def check_token(target: str, tls: Tls | None, token: Token) -> None:
    """Raise ConfigError if a token would cross a network in plain text."""
    if token and tls is None and not is_local_target(target):
        raise ConfigError(f"the token for {target} would be sent in plain text; set tls")


def auth_metadata(token: Token) -> tuple[tuple[str, str], ...]:
    """Build the metadata of a call that authenticates the client; empty without a token."""
    value = token() if callable(token) else token
    return (("authorization", f"Bearer {value}"),) if value else ()

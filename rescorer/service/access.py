"""Access to a server: its TLS certificates, and the file of the clients that may connect.

For each client, the file has its roles, and hashes of its tokens or the names in its certificates:

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
import ssl
import stat
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import grpc
import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rescorer.errors import BundleError, ConfigError, PermissionDenied, Unauthenticated
from rescorer.safe_input import open_regular

log = structlog.get_logger()

FileState = tuple[int, int, int]
"""Inode, size and modification time of a file."""


class Certificates:
    """A certificate chain and its key (PEM), and the authority that signs client certificates.

    Args:
        client_ca: file of the authority; None: clients need no certificate.

    Raises:
        ConfigError: a file cannot be read, or the key does not match the certificate.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        check_certificates(certificate, key, client_ca)
        if key.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            log.warning("everybody on this machine may read or write the private key", key=str(key))
        self._states = self._read_states()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that look for changed files at every handshake. Open connections are kept."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._load_if_changed,  # type: ignore[arg-type]  # None stands for unchanged certificates
            require_client_authentication=self._client_ca is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = self._key.read_bytes(), self._certificate.read_bytes()
        authority = self._client_ca.read_bytes() if self._client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], authority)

    def _load_if_changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return new certificates; None if the files are unchanged or cannot be used."""
        try:
            states = self._read_states()
            if states == self._states:
                return None
            self._states = states
            check_certificates(self._certificate, self._key, self._client_ca)
            configuration = self._configuration()
        except (ConfigError, OSError) as error:
            log.error("certificates refused", error=str(error))
            return None
        log.info("certificates changed", certificate=str(self._certificate))
        return configuration

    def _read_states(self) -> list[FileState]:
        files = filter(None, (self._certificate, self._key, self._client_ca))
        return [(state.st_ino, state.st_size, state.st_mtime_ns) for state in map(Path.stat, files)]


def check_certificates(certificate: Path, key: Path, client_ca: Path | None) -> None:
    """Check that a server can use the files.

    Raises:
        ConfigError: a file is missing or wrong, or the key does not match the certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (certificate, key, client_ca):
        if path is not None and not path.is_file():
            raise ConfigError(f"{path}: no such certificate or key file")
    try:
        # Without a password argument, OpenSSL would ask for an encrypted key's password on the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{certificate} and {key}: expected a certificate and its key: {error}") from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{client_ca}: expected certificates of authorities: {error}") from None


Role = Literal["score", "admin"]
TOKEN_BYTES = 32
"""Random bytes of a token: too many to guess, so that a plain, fast hash is safe."""


class ClientEntry(BaseModel):
    """One client of the file of clients."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[\w.@-]{1,64}$")]
    """The client's name in logs."""
    roles: Annotated[frozenset[Role], Field(min_length=1)]
    token_sha256: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...] = ()
    """SHA-256 of the UTF-8 bytes of each token, in hexadecimal."""
    certificates: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Subject alternative names of the client's certificates, or their common names if they have none."""

    @model_validator(mode="after")
    def _has_credentials(self) -> ClientEntry:
        if not self.token_sha256 and not self.certificates:
            raise ValueError("expected token_sha256 or certificates")
        return self


class ClientEntries(BaseModel):
    """All clients of the file. No two have a name, a token or a certificate in common."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client: tuple[ClientEntry, ...]

    @model_validator(mode="after")
    def _are_unique(self) -> ClientEntries:
        for field, values in {
            "name": [entry.name for entry in self.client],
            "token_sha256": [digest for entry in self.client for digest in entry.token_sha256],
            "certificates": [name for entry in self.client for name in entry.certificates],
        }.items():
            if duplicates := [value for value, count in Counter(values).items() if count > 1]:
                raise ValueError(f"{field} {', '.join(duplicates)} occurs twice")
        return self


def read_clients(path: Path) -> tuple[ClientEntry, ...]:
    """Read the file of clients.

    Raises:
        ConfigError: the file is invalid or not a regular file, or other users may write it. The message
            lists all errors.
    """
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise ConfigError(
                    f"clients file {path}: its permissions are {stat.S_IMODE(mode):04o}, so that others may "
                    f"add clients; expected that only its owner may write it: chmod go-w {path.resolve()}"
                )
            return parse_clients(file.read().decode(), f"clients file {path}")
    except BundleError as error:
        raise ConfigError(f"clients file {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"clients file {path}: cannot be read: {error}") from None


def parse_clients(text: str, name: str) -> tuple[ClientEntry, ...]:
    """Parse the text of a file of clients; raises like ``read_clients``.

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
    """Return the hash of a token, as the file of clients stores it."""
    return hashlib.sha256(token.encode()).hexdigest()


AUTHORIZATION, BEARER = "authorization", "bearer "


class Authenticator:
    """Identifies the client that makes a call. Without a file of clients, anyone may make calls.

    Args:
        path: the file of clients, if any.

    Raises:
        ConfigError: the file is invalid.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._by_token: Mapping[str, ClientEntry] = {}
        self._by_certificate: Mapping[str, ClientEntry] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again.

        Raises:
            ConfigError: the file is invalid; the clients that were read before stay valid.
        """
        if self._path is None:
            return
        clients = read_clients(self._path)
        self._by_token = {digest: client for client in clients for digest in client.token_sha256}
        self._by_certificate = {name: client for client in clients for name in client.certificates}

    def authorise(self, context: grpc.aio.ServicerContext, role: Role) -> str:
        """Return the client's name; empty without a file of clients.

        Raises:
            Unauthenticated: the call has neither a known token nor a known certificate.
            PermissionDenied: the client does not have the role.
        """
        if self._path is None:
            return ""
        client = self._authenticate(context)
        if role not in client.roles:
            raise PermissionDenied(
                f"client {client.name!r} does not have the role {role!r}; add it to the clients file"
            )
        return client.name

    def _authenticate(self, context: grpc.aio.ServicerContext) -> ClientEntry:
        headers = [value for key, value in context.invocation_metadata() or () if key == AUTHORIZATION]
        if headers:
            value = str(headers[0])
            client = self._by_token.get(hash_token(value[len(BEARER) :].strip()))
            if client is None or len(headers) > 1 or not value.lower().startswith(BEARER):
                raise Unauthenticated("unknown token; expected metadata authorization: Bearer TOKEN")
            return client
        for name in context.peer_identities() or ():
            if client := self._by_certificate.get(name.decode("utf-8", "replace")):
                return client
        if self._by_certificate and not self._by_token:
            raise Unauthenticated("unknown client certificate; add its name to the clients file")
        raise Unauthenticated("no token; expected metadata authorization: Bearer TOKEN")

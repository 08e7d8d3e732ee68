"""Owns the server's certificates: checked before they are used, and read again when their files change."""

from __future__ import annotations

import ssl
from pathlib import Path

import grpc
import structlog

from rescorer.errors import ConfigError

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and time of change of each file."""

log = structlog.get_logger()


class Certificates:
    """A certificate chain and its key in PEM, and the authority that signs the clients' certificates.

    Args:
        client_ca: None: clients need no certificate.

    Raises:
        ConfigError: a file cannot be read, or the key is not the certificate's.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        check(certificate, key, client_ca)
        self._stamp = self._stamped()

    def credentials(self) -> grpc.ServerCredentials:
        """gRPC asks at every handshake whether the certificates have changed; open connections stay."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            self._changed,  # type: ignore[arg-type]  # None is for certificates that have not changed
            require_client_authentication=self._client_ca is not None,
        )

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = self._key.read_bytes(), self._certificate.read_bytes()
        authority = self._client_ca.read_bytes() if self._client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], authority)

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """The new certificates; None where they are the old ones, or cannot be used."""
        try:
            stamp = self._stamped()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            check(self._certificate, self._key, self._client_ca)
            configuration = self._configuration()
        except (ConfigError, OSError) as fault:
            log.error("certificates refused", fault=str(fault))
            return None
        log.info("certificates changed", certificate=str(self._certificate))
        return configuration

    def _stamped(self) -> Stamp:
        files = [self._certificate, self._key, *([self._client_ca] if self._client_ca else [])]
        states = [each.stat() for each in files]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in states)


def check(certificate: Path, key: Path, client_ca: Path | None) -> None:
    """Raises ConfigError where the files could not be served with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for path in (certificate, key, client_ca):
        if path is not None and not path.is_file():
            raise ConfigError(f"{path}: no such file of certificates or keys")
    try:
        # The password: of a key that has one, which then does not fit; OpenSSL would ask at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as fault:
        raise ConfigError(f"{certificate} and {key}: expected a certificate and its key: {fault}") from None
    if client_ca is not None:
        try:
            context.load_verify_locations(client_ca)
        except (OSError, ValueError) as fault:
            raise ConfigError(f"{client_ca}: expected certificates of authorities: {fault}") from None

"""The server's certificates: checked before use, and reloaded when their files change."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import grpc
import structlog

from rescorer.errors import ConfigError

Stamp = tuple[tuple[int, int, int], ...]
"""Inode, size and modification time of each file."""

log = structlog.get_logger()


class Certificates:
    """A certificate chain and its key (PEM), and the authority that signs client certificates.

    Args:
        client_ca: None: clients need no certificate.

    Raises:
        ConfigError: If a file cannot be read, or the key does not match the certificate.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        check_certificates(certificate, key, client_ca)
        if key.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            log.warning("everybody on this machine may read or write the private key", key=str(key))
        self._stamp = self._read_stamp()

    def credentials(self) -> grpc.ServerCredentials:
        """Return credentials that check at every handshake for new certificates; open connections stay."""
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
        """Return new certificates; None if they are unchanged or cannot be used."""
        try:
            stamp = self._read_stamp()
            if stamp == self._stamp:
                return None
            self._stamp = stamp
            check_certificates(self._certificate, self._key, self._client_ca)
            configuration = self._configuration()
        except (ConfigError, OSError) as error:
            log.error("certificates refused", error=str(error))
            return None
        log.info("certificates changed", certificate=str(self._certificate))
        return configuration

    def _read_stamp(self) -> Stamp:
        files = [self._certificate, self._key, *([self._client_ca] if self._client_ca else [])]
        states = [file.stat() for file in files]
        return tuple((state.st_ino, state.st_size, state.st_mtime_ns) for state in states)


def check_certificates(certificate: Path, key: Path, client_ca: Path | None) -> None:
    """Check that a server can use the files; raises ConfigError if it cannot."""
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

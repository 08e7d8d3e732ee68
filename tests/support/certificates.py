"""Create a certificate authority and valid or expired certificates for tests, as PEM files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class CertificatePair:
    """Paths of a certificate and its private key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that writes the certificates it issues to a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        builder = self._builder(self._name, self._key, 0).add_extension(constraints, critical=True)
        self.certificate = folder / f"{name}.pem"
        self._write(self.certificate, builder)

    def issue(self, name: str, *, days_ago: int = 0) -> CertificatePair:
        """Issue a certificate for ``name`` and the loopback addresses that is valid for one day."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName(
            [x509.DNSName(name), x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        pair = CertificatePair(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        self._write(
            pair.certificate, self._builder(subject, key, days_ago).add_extension(names, critical=False)
        )
        pair.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return pair

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days_ago: int):
        begin = datetime.datetime.now(datetime.UTC) - DAY / 2 - days_ago * DAY
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + DAY)
        )

    def _write(self, path: Path, builder: x509.CertificateBuilder) -> None:
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

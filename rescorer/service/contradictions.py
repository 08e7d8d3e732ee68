"""Find settings that contradict each other, although every one of them alone is valid."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rescorer.errors import ConfigError
from rescorer.protocol.addresses import is_loopback
from rescorer.service.net.clients_file import read_clients
from rescorer.service.net.tls import check_certificates
from rescorer.service.observability import tracing
from rescorer.service.settings import BYTES_PER_TOKEN, ServiceSettings
from rescorer.text import LANGUAGE_TAG


def find_contradictions(settings: ServiceSettings) -> Iterator[str]:
    """Yield a message for each contradiction."""
    if (settings.bundle is None) == (settings.repository is None):
        yield "bundle: expected either the bundle or the repository to serve" + (
            ", not both" if settings.bundle else ""
        )
    if settings.models and settings.repository is None:
        yield f"models: {', '.join(settings.models)} given, but there is no repository to choose from"
    if settings.shadow and settings.repository is not None and not settings.models:
        yield "shadow: expected models as well; the shadow is compared with the first one"
    if settings.max_in_flight_lists < settings.max_lists:
        yield (
            f"max_in_flight_lists is {settings.max_in_flight_lists}, less than the {settings.max_lists} of "
            "max_lists: a full request would never be accepted"
        )
    if settings.max_batch_tokens < 2 * settings.max_words + 1:
        yield (
            f"max_batch_tokens is {settings.max_batch_tokens}; expected at least "
            f"{2 * settings.max_words + 1}, a hypothesis and a context of max_words"
        )
    if settings.max_in_flight_tokens * BYTES_PER_TOKEN < settings.max_message_bytes:
        yield (
            f"max_in_flight_tokens is {settings.max_in_flight_tokens}; expected at least "
            f"{-(-settings.max_message_bytes // BYTES_PER_TOKEN)}, as many as max_message_bytes may hold"
        )
    full_call = settings.max_message_bytes + settings.max_response_bytes
    for name in ("max_in_flight_bytes", "max_client_bytes"):
        if (limit := getattr(settings, name)) < full_call:
            yield (
                f"{name} is {limit}; expected at least {full_call}, the sum of max_message_bytes and "
                "max_response_bytes"
            )
    if settings.front_ends > 1:
        yield from _front_end_contradictions(settings)
    if settings.dtype == "int8" and settings.device != "cpu":
        yield f"dtype is int8, which is for CPUs; expected bfloat16 or float32 on {settings.device}"
    if not (is_loopback(settings.host) or settings.allow_insecure or settings.tls_certificate):
        yield (
            f"host is {settings.host!r}: the service would listen beyond this machine in plain text; "
            "expected 127.0.0.1, ::1 or localhost, or tls_certificate, or allow_insecure"
        )
    if settings.port_file is not None and not settings.port_file.absolute().parent.is_dir():
        yield f"port_file: {settings.port_file}: expected an existing folder to write it to"
    if settings.language and not LANGUAGE_TAG.fullmatch(settings.language):
        yield f"language: expected a tag such as tr or pt-BR, got {settings.language!r}"
    if settings.dictionary is not None and not settings.dictionary.is_file():
        yield f"dictionary: {settings.dictionary}: expected a file of words and their phones"
    if settings.trace_endpoint is not None and not tracing.is_installed():
        yield "trace_endpoint: expected the packages of rescorer[tracing]; install them"
    yield from _security_contradictions(settings)


def _front_end_contradictions(settings: ServiceSettings) -> Iterator[str]:
    several = f"front_ends is {settings.front_ends}"
    if not sys.platform.startswith("linux"):
        yield f"{several}; expected 1: only Linux distributes the connections of a port over processes"
    if not settings.workers:
        yield f"{several} and workers is 0: front ends cannot share a thread; expected 1 worker or more"
    if settings.shadow:
        yield f"{several}: each front end would have its own shadow; expected 1 together with a shadow"


def _security_contradictions(settings: ServiceSettings) -> Iterator[str]:
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        yield "tls_certificate and tls_key: expected both or neither"
    elif settings.tls_certificate is not None and settings.tls_key is not None:
        yield from _error_of(
            check_certificates, settings.tls_certificate, settings.tls_key, settings.tls_client_ca
        )
    if settings.tls_client_ca is not None and settings.tls_certificate is None:
        yield "tls_client_ca: expected tls_certificate as well; clients send certificates over TLS only"
    if settings.access is not None:
        yield from _error_of(_check_access, settings, settings.access)
    elif settings.admin:
        yield "admin: expected access as well, a file that says which clients have the role admin"


def _check_access(settings: ServiceSettings, access: Path) -> None:
    clients = read_clients(access)
    if settings.tls_client_ca is None and any(client.certificates for client in clients):
        raise ConfigError(f"clients file {access}: client certificates need tls_client_ca")
    if settings.admin and not any("admin" in client.roles for client in clients):
        raise ConfigError(
            f"clients file {access}: no client has the role admin, which the setting admin needs"
        )


def _error_of(check: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """Yield the message of the ConfigError that ``check`` raises, if it raises one."""
    try:
        check(*arguments)
    except ConfigError as error:
        yield str(error)

"""Configure gRPC channels: addresses, load balancing, retries and keepalive."""

from __future__ import annotations

import itertools
import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any

from grpc import StatusCode

from rescorer.client.diagnosis import Diagnosis, describe_unknown_host
from rescorer.client.identity import Tls, Token, auth_metadata, check_token
from rescorer.errors import ConfigError, did_you_mean, quote
from rescorer.protocol import MAX_MESSAGE_BYTES
from rescorer.protocol.v1 import models_pb2, rescorer_pb2
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub

RESCORER_SERVICE = rescorer_pb2.DESCRIPTOR.services_by_name["RescorerService"].full_name
MODEL_SERVICE = models_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
RETRYABLE_CODES = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED")
"""Status codes after which a call is retried: it was not answered, or the server asks to repeat it later;
scoring a list twice is harmless. gRPC ends calls that arrive while a server stops with CANCELLED; calls
cancelled by the client are not retried."""
RETRY_THROTTLING = {"maxTokens": 1000, "tokenRatio": 0.1}
"""Stop retrying while failures exceed a tenth of the successes by more than 500. All calls of a lost server
can move to another one, but a server that stays overloaded is not sent each call five times."""
DEFAULT_OPEN_CALLS = 4
"""Default number of calls in flight: keeps a server busy, but leaves capacity for other clients."""
KEEPALIVE_INTERVAL_MS, KEEPALIVE_TIMEOUT_MS = 60_000, 10_000
"""Applies while calls are open; detects a server that vanished without closing its connections."""
RETRY_BUFFER_OVERHEAD_BYTES = 65_536
"""Space that a message may need in gRPC's retry buffer in addition to its own size."""
GRPC_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:")
"""Prefixes of targets that are passed to gRPC unchanged."""
HOST_PORT = re.compile(r"(.*):(\d+)")
UNREADY_REASON_TIMEOUT_S = 0.25
"""Time to wait for gRPC to report why a channel is not ready; the reason is usually known immediately."""
REASON_CONTEXT = re.compile(
    r".*last error: |^[A-Z_]+: |^(ipv4|ipv6|unix)\S*: |^Failed to connect to remote host: |^connect: "
    r"|.*address lookup failed for \S+: |\]$"
)
"""Parts of gRPC's error messages around the reason itself, such as codes and addresses."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Policy for retrying failed calls within their deadline, at the next server if there are several."""

    attempts: int = 5
    """Maximum number of attempts, 1 to 5 (gRPC's limit); 1 disables retries."""
    first_s: float = 0.1
    """Delay in seconds before the second attempt, varied randomly by up to a fifth; a full server can request
    another delay."""
    factor: float = 3.0
    """Factor by which the delay grows each time: 0.1, 0.3, 0.9, 2.7 s gives a server time to restart."""
    longest_s: float = 3.0
    """Maximum delay in seconds."""

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= 5:
            raise ConfigError(f"retry: expected 1 to 5 attempts, got {self.attempts}")
        if not (self.first_s > 0 and self.factor > 0 and self.longest_s > 0):
            raise ConfigError("retry: first_s, factor and longest_s must be greater than 0")

    @property
    def policy(self) -> dict[str, Any]:
        """Retry policy in the form of gRPC's service config."""
        return {
            "maxAttempts": self.attempts,
            "initialBackoff": f"{self.first_s:.3f}s",
            "maxBackoff": f"{self.longest_s:.3f}s",
            "backoffMultiplier": self.factor,
            "retryableStatusCodes": RETRYABLE_CODES,
        }


NO_RETRY = Retry(attempts=1)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How ``Client`` and ``AsyncClient`` connect; they take these options by name.

    Raises:
        ConfigError: If a number is out of range.
        TypeError: If a value has another type than described.
    """

    tls: Tls | None = None
    """TLS options; None sends plain text."""
    token: Token = field(default="", repr=False)
    """Bearer token, or a function that returns it; never sent in plain text beyond this machine."""
    retry: Retry = Retry()  # frozen
    """Policy for retrying failed calls. ``timeout_s`` of a call covers all of its attempts."""
    connections: int = 1
    """Number of connections, used in turn; more than one helps behind a load balancer that balances
    connections instead of calls."""
    in_flight: int = DEFAULT_OPEN_CALLS
    """Maximum number of calls that ``rescore_stream`` keeps in flight at once."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Maximum size of a message that the server accepts; larger requests fail without being sent."""

    def __post_init__(self) -> None:
        for name, types, expected in (
            ("tls", (Tls, NoneType), "Tls(…) or None"),
            ("token", (str, Callable, NoneType), "a string, or a function that returns one"),
            ("retry", Retry, "Retry(…) or NO_RETRY"),
            ("connections", int, "a number"),
            ("in_flight", int, "a number"),
            ("max_message_bytes", int, "a number"),
        ):
            value = getattr(self, name)
            if not isinstance(value, types):  # type: ignore[arg-type]  # Callable
                raise TypeError(f"{name} is of type {type(value).__name__}; expected {expected}")
        if self.connections < 1:
            raise ConfigError(f"connections: expected at least 1, got {self.connections}")

    @classmethod
    def make(cls, **options: Any) -> ConnectionOptions:
        """Options by name.

        Raises:
            TypeError: If there is no option of a name.
        """
        known = [option.name for option in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(
                    f"{quote(name)} is not an option of a client; expected some of model, "
                    f"{', '.join(known)}{did_you_mean(name, known)}"
                )
        return cls(**options)


def service_config(retry: Retry) -> dict[str, Any]:
    """Build gRPC's service config: round robin over healthy servers, with retries."""
    methods: dict[str, Any] = {"name": [{"service": RESCORER_SERVICE}, {"service": MODEL_SERVICE}]}
    if retry.attempts > 1:
        methods["retryPolicy"] = retry.policy
    return {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": RESCORER_SERVICE},
        "methodConfig": [methods],
        "retryThrottling": RETRY_THROTTLING,
    }


class Connections:
    """The channels of a client, used in turn; safe to share between threads.

    Args:
        grpc: Module that creates channels, ``grpc`` or ``grpc.aio``.
        target: Target as in ``Client``.
        options: How to connect.

    Raises:
        ConfigError: As in ``Client``.
        TypeError: If the target is not a string.
    """

    def __init__(self, grpc: Any, target: str, options: ConnectionOptions) -> None:
        if not isinstance(target, str):
            raise TypeError(f"target is of type {type(target).__name__}; expected HOST:PORT")
        tls, count = options.tls, options.connections
        self._token = options.token
        self.target = target
        resolved, authority = resolve(target)
        check_token(resolved, tls, options.token)
        self.diagnosis = Diagnosis(target, tls)
        settings = [
            *channel_options(options.retry, options.max_message_bytes),
            *([("grpc.default_authority", authority)] if authority else []),
            # Otherwise channels to the same address share one connection.
            *([("grpc.use_local_subchannel_pool", 1)] if count > 1 else []),
        ]
        if tls is None:
            self.channels = [grpc.insecure_channel(resolved, settings) for _ in range(count)]
        else:
            credentials, settings = tls.credentials(), [*settings, *tls.options]
            self.channels = [grpc.secure_channel(resolved, credentials, settings) for _ in range(count)]
        self._stubs = itertools.cycle([RescorerServiceStub(channel) for channel in self.channels])
        self.models: Any = ModelServiceStub(self.channels[0])

    @property
    def stub(self) -> Any:
        """Stub of the next channel."""
        return next(self._stubs)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata for the next call."""
        return auth_metadata(self._token)


def describe_unready(error: Any) -> str:
    """Describe why a server is not ready, from the error of a health check."""
    if error.code() is StatusCode.DEADLINE_EXCEEDED:
        return "no answer"
    return short_reason(str(error.details() or error.code().name))


def short_reason(message: str) -> str:
    """Shorten a message of gRPC about a failed connection to the reason itself.

    gRPC's messages are meant for people and may change; an unknown message is returned unchanged.
    """
    reason, previous = message, ""
    while reason != previous:
        previous, reason = reason, REASON_CONTEXT.sub("", reason, count=1)
    if "unhealthy" in reason:
        return "NOT_SERVING, still loading its models or stopping"
    return "connection refused" if reason.startswith("Connection refused") else reason


def channel_options(retry: Retry, max_message_bytes: int) -> tuple[tuple[str, Any], ...]:
    return (
        # Responses are larger than requests, and the server is trusted.
        ("grpc.max_receive_message_length", -1),
        # Connect soon to a server that has just started.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.service_config", json.dumps(service_config(retry))),
        # DNS records must not override the service config.
        ("grpc.service_config_disable_resolution", 1),
        # With gRPC's default of 256 KiB, larger requests would not be retried.
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes + RETRY_BUFFER_OVERHEAD_BYTES),
    )


def resolve(target: str) -> tuple[str, str]:
    """Convert a target to gRPC's syntax; return it and the name that servers must authenticate as.

    The name is empty if gRPC takes it from the target. A single host name is resolved by gRPC, to all of its
    addresses, and again whenever a connection breaks. Several host names are resolved here, only once, to one
    address each.

    Raises:
        ConfigError: If one of several addresses has no port or cannot be resolved, or if the addresses mix IP
            versions.

    >>> resolve("dns:///rescorer:50051")
    ('dns:///rescorer:50051', '')
    >>> resolve("127.0.0.1:1, 127.0.0.1:2")
    ('ipv4:127.0.0.1:1,127.0.0.1:2', '127.0.0.1')
    """
    if "," not in target or target.startswith(GRPC_SCHEMES):
        return target, ""
    parts = [part.strip() for part in target.split(",") if part.strip()]
    addresses = [resolve_address(part) for part in parts]
    ip_versions = {6 if ":" in host else 4 for host, _ in addresses}
    if len(ip_versions) > 1:
        raise ConfigError(f"{target}: expected addresses of one IP version")
    scheme, pattern = ("ipv6", "[{}]:{}") if ip_versions == {6} else ("ipv4", "{}:{}")
    first_host = parts[0].rpartition(":")[0].strip("[]")
    return f"{scheme}:" + ",".join(pattern.format(*address) for address in addresses), first_host


def resolve_address(text: str) -> tuple[str, str]:
    """Resolve ``host:port`` to an IP address and a port."""
    match = HOST_PORT.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text}: expected host:port")
    host, port = match[1].strip("[]"), match[2]
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        ((*_, (address, *_)), *_) = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{text}: {describe_unknown_host(host, error)}") from None
    return str(address), port

"""Owns how a client reaches its servers: addresses, balancing between them, retries, connections.

gRPC itself does the work; here it is told how, by its service config and the options of its channels.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
from dataclasses import dataclass
from typing import Any

from grpc import StatusCode

from rescorer.client.identity import Tls, Token, check_token, metadata
from rescorer.errors import ConfigError
from rescorer.protocol.v1 import models_pb2, rescorer_pb2
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub

RESCORER_SERVICE = rescorer_pb2.DESCRIPTOR.services_by_name["RescorerService"].full_name
MODEL_SERVICE = models_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
RETRIED = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED")
"""Codes of calls that nobody has answered, or that the server asks to repeat later; scoring a list twice
changes nothing. CANCELLED is what gRPC says to calls that come in the moment its server stops; those that
the client cancels are not sent again."""
THROTTLING = {"maxTokens": 1000, "tokenRatio": 0.1}
"""After 500 failures more than a tenth of the successes, calls are not retried: all calls of a lost server
find another one, and what is overloaded for long is not asked five times."""
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 60_000, 10_000
"""While calls are open, so that a server that went without a word is left before they all are too late."""
SPARE_BYTES = 65_536
"""What a message may need beside its own size in gRPC's buffer of what might be sent again."""
SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:")
"""Of targets that gRPC reads as they are."""
PORT = re.compile(r"(.*):(\d+)")
REASON_S = 0.25
"""How long a channel that is not ready may take to say why not; mostly it knows at once."""
AROUND_REASON = re.compile(
    r".*last error: |^[A-Z_]+: |^(ipv4|ipv6|unix)\S*: |^Failed to connect to remote host: |^connect: "
    r"|.*address lookup failed for \S+: |\]$"
)
"""What gRPC tells beside it: its own codes and the address, which we name ourselves."""


@dataclass(frozen=True, slots=True)
class Retry:
    """When a call that failed is sent again, within its deadline, to the next server if there are several."""

    attempts: int = 5
    """The first one counted; gRPC allows 5. 1: calls are never sent again."""
    first_s: float = 0.1
    """Before the second attempt, a fifth more or less; a server that is full says itself how long."""
    factor: float = 3.0
    """How much longer before each later one: 0.1, 0.3, 0.9, 2.7 s, in which a server can start anew."""
    longest_s: float = 3.0

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= 5:
            raise ConfigError(f"retry: attempts is {self.attempts}; expected 1 to 5")
        if not (self.first_s > 0 and self.factor > 0 and self.longest_s > 0):
            raise ConfigError("retry: first_s, factor and longest_s are to be above 0")

    @property
    def policy(self) -> dict[str, Any]:
        """As gRPC's service config has it."""
        return {
            "maxAttempts": self.attempts,
            "initialBackoff": f"{self.first_s:.3f}s",
            "maxBackoff": f"{self.longest_s:.3f}s",
            "backoffMultiplier": self.factor,
            "retryableStatusCodes": RETRIED,
        }


NO_RETRY = Retry(attempts=1)


def service_config(retry: Retry) -> dict[str, Any]:
    """Calls take turns between the servers that say SERVING, and are retried."""
    methods: dict[str, Any] = {"name": [{"service": RESCORER_SERVICE}, {"service": MODEL_SERVICE}]}
    if retry.attempts > 1:
        methods["retryPolicy"] = retry.policy
    return {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": RESCORER_SERVICE},
        "methodConfig": [methods],
        "retryThrottling": THROTTLING,
    }


class Connections:
    """The channels of a client, taken in turn; they may be used by several threads.

    Args:
        grpc: the module that makes channels, ``grpc`` or ``grpc.aio``.
        target: as of ``Client``.
        count: of channels.

    Raises:
        ConfigError: as ``Client``.
    """

    def __init__(
        self,
        grpc: Any,
        target: str,
        *,
        tls: Tls | None,
        token: Token,
        retry: Retry,
        count: int,
        max_message_bytes: int,
    ) -> None:
        if count < 1:
            raise ConfigError(f"connections is {count}; expected at least 1")
        self._token = token
        self.target = target
        resolved, authority = resolve(target)
        check_token(resolved, tls, token)
        options = [
            *channel_options(retry, max_message_bytes),
            *([("grpc.default_authority", authority)] if authority else []),
            # Channels to the same address would share one connection.
            *([("grpc.use_local_subchannel_pool", 1)] if count > 1 else []),
        ]
        if tls is None:
            self.channels = [grpc.insecure_channel(resolved, options) for _ in range(count)]
        else:
            credentials, options = tls.credentials(), [*options, *tls.options]
            self.channels = [grpc.secure_channel(resolved, credentials, options) for _ in range(count)]
        self._stubs = itertools.cycle([RescorerServiceStub(each) for each in self.channels])
        self.models: Any = ModelServiceStub(self.channels[0])

    @property
    def stub(self) -> Any:
        """Whose turn it is."""
        return next(self._stubs)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Of a call."""
        return metadata(self._token)


def why_unready(error: Any) -> str:
    """What a refused question about health tells of the server, from gRPC's error.

    Its words are for people and may change: what is not known is handed on whole.
    """
    if error.code() is StatusCode.DEADLINE_EXCEEDED:
        return "no answer"
    reason, before = str(error.details() or error.code().name), ""
    while reason != before:
        before, reason = reason, AROUND_REASON.sub("", reason, count=1)
    if "unhealthy" in reason:
        return "NOT_SERVING, still loading its models or stopping"
    return "connection refused" if reason.startswith("Connection refused") else reason


def channel_options(retry: Retry, max_message_bytes: int) -> tuple[tuple[str, Any], ...]:
    return (
        # Answers are longer than questions, and the server is trusted.
        ("grpc.max_receive_message_length", -1),
        # A server that is just starting is found soon.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.service_config", json.dumps(service_config(retry))),
        # Whatever owns the name's DNS has no say in it.
        ("grpc.service_config_disable_resolution", 1),
        # gRPC's own 256 KiB would leave larger requests without a second attempt.
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes + SPARE_BYTES),
    )


def resolve(target: str) -> tuple[str, str]:
    """A target as gRPC reads it, and the name that the servers are expected to have; empty: gRPC knows.

    gRPC resolves one name into all its addresses, and again when a connection breaks; of several names each
    is looked up once, here, for an IPv4 address.

    Raises:
        ConfigError: an address of several has no port, is no IP address and no name that is known, or they
            are of both IP versions.

    >>> resolve("dns:///rescorer:50051")
    ('dns:///rescorer:50051', '')
    >>> resolve("127.0.0.1:1, 127.0.0.1:2")
    ('ipv4:127.0.0.1:1,127.0.0.1:2', '127.0.0.1')
    """
    if "," not in target or target.startswith(SCHEMES):
        return target, ""
    parts = [each.strip() for each in target.split(",") if each.strip()]
    found = [address_of(each) for each in parts]
    families = {":" in host for host, _ in found}
    if len(families) > 1:
        raise ConfigError(f"{target}: expected addresses of one IP version")
    scheme, form = ("ipv6", "[{}]:{}") if families == {True} else ("ipv4", "{}:{}")
    first_host = parts[0].rpartition(":")[0].strip("[]")
    return f"{scheme}:" + ",".join(form.format(*each) for each in found), first_host


def address_of(text: str) -> tuple[str, str]:
    """IP address and port of ``host:port``."""
    place = PORT.fullmatch(text)
    if place is None:
        raise ConfigError(f"{text}: expected host:port")
    host, port = place[1].strip("[]"), place[2]
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        ((*_, (address, *_)), *_) = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as fault:
        raise ConfigError(f"{text}: {getattr(fault, 'strerror', None) or fault}") from None
    return str(address), port

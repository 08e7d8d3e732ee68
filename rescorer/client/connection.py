"""Connect to servers: addresses, TLS and tokens, retries and keepalive, and why a server cannot be reached.

gRPC says little about a failed connection: only "Socket closed" if one end speaks TLS and the other does not,
nothing at all if the deadline passes before there is a connection, and only the error of the last of several
addresses. ``Diagnosis`` therefore connects to each address without gRPC to find out what is wrong.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any

import grpc
from grpc import StatusCode

from rescorer.errors import ConfigError, LimitExceeded, did_you_mean, quote, shorten
from rescorer.protocol import MAX_MESSAGE_BYTES
from rescorer.protocol.messages import format_address, is_local_target
from rescorer.protocol.v1 import models_pb2, rescorer_pb2
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from rescorer.protocol.v1.rescorer_pb2_grpc import RescorerServiceStub

Token = str | Callable[[], str]
"""A bearer token, or a function that returns the current one. The function is called before every call."""

CERTIFICATE_LABEL = b"CERTIFICATE-----"
"""Text at the end of the two lines between which a PEM file has a certificate."""


@dataclass(frozen=True)
class Tls:
    """Options of an encrypted connection; all files are in PEM format.

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
            ConfigError: a file cannot be read, ``ca`` has no certificate, or only one of certificate and
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


MAX_TOKEN_BYTES = 7 << 10
"""Longest token. gRPC refuses calls whose metadata takes more than 8 KiB in all, in a way that looks like
overload."""


def check_token(token: str) -> None:
    """Check that a token can be sent.

    Raises:
        ConfigError: the token has characters that HTTP headers cannot have.
        LimitExceeded: the token is too long.
    """
    if len(token) > MAX_TOKEN_BYTES:
        raise LimitExceeded(f"{len(token):,} bytes; at most {MAX_TOKEN_BYTES:,} can be sent", field="token")
    if not re.fullmatch(r"[!-~]*", token):
        raise ConfigError(
            "token: expected printable ASCII characters without spaces; does it end with a file's line end?"
        )


def auth_metadata(token: Token) -> tuple[tuple[str, str], ...]:
    """Build the call metadata with the token by which a server knows the client; empty without a token.

    Raises:
        ConfigError, LimitExceeded: a function returned a token that cannot be sent; see ``check_token``.
    """
    if callable(token):
        token = token()
        if not isinstance(token, str | None):
            raise ConfigError(
                f"token: the function returned a value of type {type(token).__name__}, not a string"
            )
        check_token(token or "")
    return (("authorization", f"Bearer {token}"),) if token else ()


def find_proxy(host: str) -> tuple[str, str]:
    """Return the variable that makes gRPC reach a host through a proxy, and the proxy; empty without one."""
    # Takes long to import, and only failed calls need it.
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

    variables = {name: os.environ.get(name, "") for name in ("grpc_proxy", "https_proxy", "http_proxy")}
    no_grpc_proxy, no_proxy = (os.environ.get(name, "") for name in ("no_grpc_proxy", "no_proxy"))
    if proxy_bypass_environment(host, {"no": no_grpc_proxy or no_proxy}):
        return "", ""
    return next(((name, proxy) for name, proxy in variables.items() if proxy), ("", ""))


MAX_ADDRESSES = 4
"""Most addresses of a target that are tried to explain a failure."""
STEP_TIMEOUT_S = 0.5
"""Time allowed for each step of finding an explanation, such as connecting to an address."""
REMEMBERED_S = 5.0
"""Time for which an explanation is reused, so that many failing calls cause few connections."""
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of an HTTP/2 connection: the preface and an empty SETTINGS frame (RFC 9113, section
3.4)."""
FRAME_HEADER_BYTES, SETTINGS_FRAME = 9, b"\x04"
DIAGNOSED_HOST_PORT = re.compile(r"(?:dns:(?://[^/]*/)?|ipv4:|ipv6:)?(.+):(\d+)")
UNKNOWN_AUTHORITY_CODES, WRONG_NAME_CODES = (18, 19, 20, 21), (62, 63, 64)
"""OpenSSL's codes (X509_V_ERR_*) for certificates of an unknown authority, and for those of other names."""

Address = tuple[str, int]


class Diagnosis:
    """Explains why connections to a target fail.

    Args:
        target: target as in ``Client``.
        tls: TLS options of the client; None: plain text.
    """

    def __init__(self, target: str, tls: Tls | None) -> None:
        self._target, self._tls = target, tls
        self._explanation, self._valid_until_s = "", 0.0

    def explain(self) -> str:
        """Return why connections may fail, and what to do; empty if a server can be reached.

        Calls that go through a proxy are explained by it, because nothing else is known about their way.
        Blocks for a few seconds at most, usually for a few milliseconds.
        """
        if time.monotonic() >= self._valid_until_s:
            self._explanation = self._examine()
            self._valid_until_s = time.monotonic() + REMEMBERED_S
        return self._explanation

    def _examine(self) -> str:
        for part in self._target.split(","):
            if problem := describe_malformed(part.strip()):
                return problem
        if found := self._examine_proxy() or examine_socket(self._target):
            return found
        unreachable: dict[str, list[str]] = {}  # addresses by reason
        problems = []
        addresses, unknown_hosts = find_addresses(self._target)
        for address in addresses[:MAX_ADDRESSES]:
            try:
                problem = self._examine_address(address)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                if isinstance(error, TimeoutError):
                    reason = f"no connection was accepted within {STEP_TIMEOUT_S:g} s"
                unreachable.setdefault(reason, []).append(format_address(*address))
            else:
                if not problem:
                    return ""
                problems.append(f"the server at {format_address(*address)} {problem}")
        if problems:
            return problems[0]
        if not unreachable:
            return "; ".join(unknown_hosts)
        reasons = [f"{reason} by {' and '.join(addresses)}" for reason, addresses in unreachable.items()]
        return "; ".join([*reasons, *unknown_hosts]) + "; is the server running, at this address?"

    def _examine_proxy(self) -> str:
        """Name the proxy through which calls go; empty if they go to the server itself."""
        match = DIAGNOSED_HOST_PORT.fullmatch(self._target)
        if match is None or is_direct(self._target):
            return ""
        host = match[1].strip("[]")
        variable, proxy = find_proxy(host)
        # A proxy's URL may have a password.
        place = re.sub(r"//[^/@]*@", "//", proxy)
        return proxy and (
            f"calls to {host} go through the proxy {quote(place)} (variable {variable}), which may not reach "
            f"it; set no_proxy={host} to connect directly"
        )

    def _examine_address(self, address: Address) -> str:
        if self._tls is None:
            return examine_plain(address)
        host = DIAGNOSED_HOST_PORT.fullmatch(self._target.split(",")[0].strip())
        return examine_tls(address, self._tls, self._tls.server_name or (host[1].strip("[]") if host else ""))


def describe_malformed(address: str) -> str:
    """Return the error in an address that is a URL or has no port; empty for other addresses."""
    if address.lower().startswith(("http://", "https://")):
        return f"{address} is a URL; expected HOST:PORT"
    if address.startswith("unix") or DIAGNOSED_HOST_PORT.fullmatch(address):
        return ""
    return f"{address} has no port, so gRPC tries 443; expected HOST:PORT"


def examine_socket(target: str) -> str:
    """Return why no server can be reached at a Unix socket; empty if one can, and for other targets."""
    path = re.sub("^unix:(//(?=/))?", "", target)
    if path == target:
        return ""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(STEP_TIMEOUT_S)
        try:
            connection.connect(path)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            return f"the socket {quote(path)}: {reason}; is the server running, and listening there?"
    return ""


def find_addresses(target: str) -> tuple[list[Address], list[str]]:
    """Look up the hosts of a target.

    Returns:
        Each IP address with its port, and a message about each host name that cannot be looked up. Parts of
        the target without host and port, such as Unix sockets, are skipped.
    """
    addresses: dict[Address, None] = {}
    unknown_hosts = []
    for part in target.split(","):
        match = DIAGNOSED_HOST_PORT.fullmatch(part.strip())
        if match is None:
            continue
        host = match[1].strip("[]")
        try:
            found = socket.getaddrinfo(host, int(match[2]), type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            unknown_hosts.append(describe_unknown_host(host, error))
        else:
            addresses |= dict.fromkeys((str(name), int(port)) for *_, (name, port, *_) in found)
    return list(addresses), unknown_hosts


def describe_unknown_host(host: str, error: OSError | UnicodeError) -> str:
    """Return why a host name cannot be looked up, and what to do."""
    reason = getattr(error, "strerror", None) or "not a valid host name"
    return (
        f"the host name {quote(host)} cannot be looked up ({reason.lower()}); check its spelling, and that "
        "the DNS or /etc/hosts of this machine knows it"
    )


def examine_plain(address: Address) -> str:
    """Connect without TLS. Return why the server does not speak gRPC this way; empty if it does.

    Raises:
        OSError: no connection can be made.
    """
    with socket.create_connection(address, STEP_TIMEOUT_S) as connection:
        try:
            connection.sendall(HTTP2_PREFACE)
            answer = connection.recv(FRAME_HEADER_BYTES)
        except TimeoutError:
            return "accepts connections, but does not answer"
        except OSError:
            answer = b""
    if answer[3:4] == SETTINGS_FRAME:
        return ""
    if speaks_tls(address):
        return "speaks TLS, but this client sends plain text; set tls (--tls or --ca)"
    if answer.startswith(b"HTTP/1"):
        return "speaks HTTP/1, not gRPC; is this its metrics port?"
    return "does not speak gRPC"


def speaks_tls(address: Address) -> bool:
    """Whether a server answers a TLS handshake. A refusal is an answer, and certificates are not checked."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection(address, STEP_TIMEOUT_S) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def examine_tls(address: Address, tls: Tls, name: str) -> str:
    """Connect with TLS. Return why the connection fails; empty if it succeeds.

    Args:
        name: name that the server's certificate must have.

    Raises:
        OSError: no connection can be made.
    """
    context = ssl.create_default_context(cafile=tls.ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Python 3.13's default, stricter than gRPC
    context.set_alpn_protocols(["h2"])
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key)
    with socket.create_connection(address, STEP_TIMEOUT_S) as connection:
        try:
            with context.wrap_socket(connection, server_hostname=name) as encrypted:
                encrypted.sendall(HTTP2_PREFACE)
                answered = bool(encrypted.recv(FRAME_HEADER_BYTES))
        except TimeoutError:
            return "accepts connections, but answers no TLS handshake; is this its metrics port?"
        except ssl.SSLCertVerificationError as error:
            return describe_untrusted(error)
        except ssl.SSLError as error:
            return describe_tls_failure(error.reason or "")
        except OSError:
            answered = False
    if answered:
        return ""
    if tls.certificate is None:  # with TLS 1.3 it ends the connection only after the handshake
        return "ends TLS connections; it may require a client certificate (--certificate and --key)"
    return "ends TLS connections; it may not accept the client certificate"


def describe_untrusted(error: ssl.SSLCertVerificationError) -> str:
    """Return why a server's certificate is refused, and what to do."""
    reason = error.verify_message.rstrip(".")
    if error.verify_code in UNKNOWN_AUTHORITY_CODES:
        return f"has a certificate that is not trusted ({reason}); give its authority as ca (--ca)"
    if error.verify_code in WRONG_NAME_CODES:
        return f"has a certificate for another name ({reason}); set server_name (--server-name) to its name"
    return f"has a certificate that is not valid: {reason}"


def describe_tls_failure(reason: str) -> str:
    """Return what OpenSSL's reason for a failed handshake means, and what to do."""
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return "requires a client certificate (--certificate and --key)"
    if "ALERT" in reason:
        return f"refuses the TLS handshake ({reason.lower().replace('_', ' ')})"
    return "does not speak TLS, but this client does; leave out tls (--tls, --ca)"


RESCORER_SERVICE = rescorer_pb2.DESCRIPTOR.services_by_name["RescorerService"].full_name
MODEL_SERVICE = models_pb2.DESCRIPTOR.services_by_name["ModelService"].full_name
REFUSED_CODE = "RESOURCE_EXHAUSTED"
RETRYABLE_CODES = ("UNAVAILABLE", REFUSED_CODE, "CANCELLED")
"""Status codes after which a call is retried: the call was not answered, or the server asks to repeat it
later. Scoring a list twice is harmless. CANCELLED is the status of calls that arrive while a server stops;
calls that the client cancels are not retried. See also ``ConnectionOptions.repeats_refused``."""
RETRY_THROTTLING = {"maxTokens": 1000, "tokenRatio": 0.1}
"""gRPC stops retrying while the failures exceed a tenth of the successes by more than 500. Thus all calls of
a lost server can be repeated at another one, but an overloaded server does not get every call five times."""
DEFAULT_OPEN_CALLS = 4
"""Default number of calls in flight. It keeps a server busy, but leaves capacity for other clients."""
KEEPALIVE_INTERVAL_MS, KEEPALIVE_TIMEOUT_MS = 10_000, 10_000
"""Interval of pings while calls are open, and longest wait for the reply. The pings detect a server that is
frozen, or that vanished without closing its connections, while a call can still be sent to another one within
its default time."""
RETRY_BUFFER_OVERHEAD_BYTES = 65_536
"""Space in gRPC's retry buffer that a message may need in addition to its size."""
GRPC_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:")
"""Prefixes of targets that are passed to gRPC unchanged."""
HOST_PORT = re.compile(r"(.*):(\d+)")
UNREADY_REASON_TIMEOUT_S = 0.25
"""Longest wait for gRPC to report why a channel is not ready. Usually it reports the reason at once."""
REASON_CONTEXT = re.compile(
    r".*last error: |^[A-Z_]+: |^(ipv4|ipv6|unix)\S*: |^Failed to connect to remote host: |^connect: "
    r"|.*address lookup failed for \S+: |\]$"
)
"""The parts of gRPC's error messages before and after the reason, such as codes and addresses."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Policy by which gRPC retries failed calls within their deadline, at the next of several servers.

    Whatever this policy says, ``rescore_stream`` also sends a call again while the server is full, until the
    call's ``timeout_s`` is over.
    """

    attempts: int = 5
    """Maximum number of gRPC's attempts, 1 to 5 (gRPC's limit). With 1, gRPC does not retry, but
    ``rescore_stream`` still waits for a full server."""
    first_s: float = 0.1
    """Delay in seconds before the second attempt, varied at random by up to a fifth. A full server can ask
    for another delay."""
    factor: float = 3.0
    """Each delay is the previous one times this factor. Delays of 0.1, 0.3, 0.9 and 2.7 s give a server time
    to restart."""
    longest_s: float = 3.0
    """Maximum delay in seconds."""

    def __post_init__(self) -> None:
        if not 1 <= self.attempts <= 5:
            raise ConfigError(f"retry: expected 1 to 5 attempts, got {self.attempts}")
        if not (self.first_s > 0 and self.factor > 0 and self.longest_s > 0):
            raise ConfigError("retry: first_s, factor and longest_s must be greater than 0")

    @property
    def policy(self) -> dict[str, Any]:
        """The retry policy in the form of gRPC's service config, without status codes."""
        return {
            "maxAttempts": self.attempts,
            "initialBackoff": f"{self.first_s:.3f}s",
            "maxBackoff": f"{self.longest_s:.3f}s",
            "backoffMultiplier": self.factor,
        }


NO_RETRY = Retry(attempts=1)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Connection options. ``Client`` and ``AsyncClient`` take each of them as a keyword argument.

    Raises:
        ConfigError: a number is out of range.
        TypeError: a value has another type than described.
    """

    tls: Tls | None = None
    """TLS options; None sends plain text."""
    token: Token = field(default="", repr=False)
    """Bearer token, or a function that returns it. Without TLS, it is refused unless the server is local."""
    retry: Retry = Retry()  # frozen
    """Policy for retrying failed calls. The ``timeout_s`` of a call covers all of its attempts."""
    connections: int = 1
    """Number of connections, which calls use in turn. More than one helps behind a load balancer that
    balances connections instead of calls."""
    in_flight: int = DEFAULT_OPEN_CALLS
    """Maximum number of calls that ``rescore_stream`` keeps in flight at once."""
    max_message_bytes: int = MAX_MESSAGE_BYTES
    """Largest request, in bytes, that the server accepts. Larger ones fail without being sent."""
    only_ready: bool = True
    """Whether calls are only sent to servers that report to be ready."""

    def __post_init__(self) -> None:
        for name, types, expected in (
            ("tls", (Tls, NoneType), "Tls(…) or None"),
            ("token", (str, Callable, NoneType), "a string, or a function that returns one"),
            ("retry", Retry, "Retry(…) or NO_RETRY"),
            ("connections", int, "a number"),
            ("in_flight", int, "a number"),
            ("max_message_bytes", int, "a number"),
            ("only_ready", bool, "True or False"),
        ):
            value = getattr(self, name)
            if not isinstance(value, types):  # type: ignore[arg-type]  # Callable
                raise TypeError(f"{name} is of type {type(value).__name__}; expected {expected}")
        if self.connections < 1:
            raise ConfigError(f"connections: expected at least 1, got {self.connections}")
        if isinstance(self.token, str):
            check_token(self.token)

    @property
    def repeats_refused(self) -> bool:
        """Whether the client itself repeats calls that a full server has refused, instead of gRPC.

        gRPC cannot tell such a refusal from that of a message that is too large, which servers leave to gRPC
        if the message is larger than ``MAX_MESSAGE_BYTES``.
        """
        return self.max_message_bytes > MAX_MESSAGE_BYTES

    @classmethod
    def make(cls, **options: Any) -> ConnectionOptions:
        """Make options from keyword arguments.

        Raises:
            TypeError: an argument is not the name of an option.
        """
        known = [option.name for option in fields(cls)]
        for name in options:
            if name not in known:
                raise TypeError(
                    f"{quote(name)} is not an option of a client; expected some of model, "
                    f"{', '.join(known)}{did_you_mean(name, known)}"
                )
        return cls(**options)


def service_config(options: ConnectionOptions) -> dict[str, Any]:
    """Build gRPC's service config: calls go to the healthy servers in turn, and are retried."""
    methods: dict[str, Any] = {"name": [{"service": RESCORER_SERVICE}, {"service": MODEL_SERVICE}]}
    if options.retry.attempts > 1:
        codes = [code for code in RETRYABLE_CODES if code != REFUSED_CODE or not options.repeats_refused]
        methods["retryPolicy"] = {**options.retry.policy, "retryableStatusCodes": codes}
    return {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": RESCORER_SERVICE},
        "methodConfig": [methods],
        "retryThrottling": RETRY_THROTTLING,
    }


class Connections:
    """The channels of a client, which calls use in turn. Safe to share between threads.

    Args:
        grpc: Module that creates channels, ``grpc`` or ``grpc.aio``.
        target: Target as in ``Client``.
        options: How to connect.

    Raises:
        ConfigError: As in ``Client``.
        TypeError: the target is not a string.
    """

    def __init__(self, grpc: Any, target: str, options: ConnectionOptions) -> None:
        if not isinstance(target, str):
            raise TypeError(f"target is of type {type(target).__name__}; expected HOST:PORT")
        tls, count = options.tls, options.connections
        self._token = options.token
        self.target = target = target.strip()
        resolved, authority = resolve(target)
        if options.token and tls is None and not is_local_target(resolved):
            raise ConfigError(f"the token for {resolved} would be sent in plain text; set tls")
        self.diagnosis = Diagnosis(target, tls)
        settings = [
            *channel_options(options),
            ("grpc.inhibit_health_checking", int(not options.only_ready)),
            *([("grpc.default_authority", authority)] if authority else []),
            *([("grpc.enable_http_proxy", 0)] if is_direct(target) else []),
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
        """Stub for the next call, on the channel whose turn it is."""
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


def channel_options(options: ConnectionOptions) -> tuple[tuple[str, Any], ...]:
    return (
        # Responses are larger than requests, and the server is trusted.
        ("grpc.max_receive_message_length", -1),
        # Connect soon to a server that has just started.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5_000),
        ("grpc.keepalive_time_ms", KEEPALIVE_INTERVAL_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),  # of gRPC's own pings, a minute by default
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.service_config", json.dumps(service_config(options))),
        # DNS records must not override the service config.
        ("grpc.service_config_disable_resolution", 1),
        # With gRPC's default of 256 KiB, larger requests would not be retried.
        ("grpc.per_rpc_retry_buffer_size", options.max_message_bytes + RETRY_BUFFER_OVERHEAD_BYTES),
    )


def is_direct(target: str) -> bool:
    """Whether calls go to the servers themselves, whatever proxies the environment names.

    A proxy is not used for this machine, nor for several servers, whose names gRPC would send to it as one.
    """
    return "," in target or is_local_target(target)


def resolve(target: str) -> tuple[str, str]:
    """Return a target in gRPC's syntax, and the host name that the certificates of servers must have.

    The name is empty if gRPC takes it from the target. A single host name is resolved by gRPC, to all of its
    addresses, and again whenever a connection breaks. Several host names are resolved here, only once, to one
    address each.

    Raises:
        ConfigError: the target is empty, a port is not from 1 to 65535, one of several addresses has no port
            or cannot be resolved, or the addresses mix IP versions.

    >>> resolve("dns:///rescorer:50051")
    ('dns:///rescorer:50051', '')
    >>> resolve("127.0.0.1:1, 127.0.0.1:2")
    ('ipv4:127.0.0.1:1,127.0.0.1:2', '127.0.0.1')
    """
    parts = [part.strip() for part in target.split(",") if part.strip()]
    if not parts:
        raise ConfigError("the target is empty; expected HOST:PORT")
    for part in parts:
        match = DIAGNOSED_HOST_PORT.fullmatch(part)
        if match and not 0 < int(match[2]) < 1 << 16:
            raise ConfigError(f"{shorten(part, 100)}: expected a port from 1 to 65535")
    if "," not in target or target.startswith(GRPC_SCHEMES):
        return target, ""
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

"""The settings of the service, from options, environment variables and a TOML file.

Options take precedence over the environment, and the environment over the file. The source of each value is
kept for error messages. A misspelt environment variable is an error, because starting without an intended
limit is worse than not starting. A variable that resembles no setting is only reported, because another
program may use it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from rapidfuzz.distance import OSA

from rescorer.errors import BundleError, ConfigError, find_similar
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE
from rescorer.models import CONTEXT_CACHE_BYTES
from rescorer.protocol import MAX_MESSAGE_BYTES
from rescorer.protocol.messages import format_address, is_loopback
from rescorer.service import tracing
from rescorer.service.access import check_certificates, read_clients
from rescorer.service.logs import LogFormat
from rescorer.text import LANGUAGE_TAG

PREFIX = "RESCORER_"
CONFIG_VARIABLE = "RESCORER_CONFIG"
"""Environment variable that names the settings file, unless an option does."""
OTHER_VARIABLES = frozenset({CONFIG_VARIABLE, MAX_LINE_VARIABLE, "RESCORER_CACHE", "RESCORER_DATA"})
"""Variables with our prefix that are not settings of the service, but of other commands and of tests."""
SERVICE_LINK = re.compile(
    r"\w+_(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_\w+)?=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)_(PROTO|PORT|ADDR)=.*)"
)
"""Variables that Kubernetes sets for each Service, such as RESCORER_PORT=tcp://10.0.0.1:80 for one that is
called rescorer."""
RENAMED = {"scorers": "workers", "scorer_timeout_s": "worker_timeout_s"}
"""Settings by their former names, which are refused with the new name."""
OTHER_SERVERS = dict.fromkeys(("listen", "bind", "address", "addr"), ("host", "port")) | {
    "cert": ("tls_certificate",),
    "key": ("tls_key",),
}
"""Settings by the names that other servers have for them."""
LETTERS_PER_TYPO = 5
"""Number of letters per tolerated typo when a name is compared with the known names; one typo is always
tolerated."""


class Given(NamedTuple):
    """A value for a setting, and the source it comes from."""

    value: Any
    origin: str
    """For example ``option --port``, ``environment RESCORER_PORT`` or ``file service.toml``."""


def gather(
    settings: type[BaseSettings], config: Path | str | None, options: Mapping[str, Any]
) -> dict[str, list[Given]]:
    """Collect the values of every source, by setting; the first value of a setting is the effective one.

    Args:
        options: values by setting, or by flag (``--prot``) if the flag is unknown; None counts as not given.

    Raises:
        ConfigError: the settings file cannot be read.
    """
    values: dict[str, list[Given]] = {}

    def add(name: str, value: Any, origin: str) -> None:
        values.setdefault(name, []).append(Given(value, origin))

    for name, value in options.items():
        if value is not None:
            add(name, value, "command line" if name.startswith("--") else f"option {flag_of(name)}")
    for name, value, variable in variables(settings):
        add(name, value, f"environment {variable}")
    if path := config or os.environ.get(CONFIG_VARIABLE):
        for name, value in read_file(settings, Path(path)).items():
            add(name, value, f"file {path}")
    return values


def read_file(settings: type[BaseSettings], path: Path) -> dict[str, Any]:
    """Read a TOML file of settings; paths in it are relative to the working directory of the server.

    Raises:
        ConfigError: the file cannot be read.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such settings file")
    try:
        return TomlConfigSettingsSource(settings, path)()
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None


def unknown_setting(name: str, known: list[str]) -> str:
    """Return the error message for an unknown setting or flag, with its new name or the nearest known one."""
    plain_name = name.removeprefix("--").replace("-", "_")
    is_flag = name.startswith("--")
    kind, spell = ("option", flag_of) if is_flag else ("setting", str)
    if plain_name in RENAMED:
        return f"no such {kind}; it is now called {spell(RENAMED[plain_name])!r}"
    if plain_name in OTHER_SERVERS:
        settings = " and ".join(repr(spell(setting)) for setting in OTHER_SERVERS[plain_name])
        return f"no such {kind}; use {settings}"
    # Without dashes, which would make all flags similar.
    near = find_similar(plain_name, [*known, "config"] if is_flag else known)
    return f"no such {kind}" + (f"; did you mean {spell(near)!r}?" if near else "")


def flag_of(name: str) -> str:
    """Return the command-line option of a setting."""
    return "--" + name.replace("_", "-")


def variables(settings: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    """Yield setting, value and variable for each variable that is a setting, or a renamed or misspelt one."""
    for name, value in EnvSettingsSource(settings)().items():
        if not SERVICE_LINK.fullmatch(f"{(variable := PREFIX + name.upper())}={value}"):
            yield name, value, variable
    for name, value, variable in _unknown(settings):
        if name in RENAMED or is_misspelt(name, settings.model_fields):
            yield name, value, variable


def unknown_variables(settings: type[BaseSettings]) -> Iterator[tuple[str, str]]:
    """Yield each variable with our prefix that resembles no setting (RESCORER_IMAGE), with a message."""
    for name, _, variable in _unknown(settings):
        if name not in RENAMED and not is_misspelt(name, settings.model_fields):
            yield variable, unknown_setting(name, list(settings.model_fields))


def is_misspelt(name: str, known: Iterable[str]) -> bool:
    """Whether a name is a known one with typos: letters added, left out, changed or exchanged."""
    max_typos = max(1, len(name) // LETTERS_PER_TYPO)
    return any(OSA.distance(name, known_name) <= max_typos for known_name in known)


def _unknown(settings: type[BaseSettings]) -> Iterator[tuple[str, str, str]]:
    """Yield the same as ``variables`` for variables that match no setting; like pydantic, ignore case."""
    for key, value in os.environ.items():
        variable = key.upper()
        name = variable.removeprefix(PREFIX).lower()
        known = name in settings.model_fields or variable in OTHER_VARIABLES
        if variable.startswith(PREFIX) and not known and not SERVICE_LINK.fullmatch(f"{variable}={value}"):
            yield name, value, variable


BYTES_PER_TOKEN = 8
"""Assumed size of a request in bytes per word, scores included. Until the words of a request are counted, its
cost is estimated from its size."""

OTHER_CALLS_PER_CONNECTION = 64
"""Maximum number of open calls per connection in addition to calls with lists: refused calls, and queries of
health and models."""


class ServiceSettings(BaseSettings):
    """Settings of the service; use ``load_settings`` to read them from all sources."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, use_attribute_docstrings=True)

    bundle: Path | None = None
    """Folder of the bundle to serve, or of its versions, of which the newest valid one is served."""
    repository: Path | None = None
    """Folder of several bundles and their versions, name/version/, to serve instead of a single bundle."""
    models: Annotated[tuple[str, ...], NoDecode] = ()
    """Models to serve from the repository, comma-separated: name follows the newest version, name/3 stays
    with that version. The first one answers requests that name no model. Empty: all models in the
    repository."""
    poll_s: float = Field(0.0, ge=0)
    """Interval at which to look for new versions; 0: only on SIGHUP or the admin call."""
    max_model_bytes: int = Field(0, ge=0)
    """Memory limit for the models of each worker, estimated from their files; a version that does not fit
    into memory alongside the versions in service is refused. 0: no limit."""
    shadow: str | None = None
    """A second bundle whose rankings are compared with those of the first one, for the metrics only: name or
    name/3 of the repository, or a folder (starting with a dot or a slash if there is a repository). None: no
    comparison."""
    shadow_share: float = Field(0.1, ge=0, le=1)
    """Share of the lists that the shadow bundle also scores, chosen by the ids of request and list."""
    device: str = "cpu"
    """Device of the models: cpu, cuda, cuda:1, …"""
    dtype: Literal["float32", "bfloat16", "int8", "auto"] = "float32"
    """Precision of matrix products. bfloat16, and int8 on CPUs, are faster on processors that support them
    and slightly less accurate. auto: what each bundle records, see `rescorer-train precision`."""
    context_cache_bytes: int = Field(CONTEXT_CACHE_BYTES, ge=0)
    """Size of the cache for states after contexts, per recurrent network and worker. With a cache, a context
    that is sent again or has grown is not read from its start. 0: no cache."""
    language: str = ""
    """Language of the texts, such as tr or az-Latn: decides whether I and ı are one letter when texts are
    compared, for merging and for decision rules. Empty: that of each bundle."""
    dictionary: Path | None = None
    """File of pronunciations in the form of the CMU dictionary, for requests that generate hypotheses. It is
    read before the server reports that it serves. None: the dictionary of the extra ``sounds``, read at the
    first such request, which then waits for seconds."""
    threads: int = Field(0, ge=0)
    """Number of CPU threads for the neural models in each worker. 0: one core is reserved per front end, and
    the others are divided among the workers."""
    host: str = "127.0.0.1"
    """Name or address to listen on. Without a certificate the service speaks plain text, and addresses other
    than loopback are refused unless ``allow_insecure`` is set."""
    port: int = Field(50051, ge=0, le=65535)
    """Port to listen on; 0: any free port, which is written to the log and to ``port_file``."""
    port_file: Path | None = None
    """File to write the port to, for scripts that start a server."""
    allow_insecure: bool = False
    """Accept unencrypted connections from other machines: for trusted networks, or behind a proxy that
    encrypts."""
    tls_certificate: Path | None = None
    """The server's certificate chain (PEM). If set, the service speaks TLS only. Reloaded when it changes."""
    tls_key: Path | None = None
    """The certificate's private key (PEM), without a password."""
    tls_client_ca: Path | None = None
    """Certificate authorities (PEM) that sign client certificates. None: clients need no certificate."""
    access: Path | None = None
    """File of the clients that may connect: hashes of their tokens or their certificates, and their roles.
    `rescorer token` creates an entry. Only its owner may write it. None: anyone who can connect may score."""
    admin: bool = False
    """Offer AdminService to clients with the role admin."""
    log_texts: bool = False
    """Write the texts of requests to the log, up to 250,000 characters per request; by default they are never
    logged."""
    log_format: LogFormat = "auto"
    """json: one object per line; console: readable text; auto: console if the log goes to a terminal."""
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Port for Prometheus metrics over HTTP, in plain text and without authentication; 0: any free port,
    which is written to the log. None: no metrics endpoint. A connection carries one request, is closed when
    its client takes longer than 10 s to send or read, and there are at most 64 of them."""
    metrics_host: str = "127.0.0.1"
    """Name or address of the metrics port. Anyone who can reach this port can see how busy the server is."""
    trace_endpoint: str | None = Field(None, pattern=r"^https?://")
    """URL of a collector, such as http://127.0.0.1:4317, to send spans to (OTLP over gRPC); needs the extra
    ``tracing``. None: no spans."""
    trace_share: float = Field(1.0, ge=0, le=1)
    """Share of the calls whose spans are sent; a call that continues a trace follows that trace's
    decision."""
    max_message_bytes: int = Field(MAX_MESSAGE_BYTES, ge=1024)
    """Maximum size of a request; gRPC itself refuses larger ones with RESOURCE_EXHAUSTED."""
    max_lists: int = Field(128, ge=1)
    """Maximum number of lists per message. 4 MiB hold about 300 lists of 100 hypotheses; with 128 lists an
    answer still takes only seconds on one core, and the cost of a round trip is negligible."""
    max_hypotheses: int = Field(2000, ge=1)
    """Maximum number of hypotheses per list, and of texts per ScoreText request. The default is twice the
    length of the longest n-best lists in common use."""
    max_words: int = Field(1000, ge=1)
    """Maximum number of words per hypothesis, text or context, separated by blanks or punctuation. The
    default corresponds to minutes of speech."""
    max_request_words: int = Field(262_144, ge=1)
    """Maximum number of words per message, including sentence ends and contexts. Words that hypotheses of a
    list share from their start count once, so that ordinary lists may be several times as long. The default
    takes one core with the starter bundle about half a minute. It is also the maximum number of pieces of
    words that models of the bundle read."""
    max_score_streams: int = Field(1000, ge=1)
    """Maximum number of streams of scores per list, and of those that the weights of a request name."""
    max_field_values: int = Field(524_288, ge=1)
    """Maximum number of values in the clients' fields of all lists and hypotheses of a message, such as the
    words and times of hypotheses. A value takes about a hundred bytes of memory, however few it has in the
    message."""
    max_previous: int = Field(65_536, ge=1)
    """Maximum number of previous utterances per message, of all lists together. Those that are not read,
    because they have no words or are too old, count too. The default takes one core a quarter of a second."""
    max_phrases: int = Field(20_000, ge=1)
    """Maximum number of phrases per message, with their other spellings; a list may have 5,000 of them. The
    default takes one core 0.2 s to compile."""
    max_search_steps: int = Field(8_000_000_000, ge=1)
    """Maximum work per message of finding phrases in hypotheses, and of finding what sounds like them if
    hypotheses are generated, estimated before each list is searched: comparisons of a phone with that of a
    phrase, and eight for each comparison of a word with that of a phrase. The default allows for 32 lists of
    2,000 phrases with generated hypotheses, and takes one core about a minute."""
    max_decision_steps: int = Field(100_000_000, ge=1)
    """Maximum work of the decision rules and rerankers per message, in comparisons of a word of a hypothesis
    with up to 64 words of another. In a confusion network, a word counts as 2,000 and more, and every
    hypothesis as 400 per word of the longest. The default allows for minimum Bayes risk of 2,000 hypotheses
    of 40 words, and takes one core about a second, or several if long hypotheses have nothing in common."""
    max_name_chars: int = Field(1000, ge=1)
    """Maximum number of characters of a list's id and of the names of streams, weights and models. Answers
    repeat the names of streams for every hypothesis."""
    max_response_bytes: int = Field(16 * 1024 * 1024, ge=1024)
    """Maximum size of an answer, estimated before it is made. The default allows for 2,000 hypotheses with
    300 streams, or 128 lists of 100 hypotheses with 40 streams. Clients must be able to receive such answers:
    gRPC's own default is 4 MiB, which the Python client raises."""
    max_in_flight_lists: int = Field(512, ge=1)
    """Maximum number of lists accepted and not yet answered, over all calls. Above this limit unary calls are
    refused as overload and streams wait. A ScoreText counts as one list. If several clients compete, none of
    them may hold more lists than are still free."""
    max_in_flight_tokens: int = Field(524_288, ge=1)
    """Maximum number of words accepted and not yet answered, including sentence ends and contexts. The limit
    must allow for at least one full message; the default takes one core some seconds. Clients share this
    limit in the same way as the lists, and one client may hold three quarters of it, so that there is room
    for another."""
    max_client_lists: int = Field(384, ge=1)
    """Maximum number of lists per client that are accepted and not yet answered. Clients are distinguished by
    identity if they authenticate, otherwise by connection. The default leaves a quarter of
    max_in_flight_lists to a newcomer."""
    max_in_flight_bytes: int = Field(128 * 1024 * 1024, ge=1024)
    """Maximum size of the messages in flight: requests that are not yet answered, the estimated sizes of
    their answers, and answers that their clients have not yet read. Above this limit unary calls are refused
    as overload and streams wait. Clients share this limit in the same way as the lists."""
    max_client_bytes: int = Field(64 * 1024 * 1024, ge=1024)
    """Maximum size of the messages in flight per client."""
    max_unread_s: float = Field(60.0, gt=0)
    """Maximum time that an answer may wait for its client to read it; then its call is cancelled."""
    max_streams: int = Field(256, ge=1)
    """Maximum number of open streams, over all clients. When all are taken, a client with few streams takes
    the place of an idle stream of the client that has most."""
    max_client_streams: int = Field(64, ge=1)
    """Maximum number of open streams per client."""
    max_watches: int = Field(1024, ge=1)
    """Maximum number of open health watches, over all connections. When all are taken, a new connection
    takes the place of a watch of a connection that has several."""
    max_client_watches: int = Field(64, ge=1)
    """Maximum number of open health watches per connection."""
    max_wait_s: float = Field(60.0, gt=0)
    """Maximum time for a call, or for a message of a stream, unless its deadline is earlier."""
    max_batch_tokens: int = Field(16_384, ge=1)
    """Maximum number of words per batch, including sentence ends and contexts. The default holds about 10
    lists of 100 hypotheses of 15 words. Longer lists are split."""
    batch_wait_ms: float = Field(0.0, ge=0, le=1000)
    """How long a batch waits for more lists. 0: the lists that arrived during the previous batch form the
    next."""
    workers: int = Field(1, ge=0, le=256)
    """Number of processes that score, each with the models in its memory and ``threads`` threads; on a CPU,
    one per core gives the highest throughput. 0: score in a thread of the server itself, which needs the
    least memory but delays calls."""
    worker_timeout_s: float = Field(60.0, gt=0)
    """Maximum time that a worker may take for one batch, or a front end to respond, before it is replaced.
    Loading does not count."""
    load_timeout_s: float = Field(600.0, gt=0)
    """Maximum time that a worker may take to load one bundle; a version that takes longer is refused, and the
    previous one stays in service."""
    front_ends: int = Field(1, ge=1, le=64)
    """Number of processes that accept and answer calls on one port (Linux) and share the workers. Use more
    than 1 if a single one cannot keep a GPU, or many workers, busy."""
    max_connection_age_s: float = Field(300.0, ge=0)
    """Age of a connection (plus or minus a tenth) at which the client is asked to reconnect once its calls
    are answered, so that it finds servers that were added under the same name. 0: never."""
    max_connection_age_grace_s: float = Field(3600.0, ge=0)
    """Time that the calls of such a connection have to end before it is closed all the same, with answers
    that the client has not read. 0: no limit."""
    max_idle_connection_s: float = Field(300.0, ge=0)
    """Time without an open call after which a connection is closed; gRPC's clients connect again when they
    need to. 0: no limit."""
    max_handshake_s: float = Field(20.0, gt=0)
    """Maximum time for the handshakes of TLS and HTTP/2 on a new connection."""
    max_idle_s: float = Field(300.0, gt=0)
    """Maximum time for which a stream may carry no message, or a message of a stream may wait to be read.
    Then the stream ends with UNAVAILABLE, and the client may open it again."""
    grace_s: float = Field(30.0, ge=0)
    """Maximum time that a stopping server allows for open calls to finish."""

    @classmethod
    def settings_customise_sources(  # type: ignore[override]  # only init_settings is used
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **_: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use the given values only: ``gather`` has read the other sources."""
        return (init_settings,)

    @field_validator("models", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)

    @property
    def max_calls_per_connection(self) -> int:
        """Calls that a connection may have open, including reset calls that are not cleaned up yet."""
        return self.max_client_lists + self.max_client_streams + OTHER_CALLS_PER_CONNECTION


def find_contradictions(settings: ServiceSettings) -> Iterator[str]:
    """Yield a message for each contradiction between settings."""
    if (settings.bundle is None) == (settings.repository is None):
        both = ", not both" if settings.bundle else ""
        yield f"bundle: expected either the bundle or the repository to serve{both}"
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
            expected = f"expected at least {full_call}, the sum of max_message_bytes and max_response_bytes"
            yield f"{name} is {limit}; {expected}"
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


EXPECTED = {
    "int": "an integer",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "path": "a path, as text",
    "string": "text",
    "tuple": "names, with commas between them or as an array",
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text that begins with http:// or https://",
}
"""Expected values, by prefix of pydantic's error type; the longest matching prefix is used."""


def describe_expected(error: Mapping[str, Any]) -> str:
    """Describe the expected value, using our own message if there is one and pydantic's otherwise."""
    kinds = [kind for kind in EXPECTED if error["type"].startswith(kind)]
    if not kinds:
        return str(error["msg"])
    return "expected " + EXPECTED[max(kinds, key=len)].format(**error.get("ctx", {}))


def load_settings(config: Path | str | None = None, **arguments: Any) -> ServiceSettings:
    """Load settings from arguments, the environment, a TOML file and defaults, in this order of precedence.

    Args:
        config: the TOML file; None: the one that RESCORER_CONFIG names, if any.
        arguments: settings by name; None counts as not given.

    Raises:
        ConfigError: settings are unknown, wrong or contradict each other; the message lists all of them.
    """
    return check_settings(gather(ServiceSettings, config, arguments))


def check_settings(values: dict[str, list[Given]], check_machine: bool = False) -> ServiceSettings:
    """Build settings from values by name, each list with the effective value first.

    Args:
        check_machine: also require the bundles and the device to be available on this machine. If something
            else is wrong, they are checked in any case, so that all errors are reported at once.

    Raises:
        ConfigError: see ``load_settings``.
        BundleError: bundles are missing and nothing else is wrong.
    """
    chosen = {name: given[0].value for name, given in values.items()}
    errors = []
    try:
        settings = ServiceSettings(**chosen)
    except ValidationError as invalid:
        for error in invalid.errors():
            name, message = str(error["loc"][0]), f"{error['input']!r}; {describe_expected(error)}"
            if error["type"] == "extra_forbidden":
                message = unknown_setting(name, list(ServiceSettings.model_fields))
            errors.append(f"{name} ({values[name][0].origin}): {message}")
            chosen.pop(name, None)
        settings = ServiceSettings(**chosen)
    errors += find_contradictions(settings)
    if errors or check_machine:
        errors += missing_device(settings)
        missing = list(missing_bundles(settings))
        if errors:
            raise ConfigError(format_errors("service settings", errors + missing))
        if missing:
            raise BundleError(format_errors("bundles", missing))
    return settings


def format_errors(subject: str, errors: Sequence[str]) -> str:
    """Format a single error on the same line as the subject, several errors on one line each."""
    return f"{subject}: {errors[0]}" if len(errors) == 1 else "\n  ".join([f"{subject}:", *errors])


def missing_bundles(settings: ServiceSettings) -> Iterator[str]:
    """Yield an error for each bundle that is missing; found bundles are checked when they are loaded."""
    # Imported only if the settings are otherwise right, because it imports numpy, which is slow.
    from rescorer.service.repository import NO_BUNDLES, find_versions, select_versions

    folder = settings.repository or settings.bundle
    if folder is None:
        return
    try:
        found, unreadable = find_versions(folder, single=settings.repository is None)
    except BundleError as error:
        yield str(error)
        return
    if not found:
        yield from unreadable.values() or [f"{folder}: {NO_BUNDLES}"]
    elif settings.repository is not None:
        for model, versions in select_versions(found, settings.models).items():
            if not versions:
                yield unreadable.get(model.split("/")[0]) or f"{folder}: has no bundle {model}"


def missing_device(settings: ServiceSettings) -> Iterator[str]:
    """Yield an error if the device is not available.

    A separate process checks the device, so that the server need not import torch.
    """
    if settings.device != "cpu":
        command = [sys.executable, "-m", "rescorer.models.kernels", settings.device]
        error = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        if error:
            yield error

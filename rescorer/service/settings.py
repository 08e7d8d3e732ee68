"""The settings of the service: flat, typed, explained, and checked before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from rescorer.lm import CONTEXT_CACHE_BYTES
from rescorer.protocol import MAX_MESSAGE_BYTES
from rescorer.protocol.addresses import format_address
from rescorer.service.config_sources import PREFIX
from rescorer.service.observability.logs import LogFormat

BYTES_PER_TOKEN = 8
"""Assumed size of a request per word, scores included. The cost of a request is estimated from its size in
bytes until its words are counted."""

OTHER_CALLS_PER_CONNECTION = 64
"""Maximum number of open calls per connection in addition to those with lists: refused calls, health and
model queries."""


class ServiceSettings(BaseSettings):
    """Settings of the service; use ``preflight.load_settings`` to read them from all sources."""

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
    dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """Precision of matrix products. bfloat16, and int8 on CPUs, are faster on processors that support them
    and slightly less accurate."""
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
    """Maximum number of words per hypothesis, text or context, separated by blanks, hyphens or underscores.
    The default corresponds to minutes of speech."""
    max_request_words: int = Field(262_144, ge=1)
    """Maximum number of words per message, including sentence ends and contexts. Words that hypotheses of a
    list share from their start count once, so that ordinary lists may be several times as long. The default
    takes one core with the starter bundle about half a minute."""
    max_score_streams: int = Field(1000, ge=1)
    """Maximum number of streams of scores per list."""
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
    hypotheses are generated, estimated before each list is searched: comparisons of a word with that of a
    phrase, and of a phone with that of a phrase. The default allows for 32 lists of 2,000 phrases with
    generated hypotheses, and takes one core about a minute."""
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
        """Use the given values only: ``config_sources.gather`` reads the other sources and keeps their
        origins."""
        return (init_settings,)

    @field_validator("models", mode="before")
    @classmethod
    def _split_names(cls, value: Any) -> Any:
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if isinstance(value, str)
            else value
        )

    @property
    def address(self) -> str:
        return format_address(self.host, self.port)

    @property
    def max_calls_per_connection(self) -> int:
        """Calls that a connection may have open, including reset calls that are not cleaned up yet."""
        return self.max_client_lists + self.max_client_streams + OTHER_CALLS_PER_CONNECTION

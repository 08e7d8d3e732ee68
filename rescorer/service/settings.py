"""Owns the service's settings: flat, typed, explained, and checked before anything starts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from rescorer.errors import ConfigError
from rescorer.lm import CONTEXT_CACHE_BYTES
from rescorer.protocol import MAX_MESSAGE_BYTES
from rescorer.protocol.addresses import address, is_loopback
from rescorer.service.config_sources import PREFIX
from rescorer.service.net.clients_file import read_clients
from rescorer.service.net.tls import check
from rescorer.service.observability import tracing
from rescorer.service.observability.logs import LogFormat

BYTES_A_TOKEN = 8
"""Of a message, scores and all: what a request will cost is told by its size until its words are counted."""

OTHER_CALLS = 64
"""That a connection may have open besides those that hold lists: refused ones, health and models."""


class ServiceSettings(BaseSettings):
    """``load_settings`` makes one, from every source and with errors of our own tree."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, use_attribute_docstrings=True)

    bundle: Path | None = None
    """Folder of the bundle to serve, or of its versions, of which the newest that is sound serves."""
    repository: Path | None = None
    """Folder of several bundles with their versions, name/version/, to serve instead of one bundle."""
    models: Annotated[tuple[str, ...], NoDecode] = ()
    """What to serve of the repository: name follows the newest version, name/3 stays with that one; several
    with commas between them. The first answers requests that name none. Empty: every name there."""
    poll_s: float = Field(0.0, ge=0)
    """How often to look for new versions; 0: only when told, by SIGHUP or the admin call."""
    max_model_bytes: int = Field(0, ge=0)
    """Memory that models may take in each process that scores, estimated from their files; a version that
    does not fit beside those that serve is refused. 0: no bound."""
    shadow: str | None = None
    """A second bundle, compared with the first, in the metrics alone: name or name/3 of the repository, or a
    folder, which begins with a dot or a slash where there is a repository. None: nothing is compared."""
    shadow_share: float = Field(0.1, ge=0, le=1)
    """Share of the lists that the shadow scores, too; chosen by the request's id and the list's."""
    device: str = "cpu"
    """Where neural models run: cpu, cuda, cuda:1, …"""
    dtype: Literal["float32", "bfloat16", "int8"] = "float32"
    """Of the networks' products; bfloat16, and on CPUs int8, are faster on processors that have them, and a
    little less exact."""
    context_cache_bytes: int = Field(CONTEXT_CACHE_BYTES, ge=0)
    """Memory of each recurrent network, in each process that scores, for what it made of contexts, so that
    one that comes again or has grown is not read from its start. 0: none."""
    threads: int = Field(0, ge=0)
    """CPU threads of the neural models, in each process that scores; 0: all cores but one a front end, shared
    out among the workers."""
    host: str = "127.0.0.1"
    """Name or address to listen on. Without a certificate the service speaks plain text, and others than
    loopback are refused unless ``allow_insecure``."""
    port: int = Field(50051, ge=0, le=65535)
    """0: any free port; the log and ``port_file`` say which."""
    port_file: Path | None = None
    """Where to write the bound port, for scripts that start a server."""
    allow_insecure: bool = False
    """Listen beyond this machine in plain text; for trusted networks or behind a proxy that encrypts."""
    tls_certificate: Path | None = None
    """The server's certificate chain, PEM; then the service speaks TLS only. Read again when it changes."""
    tls_key: Path | None = None
    """The certificate's private key, PEM, without a password."""
    tls_client_ca: Path | None = None
    """Authorities, PEM, one of whom must have signed each client's certificate. None: clients need none."""
    access: Path | None = None
    """File of the clients that are let in, their tokens' hashes or certificates, and their roles; `rescorer
    token` makes an entry. None: whoever can connect may score."""
    admin: bool = False
    """Offer AdminService, to clients with the role admin."""
    log_texts: bool = False
    """Write the texts of requests into the log; otherwise they are never there."""
    log_format: LogFormat = "auto"
    """json: an object a line; console: lines for people; auto: console where the log goes to a terminal."""
    metrics_port: int | None = Field(None, ge=0, le=65535)
    """Port where Prometheus reads metrics by HTTP, in plain text and without a login; 0: any free port, the
    log says which. None: there is none."""
    metrics_host: str = "127.0.0.1"
    """Name or address of that port; others than loopback only in networks that may see how much is done."""
    trace_endpoint: str | None = Field(None, pattern=r"^https?://")
    """URL of a collector, such as http://127.0.0.1:4317, to send spans to by OTLP over gRPC; needs the
    packages of the extra ``tracing``. None: no spans."""
    trace_share: float = Field(1.0, ge=0, le=1)
    """Share of the calls whose spans are sent; a call that continues a trace goes by what that trace says."""
    max_message_bytes: int = Field(MAX_MESSAGE_BYTES, ge=1024)
    """Of one request; gRPC itself ends larger ones with RESOURCE_EXHAUSTED."""
    max_lists: int = Field(128, ge=1)
    """Lists of one message. 4 MiB holds some 300 lists of 100 hypotheses; at 128 an answer is still a matter
    of seconds on one core, and the cost of a round trip is spread thin."""
    max_hypotheses: int = Field(2000, ge=1)
    """Hypotheses of one list, and texts of one ScoreText: twice the longest n-best lists in common use."""
    max_words: int = Field(1000, ge=1)
    """Words of one hypothesis, text or context, counted at blanks, hyphens and underscores: minutes of
    speech."""
    max_in_flight_lists: int = Field(512, ge=1)
    """Lists accepted and not yet answered, over all calls; above it unary calls are refused as overload and
    streams wait. A ScoreText counts as one. Where several clients ask, none may hold more than is still
    free."""
    max_in_flight_tokens: int = Field(524_288, ge=1)
    """Words accepted and not yet answered, ends of sentences and contexts counted; some seconds of one core,
    and room for one full message. Clients share it as they share the lists."""
    max_client_lists: int = Field(512, ge=1)
    """Lists of one client accepted and not yet answered; a client is a login, or else a connection."""
    max_streams: int = Field(256, ge=1)
    """Streams open at a time, over all clients."""
    max_client_streams: int = Field(64, ge=1)
    """Streams of one client open at a time."""
    max_wait_s: float = Field(60.0, gt=0)
    """How long a call, or a message of a stream, may take where its caller set no earlier deadline."""
    max_batch_tokens: int = Field(16_384, ge=1)
    """Words scored at once, ends of sentences and contexts counted; some 10 lists of 100 hypotheses of 15
    words. Longer lists are cut."""
    batch_wait_ms: float = Field(0.0, ge=0, le=1000)
    """How long a batch waits for company. 0: what has come while the one before was scored is the next."""
    workers: int = Field(1, ge=0, le=256)
    """Processes that score, each with the models in its memory and ``threads`` threads; on a CPU, one a core
    does the most. 0: a thread of the server itself, which takes the least memory and holds up calls."""
    worker_timeout_s: float = Field(60.0, gt=0)
    """A worker that takes longer over one batch is given up and replaced, as is a front end that does not
    answer for so long."""
    front_ends: int = Field(1, ge=1, le=64)
    """Processes that take and answer calls, on one port (Linux); the workers are theirs together. More than 1
    where one is too slow for a GPU, or for many workers."""
    max_connection_age_s: float = Field(300.0, ge=0)
    """After so long, a tenth more or less, a client is asked to connect anew once its calls are answered, and
    then finds servers that were added to the name. 0: never."""
    grace_s: float = Field(30.0, ge=0)
    """How long a server that was told to stop lets calls finish."""

    @classmethod
    def settings_customise_sources(  # type: ignore[override]  # the others are not asked for
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, **_: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is handed in: ``gather`` asks the other sources, and keeps apart who said what."""
        return (init_settings,)

    @field_validator("models", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return (
            tuple(part.strip() for part in value.split(",") if part.strip())
            if isinstance(value, str)
            else value
        )

    @property
    def address(self) -> str:
        return address(self.host, self.port)

    @property
    def connection_calls(self) -> int:
        """That a connection may have open, those that it has reset and nobody has looked at yet included."""
        return self.max_client_lists + self.max_client_streams + OTHER_CALLS

    def contradictions(self) -> Iterator[str]:
        """What does not fit together, though each setting alone is right."""
        if (self.bundle is None) == (self.repository is None):
            yield "bundle: expected either the bundle or the repository to serve" + (
                ", not both" if self.bundle else ""
            )
        if self.models and self.repository is None:
            yield f"models: {', '.join(self.models)} chosen of a repository, but there is none"
        if self.shadow and self.repository is not None and not self.models:
            yield "shadow: expected models, the first of which it is compared with"
        if self.max_in_flight_lists < self.max_lists:
            yield (
                f"max_in_flight_lists is {self.max_in_flight_lists}, less than the {self.max_lists} of "
                "max_lists: a full request would never be accepted"
            )
        if self.max_batch_tokens < 2 * self.max_words + 1:
            yield (
                f"max_batch_tokens is {self.max_batch_tokens}; expected at least {2 * self.max_words + 1}, a "
                "hypothesis and a context of max_words"
            )
        if self.max_in_flight_tokens * BYTES_A_TOKEN < self.max_message_bytes:
            yield (
                f"max_in_flight_tokens is {self.max_in_flight_tokens}; expected at least "
                f"{-(-self.max_message_bytes // BYTES_A_TOKEN)}, as many as max_message_bytes may hold"
            )
        if self.front_ends > 1:
            yield from self._sharing_mistakes()
        if self.dtype == "int8" and self.device != "cpu":
            yield f"dtype is int8, which is for CPUs; expected bfloat16 or float32 on {self.device}"
        if not (is_loopback(self.host) or self.allow_insecure or self.tls_certificate):
            yield (
                f"host is {self.host!r}: the service speaks plain text and would listen beyond this machine; "
                "expected 127.0.0.1, ::1 or localhost, or tls_certificate, or allow_insecure"
            )
        if self.port_file is not None and not self.port_file.absolute().parent.is_dir():
            yield f"port_file: {self.port_file}: expected a folder that is there to write it into"
        if self.trace_endpoint is not None and not tracing.is_installed():
            yield "trace_endpoint: expected the packages of rescorer[tracing] to be installed"
        yield from self._security_mistakes()

    def _sharing_mistakes(self) -> Iterator[str]:
        several = f"front_ends is {self.front_ends}"
        if not sys.platform.startswith("linux"):
            yield f"{several}; expected 1: only Linux shares a port out among processes"
        if not self.workers:
            yield f"{several} and workers 0: a thread of one cannot be shared; expected workers of 1 or more"
        if self.shadow:
            yield f"{several}: each would have a shadow of its own; expected 1 where there is a shadow"

    def _security_mistakes(self) -> Iterator[str]:
        if (self.tls_certificate is None) != (self.tls_key is None):
            yield "tls_certificate and tls_key: expected both or neither"
        elif self.tls_certificate is not None and self.tls_key is not None:
            yield from complaint(check, self.tls_certificate, self.tls_key, self.tls_client_ca)
        if self.tls_client_ca is not None and self.tls_certificate is None:
            yield "tls_client_ca: clients show certificates only to a server that has tls_certificate"
        if self.access is not None:
            yield from complaint(self._check_access, self.access)
        elif self.admin:
            yield "admin: expected access, a file that says who has the role admin"

    def _check_access(self, access: Path) -> None:
        clients = read_clients(access)
        if self.tls_client_ca is None and any(each.certificates for each in clients):
            raise ConfigError(f"access file {access}: certificates are shown only where tls_client_ca is set")
        if self.admin and not any("admin" in each.roles for each in clients):
            raise ConfigError(f"access file {access}: nobody has the role admin, which admin is for")


def complaint(look: Callable[..., None], *files: Path | None) -> Iterator[str]:
    """What is wrong with files, if anything is."""
    try:
        look(*files)
    except ConfigError as fault:
        yield str(fault)

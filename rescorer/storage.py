"""Find and read objects of storage services by their URLs, such as ``s3://bucket/key``, through fsspec.

Faults of a storage are raised as OSErrors, with a reason in one line: not found, access denied, no answer.
The libraries of the services may not be installed, so their errors are recognised by the names of classes.
"""

from __future__ import annotations

import errno
import glob
import io
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from rescorer.errors import ConfigError, FormatError, shorten

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(name: object) -> bool:
    """Whether a name is a URL: that of an object in a storage, or a ``file://`` URL (see ``as_local``)."""
    return isinstance(name, str) and URL.match(name) is not None


def protocol_of(url: str) -> str:
    """The protocol of a URL, in lower case.

    >>> protocol_of("S3://bucket/key")
    's3'
    """
    return url.partition("://")[0].lower()


def as_local(name: str) -> str:
    """Convert a ``file://`` URL to a path, and the protocol of another URL to lower case; leave other names.

    Raises:
        ConfigError: a URL has a password (see ``check_url``), or a path has a NUL.

    >>> as_local("file:///data/a%20b.jsonl"), as_local("S3://bucket/Key")
    ('/data/a b.jsonl', 's3://bucket/Key')
    """
    if not is_url(name):
        return name
    check_url(name)
    if (protocol := protocol_of(name)) != "file":
        return protocol + name[len(protocol) :]
    parts = urlsplit(name)
    path = unquote(parts.netloc.removeprefix("localhost") + parts.path)
    if "\0" in path:
        raise ConfigError(f"{name}: no file has such a name, with %00")
    return path


def check_url(name: str) -> None:
    """Raise ConfigError if a URL has a password, because messages, logs and plans name URLs as given.

    >>> check_url("sftp://user@host/lists.jsonl")
    """
    protocol, _, rest = name.partition("://")
    user, at, host = rest.partition("/")[0].rpartition("@")
    if at and ":" in user:
        raise ConfigError(
            f"{protocol}://***@{host}/…: the URL has a password, which messages and logs would show; leave "
            "it out, and give credentials as the storage's own tools take them, such as in the environment"
        )


def base_name(name: str | Path) -> str:
    """The last part of a name or URL."""
    return str(name).rstrip("/").rpartition("/")[2]


LIBRARIES = frozenset(
    {"aiobotocore", "aiohttp", "asyncio", "botocore", "fsspec", "gcsfs", "google", "requests"}
)
MAX_REASON_CHARS = 500
NO_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "DefaultCredentialsError"}
)
REFUSED_CREDENTIALS = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired"}
)
NO_ANSWER = frozenset(
    {
        "ConnectionError",
        "HTTPClientError",
        "TimeoutError",
        "FSTimeoutError",
        "ClientConnectionError",
        "Timeout",
    }
)
CHANGED = "FileExpired"
HOW_TO_LOG_IN = {
    "gs": "log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role",
}


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn faults of a storage in the ``with`` block into OSErrors whose ``strerror`` explains them.

    Raises:
        FileNotFoundError: there is no such object or bucket.
        FileExistsError: an object that should be created exists already.
        OSError: access is denied, the storage does not answer, or it fails.
    """
    try:
        yield
    except Exception as error:
        if (fault := explain(error, url)) is None:
            raise
        raise fault from error


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Turn faults of reading an object in the ``with`` block into FormatErrors, except FileNotFoundError.

    A reader of lists would take an OSError for the damaged end of a file, and continue without the rest.
    """
    try:
        with explained(url):
            yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=url) from error


def explain(error: Exception, url: str) -> OSError | None:
    """The OSError that describes a fault of a storage; None if ``error`` is not such a fault."""
    cause = error.__cause__
    is_from_web = isinstance(error, FileNotFoundError) and of_library(cause, "aiohttp")
    if isinstance(cause, Exception) and is_from_web and error_code(cause) not in ("404", "410"):
        return explain(cause, url)  # fsspec takes whatever is wrong with a web server for a missing object
    names = {kind.__name__ for kind in type(error).__mro__}
    code, family = error_code(error), "gs" if protocol_of(url) in GOOGLE else "s3"
    if isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, "exists already")
    if code == "NoSuchBucket":
        return FileNotFoundError(errno.ENOENT, "there is no such bucket")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, "there is no such object")
    if names & NO_CREDENTIALS:
        return PermissionError(errno.EACCES, f"no credentials: {HOW_TO_LOG_IN[family]}")
    if code in REFUSED_CREDENTIALS or code == "401":
        return PermissionError(errno.EACCES, f"the credentials are refused: {_first_line(error)}")
    if isinstance(error, PermissionError) or code in ("403", "AccessDenied") or "Forbidden" in str(error):
        return PermissionError(
            errno.EACCES, "access denied: these credentials need permission to list, read and write here"
        )
    if CHANGED in names:
        return OSError(errno.EBUSY, "changed while it was read")
    if names & NO_ANSWER:
        reason = _first_line(error)
        if "TimeoutError" in names and protocol_of(url) in WEB | GOOGLE:
            reason = f"it was silent for {SILENCE_S:g} s"
        return OSError(errno.ETIMEDOUT, f"the storage does not answer: {reason}")
    if isinstance(error, KeyError):  # a header or a field that libraries take for granted
        return OSError(errno.EPROTO, f"the storage fails: its answer has no {_first_line(error)}")
    if isinstance(error, OSError) or of_library(error, *LIBRARIES) or protocol_of(url) not in TESTED:
        return OSError(errno.EPROTO, f"the storage fails: {_first_line(error)}")  # EIO is that of a disk
    return None


def of_library(error: BaseException | None, *names: str) -> bool:
    """Whether an error's class belongs to one of some libraries."""
    return type(error).__module__.partition(".")[0] in names


def error_code(error: BaseException) -> str:
    """The code, such as ``NoSuchKey``, that a service gave an error or its cause; empty if there is none."""
    for fault in (error, error.__cause__, getattr(error.__cause__, "__cause__", None)):
        if (status := getattr(fault, "status", None)) is not None:  # of HTTP
            return str(status)
        response = getattr(fault, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
        if (code := getattr(fault, "code", None)) is not None:
            return str(code)
    return ""


def _first_line(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    lines = text.strip().split("\n")
    if lines[0].endswith(":"):  # such as "Parameter validation failed:"
        lines[:2] = [" ".join(lines[:2])]
    return shorten(lines[0], MAX_REASON_CHARS) or type(error).__name__


BLOCK_BYTES = 4 << 20
"""Smallest number of bytes to request at a time, so large that the delay of an answer matters little."""
BUFFER_BYTES = 1 << 16
S3 = frozenset({"s3", "s3a"})
GOOGLE = frozenset({"gs", "gcs"})
WEB = frozenset({"http", "https"})
TESTED = S3 | GOOGLE
"""Protocols whose libraries raise errors of their own. Others of fsspec raise whatever goes wrong in them."""
RETRIES = 2
"""Number of times that s3fs repeats a request after botocore's own retries (``AWS_MAX_ATTEMPTS``) failed."""


MAX_BODY_BYTES = 64 << 20
"""Largest body of an answer that is read at once, which is a block or a listing."""
SILENCE_S, ANSWER_S = 60.0, 300.0
"""Longest time in which a web server or Google's storage sends nothing, and in which these or S3 send the
headers of an answer, or its body, in seconds."""


class _BoundedBody:
    """The body of an answer. To read all of it at once fails if it is too large, or arrives too slowly.

    Args:
        content: aiohttp's stream of the body.
        fault: class of the error, after which the client does not try again.
    """

    def __init__(self, content: Any, fault: type[Exception]) -> None:
        self._content, self._fault = content, fault

    async def read(self, n: int = -1) -> bytes:
        if n >= 0:
            return bytes(await self._content.read(n))
        body = bytearray()
        async with _answering(self._fault):
            async for part in self._content.iter_any():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise self._fault(
                        f"it sends more than {MAX_BODY_BYTES:,} bytes where a part was asked for"
                    )
        return bytes(body)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


@asynccontextmanager
async def _answering(fault: type[Exception]) -> AsyncIterator[None]:
    """Allow the ``async with`` block ``ANSWER_S``; after that, raise an error of the class ``fault``."""
    import asyncio

    try:
        async with asyncio.timeout(ANSWER_S) as timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise fault(f"it took more than {ANSWER_S:g} s for one answer") from None


@cache
def _client_options(protocol: str) -> dict[str, Any]:
    """Options of a client that bound answers; by default, clients read them into memory without bounds."""
    if protocol not in WEB | S3 | GOOGLE:
        return {}
    import aiohttp
    import fsspec

    configured = fsspec.config.conf.get(protocol, {})
    if protocol in S3:
        from aiobotocore.httpsession import AIOHTTPSession

        class BoundedSession(AIOHTTPSession):
            async def send(self, request: Any) -> Any:
                is_streamed, request.stream_output = request.stream_output, True
                is_upload = bool(request.body)
                async with nullcontext() if is_upload else _answering(aiohttp.ClientError):
                    response = await super().send(request)
                response.raw.content = _BoundedBody(response.raw.content, aiohttp.ClientError)
                if not is_streamed:
                    await response.content
                return response

        session = {"http_session_cls": BoundedSession, **configured.get("config_kwargs", {})}
        return {"config_kwargs": session}
    fault = OSError if protocol in GOOGLE else aiohttp.ClientError  # gcsfs repeats requests after the latter

    class BoundedResponse(aiohttp.ClientResponse):
        async def start(self, connection: Any) -> aiohttp.ClientResponse:
            async with _answering(fault) if self.method in ("GET", "HEAD") else nullcontext():
                await super().start(connection)
            self.content = _BoundedBody(self.content, fault)  # type: ignore[assignment]
            return self

    timeout = aiohttp.ClientTimeout(None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
    if protocol in GOOGLE:
        session = {"response_class": BoundedResponse, **configured.get("session_kwargs", {})}
        return {"session_kwargs": session, "requests_timeout": configured.get("requests_timeout", timeout)}
    web = {"response_class": BoundedResponse, "timeout": timeout, **configured.get("client_kwargs", {})}
    return {"client_kwargs": web}


ZONAL_VARIABLE = "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"
"""Variable of gcsfs for clients that read zonal buckets, too."""


def _find_class(protocol: str) -> Any:
    """The class of fsspec's file systems for a protocol.

    By default, gcsfs asks for the kind of a bucket over gRPC whenever it opens an object. Where only HTTP
    gets through, as behind many proxies, each object then waits for a minute. So a class without this is
    used, unless ``ZONAL_VARIABLE`` is set.

    Raises:
        ImportError: a package is missing.
        ValueError: the protocol is unknown.
    """
    import fsspec

    if protocol in GOOGLE and ZONAL_VARIABLE not in os.environ:
        return import_module("gcsfs.core").GCSFileSystem
    return fsspec.get_filesystem_class(protocol)


def open_filesystem(url: str) -> Any:
    """The file system of fsspec for a URL. It caches no listings of folders, so that new objects are seen.

    Raises:
        ConfigError: a package is missing, the protocol is unknown, or the URL does not name a bucket.
    """
    check_url(url)
    protocol = protocol_of(url)
    if not url.partition("://")[2].strip("/"):
        raise ConfigError(f"{url}: expected the name of a bucket, such as {protocol}://BUCKET/KEY")
    try:
        filesystem = _find_class(protocol)(use_listings_cache=False, **_client_options(protocol))
    except ImportError:
        missing = "pip install gcsfs" if protocol in GOOGLE else "pip install 'rescorer[storage]'"
        raise ConfigError(f"{url}: object storage needs another package: {missing}") from None
    except ValueError:
        raise ConfigError(f"{url}: unknown protocol {protocol!r}; expected one such as s3 or gs") from None
    except Exception as error:
        if protocol in TESTED:
            raise
        raise ConfigError(f"{url}: cannot be opened by fsspec: {_first_line(error)}") from None
    if protocol in S3:
        filesystem.retries = RETRIES
    return filesystem


def normalise(url: str) -> str:
    """The URL in the spelling of ``find_objects``: one spelling of the protocol, and no slash at the end.

    Raises:
        ConfigError: see ``open_filesystem``.
    """
    return _name_of(open_filesystem(url), url)


def _name_of(filesystem: Any, url: str) -> str:
    return str(filesystem.unstrip_protocol(filesystem._strip_protocol(url)))


class _ObjectReader(io.RawIOBase):
    """An object as a stream of bytes. Reading raises FormatError for faults of the storage."""

    def __init__(self, stream: Any, url: str) -> None:
        self.name = url
        self._stream = stream

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._stream.seek(offset, whence))

    def tell(self) -> int:
        return int(self._stream.tell())

    def readinto(self, buffer: Any) -> int:
        try:
            with reading(self.name):
                return int(self._stream.readinto(buffer))
        except FileNotFoundError:
            raise FormatError("was deleted while it was read", file=self.name) from None

    def close(self) -> None:
        self._stream.close()
        super().close()


def open_object(url: str) -> BinaryIO:
    """Open an object for reading; blocks are requested when they are needed.

    All blocks come from one version of the object: if it changes meanwhile, reading fails, where the storage
    has entity tags.

    Raises:
        FileNotFoundError: there is no such object.
        FormatError: the object cannot be read; the stream raises the same error later.
        ConfigError: see ``open_filesystem``.
    """
    filesystem = open_filesystem(url)
    with reading(url):
        stream = filesystem.open(url, "rb", block_size=BLOCK_BYTES)
    return io.BufferedReader(_ObjectReader(stream, url), BUFFER_BYTES)


def is_object(url: str) -> bool:
    """Whether a URL names an object, not a prefix; raise FormatError if the storage cannot be asked."""
    filesystem = open_filesystem(url)
    try:
        with reading(url):
            return bool(filesystem.info(url)["type"] == "file")
    except FileNotFoundError:
        return False


def find_objects(url: str) -> list[str]:
    """The sorted URLs of the objects that a URL names: one, all below a prefix, or all that match a glob.

    Below a prefix, names with a part that begins with ``.`` or ``_`` are left out, as other tools do.

    Raises:
        FileNotFoundError: there is no such object.
        FormatError: the storage cannot be asked.
        ConfigError: as for ``open_filesystem``.
    """
    filesystem = open_filesystem(url)
    with reading(url):
        try:
            found = {url: filesystem.info(url)}
        except FileNotFoundError:
            found = filesystem.glob(url, detail=True) if glob.has_magic(url) else {}
            if not found:
                raise
        names = []
        for name, info in sorted(found.items()):
            names += [name] if info["type"] == "file" else _find_below(filesystem, name)
        if not names:
            raise FileNotFoundError(url)
    return [_name_of(filesystem, name) for name in names]


def _find_below(filesystem: Any, prefix: str) -> list[str]:
    root = filesystem._strip_protocol(prefix).rstrip("/") + "/"
    return sorted(
        name
        for name in filesystem.find(root)
        if name.startswith(root) and not name.endswith("/")
        if not any(part.startswith((".", "_")) for part in name[len(root) :].split("/"))
    )


def measure_objects(urls: Sequence[str]) -> list[int]:
    """The number of bytes of each object. The storage is asked about many at the same time.

    Raises:
        FormatError: an object cannot be measured, or has been deleted.
        ConfigError: see ``open_filesystem``.
    """
    sizes: dict[str, int] = {}
    for protocol in {protocol_of(url) for url in urls}:
        names = [url for url in urls if protocol_of(url) == protocol]
        filesystem = open_filesystem(names[0])
        try:
            with reading(names[0]):
                found = filesystem.sizes(names)
        except (FileNotFoundError, FormatError):
            found = [_measure(filesystem, name) for name in names]  # one by one: the error names the object
        sizes |= dict(zip(names, found, strict=True))
    return [int(sizes[url]) for url in urls]


def _measure(filesystem: Any, url: str) -> int:
    try:
        with reading(url):
            return int(filesystem.size(url))
    except FileNotFoundError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=url) from None

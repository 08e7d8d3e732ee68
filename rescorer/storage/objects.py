"""Find, measure and read objects by their URLs."""

from __future__ import annotations

import glob
import io
from collections.abc import Sequence
from typing import Any, BinaryIO

from rescorer.errors import ConfigError, FormatError
from rescorer.storage.faults import reading
from rescorer.storage.urls import protocol_of

BLOCK_BYTES = 4 << 20
"""Bytes that a request reads at least: enough that the wait for its answer matters little."""
BUFFER_BYTES = 1 << 16
S3 = frozenset({"s3", "s3a"})
RETRIES = 2
"""Times that s3fs repeats a request, beyond the retries of botocore (``AWS_MAX_ATTEMPTS``)."""


def open_filesystem(url: str) -> Any:
    """The file system of fsspec that knows a URL; it remembers no listings.

    Raises:
        ConfigError: a package is missing, the protocol is unknown, or there is no more than a protocol.
    """
    protocol = protocol_of(url)
    if not url.partition("://")[2].strip("/"):
        raise ConfigError(f"{url}: expected the name of a bucket, such as {protocol}://BUCKET/KEY")
    try:
        import fsspec

        filesystem = fsspec.filesystem(protocol, use_listings_cache=False)
    except ImportError as error:
        missing = "pip install gcsfs" if "gcsfs" in str(error) else "pip install 'rescorer[storage]'"
        raise ConfigError(f"{url}: object storage needs another package: {missing}") from None
    except ValueError:
        raise ConfigError(f"{url}: unknown protocol {protocol!r}; expected one such as s3 or gs") from None
    if protocol in S3:
        filesystem.retries = RETRIES
    return filesystem


def normalise(url: str) -> str:
    """The URL by which ``find_objects`` names the same place: with one name of the protocol, and no slash at
    its end.

    Raises:
        ConfigError: as for ``open_filesystem``.
    """
    return _name_of(open_filesystem(url), url)


def _name_of(filesystem: Any, url: str) -> str:
    return str(filesystem.unstrip_protocol(filesystem._strip_protocol(url)))


class _ObjectReader(io.RawIOBase):
    """An object as a stream of bytes whose faults are FormatErrors."""

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

    All of it is read from one version: a change meanwhile is an error where the storage has entity tags.

    Raises:
        FileNotFoundError: there is no such object.
        FormatError: it cannot be read, now or later.
        ConfigError: as for ``open_filesystem``.
    """
    filesystem = open_filesystem(url)
    with reading(url):
        stream = filesystem.open(url, "rb", block_size=BLOCK_BYTES)
    return io.BufferedReader(_ObjectReader(stream, url), BUFFER_BYTES)


def is_object(url: str) -> bool:
    """Whether a URL is that of an object, not of a prefix; raises FormatError if that cannot be found out."""
    filesystem = open_filesystem(url)
    try:
        with reading(url):
            return bool(filesystem.info(url)["type"] == "file")
    except FileNotFoundError:
        return False


def find_objects(url: str) -> list[str]:
    """The URLs of an object, of all objects below a prefix, or of those that match a glob, in order.

    Below a prefix, names with a part that begins with ``.`` or ``_`` are left out, as tools for tables do.

    Raises:
        FileNotFoundError: there are none.
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
    """The number of bytes of each object, many at the same time.

    Raises:
        FormatError: an object cannot be measured, or is not there any more.
        ConfigError: as for ``open_filesystem``.
    """
    sizes: dict[str, int] = {}
    for protocol in {protocol_of(url) for url in urls}:
        names = [url for url in urls if protocol_of(url) == protocol]
        filesystem = open_filesystem(names[0])
        try:
            with reading(names[0]):
                found = filesystem.sizes(names)
        except (FileNotFoundError, FormatError):
            found = [_measure(filesystem, name) for name in names]  # one by one, to say which it is
        sizes |= dict(zip(names, found, strict=True))
    return [int(sizes[url]) for url in urls]


def _measure(filesystem: Any, url: str) -> int:
    try:
        with reading(url):
            return int(filesystem.size(url))
    except FileNotFoundError as error:
        raise FormatError(f"cannot be read: {error.strerror}", file=url) from None

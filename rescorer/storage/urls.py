"""Tell URLs of objects from names of files."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_url(name: object) -> bool:
    """Whether a name is that of an object in a storage; ``file://`` counts, until ``as_local`` removes it."""
    return isinstance(name, str) and URL.match(name) is not None


def protocol_of(url: str) -> str:
    """The protocol of a URL, in lower case.

    >>> protocol_of("S3://bucket/key")
    's3'
    """
    return url.partition("://")[0].lower()


def as_local(name: str) -> str:
    """The path of a ``file://`` URL; other URLs with their protocol in lower case; other names as they are.

    >>> as_local("file:///data/a%20b.jsonl"), as_local("S3://bucket/Key")
    ('/data/a b.jsonl', 's3://bucket/Key')
    """
    if not is_url(name):
        return name
    if (protocol := protocol_of(name)) != "file":
        return protocol + name[len(protocol) :]
    parts = urlsplit(name)
    return unquote(parts.netloc + parts.path)


def base_name(name: str | Path) -> str:
    """The last part of a name or URL."""
    return str(name).rstrip("/").rpartition("/")[2]

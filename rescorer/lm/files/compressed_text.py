"""Read the text of a file in blocks, plain or compressed with gzip, bzip2 or xz, within bounds.

How much text a compressed file may have follows from its size on disk, so that a small file cannot fill the
memory or keep a worker busy for hours.
"""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

from rescorer.errors import BundleError

BLOCK_BYTES = 1 << 16
"""Bytes of text that are read at once; also half of the longest line."""
MAX_COMPRESSION = 50
"""Largest ratio of text to compressed bytes; the n-grams of a language compress to between a third and a
tenth."""
FREE_TEXT_BYTES = 1 << 20
"""Text that a compressed file may always have, whatever its ratio."""
XZ_MEMORY_BYTES = 1 << 27
"""Most memory for xz's dictionary; ``xz -9`` needs half of it."""
GZIP_MAGIC = b"\x1f\x8b"
BZIP2_MAGIC = b"BZh"
BZIP2_BLOCKS = b"1AY&SY", b"\x17rE8P\x90"
"""What follows bzip2's magic and a digit: a block, or the end of empty data."""
XZ_MAGIC = b"\xfd7zXZ\0"
MAGIC_BYTES = 10


class _Member(Protocol):
    """A decompressor of one member, such as ``bz2.BZ2Decompressor``."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _GzipMember:
    """A decompressor of gzip with the interface of those of ``bz2`` and ``lzma``."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._member.decompress(self._member.unconsumed_tail + data, max_length)


def text_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the text of a file, decompressed, in blocks of ``BLOCK_BYTES``; only the last may be shorter.

    Raises:
        BundleError: the compressed data are damaged, or hold more text than a file of this size may have.
    """
    new_member = _find_compression(stream)
    if new_member is None:
        while block := stream.read(BLOCK_BYTES):
            yield block
        return
    left = max_text_bytes(stream)
    pending = bytearray()
    for part in _decompress(stream, new_member):
        left -= len(part)
        if left < 0:
            raise BundleError(
                f"{stream.name}: holds more than {max_text_bytes(stream):,} bytes of text; expected at most "
                f"{MAX_COMPRESSION} times its size"
            )
        pending += part
        while len(pending) >= BLOCK_BYTES:
            yield bytes(pending[:BLOCK_BYTES])
            del pending[:BLOCK_BYTES]
    if pending:
        yield bytes(pending)


def max_text_bytes(stream: BinaryIO) -> int:
    """The most text that a file of this size may have."""
    size = os.fstat(stream.fileno()).st_size
    return MAX_COMPRESSION * size + FREE_TEXT_BYTES if _find_compression(stream) else size


def _find_compression(stream: BinaryIO) -> Callable[[], _Member] | None:
    """What decompresses a file, by its first bytes; None if it is not compressed in a way that is read."""
    head = os.pread(stream.fileno(), MAGIC_BYTES, 0)
    if head.startswith(GZIP_MAGIC):
        return _GzipMember
    if head.startswith(BZIP2_MAGIC) and head[3:4].isdigit() and head[4:] in BZIP2_BLOCKS:
        return bz2.BZ2Decompressor
    if head.startswith(XZ_MAGIC):
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
    return None


def _decompress(stream: BinaryIO, new_member: Callable[[], _Member]) -> Iterator[bytes]:
    """Yield the text of all members of a compressed file, at most ``BLOCK_BYTES`` at a time."""
    data = _skip_padding(stream, b"")
    while data:
        member = new_member()
        while not member.eof:
            try:
                part = member.decompress(data, BLOCK_BYTES)
            except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError):
                raise BundleError(f"{stream.name}: the compressed data are damaged") from None
            if part:
                yield part
            is_hungry = member.needs_input and not member.eof
            data = stream.read(BLOCK_BYTES) if is_hungry else b""
            if is_hungry and not data and not part:
                raise BundleError(f"{stream.name}: the compressed data end too early")
        data = _skip_padding(stream, member.unused_data)


def _skip_padding(stream: BinaryIO, data: bytes) -> bytes:
    """Return the next bytes of a file that begin a member; empty at its end."""
    while not (data := data.lstrip(b"\0")):
        if not (data := stream.read(BLOCK_BYTES)):
            return b""
    return data

"""Read bytes as they arrive, decompressed, and tell formats by their first bytes."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from rescorer.errors import FormatError

CHUNK_BYTES = 1 << 16
GZIP_MAGIC = b"\x1f\x8b"
OTHER_COMPRESSIONS = {
    b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip",
}  # fmt: skip
"""Compressions that are not read, by the first bytes of a file."""
BZIP2_BLOCKS = b"1AY&SY", b"\x17rE8P\x90"
"""What follows ``BZh`` and a digit: a block, or the end of empty data."""
PARQUET_MAGIC = b"PAR1"
"""First bytes of a parquet file; the byte after them is not one that a text can have."""


def is_parquet(head: bytes) -> bool:
    """Whether the first bytes of a file are those of parquet; five are needed, since a text may begin
    with the same four letters."""
    return head.startswith(PARQUET_MAGIC) and head[4:5] < b" " and head[4:5] not in b"\t\r\n"


def find_other_compression(head: bytes) -> str:
    """Return the name of a compression other than gzip by the first bytes of a file; empty if it is none."""
    magic = next((magic for magic in OTHER_COMPRESSIONS if head.startswith(magic)), b"")
    if magic == b"BZh" and not (head[3:4].isdigit() and head[4:10] in BZIP2_BLOCKS):
        return ""
    return OTHER_COMPRESSIONS.get(magic, "")


def _may_begin_with_magic(head: bytes) -> bool:
    """Whether more bytes are needed to know a format by its first bytes."""
    is_bzip2 = len(head) < 10 and head[3:4].isdigit() and head.startswith(b"BZh")
    magics = (PARQUET_MAGIC, *OTHER_COMPRESSIONS)
    return len(head) < len(GZIP_MAGIC) or is_bzip2 or any(magic.startswith(head) for magic in magics)


def read_chunks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield decompressed bytes as soon as they arrive, so that a pipe is processed line by line.

    Args:
        name: name of the stream for messages.

    Raises:
        FormatError: they are a table in the format parquet, or compressed otherwise than with gzip.
    """
    read = stream.read1 if isinstance(stream, (io.BufferedReader, io.BytesIO)) else stream.read
    head = b""
    while _may_begin_with_magic(head) and (chunk := read(CHUNK_BYTES)):
        head += chunk
    if is_parquet(head):
        message = "is a parquet table, which cannot be read from a pipe or in another format"
        raise FormatError(f"{message}; give the name of its file, without --format", file=name)
    if compression := find_other_compression(head):
        raise FormatError(f"is compressed with {compression}; decompress it, or use gzip", file=name)
    compressed = head.startswith(GZIP_MAGIC)
    member = zlib.decompressobj(wbits=31)
    chunk = head
    while chunk:
        if compressed:
            while chunk:  # a file may contain several gzip members, padded with zeros
                if member.eof:
                    chunk = chunk.lstrip(b"\0")
                    if not chunk:
                        break
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(chunk, CHUNK_BYTES)  # bounded: data may expand a thousandfold
                chunk = member.unconsumed_tail or member.unused_data
        else:
            yield chunk
        chunk = read(CHUNK_BYTES)
    if compressed and not member.eof:
        yield member.flush()
        raise EOFError("the file ends early")

"""Read the text and the header of ARPA files, plain or gzip-compressed, within bounds."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from rescorer.errors import BundleError
from rescorer.safe_input.files import open_regular

BLOCK_BYTES = 1 << 16
"""Bytes of text that are read at once; also half of the longest line."""
MAX_COMPRESSION = 50
"""Largest ratio of text to compressed bytes; the n-grams of a language compress to a third or a fifth."""
FREE_TEXT_BYTES = 1 << 20
"""Text that a compressed file may always have, whatever its ratio."""
MAX_ORDER = 10
MAX_COUNT_DIGITS = 12
GZIP_MAGIC = b"\x1f\x8b"


def is_arpa(path: Path) -> bool:
    """Whether a file, gzip or plain, starts like an ARPA file."""
    try:
        with open_regular(path) as stream:
            return starts_like_arpa(stream)
    except BundleError:
        return False


def starts_like_arpa(stream: BinaryIO) -> bool:
    """Whether an open file starts like an ARPA file; the file is rewound."""
    try:
        start = next(text_blocks(stream), b"")
    except BundleError:
        return False
    finally:
        stream.seek(0)
    return start[:64].lstrip().startswith(b"\\data\\")


def read_arpa_counts(stream: BinaryIO) -> list[int]:
    """Read the number of n-grams per order from the start of an ARPA file.

    Raises:
        BundleError: the header is not that of an ARPA file, or declares more n-grams than the file can have.
    """
    counts, _ = read_header(stream, text_blocks(stream))
    return counts


def read_header(stream: BinaryIO, blocks: Iterator[bytes]) -> tuple[list[int], bytes]:
    """Read the counts, and return them with the text after the line ``\\1-grams:``."""
    text = next(blocks, b"")
    if not text[:64].lstrip().startswith(b"\\data\\"):
        raise BundleError(
            f"{stream.name}: does not start with \\data\\; expected an ARPA file, or a KenLM binary with a "
            "list of its words"
        )
    header, found, rest = text.partition(b"\\1-grams:")
    if not found:
        raise BundleError(f"{stream.name}: no unigram section in its first {BLOCK_BYTES:,} bytes")
    fields = re.findall(rb"^ngram[ \t]+(\d+)[ \t]*=[ \t]*(\d+)", header, re.MULTILINE)
    orders = [b"%d" % order for order in range(1, MAX_ORDER + 1)]
    if not fields or [order for order, _ in fields] != orders[: len(fields)]:
        raise BundleError(
            f"{stream.name}: its header has {len(fields)} lines 'ngram ORDER=COUNT'; expected one for each "
            f"order from 1 to at most {MAX_ORDER}"
        )
    if max(len(count) for _, count in fields) > MAX_COUNT_DIGITS:
        raise BundleError(f"{stream.name}: its header has a count of more than {MAX_COUNT_DIGITS} digits")
    counts = [int(count) for _, count in fields]
    largest = max_text_bytes(stream)
    least = sum((2 * order + 2) * count for order, count in enumerate(counts, 1))
    if least > largest:
        raise BundleError(
            f"{stream.name}: its header says {sum(counts):,} n-grams, which need at least {least:,} bytes of "
            f"text; a file of this size has at most {largest:,}"
        )
    return counts, rest


def max_text_bytes(stream: BinaryIO) -> int:
    """The most text that a file of this size may have."""
    size = os.fstat(stream.fileno()).st_size
    return MAX_COMPRESSION * size + FREE_TEXT_BYTES if is_gzip(stream) else size


def is_gzip(stream: BinaryIO) -> bool:
    return os.pread(stream.fileno(), len(GZIP_MAGIC), 0) == GZIP_MAGIC


def text_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the text of a file, decompressed, in blocks of ``BLOCK_BYTES``; only the last may be shorter.

    Raises:
        BundleError: the compressed data are damaged, or hold more text than a file of this size may have.
    """
    if not is_gzip(stream):
        while block := stream.read(BLOCK_BYTES):
            yield block
        return
    left = max_text_bytes(stream)
    pending = bytearray()
    for part in _decompress(stream):
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


def _decompress(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the text of all members of a gzip file, at most ``BLOCK_BYTES`` at a time."""
    data = b""
    while data or (data := stream.read(BLOCK_BYTES)):
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            try:
                part = member.decompress(data, BLOCK_BYTES)
            except zlib.error:
                raise BundleError(f"{stream.name}: the compressed data are damaged") from None
            if part:
                yield part
            data = member.unconsumed_tail or (b"" if member.eof else stream.read(BLOCK_BYTES))
            if not data and not part and not member.eof:
                raise BundleError(f"{stream.name}: the compressed data end too early")
        data = member.unused_data.lstrip(b"\0")

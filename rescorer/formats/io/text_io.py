"""Owns bytes to text lines and back: files, standard input and output, gzip, UTF-8; no format's meaning."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO

from rescorer.errors import ConfigError, FormatError

Source = str | Path | BinaryIO
"""A file's name, ``-`` for standard input, or an open binary stream."""

CHUNK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 26
"""A longer line is an error rather than a full memory; 64 MiB hold a list of 100 000 hypotheses."""
MAX_LINE_VARIABLE = "RESCORER_MAX_LINE_BYTES"
"""Environment variable that sets another limit."""
GZIP_MAGIC = b"\x1f\x8b"
BYTE_ORDER_MARK = "\ufeff"


def source_name(source: Source) -> str:
    """What errors call the source: the name as the user gave it."""
    if isinstance(source, (str, Path)):
        return "<stdin>" if str(source) == "-" else str(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<stream>"


def read_lines(source: Source) -> Iterator[tuple[int, str | FormatError]]:
    """Yields each line with its 1-based number; a line that is no text is yielded as its error.

    Gzip is known by its first bytes, not by the name. A byte order mark at the start and carriage returns
    at the ends of lines are taken away. Damaged gzip data end the stream with an error, after the
    complete lines of a truncated file.

    A line longer than ``MAX_LINE_BYTES``, or what ``MAX_LINE_VARIABLE`` says, is never held whole.

    Raises:
        FormatError: the source cannot be opened.
        ConfigError: the variable is no number of bytes.
    """
    name, limit = source_name(source), max_line_bytes()
    with _opened(source) as stream:
        number = 0
        try:
            for raw in _split(_chunks(stream), limit):
                number += 1
                yield number, _decode(raw, name, number, limit)
        except (EOFError, zlib.error) as fault:
            yield number + 1, FormatError(f"damaged gzip data: {fault}", file=name, line=number + 1)
        except OSError as fault:
            reason = f"cannot be read: {fault.strerror or fault}"
            yield number + 1, FormatError(reason, file=name, line=number + 1)


def read_lines_strict(source: Source) -> Iterator[tuple[int, str]]:
    """``read_lines`` for files that are of no use in part.

    Raises:
        FormatError: as ``read_lines``, and the first line that is no text.
    """
    for number, text in read_lines(source):
        if isinstance(text, FormatError):
            raise text
        yield number, text


def read_text_chunks(source: Source) -> Iterator[str]:
    """Yields the text in pieces of any length, for documents whose lines may be long; otherwise as
    ``read_lines``.

    Raises:
        FormatError: the source cannot be opened; after what could be read, that it is damaged or not UTF-8.
    """
    name = source_name(source)
    line = 1
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with _opened(source) as stream:
        try:
            for chunk in _chunks(stream):
                text = decoder.decode(chunk)
                line += text.count("\n")
                yield text
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as fault:
            line += fault.object.count(b"\n", 0, fault.start)
            raise FormatError(f"not UTF-8: {fault.reason}", file=name, line=line) from None
        except (EOFError, zlib.error) as fault:
            raise FormatError(f"damaged gzip data: {fault}", file=name, line=line) from None
        except OSError as fault:
            reason = f"cannot be read: {fault.strerror or fault}"
            raise FormatError(reason, file=name, line=line) from None


@contextmanager
def open_output(target: str | Path) -> Iterator[TextIO]:
    """Text stream to a file, compressed where its name ends in ``.gz``; ``-`` is standard output.

    A file appears, or is replaced, when it is complete: a fault on the way leaves what was there, and an
    input may be its own output. Devices and pipes are written as they are.

    Raises:
        FormatError: the file cannot be written.
    """
    if str(target) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    path = Path(target)
    special = path.exists() and not path.is_file()
    partial = path if special else path.with_name(f".{path.name}.partial")
    opener: Callable[..., TextIO] = gzip.open if path.suffix == ".gz" else open
    try:
        stream = opener(partial, "wt", encoding="utf-8", newline="\n")
    except OSError as fault:
        raise FormatError(f"cannot be written: {fault.strerror or fault}", file=str(target)) from None
    try:
        with stream:
            yield stream
        if not special:
            os.replace(partial, path)
    finally:
        if not special:
            partial.unlink(missing_ok=True)


@contextmanager
def _opened(source: Source) -> Iterator[BinaryIO]:
    """Closes what it opened itself, and only that."""
    if not isinstance(source, (str, Path)):
        yield source
    elif str(source) == "-":
        yield sys.stdin.buffer
    else:
        try:
            stream = open(source, "rb")  # noqa: SIM115 (closed below, outside this try)
        except OSError as fault:
            raise FormatError(f"cannot be read: {fault.strerror or fault}", file=str(source)) from None
        with stream:
            yield stream


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Plain bytes as soon as they are there, so that a pipe is served line by line."""
    read = stream.read1 if isinstance(stream, (io.BufferedReader, io.BytesIO)) else stream.read
    head = b""
    while len(head) < len(GZIP_MAGIC) and (chunk := read(CHUNK_BYTES)):
        head += chunk
    compressed = head.startswith(GZIP_MAGIC)
    member = zlib.decompressobj(wbits=31)
    chunk = head
    while chunk:
        if compressed:
            while chunk:  # one file may hold several gzip members, padded with zeros
                if member.eof:
                    chunk = chunk.lstrip(b"\0")
                    if not chunk:
                        break
                    member = zlib.decompressobj(wbits=31)
                yield member.decompress(chunk, CHUNK_BYTES)  # a few bytes may stand for a thousand times more
                chunk = member.unconsumed_tail or member.unused_data
        else:
            yield chunk
        chunk = read(CHUNK_BYTES)
    if compressed and not member.eof:
        yield member.flush()
        raise EOFError("the file ends early")


def max_line_bytes() -> int:
    """The limit of a line, or of one value of a document, that holds here.

    Raises:
        ConfigError: ``MAX_LINE_VARIABLE`` is no number of bytes.
    """
    told = os.environ.get(MAX_LINE_VARIABLE, str(MAX_LINE_BYTES))
    try:
        limit = int(told)
    except ValueError:
        limit = 0
    if limit < 1:
        raise ConfigError(f"{MAX_LINE_VARIABLE}={told!r}: expected a number of bytes, 1 or more")
    return limit


def _split(chunks: Iterator[bytes], limit: int) -> Iterator[bytes | None]:
    """Lines without their ends; None for a line longer than ``limit``."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        for index, piece in enumerate(chunk.split(b"\n")):
            if index:
                yield b"".join(parts) if size <= limit else None
                parts, size = [], 0
            size += len(piece)
            if size <= limit:
                parts.append(piece)
            else:
                parts.clear()
    if size:
        yield b"".join(parts) if size <= limit else None


def _decode(raw: bytes | None, name: str, number: int, limit: int) -> str | FormatError:
    if raw is None:
        message = f"longer than {limit} bytes; {MAX_LINE_VARIABLE} sets the limit"
        return FormatError(message, file=name, line=number)
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as fault:
        return FormatError(f"not UTF-8: {fault.reason} at byte {fault.start + 1}", file=name, line=number)
    if "\0" in line:
        return FormatError("holds NUL bytes; expected text", file=name, line=number)
    return (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip("\r")

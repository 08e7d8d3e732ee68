"""Read lines of text from files, pipes and gzip streams, and write text files atomically."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io.chunks import read_chunks
from rescorer.formats.io.targets import WRITE_ERRORS, find_file, move_over, open_stream, write_error
from rescorer.storage.objects import open_object
from rescorer.storage.urls import is_url

Source = str | Path | BinaryIO
"""A file name, the URL of an object, ``-`` for standard input, or an open binary stream."""

MAX_LINE_BYTES = 1 << 26
"""Default limit on the length of a line; a longer line is an error, so that it cannot exhaust the memory.

64 MiB are enough for a list of 100 000 hypotheses.
"""
MAX_LINE_VARIABLE = "RESCORER_MAX_LINE_BYTES"
"""Environment variable that overrides the limit."""
BYTE_ORDER_MARK = "\ufeff"


class EncodingError(FormatError):
    """A line of a file is not text in the expected encoding."""

    text = ""
    """The line, with U+FFFD in place of what is not in the encoding."""

    @classmethod
    def of(cls, text: str, message: str, file: str, line: int) -> EncodingError:
        error = cls(message, file=file, line=line)
        error.text = text
        return error


def source_name(source: Source) -> str:
    """Return the name of a source for error messages: for a file, the name that the user gave."""
    if isinstance(source, (str, Path)):
        return "<stdin>" if str(source) == "-" else str(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<stream>"


def read_lines(
    source: Source, encoding: str = "utf-8", first: int = 1
) -> Iterator[tuple[int, str | FormatError]]:
    """Yield each line with its number, counted from ``first``; yield the error in place of a line that is not
    valid text.

    Gzip is detected from the first bytes, not from the file name; ``encoding`` is one in which only line ends
    have the byte 10. A byte order mark at the start and carriage
    returns at line ends are removed. If gzip data are damaged, the complete lines before the damage are
    yielded, then an error, and reading stops. A line longer than ``max_line_bytes()`` is an error and is
    never held in memory as a whole.

    Raises:
        FormatError: If the source cannot be opened, or is not text, such as a table or another archive.
        ConfigError: ``MAX_LINE_VARIABLE`` is not a number of bytes.
    """
    name, limit = source_name(source), max_line_bytes()
    with _open_input(source) as stream:
        number = first - 1
        try:
            for raw in _split_lines(read_chunks(stream, name), limit):
                number += 1
                yield number, _decode_line(raw, name, number, limit, encoding)
        except (EOFError, zlib.error) as error:
            yield number + 1, FormatError(f"damaged gzip data: {error}", file=name, line=number + 1)
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            yield number + 1, FormatError(message, file=name, line=number + 1)


def read_lines_strict(source: Source, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yield each line with its 1-based number, raising the first error; for files that are useless if
    incomplete.

    Raises:
        FormatError: As for ``read_lines``, and at the first line that is not valid text.
    """
    for number, text in read_lines(source, encoding):
        if isinstance(text, FormatError):
            raise text
        yield number, text


def read_text_chunks(source: Source) -> Iterator[str]:
    """Yield the text in chunks of any length, for documents with long lines; otherwise like ``read_lines``.

    Raises:
        FormatError: If the source cannot be opened, or, once all readable text has been yielded, if it is
            damaged or not UTF-8.
    """
    name = source_name(source)
    line = 1
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with _open_input(source) as stream:
        try:
            for chunk in read_chunks(stream, name):
                text = decoder.decode(chunk)
                line += text.count("\n")
                yield text
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            raise EncodingError(f"not UTF-8: {error.reason}", file=name, line=line) from None
        except (EOFError, zlib.error) as error:
            raise FormatError(f"damaged gzip data: {error}", file=name, line=line) from None
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
            raise FormatError(message, file=name, line=line) from None


def read_byte_chunks(source: Source) -> Iterator[bytes]:
    """Yield the bytes of a binary file, decompressed, in chunks of at most ``chunks.CHUNK_BYTES``.

    Raises:
        FormatError: If the source cannot be opened or read, or its gzip data are damaged.
    """
    name = source_name(source)
    with _open_input(source) as stream:
        try:
            yield from read_chunks(stream, name)
        except (EOFError, zlib.error) as error:
            raise FormatError(f"damaged gzip data: {error}", file=name) from None
        except OSError as error:
            raise FormatError(f"cannot be read: {error.strerror or error}", file=name) from None


def write_text(target: str | Path, text: str) -> None:
    """Write a whole text file as ``open_output`` does; raises FormatError if it cannot be written."""
    with open_output(target) as stream:
        stream.write(text)


@contextmanager
def open_output(target: str | Path) -> Iterator[TextIO]:
    """Open a text file for writing, compressed if its name ends with ``.gz``; ``-`` is standard output.

    A regular file is created or replaced only once it is complete: an error before that leaves the previous
    content untouched. Symbolic links are followed. Devices and pipes are written directly.

    Raises:
        FormatError: If the file cannot be written, also if the disk is full only later.
        BrokenPipeError: If the reader of a pipe has gone.
    """
    if str(target) == "-":
        yield sys.stdout
        sys.stdout.flush()
        return
    with _open_target(target) as binary, io.TextIOWrapper(binary, "utf-8", newline="\n") as stream:
        yield stream


@contextmanager
def open_binary_output(target: str | Path) -> Iterator[BinaryIO]:
    """Open a binary file for writing, as ``open_output`` does a text file."""
    if str(target) == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with _open_target(target) as stream:
        yield stream


@contextmanager
def _open_target(target: str | Path) -> Iterator[BinaryIO]:
    """Open a stream, or a file that replaces the target once it is complete; ``.gz`` compresses."""
    try:
        path = find_file(target)
        partial = path and path.with_name(f".{path.name}.partial")
        raw = open_stream(target) if partial is None else open(partial, "wb")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise write_error(target, error) from None
    try:
        with raw, _compressed(raw, Path(target)) as stream:
            yield stream
        if path is not None and partial is not None:
            move_over(partial, path)
    except OSError as error:
        if error.errno not in WRITE_ERRORS:
            raise
        raise write_error(target, error) from None
    finally:
        if partial is not None:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


@contextmanager
def _compressed(stream: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """Yield the stream itself, or one that compresses what is written to it if the name ends with ``.gz``."""
    if path.suffix != ".gz":
        yield stream
        return
    with gzip.GzipFile(path.name, "wb", fileobj=stream) as compressed:
        yield cast(BinaryIO, compressed)


def open_named(name: str | Path) -> BinaryIO:
    """Open a file, or an object by its URL; raises OSError, or FormatError if a storage fails."""
    return open_object(str(name)) if is_url(name) else open(name, "rb")


@contextmanager
def _open_input(source: Source) -> Iterator[BinaryIO]:
    """Open a source; close it afterwards only if it was opened here."""
    if not isinstance(source, (str, Path)):
        yield source
    elif str(source) == "-":
        yield sys.stdin.buffer
    else:
        try:
            stream = open_named(source)
        except OSError as error:
            raise FormatError(f"cannot be read: {error.strerror or error}", file=str(source)) from None
        with stream:
            yield stream


def max_line_bytes() -> int:
    """Return the limit on the length of a line, or of one value in a JSON document.

    Raises:
        ConfigError: ``MAX_LINE_VARIABLE`` is not a number of bytes.
    """
    text = os.environ.get(MAX_LINE_VARIABLE, str(MAX_LINE_BYTES))
    try:
        limit = int(text)
    except ValueError:
        limit = 0
    if limit < 1:
        raise ConfigError(f"{MAX_LINE_VARIABLE}={text!r}: expected a number of bytes, 1 or more")
    return limit


def _split_lines(chunks: Iterator[bytes], limit: int) -> Iterator[bytes | None]:
    """Yield lines without their line ends; None in place of a line longer than ``limit`` bytes."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        for index, part in enumerate(chunk.split(b"\n")):
            if index:
                yield b"".join(parts) if size <= limit else None
                parts, size = [], 0
            size += len(part)
            if size <= limit:
                parts.append(part)
            else:
                parts.clear()
    if size:
        yield b"".join(parts) if size <= limit else None


def _decode_line(raw: bytes | None, name: str, number: int, limit: int, encoding: str) -> str | FormatError:
    if raw is None:
        message = f"longer than {limit} bytes; set {MAX_LINE_VARIABLE} to allow more"
        return FormatError(message, file=name, line=number)
    try:
        line = raw.decode(encoding)
    except UnicodeDecodeError as error:
        message = f"not {encoding.upper()}: {error.reason} at byte {error.start + 1}"
        return EncodingError.of(raw.decode(encoding, "replace"), message, name, number)
    if "\0" in line:
        return EncodingError.of(line, "contains NUL bytes; expected text", name, number)
    return (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip("\r")

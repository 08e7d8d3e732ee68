"""Read lines of text from files, pipes and compressed streams, and write files atomically.

A regular file is replaced once the new file is complete. A device, a pipe, a socket or an open descriptor
(``/dev/stdout``) is a *stream*: it is written to, never replaced. A symbolic link stays, and the file to
which it leads is replaced. A folder as target is an error.
"""

from __future__ import annotations

import codecs
import errno
import gzip
import io
import os
import shutil
import stat
import sys
import tempfile
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from rescorer.errors import ConfigError, FormatError
from rescorer.storage import is_url, open_object

CHUNK_BYTES = 1 << 16
GZIP_MAGIC = b"\x1f\x8b"
OTHER_COMPRESSIONS = {
    b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip",
}  # fmt: skip
"""Compressions that are not read, by the first bytes of a file."""
BZIP2_BLOCKS = b"1AY&SY", b"\x17rE8P\x90"
"""Bytes that follow ``BZh`` and a digit in bzip2 data: the start of a block, or the end of empty data."""
PARQUET_MAGIC = b"PAR1"
"""First bytes of a parquet file. After them comes a byte that texts do not have."""


def is_parquet(head: bytes) -> bool:
    """Whether the first five bytes of a file are those of a parquet file.

    The fifth byte tells it from a text that begins with the four letters PAR1.
    """
    return head.startswith(PARQUET_MAGIC) and head[4:5] < b" " and head[4:5] not in b"\t\r\n"


def find_other_compression(head: bytes) -> str:
    """Return the compression of a file, other than gzip, given its first bytes; empty if none fits."""
    magic = next((magic for magic in OTHER_COMPRESSIONS if head.startswith(magic)), b"")
    if magic == b"BZh" and not (head[3:4].isdigit() and head[4:10] in BZIP2_BLOCKS):
        return ""
    return OTHER_COMPRESSIONS.get(magic, "")


def _may_begin_with_magic(head: bytes) -> bool:
    """Whether the first bytes of a file are too few to recognise a compression or parquet."""
    is_bzip2 = len(head) < 10 and head[3:4].isdigit() and head.startswith(b"BZh")
    magics = (PARQUET_MAGIC, *OTHER_COMPRESSIONS)
    return len(head) < len(GZIP_MAGIC) or is_bzip2 or any(magic.startswith(head) for magic in magics)


def read_chunks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield decompressed bytes as soon as they arrive, so that a pipe is processed line by line.

    Args:
        name: name of the stream for messages.

    Raises:
        FormatError: the stream is a parquet file, or is compressed with something else than gzip.
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


WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""Errors that can occur after a file was opened for writing, such as a full disk or an exceeded quota."""
STDIN, STDOUT = 0, 1
MAX_LINKS = 40
"""Largest number of symbolic links to follow, as in Linux."""


def find_file(target: str | Path) -> Path | None:
    """Return the regular file that writing to a target creates or replaces, or None for a stream.

    Raises:
        OSError: the target is a folder, or its links lead in a circle.
    """
    if str(target) == "-" or _find_descriptor(target) is not None:
        return None
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return Path(os.path.realpath(target))
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return Path(os.path.realpath(target)) if stat.S_ISREG(mode) else None


def is_stream(target: str | Path) -> bool:
    """Whether a target is standard output (``-``), a device, a pipe, a socket or an open descriptor."""
    try:
        return find_file(target) is None
    except OSError:
        return False


def is_standard_output(target: str | Path) -> bool:
    """Whether what is written to a target goes to standard output."""
    return str(target) == "-" or _find_descriptor(target) == STDOUT


def _find_descriptor(path: str | Path) -> int | None:
    """Return the number of an open descriptor if a path such as ``/dev/stdout`` stands for one."""
    for _ in range(MAX_LINKS):
        folder, name = os.path.split(os.path.abspath(path))
        folder = os.path.realpath(folder)
        if name.isdecimal() and folder in (f"/proc/{os.getpid()}/fd", "/dev/fd"):
            return int(name)
        try:
            path = os.path.join(folder, os.readlink(os.path.join(folder, name)))
        except OSError:
            return None
    return None


def open_stream(target: str | Path) -> BinaryIO:
    """Open a stream for writing, or raise OSError. In an open descriptor, writing starts at its offset."""
    sys.stdout.flush()
    descriptor = STDOUT if str(target) == "-" else _find_descriptor(target)
    return open(target, "wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb")


@contextmanager
def replace_file(target: str | Path) -> Iterator[Path]:
    """Yield the name of a temporary file to write. Afterwards, its content becomes that of the target.

    The temporary file has the suffixes of the target, and is in the same folder. If the target is a stream,
    the file is in a temporary folder, and is copied to the stream.

    Raises:
        FormatError: the target cannot be written.
        BrokenPipeError: the reader of a pipe has gone.
    """
    with explain_write_errors(target):
        path = find_file(target)
    if path is None:
        with tempfile.TemporaryDirectory(prefix="rescorer-") as folder:
            partial = Path(folder) / Path(target).name
            yield partial
            copy_to_stream(partial, target)
        return
    partial = path.with_name(f".partial-{path.name}")
    with _replacing(target, path, partial):
        yield partial


@contextmanager
def _replacing(target: str | Path, path: Path, partial: Path) -> Iterator[int]:
    """Create a temporary file, yield its descriptor, and move it to ``path``; after an error, remove it.

    Raises:
        FormatError: the target cannot be written, or another process is writing it.
    """
    with explain_write_errors(target):
        descriptor = _create_alone(partial)
    try:
        yield descriptor
        with explain_write_errors(target):
            move_over(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)  # the lock ends here


def _create_alone(partial: Path) -> int:
    """Create or empty a temporary file, and lock it. A file that a killed process left is used again.

    Raises:
        OSError: another process has locked it, it is a link, or it cannot be created.
    """
    import fcntl  # Windows, where clients may run, has none

    while True:
        with ExitStack() as stack:
            descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(errno.EBUSY, "another process is writing it") from None
            except OSError:  # a file system without locks
                pass
            if _is_at(descriptor, partial):  # else another process has moved it meanwhile
                os.ftruncate(descriptor, 0)
                stack.pop_all()
                return descriptor


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


def copy_to_stream(file: Path, target: str | Path) -> None:
    """Write the content of a file to a stream.

    Raises:
        FormatError: the stream cannot be written.
        BrokenPipeError: the reader of a pipe has gone.
    """
    with explain_write_errors(target), file.open("rb") as content, open_stream(target) as stream:
        shutil.copyfileobj(content, stream)


def move_over(partial: Path, path: Path) -> None:
    """Move a complete file to a path. If there is a file already, replace it and keep its permissions."""
    with suppress(FileNotFoundError):
        shutil.copymode(path, partial)
    os.replace(partial, path)


def remove_file(target: str | Path) -> None:
    """Remove the file that an earlier run may have written to a target. Links and streams are not removed.

    Raises:
        OSError: the file cannot be removed, or the target is a folder.
    """
    if (path := find_file(target)) is not None:
        path.unlink(missing_ok=True)


def check_target(target: str | Path) -> None:
    """Check that a target can be written, without changing its content or leaving a file.

    Raises:
        FormatError: the target cannot be written: for instance, its folder is missing or read-only, or it is
            a folder.
    """
    with explain_write_errors(target):
        path = find_file(target)
        if path is not None:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
                return
        if str(target) == "-" or _find_descriptor(target) is not None:
            return
        if stat.S_ISSOCK(os.stat(target).st_mode):
            raise OSError(errno.ENXIO, "is a socket; expected a file, a pipe or a device")
        if not os.access(target, os.W_OK):  # opening it could wait for its reader
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextmanager
def explain_write_errors(target: str | Path) -> Iterator[None]:
    """Turn an OSError into a FormatError that names the target, except the error of a closed pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise write_error(target, error) from None


def write_error(target: str | Path, error: OSError) -> FormatError:
    """Return the error that says why a target cannot be written."""
    return FormatError(f"cannot be written: {error.strerror or error}", file=str(target))


def make_folder(target: str | Path) -> Path:
    """Create the folder to write to, unless it exists; see ``remove_empty_folders``.

    Raises:
        FormatError: the folder cannot be created, or the path is something else than a folder.
    """
    path = Path(target).absolute()
    _made.extend(one for one in (path, *path.parents) if not one.exists())
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        message = "is not a folder; expected the name of a folder to write"
        raise FormatError(message, file=str(target)) from None
    except OSError as error:
        raise FormatError(f"cannot create the folder: {error.strerror}", file=str(target)) from None
    return Path(target)


_made: list[Path] = []
"""Folders that ``make_folder`` has created since ``remove_empty_folders`` was last called."""


def remove_empty_folders() -> None:
    """Remove those folders that ``make_folder`` created and that are empty, such as a refused command's."""
    for path in sorted({*_made}, key=lambda path: len(path.parts), reverse=True):
        with suppress(OSError):  # it has files, or is gone already
            path.rmdir()
    _made.clear()


def check_not_input(
    option: str, target: str | Path, inputs: Iterable[str | Path], what: str = "an input file"
) -> None:
    """Raise ConfigError if a target is one of the inputs, even under another name, and would be overwritten.

    A device, such as a terminal, may be both target and input.

    Args:
        option: the option that names the target, for the message.
        what: the name of the inputs in the message.
    """
    written = _status(target, STDOUT)
    if written is None or stat.S_ISCHR(written.st_mode):
        return
    for name in inputs:
        read = _status(name, STDIN)
        if read is not None and os.path.samestat(written, read):
            shown = "standard input" if str(name) == "-" else name
            raise ConfigError(f"{option} {target} would overwrite {what}, {shown}; choose another file")


def _status(name: str | Path, descriptor: int) -> os.stat_result | None:
    with suppress(OSError, ValueError):
        return os.fstat(descriptor) if str(name) == "-" else os.stat(name)
    return None


Source = str | Path | BinaryIO
"""A file name, the URL of an object, ``-`` for standard input, or an open binary stream."""

MAX_LINE_BYTES = 1 << 26
"""Default limit on the length of a line. A longer line is an error, because it might exhaust the memory.

64 MiB are enough for a list of 100 000 hypotheses.
"""
MAX_LINE_VARIABLE = "RESCORER_MAX_LINE_BYTES"
"""Environment variable that overrides ``MAX_LINE_BYTES``."""
WORD_BYTES, VALUE_BYTES = 8, 32
"""The limit on the length of a line, in bytes, for each word or JSON value that the line may have.

A word of one letter takes up to thirty times the memory of its characters, and an empty JSON object as well.
"""
MIN_PIECES = 1 << 16
"""Number of words or values that every line may have, even if the limit on its length is low."""
BLANKS, VALUE_STARTS = b" \t\r\f\v", b",[{"
"""Bytes that separate words, and bytes that stand before JSON values; strings may have them, too."""
BYTE_ORDER_MARK = "\ufeff"


class EncodingError(FormatError):
    """A line of a file is not text in the expected encoding."""

    text = ""
    """The line, with U+FFFD in place of bytes that are not in the encoding."""

    @classmethod
    def of(cls, text: str, message: str, file: str, line: int) -> EncodingError:
        error = cls(message, file=file, line=line)
        error.text = text
        return error


def source_name(source: Source) -> str:
    """Return the name of a source for error messages. For a file, this is the name that the user gave."""
    if isinstance(source, (str, Path)):
        return "<stdin>" if str(source) == "-" else str(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "<stream>"


def read_lines(
    source: Source, encoding: str = "utf-8", first: int = 1
) -> Iterator[tuple[int, str | FormatError]]:
    """Yield each line with its number; yield an error in place of a line that is not valid text.

    Gzip is detected from the first bytes, not from the file name. A byte order mark at the start and carriage
    returns at line ends are removed. If gzip data are damaged, the complete lines before the damage are
    yielded, then an error, and reading stops. A line longer than ``max_line_bytes()`` is an error and is
    never held in memory as a whole.

    Args:
        encoding: an encoding in which the byte 10 occurs only in line ends.
        first: number of the first line.

    Raises:
        FormatError: the source cannot be opened, or is not text, such as a parquet file or a zip archive.
        ConfigError: ``MAX_LINE_VARIABLE`` is not a number of bytes.
    """
    name, limit = source_name(source), max_line_bytes()
    with _open_input(source) as stream:
        number = first - 1
        try:
            for raw in split_lines(read_chunks(stream, name), limit):
                number += 1
                yield number, _decode_line(raw, name, number, limit, encoding)
        except READ_ERRORS as error:
            yield number + 1, FormatError(_explain_read_error(error), file=name, line=number + 1)


NumberedLine = tuple[int, str | FormatError]
"""A line with its number, or the error in its place."""


class NumberedLines:
    """An iterator over the numbered lines of a file, to which lines can be put back."""

    def __init__(self, lines: Iterable[NumberedLine]) -> None:
        self._lines, self._back = iter(lines), deque[NumberedLine]()

    def __iter__(self) -> Iterator[NumberedLine]:
        return self

    def __next__(self) -> NumberedLine:
        return self._back.popleft() if self._back else next(self._lines)

    def put_back(self, lines: Sequence[NumberedLine]) -> None:
        """Put lines back, so that they are the next lines."""
        self._back.extendleft(reversed(lines))

    def peek(self) -> str | FormatError:
        """Return the next line that is not blank without taking it, or an empty string at the end."""
        for line, text in self:
            if isinstance(text, FormatError) or text.strip():
                self.put_back([(line, text)])
                return text
        return ""


def read_lines_strict(source: Source, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """Yield each line with its number, from 1. Raise the first error, because the file must be complete.

    Raises:
        FormatError: as for ``read_lines``, and at the first line that is not valid text.
    """
    for number, text in read_lines(source, encoding):
        if isinstance(text, FormatError):
            raise text
        yield number, text


def read_text_chunks(source: Source) -> Iterator[str]:
    """Yield a text in chunks of any length, for documents with long lines; otherwise like ``read_lines``.

    Raises:
        FormatError: the source cannot be opened, is damaged, or is not UTF-8. In the last two cases, the text
            before the damage is yielded first.
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
        except READ_ERRORS as error:
            raise FormatError(_explain_read_error(error), file=name, line=line) from None


def read_byte_chunks(source: Source) -> Iterator[bytes]:
    """Yield the bytes of a binary file, decompressed, in chunks of at most ``CHUNK_BYTES``.

    Raises:
        FormatError: the source cannot be opened or read, or its gzip data are damaged.
    """
    name = source_name(source)
    with _open_input(source) as stream:
        try:
            yield from read_chunks(stream, name)
        except READ_ERRORS as error:
            raise FormatError(_explain_read_error(error), file=name) from None


READ_ERRORS = (EOFError, zlib.error, OSError)


def _explain_read_error(error: EOFError | zlib.error | OSError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return f"damaged gzip data: {error}"


def write_text(target: str | Path, text: str) -> None:
    """Write a whole text file as ``open_output`` does; raise FormatError if it cannot be written."""
    with open_output(target) as stream:
        stream.write(text)


@contextmanager
def open_output(target: str | Path) -> Iterator[TextIO]:
    """Open a text file for writing, compressed if its name ends with ``.gz``; ``-`` is standard output.

    A regular file is created or replaced only once it is complete: an error before that leaves the previous
    content untouched. Symbolic links are followed. Devices and pipes are written directly.

    Raises:
        FormatError: the file cannot be written, or the disk becomes full while it is written.
        BrokenPipeError: the reader of a pipe has gone.
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
    """Open a stream, or a file that replaces the target when it is complete. If the name of the target ends
    with ``.gz``, compress the content."""
    try:
        with ExitStack() as stack:
            with explain_write_errors(target):
                path = find_file(target)
            if path is None:
                with explain_write_errors(target):
                    raw = open_stream(target)
            else:
                partial = path.with_name(f".{path.name}.partial")
                raw = os.fdopen(os.dup(stack.enter_context(_replacing(target, path, partial))), "wb")
            stack.enter_context(raw)
            yield stack.enter_context(_compressed(raw, Path(target)))
    except OSError as error:
        if error.errno not in WRITE_ERRORS:
            raise
        raise write_error(target, error) from None


@contextmanager
def _compressed(stream: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """Yield the stream or, if the name ends with ``.gz``, another stream that compresses data into it."""
    if path.suffix != ".gz":
        yield stream
        return
    with gzip.GzipFile(path.name, "wb", fileobj=stream) as compressed:
        yield cast(BinaryIO, compressed)


def open_named(name: str | Path) -> BinaryIO:
    """Open a file, or an object in object storage, which is named by a URL.

    Raises:
        OSError: the file or object cannot be opened.
        FormatError: the storage fails.
    """
    return open_object(str(name)) if is_url(name) else open(name, "rb")


@contextmanager
def _open_input(source: Source) -> Iterator[BinaryIO]:
    """Open a source. Afterwards, close it, unless it is a stream that the caller has opened."""
    if not isinstance(source, (str, Path)):
        yield source
    elif str(source) == "-":
        yield sys.stdin.buffer
    else:
        try:
            stream = open_named(source)
        except OSError as error:
            raise FormatError(_explain_read_error(error), file=str(source)) from None
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


def split_lines(chunks: Iterator[bytes], limit: int) -> Iterator[bytes | None]:
    """Yield lines without their line ends, or None in place of a line longer than ``limit`` bytes."""
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


def max_values() -> int:
    """Return the limit on the number of values in one JSON value, which depends on that on its length.

    Raises:
        ConfigError: ``MAX_LINE_VARIABLE`` is not a number of bytes.
    """
    return max(MIN_PIECES, max_line_bytes() // VALUE_BYTES)


def _find_excess(raw: bytes, limit: int) -> str:
    """Say that a line has too many words or JSON values; return an empty string if it does not."""
    if len(raw) <= MIN_PIECES:
        return ""
    for kind, marks, n_bytes in (("words", BLANKS, WORD_BYTES), ("JSON values", VALUE_STARTS, VALUE_BYTES)):
        n_most = max(MIN_PIECES, limit // n_bytes)
        if len(raw) > n_most and len(raw) - len(raw.translate(None, marks)) > n_most:
            return f"has more than {n_most:,} {kind}; set {MAX_LINE_VARIABLE} to allow more"
    return ""


def _decode_line(raw: bytes | None, name: str, number: int, limit: int, encoding: str) -> str | FormatError:
    if raw is None:
        message = f"longer than {limit} bytes; set {MAX_LINE_VARIABLE} to allow more"
        return FormatError(message, file=name, line=number)
    if problem := _find_excess(raw, limit):
        return FormatError(problem, file=name, line=number)
    try:
        line = raw.decode(encoding)
    except UnicodeDecodeError as error:
        message = f"not {encoding.upper()}: {error.reason} at byte {error.start + 1}"
        return EncodingError.of(raw.decode(encoding, "replace"), message, name, number)
    if "\0" in line:
        return EncodingError.of(line, "contains NUL bytes; expected text", name, number)
    return (line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip("\r")

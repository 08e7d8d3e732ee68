"""Find out what writing to a name would do, and replace only regular files, each by a complete one.

A device, a pipe, a socket or an open descriptor (``/dev/stdout``) is a stream: it is written to, never
replaced. A symbolic link stays, and the file at its end is replaced. A folder is an error.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rescorer.errors import ConfigError, FormatError

WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
"""Errors that come after a file was opened for writing: a full disk, an exceeded quota and such."""
STDIN, STDOUT = 0, 1
MAX_LINKS = 40
"""Largest number of links that Linux follows, too."""


def find_file(target: str | Path) -> Path | None:
    """Return the regular file that writing to a target creates or replaces; None if the target is a stream.

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
    """Return the number of the open descriptor that a path such as ``/dev/stdout`` stands for, if any."""
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
    """Open a stream for writing; raises OSError. An open descriptor goes on where it was written to last."""
    sys.stdout.flush()
    descriptor = STDOUT if str(target) == "-" else _find_descriptor(target)
    return open(target, "wb") if descriptor is None else os.fdopen(os.dup(descriptor), "wb")


@contextmanager
def replace_file(target: str | Path) -> Iterator[Path]:
    """Yield the name of a file to write, with the suffixes of the target's; its content becomes the target's.

    The file lies next to the one that it replaces. For a stream it lies in a temporary folder, and is copied.

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
    try:
        yield partial
        with explain_write_errors(target):
            move_over(partial, path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def copy_to_stream(file: Path, target: str | Path) -> None:
    """Write the content of a file to a stream.

    Raises:
        FormatError: the stream cannot be written.
        BrokenPipeError: the reader of a pipe has gone.
    """
    with explain_write_errors(target), file.open("rb") as content, open_stream(target) as stream:
        shutil.copyfileobj(content, stream)


def move_over(partial: Path, path: Path) -> None:
    """Put a complete file in the place of another, with that one's permissions, if there is one."""
    with suppress(FileNotFoundError):
        shutil.copymode(path, partial)
    os.replace(partial, path)


def remove_file(target: str | Path) -> None:
    """Remove the regular file that an earlier run may have written to a target; links and streams stay.

    Raises:
        OSError: the file cannot be removed, or the target is a folder.
    """
    if (path := find_file(target)) is not None:
        path.unlink(missing_ok=True)


def check_target(target: str | Path) -> None:
    """Check that a target can be written; existing content is not touched, and no file is left.

    Raises:
        FormatError: If it cannot: for instance, the folder is missing or read-only, or ``target`` is one.
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
    """Turn an OSError, other than that of a closed pipe, into a FormatError that names the target."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise write_error(target, error) from None


def write_error(target: str | Path, error: OSError) -> FormatError:
    """The error that says why a target cannot be written."""
    return FormatError(f"cannot be written: {error.strerror or error}", file=str(target))


def make_folder(target: str | Path) -> Path:
    """Create the folder to write to, unless it exists.

    Raises:
        FormatError: If the folder cannot be created, or is something else than a folder.
    """
    path = Path(target)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise FormatError(
            "is not a folder; expected the name of a folder to write", file=str(target)
        ) from None
    except OSError as error:
        raise FormatError(f"cannot create the folder: {error.strerror}", file=str(target)) from None
    return path


def check_not_input(
    option: str, target: str | Path, inputs: Iterable[str | Path], what: str = "an input file"
) -> None:
    """Raise ConfigError if writing to a target would overwrite something that is read, by whatever names.

    Devices, such as a terminal, may be both.

    Args:
        option: the option that names the target, for the message.
        what: what the inputs are, for the message.
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

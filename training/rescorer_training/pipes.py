"""Let a command read a pipe several times, by keeping the text that came through the pipe on disk.

Commands read their texts several times, for example to count words and to encode them. A program therefore
keeps the content of pipes while a command runs (``keep_pipes``). This module imports little, so that
``--help`` is fast.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rescorer.errors import ConfigError, FormatError
from rescorer.formats.io.text_io import Source, open_named, source_name


@dataclass
class _Pipes:
    """Temporary files with the content of pipes. They have no names, so they vanish when the process ends."""

    stack: ExitStack
    files: dict[object, IO[bytes]] = field(default_factory=dict)
    """The file of each pipe, by device and inode, since ``-`` and ``/dev/stdin`` may be the same pipe."""


_kept: ContextVar[_Pipes | None] = ContextVar("kept pipes", default=None)


@contextmanager
def keep_pipes() -> Iterator[None]:
    """Keep the content of every pipe that ``open_text`` reads, until the end of this context."""
    if _kept.get() is not None:
        yield
        return
    with ExitStack() as stack:
        token = _kept.set(_Pipes(stack))
        try:
            yield
        finally:
            _kept.reset(token)


def is_pipe(path: Path) -> bool:
    """Whether a text is standard input (``-``), a pipe or a socket, which can be read only once."""
    if str(path) == "-":
        return True
    with suppress(OSError):
        mode = path.stat().st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
    return False


def check_no_pipe(model: Path) -> None:
    """Raise ConfigError if a model comes through a pipe, because only texts from pipes are kept."""
    if is_pipe(model):
        raise ConfigError(f"{model}: is a pipe, but a model is read more than once; give the name of a file")


def find_size(path: Path) -> int:
    """Return the size of a text in bytes, or 0 for a pipe. Raises OSError if the text does not exist."""
    return 0 if is_pipe(path) else path.stat().st_size


@contextmanager
def open_text(path: Path) -> Iterator[Source]:
    """Yield what to read a text from: its path or, for a pipe within ``keep_pipes``, the kept content.

    Raises:
        FormatError: the pipe cannot be read or kept, or it is empty.
    """
    pipes = _kept.get()
    if pipes is None or not is_pipe(path):
        yield path
        return
    identity = _identify(path)
    if identity not in pipes.files:
        pipes.files[identity] = _keep(path, pipes.stack)
    descriptor = pipes.files[identity].fileno()
    with open(source_name(path), "rb", opener=lambda *_: os.dup(descriptor)) as stream:
        stream.seek(0)
        yield stream


def _identify(path: Path) -> object:
    with suppress(OSError, ValueError):  # standard input may be closed, or no file
        status = os.fstat(sys.stdin.fileno()) if str(path) == "-" else path.stat()
        return status.st_dev, status.st_ino
    return str(path)


def _keep(path: Path, stack: ExitStack) -> IO[bytes]:
    """Copy a pipe to a temporary file, which the stack closes."""
    try:
        source = sys.stdin.buffer if str(path) == "-" else stack.enter_context(open_named(path))
        kept = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 (the stack closes it)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}", file=source_name(path)) from None
    try:
        shutil.copyfileobj(source, kept)
        kept.flush()
    except OSError as error:
        message = f"cannot be kept in {tempfile.gettempdir()} to be read again: {error.strerror or error}"
        raise FormatError(message, file=source_name(path)) from None
    if not kept.tell():
        raise FormatError("nothing came through this pipe; expected text", file=source_name(path))
    return kept

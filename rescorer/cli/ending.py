"""How a program of commands ends: the exit codes of errors, and outputs that cannot be written."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

import typer

from rescorer.errors import ConfigError, FormatError, InputError, ModelError, RescorerError

EXIT_CODES: tuple[tuple[type[RescorerError], int, str], ...] = (
    (ConfigError, 2, "options or weights are wrong"),
    (InputError, 3, "the input cannot be read"),
    (ModelError, 4, "the model bundle cannot be used"),
    (RescorerError, 5, "scoring failed"),
)
"""Exit code and meaning of each kind of error; 0 is success, 1 means that some lists were rejected."""
BROKEN_PIPE = 141
"""Exit code when the reader of the output closes it early: the code with which shells report SIGPIPE."""


def exit_code(error: RescorerError) -> int:
    """The exit code of an error, from ``EXIT_CODES``."""
    return next(code for kind, code, _ in EXIT_CODES if isinstance(error, kind))


def run(app: typer.Typer, program: str, exit_code: Callable[[RescorerError], int] = exit_code) -> None:
    """Run a program; a ``RescorerError``, or an output that is closed or on a full disk, becomes one line on
    stderr and an exit code, without a traceback."""
    replace_closed_streams()
    try:
        app()
    except (BrokenPipeError, SystemExit) as error:  # the reader of our output has gone, as with `head`
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise  # only that of a broken pipe, to which typer gives the code 1, needs another code
        sys.stderr.close()
        sys.exit(BROKEN_PIPE)
    except RescorerError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(exit_code(error))
    except OSError as error:
        from rescorer.formats.io.targets import WRITE_ERRORS

        if error.errno not in {*WRITE_ERRORS, errno.EBADF} or error.filename is not None:
            raise
        reason = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        print(f"{program}: the output cannot be written: {reason}", file=sys.stderr)
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the rest, which Python writes at exit
        sys.exit(exit_code(FormatError("")))


def replace_closed_streams() -> None:
    """Open the standard streams that the caller has closed (``>&-``), which Python represents by None.

    Standard output becomes a file that cannot be written, so that a command fails only if it prints; what
    goes to standard error is lost. Files that are opened later cannot take their descriptors either.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")

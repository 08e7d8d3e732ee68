"""The commands of ``rescorer``, and how a program of commands runs and ends."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from rescorer.cli.bench import bench
from rescorer.cli.convert import convert
from rescorer.cli.evaluation.calibrate import calibrate
from rescorer.cli.evaluation.candidates import candidates
from rescorer.cli.evaluation.combine import combine
from rescorer.cli.evaluation.compare import compare
from rescorer.cli.evaluation.evaluate import evaluate
from rescorer.cli.evaluation.explain import explain
from rescorer.cli.evaluation.inspect import inspect
from rescorer.cli.evaluation.report import report
from rescorer.cli.evaluation.tune import tune
from rescorer.cli.options.settings import SettingsCommand
from rescorer.cli.output import PLAIN_HELP, version_option
from rescorer.cli.rescore import rescore
from rescorer.cli.score import score
from rescorer.cli.seal import seal_bundle
from rescorer.cli.service.config import config
from rescorer.cli.service.health import health
from rescorer.cli.service.load import load
from rescorer.cli.service.serve import serve
from rescorer.cli.service.token import token
from rescorer.cli.service.top.command import top
from rescorer.cli.shards.commands import shards
from rescorer.errors import ConfigError, FormatError, InputError, ModelError, RescorerError
from rescorer.formats.io.text_io import WRITE_ERRORS

EXIT_CODES: tuple[tuple[type[RescorerError], int, str], ...] = (
    (ConfigError, 2, "options or weights are wrong"),
    (InputError, 3, "the input cannot be read"),
    (ModelError, 4, "the model bundle cannot be used"),
    (RescorerError, 5, "scoring failed"),
)
"""Exit code and meaning of each kind of error; 0 is success, 1 means that some lists were rejected."""
BROKEN_PIPE = 141
"""Exit code when the reader of the output closes it early: the code with which shells report SIGPIPE."""

EPILOG = "Exit codes: 0 success, 1 some lists rejected or `inspect` found something wrong, " + ", ".join(
    f"{code} {meaning}" for _, code, meaning in EXIT_CODES
)

app = typer.Typer(
    **PLAIN_HELP,
    help="Re-rank the n-best lists of a speech recogniser with language models.\n\n"
    "Example: rescorer rescore demo/lists.jsonl.gz -o out.jsonl --bundle models/starter/1 "
    "--weights pocketsphinx",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(version: Annotated[bool, version_option("rescorer")] = False) -> None:
    """Options of the program itself."""


app.command("rescore")(rescore)
app.command("serve", cls=SettingsCommand)(serve)
app.command("config", cls=SettingsCommand)(config)
app.command("health")(health)
app.command("token")(token)
app.command("top")(top)
app.command("evaluate")(evaluate)
app.command("compare")(compare)
app.command("report")(report)
app.command("explain")(explain)
app.command("tune")(tune)
app.command("calibrate")(calibrate)
app.command("candidates")(candidates)
app.command("combine")(combine)
app.command("convert")(convert)
app.command("score")(score)
app.command("seal")(seal_bundle)
app.command("inspect")(inspect)
app.command("bench")(bench)
app.command("load")(load)
app.add_typer(shards, name="shards")


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

"""A program of commands: lazy imports, plain help, exit codes and reports of rejected lists."""

from __future__ import annotations

import errno
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup

from rescorer.errors import ConfigError, FormatError, InputError, ModelError, RescorerError, pluralise

if TYPE_CHECKING:
    from rescorer.types import Weights


LIST_PARAMETERS = ("files", "sources")
"""Names of the arguments that are lists, in all commands."""
SOME_REJECTED = 1
"""Exit code if some lists could not be read, scored or written, and the others could."""


class PlainGroup(TyperGroup):
    """A group whose help shows the whole first paragraph of each command, which click would truncate to one
    line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, first_paragraph(command.help)) for name, command in commands if command is not None]
            )


def first_paragraph(text: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


PLAIN_HELP: dict[str, Any] = {
    "cls": PlainGroup,
    "rich_markup_mode": None,
    "context_settings": {"max_content_width": 110},
}
"""Arguments of ``typer.Typer`` for help without rich's tables, which truncate names on narrow terminals."""


def version_option(program: str) -> Any:
    """The option ``--version`` of a program, which all programs of this project have."""

    def show(value: bool) -> None:
        if value:
            from importlib.metadata import version

            typer.echo(f"{program} {version('rescorer')}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="Show the version and exit.")


def or_dash(value: float | None, form: str) -> str:
    """``value`` in the given format; a dash if it was not measured.

    >>> or_dash(1234.56, ",.1f"), or_dash(None, ",.1f")
    ('1,234.6', '–')
    """
    return "–" if value is None else format(value, form)


def check_output_path(option: str, path: Path, suffixes: Collection[str] = ()) -> None:
    """Raise ConfigError, before any work is done, if a file of results cannot be written.

    Args:
        option: the option that names the file.
        suffixes: the ends of a name that choose a format; empty if any name will do.
    """
    from rescorer.formats.io.text_io import check_target

    if suffixes and path.suffix.lower() not in suffixes:
        raise ConfigError(f"{option} {path}: expected a name that ends in {', '.join(suffixes)}")
    if str(path) == "-":
        raise ConfigError(f"{option} -: expected the name of a file; standard output has the tables")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{option} {path}: no such folder")
    try:
        check_target(path)
    except FormatError as error:
        raise ConfigError(f"{option} {error}") from None
    check_not_an_input(option, path)


def check_not_an_input(option: str, path: str | Path, lists: Iterable[str | Path] = ()) -> None:
    """Raise ConfigError if another option or argument of the running command names the file to write.

    Args:
        option: the option or argument that names the file, whose own value is no input.
        lists: files of lists that are read, such as those of a folder.
    """
    from rescorer.formats.io.text_io import check_not_input

    check_not_input(option, path, lists, "the input lists")
    check_not_input(option, path, _other_values(option))
    check_not_input(option, path, _list_inputs(), "the input lists")


@contextmanager
def print_results_apart(output: str | Path) -> Iterator[None]:
    """Print to standard error within this context if standard output has what a command writes."""
    from rescorer.formats.io.text_io import is_standard_output

    with redirect_stdout(sys.stderr) if is_standard_output(output) else nullcontext():
        yield


def _other_values(option: str) -> Iterator[str]:
    """Yield what may name a file in the running command line, except the value of one option."""
    from rescorer.storage import as_local

    context = _current_context()
    if context is None:  # called as a function
        return
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if option in parameter.opts:
            continue
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(item, (str, Path)):
                text = as_local(str(item))
                yield from (text, text.partition("=")[2], text.rpartition(":")[0])  # NAME=FILE, TEXT:WEIGHT


def _list_inputs() -> Iterator[Path]:
    """Yield the files of lists that the running command reads by the name of a folder or by a pattern."""
    from rescorer.formats.inputs import expand_globs, find_parts
    from rescorer.formats.io.folders import list_files

    context = _current_context()
    values = context.params if context else {}
    given = [str(value) for name in LIST_PARAMETERS for value in values.get(name) or ()]
    for name in given:
        for match in expand_globs([name]):
            if not Path(match).is_dir():
                yield Path(match)
                continue
            try:
                parts = find_parts(match)
            except FormatError:  # which the reader reports
                continue
            yield from (file for part in parts.paths for file in list_files(part))


def _current_context() -> Any:
    """The context of the running command, if any; some versions of typer include a click."""
    click = TyperGroup.__mro__[1].__module__.rpartition(".")[0]
    return import_module(f"{click}.globals").get_current_context(silent=True)


def warn_about_tuning(weights: Weights, n_seen: int, n_lists: int, consequence: str) -> None:
    """Warn that weights, or rerankers that they use, were made from the lists that judge them."""
    overlap = f"{n_seen} of these {pluralise(n_lists, 'list')}"
    typer.echo(f"warning: weights {weights.name!r} were tuned on {overlap}: {consequence}", err=True)


def shorten_names(files: Sequence[str]) -> list[str]:
    """Leave out the folders of files, unless names would be the same without them.

    >>> shorten_names(["runs/a.jsonl", "runs/b.jsonl"]), shorten_names(["1/a.jsonl", "2/a.jsonl"])
    (['a.jsonl', 'b.jsonl'], ['1/a.jsonl', '2/a.jsonl'])
    """
    names = [Path(file).name for file in files]
    return names if len(set(names)) == len(names) else list(files)


def describe_shared_lists(n_shared: int, others: Mapping[str, int]) -> str:
    """Say which lists files are compared on; ``others`` is the number of further lists of each file."""
    counts = ", ".join(f"{file} {count:,}" for file, count in others.items())
    shared = pluralise(n_shared, "list")
    return f"compared on the {shared} that all files have; others: {counts}"


SEE_JSON = "; --json names them all"
MAX_EXAMPLES = 3
"""Number of errors printed per kind; a file without references has as many errors as lists."""


class Rejections:
    """The reasons why lists were rejected; ``len`` is the number of lists."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        """One per list, in input order."""
        self._reasons_by_kind: dict[tuple[str, str], list[str]] = defaultdict(list)

    def __len__(self) -> int:
        return len(self.reasons)

    def add(self, error: InputError) -> None:
        """Add an error as text; the error itself may keep the whole list in memory."""
        reason = str(error)
        self.reasons.append(reason)
        self._reasons_by_kind[type(error).__name__, getattr(error, "field", "")].append(reason)

    def report(self, hint: str = "") -> None:
        """Print the first few reasons of each kind to stderr, and the number of others.

        Args:
            hint: says where to find the others.
        """
        for (_, field), reasons in self._reasons_by_kind.items():
            for reason in reasons[:MAX_EXAMPLES]:
                typer.echo(f"rejected: {reason}", err=True)
            if (more := len(reasons) - MAX_EXAMPLES) > 0:
                about = f" for their {field}" if field else ""
                typer.echo(f"rejected: {pluralise(more, 'more list')}{about}{hint}", err=True)


class LazyCommand(NamedTuple):
    """A command that has not been imported."""

    target: str
    """``module:name`` of its function, or of its app of typer if it is a group."""
    summary: str
    """The first paragraph of its help, which the help of its group shows."""
    cls: str = ""
    """``module:name`` of its class; empty for the default."""


class _Commands(Mapping[str, Any]):
    """The commands of a group, each made when it is looked up."""

    def __init__(self, lazy: Mapping[str, LazyCommand]) -> None:
        self._lazy = lazy
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _make(name, self._lazy[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lazy)

    def __len__(self) -> int:
        return len(self._lazy)


def _make(name: str, lazy: LazyCommand) -> Any:
    """Make a command as a member of a group, which typer makes slightly differently from a lone one."""
    target = _find(lazy.target)
    group = typer.Typer(**PLAIN_HELP, add_completion=False)
    group.callback()(lambda: None)
    if isinstance(target, typer.Typer):
        group.add_typer(target, name=name)
    else:
        group.command(name, cls=_find(lazy.cls) if lazy.cls else None)(target)
    made: Any = typer.main.get_command(group)
    return made.commands[name]


def _find(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


class LazyGroup(PlainGroup):
    """A group of ``LazyCommand``s; a subclass says which."""

    lazy: ClassVar[Mapping[str, LazyCommand]]
    removed: ClassVar[Mapping[str, str]] = {}
    """Names of commands that the group no longer has, and what to use instead."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands(self.lazy)  # type: ignore[assignment]  # click only reads it

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of a command line; refuse one that was removed, naming what to use instead."""
        if args[0] in self.removed and not ctx.resilient_parsing:
            ctx.fail(f"'{args[0]}' was removed: {self.removed[args[0]]}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.lazy)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self.lazy.items()])


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
        from rescorer.formats.io.text_io import WRITE_ERRORS

        if error.errno not in {*WRITE_ERRORS, errno.EBADF} or error.filename is not None:
            raise
        reason = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        print(f"{program}: the output cannot be written: {reason}", file=sys.stderr)
        # Python writes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
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

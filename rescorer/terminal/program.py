"""A program with commands: lazy imports, plain help, exit codes, warnings, and reports of rejected lists."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import Counter, UserDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup

from rescorer.errors import ConfigError, FormatError, InputError, ModelError, RescorerError, pluralise
from rescorer.escapes import escape_controls, guard_terminals
from rescorer.progress import ProgressTask, install_display
from rescorer.terminal.help import GroupedCommand

if TYPE_CHECKING:
    from rescorer.types import Weights


LIST_PARAMETERS = ("files", "sources")
"""Names of the arguments by which commands take files of lists."""
SOME_REJECTED = 1
"""Exit code of a command that has rejected some lists and processed the others."""


class PlainGroup(TyperGroup):
    """A group of commands whose help shows the whole first paragraph of each, which click would cut short."""

    def summarise(self, ctx: Any) -> list[tuple[str, str]]:
        """Return the name of each command, with the first paragraph of its help."""
        names = self.list_commands(ctx)
        return [
            (name, first_paragraph(command.help))
            for name in names
            if (command := self.get_command(ctx, name))
        ]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self.summarise(ctx))


def first_paragraph(text: str | None) -> str:
    """The first paragraph of a text, on one line."""
    return " ".join((text or "").partition("\n\n")[0].split())


PLAIN_HELP: dict[str, Any] = {
    "cls": PlainGroup,
    "rich_markup_mode": None,
    "context_settings": {"max_content_width": 110},
}
"""Arguments of ``typer.Typer`` for plain help: rich's tables would cut names on narrow terminals."""


def version_option(program: str) -> Any:
    """The option ``--version``, for a program of this name."""

    def show(value: bool) -> None:
        if value:
            from importlib.metadata import version

            typer.echo(f"{program} {version('rescorer')}")
            raise typer.Exit

    return typer.Option("--version", callback=show, is_eager=True, help="Show the version and exit.")


def or_dash(value: float | None, form: str) -> str:
    """Format a number. None, which stands for a number that was not measured, becomes a dash.

    >>> or_dash(1234.56, ",.1f"), or_dash(None, ",.1f")
    ('1,234.6', '–')
    """
    return "–" if value is None else format(value, form)


def warn(message: str) -> None:
    """Print a warning to standard error."""
    print_note(f"warning: {message}")


INDENTED_LINE = "\n  "
"""Start of a further line of a message."""


def print_note(message: str) -> None:
    """Print a message to standard error. On a terminal, no line end in a name makes it look like several."""
    if sys.stderr.isatty():
        message = INDENTED_LINE.join(map(escape_controls, message.split(INDENTED_LINE)))
    typer.echo(message, err=True)


def print_json(data: Any) -> None:
    """Print results as indented JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False))


def check_output_path(option: str, path: Path, suffixes: Collection[str] = ()) -> None:
    """Raise ConfigError, before any work is done, if a file of results cannot be written.

    Args:
        option: the option that names the file.
        suffixes: the extensions that the name may have; empty if any name is accepted.
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
    """Raise ConfigError if the file to write is also an input of the running command.

    Args:
        option: the option or argument that names the file to write.
        lists: files of lists that are read, in addition to those that the command line names.
    """
    from rescorer.formats.io.text_io import check_not_input

    check_not_input(option, path, lists, "the input lists")
    check_not_input(option, path, _other_values(option))
    check_not_input(option, path, _list_inputs(), "the input lists")


@contextmanager
def print_results_apart(output: str | Path) -> Iterator[None]:
    """Within this context, send prints to standard error if the command's output goes to standard output."""
    from rescorer.formats.io.text_io import is_standard_output

    with redirect_stdout(sys.stderr) if is_standard_output(output) else nullcontext():
        yield


def _other_values(option: str) -> Iterator[str]:
    """Yield all texts on the running command line that may name files, except the value of one option."""
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
    """Yield the files of lists that the running command reads, including those in folders or matching
    patterns."""
    from rescorer.formats.inputs import expand_globs, find_parts
    from rescorer.formats.io.folders import list_files

    context = _current_context()
    values = context.params if context else {}
    given = [split_name(str(value))[1] for name in LIST_PARAMETERS for value in values.get(name) or ()]
    for name in given:
        for match in expand_globs([name]):
            if not os.path.isdir(match):  # which takes any name, however long
                yield Path(match)
                continue
            try:
                parts = find_parts(match)
            except FormatError:  # which the reader reports
                continue
            yield from (file for part in parts.paths for file in list_files(part))


def _current_context() -> Any:
    """Return click's context of the running command, or None. Some typer versions contain a copy of click."""
    click = TyperGroup.__mro__[1].__module__.rpartition(".")[0]
    return import_module(f"{click}.globals").get_current_context(silent=True)


def running_command(name: str) -> list[str]:
    """The words of another command of the program, with the inputs and options of the running one, as far as
    both have them; output files are left out."""
    context = _current_context()
    if context is None:  # called as a function
        return ["rescorer", name]
    other = context.parent.command.get_command(context.parent, name)
    words, known = ["rescorer", name], {option for parameter in other.params for option in parameter.opts}
    for parameter in context.command.params:
        value = context.params.get(parameter.name)
        is_output = bool({"--output", "--export", "--raw"} & set(parameter.opts))
        if context.get_parameter_source(parameter.name).name != "COMMANDLINE" or is_output:
            continue
        values = list(map(str, value)) if isinstance(value, (list, tuple)) else [str(value)]
        if parameter.param_type_name == "argument":
            words += values
        elif (option := max(parameter.opts, key=len)) in known and option != "--json":
            words += [option] if value is True else [word for one in values for word in (option, one)]
    return words


def warn_about_tuning(weights: Weights, n_seen: int, n_lists: int, consequence: str) -> None:
    """Warn that lists which now judge weights were used to tune them, or to train their rerankers."""
    overlap = f"{n_seen} of these {pluralise(n_lists, 'list')}"
    warn(f"weights {weights.name!r} were tuned on {overlap}: {consequence}")


def shorten_names(files: Sequence[str]) -> list[str]:
    """Return the names of files without their folders, unless two files would then have the same name.

    >>> shorten_names(["runs/a.jsonl", "runs/b.jsonl"]), shorten_names(["1/a.jsonl", "2/a.jsonl"])
    (['a.jsonl', 'b.jsonl'], ['1/a.jsonl', '2/a.jsonl'])
    """
    names = [Path(file).name for file in files]
    return names if len(set(names)) == len(names) else list(files)


def split_name(text: str) -> tuple[str, str]:
    """Divide ``NAME=FILE`` into the name and the file. Without a name, or if the whole text is the name of a
    file, the name is empty.

    >>> split_name("ours=runs/a.jsonl"), split_name("runs/lr=0.1/a.jsonl"), split_name("a.jsonl")
    (('ours', 'runs/a.jsonl'), ('', 'runs/lr=0.1/a.jsonl'), ('', 'a.jsonl'))
    """
    name, equals, file = text.partition("=")
    is_name = bool(name and equals and file) and not {"/", ":"} & {*name}
    return (name, file) if is_name and not os.path.exists(text) else ("", text)


def name_systems(inputs: Sequence[str]) -> dict[str, str]:
    """Return the name of each system by its file: the one that the user gave, or the short name of the file.

    Raises:
        ConfigError: two systems have the same name, or a file has two.
    """
    named: dict[str, str] = {}
    for name, file in map(split_name, inputs):
        if named.setdefault(file, name) != name:
            if not (name and named[file]):
                raise ConfigError(f"{file}: given twice, once as {name or named[file]!r}; expected it once")
            raise ConfigError(f"{file}: one file with two names, {named[file]!r} and {name!r}; expected one")
    short = dict(zip(named, shorten_names(list(named)), strict=True))
    names = {file: name or short[file] for file, name in named.items()}
    if len(set(names.values())) < len(names):
        twice, _ = Counter(names.values()).most_common(1)[0]
        raise ConfigError(f"two systems are named {twice!r}; expected NAME=FILE with different names")
    return names


def describe_shared_lists(n_shared: int, others: Mapping[str, int]) -> str:
    """Say on how many lists files are compared, and how many other lists each file has."""
    counts = ", ".join(f"{file} {count:,}" for file, count in others.items())
    shared = pluralise(n_shared, "list")
    return f"compared on the {shared} that all files have; others: {counts}"


MAX_EXAMPLES = 3
"""Number of errors of each kind that are printed, because every list of a file may have one."""
MAX_REASONS = 100_000
"""Number of errors that are kept for ``--json``. A small compressed file may have millions."""


class Rejections:
    """The rejected lists of a command: how many there are, and why each was rejected."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        """Why each list was rejected, in input order; at most ``MAX_REASONS``."""
        self._examples: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._counts: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, error: InputError) -> None:
        """Add a rejected list, given its error. Only the error's text is kept, which takes less memory."""
        reason, kind = str(error), (type(error).__name__, getattr(error, "field", ""))
        self._counts[kind] += 1
        if len(self.reasons) < MAX_REASONS:
            self.reasons.append(reason)
        if self._counts[kind] <= MAX_EXAMPLES:
            self._examples[kind].append(reason)

    def extend(self, errors: Iterable[InputError]) -> None:
        """Add several rejected lists, given their errors."""
        for error in errors:
            self.add(error)

    def to_dict(self) -> dict[str, Any]:
        """Return the number of rejected lists and the reasons, as ``--json`` prints them."""
        return {"rejected": len(self), "rejected_lists": self.reasons}

    @property
    def see_json(self) -> str:
        """The hint for ``report`` that ``--json`` names the other reasons."""
        return f"; --json names {'them all' if len(self) <= MAX_REASONS else f'the first {MAX_REASONS:,}'}"

    def report(self, hint: str = "") -> None:
        """Print the first few reasons of each kind to standard error, and the number of the other reasons.

        Args:
            hint: a text that says where to find the other reasons.
        """
        for kind, examples in self._examples.items():
            for reason in examples:
                print_note(f"rejected: {reason}")
            if (more := self._counts[kind] - MAX_EXAMPLES) > 0:
                about = f" for their {kind[1]}" if kind[1] else ""
                typer.echo(f"rejected: {pluralise(more, 'more list')}{about}{hint}", err=True)

    def end(self) -> None:
        """End the command with the exit code ``SOME_REJECTED`` if lists were rejected."""
        if self.reasons:
            raise typer.Exit(SOME_REJECTED)


class LazyCommand(NamedTuple):
    """A command whose module is imported when the command is needed."""

    target: str
    """The command's function as ``module:name``; for a group of commands, its ``typer.Typer``."""
    summary: str
    """The first paragraph of the command's help, which the help of the program shows."""
    cls: str = ""
    """The command's class as ``module:name``; empty for that of the group."""


class _Commands(UserDict[str, Any]):
    """The commands of a group, by name. A command is imported when it is looked up."""

    def __init__(self, commands: Mapping[str, LazyCommand], command_class: type[GroupedCommand]) -> None:
        super().__init__(commands)
        self._class = command_class

    def __getitem__(self, name: str) -> Any:
        if isinstance(command := self.data[name], LazyCommand):
            command = self.data[name] = _make(name, command, self._class)
        return command


def _make(name: str, lazy: LazyCommand, command_class: type[GroupedCommand]) -> Any:
    """Make a command as part of a group, because typer makes a command without a group differently."""
    target = _find(lazy.target)
    group = typer.Typer(**PLAIN_HELP, add_completion=False)
    group.callback()(lambda: None)
    if isinstance(target, typer.Typer):
        for part in target.registered_commands:
            part.cls = command_class
        group.add_typer(target, name=name)
    else:
        group.command(name, cls=_find(lazy.cls) if lazy.cls else command_class)(target)
    made: Any = typer.main.get_command(group)
    return made.commands[name]


def _find(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


class LazyGroup(PlainGroup):
    """A group of commands that are imported when they are needed; each program is a subclass."""

    lazy: ClassVar[Mapping[str, LazyCommand]]
    removed: ClassVar[Mapping[str, str]] = {}
    """For each command that was removed, by its name, advice on what to use instead."""
    help_class: ClassVar[type[GroupedCommand]] = GroupedCommand
    """The class of commands that do not name another; it decides how their help groups options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = _Commands(self.lazy, self.help_class)  # type: ignore[assignment]  # click only reads it

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that a command line names. For a removed command, say what to use instead."""
        if args[0] in self.removed and not ctx.resilient_parsing:
            ctx.fail(f"'{args[0]}' was removed: {self.removed[args[0]]}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.lazy)

    def summarise(self, ctx: Any) -> list[tuple[str, str]]:
        return [(name, command.summary) for name, command in self.lazy.items()]


EXIT_CODES: tuple[tuple[type[RescorerError], int, str], ...] = (
    (ConfigError, 2, "options or weights are wrong"),
    (InputError, 3, "the input cannot be read"),
    (ModelError, 4, "the model bundle cannot be used"),
    (RescorerError, 5, "scoring failed"),
)
"""Exit code and meaning of each kind of error; 0 is success, 1 means that some lists were rejected."""
PATH_ERRORS = frozenset({errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ESTALE})
"""Errors of paths that cannot be looked at, for which ``Path.exists`` raises an OSError."""
BROKEN_PIPE = 141
"""Exit code when the output is a pipe whose reader ends early; shells report SIGPIPE with this code."""


def exit_code(error: RescorerError) -> int:
    """The exit code of an error, from ``EXIT_CODES``."""
    return next(code for kind, code, _ in EXIT_CODES if isinstance(error, kind))


def run(app: typer.Typer, program: str, exit_code: Callable[[RescorerError], int] = exit_code) -> None:
    """Run a program. A ``RescorerError``, a path that cannot be looked at, or output that cannot be written,
    becomes one line on standard error and an exit code instead of a traceback."""
    replace_closed_streams()
    install_display(_show_bar)
    with guard_terminals():
        try:
            _run(app, program, exit_code)
        finally:
            if text_io := sys.modules.get("rescorer.formats.io.text_io"):  # else it has made no folders
                text_io.remove_empty_folders()


def _show_bar(description: str, unit: str, total: int | None) -> AbstractContextManager[ProgressTask]:
    from rescorer.terminal.progress import show_bar  # imports tqdm, which short commands do not need

    return show_bar(description, unit, total)


def _run(app: typer.Typer, program: str, exit_code: Callable[[RescorerError], int]) -> None:
    try:
        app()
    except (BrokenPipeError, SystemExit) as error:  # the reader of our output has ended, as `head` does
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise  # only that of a broken pipe, to which typer gives the code 1, needs another code
        sys.stderr.close()
        sys.exit(BROKEN_PIPE)
    except RescorerError as error:
        print_note(f"{program}: {error}")
        sys.exit(exit_code(error))
    except OSError as error:
        from rescorer.formats.io.text_io import WRITE_ERRORS

        if error.errno in PATH_ERRORS and error.filename is not None:
            name = os.fspath(error.filename)
            fault = FormatError(f"cannot be used: {error.strerror}", file=os.fsdecode(name))
            print_note(f"{program}: {fault}")
            sys.exit(exit_code(fault))
        if error.errno not in {*WRITE_ERRORS, errno.EBADF} or error.filename is not None:
            raise
        reason = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        print(f"{program}: the output cannot be written: {reason}", file=sys.stderr)
        # Python writes the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(exit_code(FormatError("")))


def replace_closed_streams() -> None:
    """Open the standard streams that the caller has closed (``>&-``), which are None in Python.

    Standard output becomes a file that cannot be written, so that a command fails only if it prints. Standard
    error becomes the null device. Without this, files that are opened later could get the streams'
    descriptors.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")

"""Options of both commands, and the files that they read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rescorer.cli.options.evaluation.scoring import ReferenceOption, make_list_reader
from rescorer.cli.options.lists import ListInputOptions
from rescorer.cli.output import check_output_path
from rescorer.errors import ConfigError
from rescorer.formats.io.targets import is_stream
from rescorer.types import NBestList
from rescorer_training.cli.options import NormaliserOption, SeedOption

if TYPE_CHECKING:
    from rescorer_training.lists.texts import Choice

TextsArgument = Annotated[
    list[Path], typer.Argument(metavar="TEXT...", help="Text files, one sentence per line.")
]
OutputOption = Annotated[
    Path, typer.Option("-o", "--output", help="JSON-lines file of lists to write; .gz compresses it.")
]
MAX_WORDS = 20
"""Longer sentences take long to recognise."""


@dataclass(frozen=True, slots=True)
class SentenceOptions:
    """Which sentences of the texts to use."""

    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LISTS",
            help="Lists whose references must not be used, compared after normalisation; repeat for more "
            "files.",
        ),
    ] = None
    number: Annotated[
        int, typer.Option("-n", "--number", min=1, help="Number of sentences; each gives one list.")
    ] = 1000
    seed: SeedOption = 1
    min_words: Annotated[int, typer.Option(min=1, help="Smallest number of words per sentence.")] = 3
    max_words: Annotated[int, typer.Option(min=1, help="Largest number of words per sentence.")] = MAX_WORDS

    def to_choice(self) -> Choice:
        """Raises ConfigError if no sentence can be long and short enough."""
        from rescorer_training.lists.texts import Choice

        if self.min_words > self.max_words:
            raise ConfigError(
                f"--min-words {self.min_words} is more than --max-words {self.max_words}; "
                "no sentence has so many and so few words"
            )
        return Choice(self.number, self.seed, self.min_words, self.max_words)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """How lists and texts are read."""

    reference: ReferenceOption = None
    list_options: ListInputOptions
    normaliser: NormaliserOption = None

    def read_lists(self, files: Sequence[str]) -> list[NBestList]:
        """Read the lists of files, which must all have references.

        Raises:
            InputError: a list cannot be read.
            ConfigError: a file has no references.
        """
        lists: list[NBestList] = []
        read = make_list_reader(self.reference, self.list_options)
        for file in files:
            before = len(lists)
            for item in read(file):
                if not isinstance(item, NBestList):
                    raise item
                lists.append(item)
            if all(nbest.reference is None for nbest in lists[before:]):
                raise ConfigError(
                    f"{file}: no list has a reference; name their field with --map reference=FIELD, or give "
                    "a file with --reference"
                )
        return lists

    def read_excluded(self, files: Sequence[str]) -> list[NBestList]:
        """Read lists whose references must not be used; a note on stderr says how many have none."""
        lists = self.read_lists(files)
        if missing := sum(nbest.reference is None for nbest in lists):
            without = f"{missing:,} of the {len(lists):,} lists of --exclude have no reference"
            typer.echo(f"note: {without}; what was said in them may be in the result", err=True)
        return lists


def check_paths(output: Path) -> None:
    """Raise ConfigError unless a file can be written that is neither an input nor a device or pipe."""
    check_output_path("-o", output)
    if is_stream(output):
        raise ConfigError(f"-o {output}: expected the name of a file, not of a device or pipe")


def report_few(n_chosen: int, n_wanted: int) -> None:
    """Print a note if the texts have too few fitting sentences."""
    if n_chosen < n_wanted:
        fitting = count(n_chosen, "fitting sentence")
        typer.echo(f"note: the texts have only {fitting}, not {n_wanted:,}", err=True)


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "list"), count(2_000, "list")
    ('1 list', '2,000 lists')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"

"""Options for references and for counting errors, shared by all commands that count errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import read_normaliser
from rescorer.cli.options.lists import ListInputOptions, Lists
from rescorer.cli.output import Rejections
from rescorer.errors import ConfigError, InputError
from rescorer.evaluation.error_rate.counting import CountingSettings, Method
from rescorer.evaluation.error_rate.time_alignment import align_by_time
from rescorer.formats.nist.trn_ctm import is_stm, read_ctm, read_stm
from rescorer.formats.reference_matching import open_references
from rescorer.pipeline import Rescorer
from rescorer.text import Normaliser
from rescorer.types import NBestList

ReferenceOption = Annotated[
    str | None,
    typer.Option(
        help="Reference transcripts by id: lines `id words` (Kaldi's text), `words (id)`, id<TAB>text or "
        "JSON; a NeMo manifest, by the names of audio files or, for lists without ids, by order; plain "
        "sentences, by order; or by time, if the name ends in .stm and FILE is a ctm."
    ),
]
ListReader = Callable[[str | Sequence[str]], Lists]
"""Reads the lists of an input, or of several as one."""
NormaliserOption = Annotated[
    Path | None,
    typer.Option(help="JSON file of normaliser settings; default: those of the bundle, or lower case."),
]


@dataclass(frozen=True, slots=True)
class CountingOptions:
    """How to count errors; see ``CountingSettings``."""

    counting: Annotated[
        Method,
        typer.Option(
            help="levenshtein: fewest errors that explain a hypothesis; sclite: errors of the alignment by "
            "NIST's sclite, sometimes one more."
        ),
    ] = "levenshtein"
    characters: Annotated[
        bool, typer.Option("--characters", help="Count characters without spaces, not words (sclite -c).")
    ] = False
    optional_words: Annotated[
        bool, typer.Option("--optional-words", help="With sclite: allow (word) to be left out (its -D).")
    ] = False
    fragments: Annotated[
        bool,
        typer.Option("--fragments", help="With sclite: match wo- with words that start with wo (its -F)."),
    ] = False

    def settings(self) -> CountingSettings:
        """Raises ConfigError if the options contradict each other."""
        return CountingSettings(self.counting, self.characters, self.optional_words, self.fragments)


def choose_normaliser(path: Path | None, rescorer: Rescorer | None) -> Normaliser:
    """The normaliser of ``--normaliser``, else of the bundle, else the default one.

    Raises:
        ConfigError: the file does not exist.
        BundleError: the file is not one of normaliser settings.
    """
    if path:
        if not path.exists():
            raise ConfigError(
                f"--normaliser {path}: no such file; expected a JSON file of normaliser settings, such as "
                "the text.json of a bundle; leave it out for the normaliser of the bundle, or lower case"
            )
        return read_normaliser(path)
    return rescorer.bundle.normaliser if rescorer else Normaliser()


def make_list_reader(reference: str | None, options: ListInputOptions) -> ListReader:
    """Build a function that reads the lists of an input, or of several as one, with their references: by id,
    by the lines of a manifest or of plain text, or, for an stm, by time.

    Raises:
        ConfigError: the options do not fit an stm.
    """
    if reference and is_stm(reference):
        if options.is_set:
            raise ConfigError(
                "an stm scores a ctm and names its speakers: omit --map, --stream, --groups and --format"
            )
        segments = list(read_stm(reference))
        return lambda file: iter(align_by_time(read_ctm(_only(file)), segments))
    references = open_references(reference) if reference else None

    def read(source: str | Sequence[str]) -> Lists:
        lists = options.read(source, reference=reference)
        if references is None:
            return lists
        name = source if isinstance(source, str) else ", ".join(source)
        numbered = bool(references.manifest) and options.has_numbers_as_ids(source, reference)
        return references.match(lists, name, partial(typer.echo, err=True), numbered=numbered)

    return read


def _only(source: str | Sequence[str]) -> str:
    """The only one of some inputs."""
    (name,) = [source] if isinstance(source, str) else source
    return name


def collect_lists(lists: Iterable[NBestList | InputError], rejected: Rejections) -> list[NBestList]:
    """Collect the lists that could be read; add the errors to ``rejected``."""
    good: list[NBestList] = []
    for item in lists:
        if isinstance(item, NBestList):
            good.append(item)
        else:
            rejected.add(item)
    return good

"""Options for references and for counting errors, shared by all commands that count errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Annotated, Literal

import typer

from rescorer.cli.options.lists import ListInputOptions, Lists, warn_of_pieces
from rescorer.cli.output import Rejections
from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.evaluation.error_rate.alternations import has_choices
from rescorer.evaluation.error_rate.counting import CountingSettings, Method
from rescorer.evaluation.error_rate.time_alignment import align_recordings
from rescorer.formats.nist.trn_ctm import (
    Recording,
    is_stm,
    read_recordings,
    read_segments,
)
from rescorer.formats.nist.trn_ctm import reject_choices as reject_recording
from rescorer.formats.pieces import MAX_SAMPLE_LISTS, find_markup, join_text, tally_markup
from rescorer.formats.reference_matching import open_references
from rescorer.types import ErrorUnit, NBestList

ReferenceOption = Annotated[
    str | None,
    typer.Option(
        help="Reference transcripts by id: lines `id words` (Kaldi's text), `words (id)`, id<TAB>text, "
        "a table with a header, or JSON; a NeMo manifest, by the names of audio files or, for lists "
        "without ids, by order; plain sentences, by order; or by time, if the name ends in .stm and FILE "
        "is a ctm."
    ),
]
ListReader = Callable[[str | Sequence[str]], Lists]
"""Reads the lists of an input, or of several as one."""
AlternationsOption = Annotated[
    Literal["on", "off"],
    typer.Option(
        help="on: { a / b / @ } is a choice, in references and hypotheses, and the reading that fits best "
        "counts; off: braces are ordinary characters, as in Buckwalter's transliteration."
    ),
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
    unit: Annotated[
        ErrorUnit | None,
        typer.Option(
            help="What to count. word: words (WER); character: characters as people see them, without spaces "
            "(CER, sclite -c); mixed: characters of scripts without spaces such as Han, Kana and Thai, and "
            "words of all others (MER, sclite -c NOASCII). Default: word."
        ),
    ] = None
    characters: Annotated[bool, typer.Option("--characters", help="The same as --unit character.")] = False
    optional_words: Annotated[
        bool, typer.Option("--optional-words", help="With sclite: allow (word) to be left out (its -D).")
    ] = False
    fragments: Annotated[
        bool,
        typer.Option("--fragments", help="With sclite: match wo- with words that start with wo (its -F)."),
    ] = False
    alternations: AlternationsOption = "on"

    def settings(self) -> CountingSettings:
        """Raises ConfigError if the options contradict each other."""
        if self.characters and self.unit not in (None, "character"):
            raise ConfigError(f"--characters and --unit {self.unit} contradict each other; omit one of them")
        unit = "character" if self.characters else self.unit or "word"
        return CountingSettings(
            self.counting,
            unit,
            self.optional_words,
            self.fragments,
            alternations=self.alternations == "on",
        )


def make_list_reader(
    reference: str | None,
    options: ListInputOptions,
    *,
    warn_of_markup: bool = True,
    alternations: bool = False,
) -> ListReader:
    """Build a function that reads the lists of an input, or of several as one, with their references: by id,
    by the lines of a manifest or of plain text, or, for an stm, by time.

    Args:
        warn_of_markup: warn on stderr if toolkits' markup is left in texts.
        alternations: write the alternatives of a ctm as ``{ a / b }``, for texts that are only counted;
            otherwise, recordings with alternatives are rejected.

    Raises:
        ConfigError: the options do not fit an stm.
    """
    if reference and is_stm(reference):
        if options.is_set:
            raise ConfigError(
                "an stm scores a ctm and names its speakers: omit --map, --stream, --groups, --format and "
                "--join-pieces"
            )
        segments = list(read_segments(reference))

        def read_channels(file: str) -> Iterator[Recording | FormatError]:
            for item in read_recordings(file):
                if isinstance(item, Recording) and item.has_choices and not alternations:
                    item = reject_recording(item, file)
                yield item

        return lambda file: align_recordings(read_channels(_only(file)), segments)
    references = open_references(reference) if reference else None
    if references is not None and options.join_pieces:
        kinds = find_markup(references.texts())
        references = references.edited(lambda text: join_text(text, kinds))
    elif references is not None and warn_of_markup:
        sample = islice(references.texts(), MAX_SAMPLE_LISTS)
        warn_of_pieces(str(reference), tally_markup(sample).found())

    def read(source: str | Sequence[str]) -> Lists:
        lists = options.read(source, reference=reference, warn_of_markup=warn_of_markup)
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


def reject_choices(lists: Lists) -> Lists:
    """Yield the lists, and an error in place of one whose hypotheses have alternatives.

    For what reads a hypothesis as one sequence of words: it would publish the words of all alternatives.
    """
    for item in lists:
        texts = (one.text for one in item.hypotheses) if isinstance(item, NBestList) else ()
        index = next((index for index, text in enumerate(texts) if has_choices(text)), None)
        if isinstance(item, NBestList) and index is not None:
            message = "has alternatives; expected one sequence of words, or --alternations off"
            yield InvalidList(message, list_id=item.id, hypothesis=index, field="text")
        else:
            yield item


def collect_lists(lists: Iterable[NBestList | InputError], rejected: Rejections) -> list[NBestList]:
    """Collect the lists that could be read; add the errors to ``rejected``."""
    good: list[NBestList] = []
    for item in lists:
        if isinstance(item, NBestList):
            good.append(item)
        else:
            rejected.add(item)
    return good

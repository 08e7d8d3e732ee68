"""Options for references and for counting errors, shared by all commands that count errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Annotated

import typer

from rescorer.cli.options.lists import ListInputOptions, Lists, warn_of_pieces
from rescorer.cli.output import MAX_EXAMPLES, Rejections
from rescorer.errors import ConfigError, InputError
from rescorer.evaluation.error_rate.counting import CountingSettings, Method
from rescorer.evaluation.error_rate.time_alignment import align_by_time
from rescorer.formats.nist.references import read_references
from rescorer.formats.nist.trn_ctm import is_stm, read_ctm, read_stm
from rescorer.formats.pieces import MAX_SAMPLE_LISTS, find_markup, join_text, tally_markup
from rescorer.types import ErrorUnit, NBestList

ReferenceOption = Annotated[
    str | None,
    typer.Option(
        help="Reference transcripts by id: lines `id words` (Kaldi's text), `words (id)`, id<TAB>text or "
        "JSON; or by time, if the name ends in .stm and FILE is a ctm."
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

    def settings(self) -> CountingSettings:
        """Raises ConfigError if the options contradict each other."""
        if self.characters and self.unit not in (None, "character"):
            raise ConfigError(f"--characters and --unit {self.unit} contradict each other; omit one of them")
        unit = "character" if self.characters else self.unit or "word"
        return CountingSettings(self.counting, unit, self.optional_words, self.fragments)


def make_list_reader(
    reference: str | None,
    options: ListInputOptions,
    *,
    transcripts: bool = False,
    warn_of_markup: bool = True,
) -> Callable[[str], Lists]:
    """Build a function that reads the lists of a file with their references, by id or, for an stm, by time.

    Args:
        transcripts: also read files with one text per id, in the formats of references.
        warn_of_markup: warn on stderr if toolkits' markup is left in texts.

    Raises:
        ConfigError: the options do not fit an stm.
    """
    if reference and is_stm(reference):
        if options.is_set:
            raise ConfigError(
                "an stm scores a ctm and names its speakers: omit --map, --stream, --groups, --format and "
                "--join-pieces"
            )
        segments = list(read_stm(reference))
        return lambda file: iter(align_by_time(read_ctm(file), segments))
    references = read_references(reference) if reference else {}
    if options.join_pieces:
        kinds = find_markup(references.values())
        references = {key: join_text(text, kinds) for key, text in references.items()}
    elif warn_of_markup:
        warn_of_pieces(str(reference), tally_markup(islice(references.values(), MAX_SAMPLE_LISTS)).found())
    read = partial(options.read, transcripts=transcripts, warn_of_markup=warn_of_markup)
    return lambda file: add_references(read(file), references, file)


def add_references(lists: Lists, references: Mapping[str, str], file: str) -> Lists:
    """Yield the lists with their references; report references without a list on stderr.

    Where lists lack a reference too, the ids may be written differently: one of each side is shown.
    """
    unused = dict.fromkeys(references)
    without_reference: str | None = None
    for item in lists:
        if isinstance(item, NBestList) and item.id in references:
            item = replace(item, reference=references[item.id])
        elif isinstance(item, NBestList) and item.reference is None and without_reference is None:
            without_reference = item.id
        unused.pop(item.id if isinstance(item, NBestList) else getattr(item, "list_id", ""), None)
        yield item
    if unused:
        examples = ", ".join(map(repr, islice(unused, MAX_EXAMPLES)))
        more = ", …" if len(unused) > MAX_EXAMPLES else ""
        message = f"{file}: no lists for {len(unused):,} of {len(references):,} references: {examples}{more}"
        if without_reference is not None:
            message += f"; there is a list {without_reference!r} without a reference: are ids written alike?"
        typer.echo(message, err=True)


def collect_lists(lists: Iterable[NBestList | InputError], rejected: Rejections) -> list[NBestList]:
    """Collect the lists that could be read; add the errors to ``rejected``."""
    good: list[NBestList] = []
    for item in lists:
        if isinstance(item, NBestList):
            good.append(item)
        else:
            rejected.add(item)
    return good

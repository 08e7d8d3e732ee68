"""Owns the options that say what was said and how errors are counted: the same wherever errors are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Annotated

import typer

from rescorer.cli.options import lists_from
from rescorer.cli.output import SHOWN, Rejections
from rescorer.errors import ConfigError, InputError
from rescorer.evaluation.error_rate.counting import Method
from rescorer.evaluation.error_rate.time_alignment import lists_by_time
from rescorer.formats.nist.references import read_references
from rescorer.formats.nist.trn_ctm import is_stm, read_ctm, read_stm
from rescorer.types import NBestList

ReferenceOption = Annotated[
    str | None,
    typer.Option(
        help="What was said, by id: `words (id)`, id<TAB>text or JSON lines; or by time, where its name ends "
        "in .stm and FILE is a ctm."
    ),
]
CountingOption = Annotated[
    Method,
    typer.Option(
        help="levenshtein: the fewest errors that explain a hypothesis; sclite: those of the alignment that "
        "NIST's sclite makes, at times one more."
    ),
]
CharactersOption = Annotated[
    bool, typer.Option("--characters", help="Count characters, spaces left out, not words (sclite -c).")
]
OptionalWordsOption = Annotated[
    bool, typer.Option("--optional-words", help="With sclite: (word) may be left out (its -D).")
]
FragmentsOption = Annotated[
    bool, typer.Option("--fragments", help="With sclite: wo- is right for what begins so (its -F).")
]

Lists = Iterator[NBestList | InputError]


def lists_reader(
    reference: str | None,
    maps: list[str] | None,
    streams: list[str] | None,
    groups: str | None,
    format_: str | None,
) -> Callable[[str], Lists]:
    """Reads a file's lists with their references, by id or, from an stm, by time."""
    if reference and is_stm(reference):
        if maps or streams or groups or format_:
            raise ConfigError(
                "an stm scores a ctm and names its speakers: no --map, --stream, --groups, --format"
            )
        segments = list(read_stm(reference))
        return lambda file: iter(lists_by_time(read_ctm(file), segments))
    references = read_references(reference) if reference else {}
    return lambda file: with_references(lists_from(file, maps, streams, groups, format_), references, file)


def with_references(lists: Lists, references: Mapping[str, str], file: str) -> Lists:
    """The lists, with what was said where the references tell it; on stderr, references that no list has."""
    left = dict.fromkeys(references)
    for item in lists:
        if isinstance(item, NBestList) and item.id in references:
            item = replace(item, reference=references[item.id])
        left.pop(item.id if isinstance(item, NBestList) else getattr(item, "list_id", ""), None)
        yield item
    if left:
        some = ", ".join(map(repr, islice(left, SHOWN)))
        more = ", …" if len(left) > SHOWN else ""
        message = f"{file}: no lists of {len(left):,} of {len(references):,} references: {some}{more}"
        typer.echo(message, err=True)


def good_lists(lists: Iterable[NBestList | InputError], rejected: Rejections) -> list[NBestList]:
    """The lists that could be read; the others are added to the rejected."""
    good: list[NBestList] = []
    for item in lists:
        if isinstance(item, NBestList):
            good.append(item)
        else:
            rejected.add(item)
    return good

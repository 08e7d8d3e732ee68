"""Options for reading n-best lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.formats.field_map import FieldMap, parse_field_map
from rescorer.formats.io.sniff import read_sample
from rescorer.formats.io.text_io import source_name
from rescorer.formats.nbest.jsonlines import compile_group_pattern, read_lists
from rescorer.formats.nbest.jsonlines_header import read_header
from rescorer.formats.nist.references import read_groups, read_references
from rescorer.formats.registry import assign_groups, choose, detect, is_pipe
from rescorer.formats.tables import parquet
from rescorer.shards.planning.inputs import ListSource
from rescorer.storage.urls import as_local
from rescorer.types import Hypothesis, NBestList

Lists = Iterator[NBestList | InputError]
"""Lists as a reader yields them, with an error in place of each list that cannot be read."""

FIELD_READERS: Mapping[str, Callable[..., Lists]] = {
    **dict.fromkeys(("jsonl", "json"), read_lists),
    "parquet": parquet.read_lists,
}
"""Readers of the formats whose fields may have other names."""

MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="NAME=FIELD,…",
        help="Field names of JSON lines, or column names of parquet: hypotheses=hyps,text=text_norm,"
        "reference=ref. NAME is one of id, hypotheses, text, scores, reference, context, group.",
    ),
]
StreamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--stream",
        metavar="NAME=FIELD[:BASE[:SIGN]]",
        help="Score stream in a field of its own, with its log base and sign: acoustic=am, "
        "acoustic=am_log2:2, graph=lmwt:e:cost, first_pass=confidence:prob.",
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="NAME[:OPTION=VALUE,…]",
        help="Format of the lists; default: detected from their content. `rescorer convert --formats` shows "
        "all formats.",
    ),
]
GroupsOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|PATTERN",
        help="Speaker or other group of each list: a file of lines `id speaker` (Kaldi's utt2spk), a JSON "
        "file with id and speaker, or a regular expression "
        r"with one group that matches it in the id: '^(\d+)-'.",
    ),
]


@dataclass(frozen=True, slots=True)
class ListFormatOptions:
    """The format of a file of lists, and the names of its fields."""

    maps: MapOption = None
    streams: StreamOption = None
    format_: FormatOption = None


@dataclass(frozen=True, slots=True)
class ListInputOptions(ListFormatOptions):
    """How to read a file of lists."""

    groups: GroupsOption = None

    def read(self, source: str, *, transcripts: bool = False, warn: bool = True) -> Lists:
        """Read the lists of a file or folder; custom field names or streams imply JSON lines or parquet.

        Args:
            transcripts: if no format of lists matches, read one text per id, in the formats of references.
            warn: warn on stderr if there are no lists.

        Raises:
            ConfigError: the options contradict each other or do not fit the format.
            FormatError: the format cannot be detected.
        """
        source, has_fields = as_local(source), bool(self.maps or self.streams)
        find_group = parse_groups(self.groups)
        try:
            name = self.find_format(source)
        except FormatError:
            texts = read_references(source) if transcripts and Path(source).is_file() else {}
            if not texts:
                raise
            group_of = find_group or (lambda _: "")
            return (NBestList(key, (Hypothesis(text),), group=group_of(key)) for key, text in texts.items())
        choice = choose(name)
        if choice.format.name in FIELD_READERS and not choice.options:
            lists = FIELD_READERS[choice.format.name](source, self._parse_fields(), find_group)
        elif has_fields:
            raise ConfigError(
                f"--map and --stream are for JSON lines and parquet, not for {choice.format.name}"
            )
        else:
            lists = choice.read(source)
            lists = assign_groups(lists, find_group) if find_group else lists
        return warn_if_empty(lists, source) if warn else lists

    def find_format(self, source: str) -> str:
        """The format of a file or folder, with its options, if it was given; raises FormatError if it cannot
        be detected."""
        if self.format_ or not (self.maps or self.streams):
            return self.format_ or detect(source)[0]
        is_table = not is_pipe(source) and parquet.looks_like(read_sample(source))
        return "parquet" if is_table else "jsonl"

    def find_header(self, source: str) -> str:
        """The header line of a file of JSON lines; an empty string if it has none."""
        return read_header(source, self._parse_fields())

    def read_lines(self, stream: BinaryIO, first_line: int, header: str) -> Lists:
        """Read the lists of a part of a file of JSON lines; see ``jsonlines.read_lists``."""
        return read_lists(stream, self._parse_fields(), parse_groups(self.groups), first_line, header)

    def as_source(self, *, may_divide: bool = True) -> ListSource:
        """How files are read that may be divided."""
        read = partial(self.read, warn=False)
        return ListSource(self.find_format, self.find_header, read, self.read_lines, may_divide)

    def _parse_fields(self) -> FieldMap:
        return parse_field_map(self.maps or (), self.streams or ())

    def check_groups(self, lists: Sequence[NBestList]) -> None:
        """Raise ConfigError if ``--groups`` was given and puts all lists into one group, or finds none."""
        groups = sorted({nbest.group for nbest in lists})
        if self.groups is None or len(groups) != 1:
            return
        found = f"all {len(lists):,} lists are of the group {groups[0]!r}"
        if not groups[0]:
            found = f"no list gets a group, such as the one with the id {lists[0].id!r}"
        raise ConfigError(
            f"--groups {self.groups!r}: {found}, but tuning holds out one group at a time; match the part of "
            "the id that differs between speakers, or omit --groups to divide the lists by id"
        )

    @property
    def is_set(self) -> bool:
        """Whether any of the options was given."""
        return bool(self.maps or self.streams or self.groups or self.format_)


def warn_if_empty(lists: Lists, source: str) -> Lists:
    """Yield the lists; warn on stderr if there are none, which usually means an error further upstream."""
    is_empty = True
    for item in lists:
        is_empty = False
        yield item
    if is_empty:
        typer.echo(f"warning: {source_name(source)}: there are no lists in it", err=True)


def parse_groups(groups: str | None) -> Callable[[str], str] | None:
    """Turn the value of ``--groups`` into a function from list id to group."""
    if groups is None:
        return None
    if Path(groups).exists():
        group_by_id = read_groups(groups)
        return lambda list_id: group_by_id.get(list_id, "")
    try:
        return compile_group_pattern(groups)
    except ConfigError as error:
        raise ConfigError(f"--groups {error}") from None

"""Options for reading n-best lists, and advice on these options if weights and scores do not fit.

A stream is one score of each hypothesis, such as the acoustic score. The advice is to rank by the
recogniser's own score alone at first, and then to let `rescorer tune` find the other weights. If the
recogniser has a language model inside, untuned weights of further language models can triple its errors.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

import typer

from rescorer.errors import ConfigError, InputError, RescorerError, find_similar, pluralise, quote
from rescorer.formats import delimited, parquet, speech_services
from rescorer.formats.fields import FieldMap, parse_field_map
from rescorer.formats.inputs import Parts, expand_globs, find_parts, read_parts
from rescorer.formats.io.folders import read_sample
from rescorer.formats.io.text_io import source_name
from rescorer.formats.jsonlines import compile_group_pattern, has_ids, read_header, read_lists
from rescorer.formats.nist import read_groups
from rescorer.formats.pieces import (
    FoundMarkup,
    JoinReport,
    ListMarkup,
    join_lists,
    join_text,
    sample_markup,
    watch_markup,
)
from rescorer.formats.registry import assign_groups, choose, detect_measured, is_pipe
from rescorer.formats.rescored import is_rescored
from rescorer.jobs.files import Batch, LineBlock, cut_lines
from rescorer.jobs.plan import LINE_FORMAT, ListSource
from rescorer.jobs.store import PLAN
from rescorer.storage import as_local, is_url
from rescorer.terminal import program
from rescorer.types import NBestList, Weights
from rescorer.unread_scores import (
    UnreadField,
    find_unread_fields,
    find_unread_lists,
    find_untuned_weights,
    name_fields,
)

Lists = Iterator[NBestList | InputError]
"""The output of readers: lists, and an error in place of each list that cannot be read."""

FIELD_READERS: Mapping[str, Callable[..., Lists]] = {
    **dict.fromkeys(("jsonl", "json"), read_lists),
    "parquet": parquet.read_lists,
}
"""Readers of the formats in which ``--map`` and ``--stream`` name fields."""
TABLE = "table"
"""The format with one hypothesis per row, in which ``--map`` and ``--stream`` name columns."""

MapOption = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="NAME=FIELD,…",
        help="Field names of JSON lines, or column names of tables: hypotheses=hyps,text=text_norm,"
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
JoinPiecesOption = Annotated[
    bool,
    typer.Option(
        "--join-pieces",
        help="Join pieces of words and letters that a toolkit left in the texts (▁the ▁un known, un ##known, "
        "un@@ known, t h e |), and remove marks such as <|en|> and <eos>. A note names what was found.",
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

MAX_MISSING = 5
"""Number of missing jobs that a warning names, such as ``nbest.3`` if ``nbest.2`` and ``nbest.4`` exist."""


@dataclass(frozen=True, slots=True)
class ListFormatOptions:
    """The format of a file of lists, and the names of its fields."""

    maps: MapOption = None
    streams: StreamOption = None
    format_: FormatOption = None
    join_pieces: JoinPiecesOption = False


@dataclass(frozen=True, slots=True)
class ListInputOptions(ListFormatOptions):
    """The format of a file of lists, the names of its fields, and the groups of its lists."""

    groups: GroupsOption = None

    def read(
        self,
        source: str | Sequence[str],
        *,
        reference: str | None = None,
        warn: bool = True,
        warn_of_markup: bool = True,
    ) -> Lists:
        """Read the lists of files and folders.

        Args:
            source: one input; or several, which are read as one and may be patterns such as ``nbest.*``.
            reference: file of references, which helps to detect the format of plain text.
            warn: warn if there are no lists, or if markup of toolkits is left in the texts.
            warn_of_markup: whether ``warn`` includes the warning about markup.

        Raises:
            ConfigError: the options contradict each other or do not fit the format; or an input is given
                twice.
            FormatError: the format cannot be detected.
        """
        names = self._name_inputs(source)
        parts = [self.find_parts(name, reference) for name in names]
        lists = read_parts(parts, self._read_part)
        if not warn:
            return join_lists(lists) if self.join_pieces else lists
        name = ", ".join(map(source_name, names))
        lists = warn_if_empty(lists, name)
        if self.join_pieces:
            return join_lists(lists, PrintedReport(name))
        return watch_markup(lists, partial(warn_of_pieces, name)) if warn_of_markup else lists

    def has_numbers_as_ids(self, source: str | Sequence[str], reference: str | None = None) -> bool:
        """Whether lists have their positions in the file as ids, because the format has no ids."""
        choices = [choose(self.find_format(name, reference)) for name in self._name_inputs(source)]
        return all(choice.format.is_numbered for choice in choices)

    def _name_inputs(self, source: str | Sequence[str]) -> list[str]:
        if isinstance(source, str):
            return [as_local(source)]
        return expand_globs(map(as_local, source))

    def _read_part(self, source: str, format_: str) -> Lists:
        """Read a file, or a folder in a format that consists of a folder of files."""
        choice, find_group = choose(format_), parse_groups(self.groups)
        name = choice.format.name
        if name in FIELD_READERS and not choice.options:
            return FIELD_READERS[name](source, self._parse_fields(), find_group)
        if name == TABLE:
            lists = choice.read(source, names=self._parse_fields(), note=partial(typer.echo, err=True))
        elif self.maps or self.streams:
            raise ConfigError(f"--map and --stream are for JSON lines, parquet and tables, not for {name}")
        else:
            lists = choice.read(source)
        return assign_groups(lists, find_group) if find_group else lists

    def find_format(self, source: str, reference: str | None = None) -> str:
        """Find the format of a file or folder, with any options that were given: ``whisper:score=p,base=e``.
        Raise FormatError if the format cannot be detected."""
        return self.find_parts(source, reference, warn=False).choice

    def find_parts(self, source: str, reference: str | None = None, *, warn: bool = True) -> Parts:
        """Find the files and folders that an input consists of, and their format. If the input is a folder of
        shards, it consists of the output files of these shards.

        Args:
            reference: file of references, which helps to detect the format of plain text.
            warn: warn of missing jobs, such as ``nbest.3`` between ``nbest.2`` and ``nbest.4``.

        Raises:
            FormatError: the format cannot be detected.
            ConfigError: a shard is not committed.
        """
        choice = self.format_ or ""
        if not choice and (self.maps or self.streams):
            choice = _find_mapped_format(source)
        elif not choice and reference is not None and Path(source).is_file():
            choice = detect_measured(source, reference)
        is_local = not is_url(source) and (Path(source) / PLAN).is_file()
        parts = None if is_local else find_parts(source, choice)
        if parts is None or f"{source.rstrip('/')}/{PLAN}" in parts.paths:
            return find_shard_outputs(source, choice)
        if warn and (missing := ", ".join(parts.missing[:MAX_MISSING])):
            more = ", …" * (len(parts.missing) > MAX_MISSING)
            jobs = pluralise(len(parts.paths), "job")
            program.warn(f"{source}: {missing}{more} missing between its {jobs}")
        return parts

    def find_header(self, source: str) -> str:
        """Return the header line of a file of JSON lines; an empty string if the file has none."""
        return read_header(source, self._parse_fields())

    def read_lines(self, stream: BinaryIO, first_line: int, header: str) -> Lists:
        """Read the lists of a part of a file of JSON lines; see ``jsonlines.read_lists``.

        With ``--join-pieces``, the first lists of the whole file decide which pieces of words are joined, so
        that all parts of the file are read in the same way.
        """
        lists = read_lists(stream, self._parse_fields(), parse_groups(self.groups), first_line, header)
        if not self.join_pieces:
            return lists
        name = source_name(stream)
        is_whole = is_url(name) or Path(name).is_file()
        markup = _sample_file(name, tuple(self.maps or ()), tuple(self.streams or ())) if is_whole else None
        return join_lists(lists, markup=markup)

    def divide(self, sources: Sequence[str], n_bytes: int) -> Iterator[Batch | LineBlock] | None:
        """Divide an input into blocks of lines, which other processes read.

        Return None if its lists have to be read one after the other: if the input is not a single file of
        JSON lines, if the positions of the lists are their ids, or if all lists are joined or get groups.
        """
        names = self._name_inputs(sources)
        if len(names) > 1 or is_pipe(names[0]) or self.join_pieces or self.groups:
            return None
        parts = self.find_parts(names[0], warn=False)
        name = parts.paths[0]
        if parts.choice != LINE_FORMAT or len(parts.paths) > 1 or not has_ids(name, self._parse_fields()):
            return None
        return cut_lines(name, self.find_header(name), self.read_lines, n_bytes)

    def as_source(self, *, may_divide: bool = True) -> ListSource:
        """Make a reader that can also read parts of a file.

        Args:
            may_divide: whether files may be divided into such parts.
        """
        read = partial(self.read, warn=False)
        return ListSource(self.find_parts, self.find_header, read, self.read_lines, may_divide)

    def _parse_fields(self) -> FieldMap:
        return parse_field_map(self.maps or (), self.streams or ())

    def check_groups(self, lists: Sequence[NBestList]) -> None:
        """Raise ConfigError if ``--groups`` is given, but all lists are in one group, or none has a group."""
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
        return bool(self.maps or self.streams or self.groups or self.format_ or self.join_pieces)


@lru_cache
def _sample_file(name: str, maps: tuple[str, ...], streams: tuple[str, ...]) -> ListMarkup:
    """Find the markup in the first lists of a file of JSON lines."""
    return sample_markup(read_lists(name, parse_field_map(maps, streams)))


def warn_of_pieces(source: str, found: Sequence[FoundMarkup]) -> None:
    """Warn if texts have markup of toolkits, such as pieces of words."""
    if found:
        example = f"such as {quote(found[0].examples[0])}; --join-pieces makes words of them"
        program.warn(f"{source_name(source)}: the texts have {_name_kinds(found)}, {example}")


def _name_kinds(found: Sequence[FoundMarkup]) -> str:
    return " and ".join(dict.fromkeys(item.kind.description for item in found))


@dataclass(frozen=True, slots=True)
class PrintedReport(JoinReport):
    """Prints notes and warnings about what ``--join-pieces`` does to a file."""

    file: str

    def joined(self, found: tuple[FoundMarkup, ...]) -> None:
        message = "--join-pieces found nothing to join"
        if found:
            text = found[0].examples[0]
            joined = join_text(text, [item.kind for item in found])
            message = f"joined {_name_kinds(found)}: {quote(text)} is read as {quote(joined)}"
        program.print_note(f"note: {self.file}: {message}")

    def lost_times(self, count: int) -> None:
        what = pluralise(count, "hypothesis", "hypotheses")
        message = f"the field words of {what} was left out: it does not fit the joined text"
        program.warn(f"{self.file}: {message}")

    def left(self, found: tuple[FoundMarkup, ...]) -> None:
        texts = f"{found[0].texts:,} texts still have {_name_kinds(found)}, which the first lists do not have"
        example = f"such as {quote(found[0].examples[0])}; give these lists in a file of their own"
        program.warn(f"{self.file}: {texts}, {example}")


def _find_mapped_format(source: str) -> str:
    """Find the format of a file if ``--map`` or ``--stream`` is given: JSON lines, parquet or a table."""
    if is_pipe(source):
        return "jsonl"
    sample = read_sample(source)
    if parquet.looks_like(sample):
        return "parquet"
    return TABLE if delimited.may_have_columns(sample) else "jsonl"


def find_shard_outputs(source: str, choice: str = "") -> Parts:
    """Find the output of all shards in a folder, or in object storage below a URL.

    Print how many lists are missing from the output because they were rejected.

    Args:
        choice: format of the output; if empty, the format that the plan states.

    Raises:
        ConfigError: a shard is not committed.
        FormatError: the plan or a record cannot be read.
    """
    from rescorer.jobs.shards import find_outputs
    from rescorer.jobs.store import open_store

    with open_store(source) as store:
        format_, names, summary = find_outputs(store)
    if summary.rejected:
        rejected = pluralise(summary.rejected, "list was", "lists were")
        typer.echo(f"{source}: {rejected} rejected when the shards were rescored", err=True)
    return Parts(choice or format_, "the plan of its shards", tuple(names))


def warn_if_empty(lists: Lists, source: str) -> Lists:
    """Yield the lists. Warn if there are none, which usually means that an earlier program has failed."""
    is_empty = True
    for item in lists:
        is_empty = False
        yield item
    if is_empty:
        program.warn(f"{source_name(source)}: there are no lists in it")


def parse_groups(groups: str | None) -> Callable[[str], str] | None:
    """Turn the value of ``--groups`` into a function that returns a list's group, given the list's id."""
    if groups is None:
        return None
    if Path(groups).exists():
        group_by_id = read_groups(groups)
        return lambda list_id: group_by_id.get(list_id, "")
    try:
        return compile_group_pattern(groups)
    except ConfigError as error:
        raise ConfigError(f"--groups {error}") from None


TUNE = "`rescorer tune` with the same options then finds weights, judged on held-out lists"
SCORE_OPTIONS = (speech_services.FORMAT, "whisper")
"""Formats that have the options ``score``, ``base`` and ``sign``."""
OWN_TERMS = ("word", "oov", "empty", "phrases")
"""Fields of ``Weights`` that weight counts, such as the number of words, instead of scores."""


@dataclass(frozen=True, slots=True)
class Input:
    """The first lists of an input, and the options by which they were read."""

    lists: Sequence[NBestList]
    options: ListInputOptions
    source: str

    @property
    def streams(self) -> list[str]:
        """The names of all score streams in the lists."""
        return sorted({name for nbest in self.lists for name in nbest.streams})

    def unread(self) -> list[UnreadField]:
        """The fields of hypotheses that hold numbers, but were not read as streams."""
        return find_unread_fields(self.lists)

    def reading_options(self, field: UnreadField, stream: str) -> tuple[str, str] | None:
        """Find the options that read a field as a stream.

        Return the options and the name that the stream then has; None if no option can read the field.
        """
        try:
            choice = choose(self.options.find_format(as_local(self.source)))
        except RescorerError:
            return None
        name = choice.format.name
        if name in FIELD_READERS and not choice.options and ":" not in field.name and "=" not in stream:
            holder = f"--map {shlex.quote(f'scores={field.parent}')} " if field.parent else ""
            is_usable = "," not in field.parent
            return (f"{holder}--stream {_option(stream, field)}", stream) if is_usable else None
        if name in SCORE_OPTIONS and not field.parent and not {*",:"} & {*field.name}:
            base, _, sign = field.units.lstrip(":").partition(":")
            units = {"score": field.name, "base": base or "e", **({"sign": sign} if sign else {})}
            settings = ",".join(f"{key}={value}" for key, value in {**choice.options, **units}.items())
            return f"--format {shlex.quote(f'{name}:{settings}')}", speech_services.STREAM
        return None


def advise_start(given: Input, weights: Weights, missing: str) -> str:
    """Say which options to use if the lists have none of the streams that the weights use.

    Args:
        missing: one of the streams that the weights use.
    """
    if given.streams:
        return f"{advise_own_score(given, weights)}; {TUNE}"
    unread = given.unread()
    likely = [field for field in unread if field.is_likely]
    if not likely:
        return (
            f"`-w {missing}=0` leaves it out, and language models alone decide the ranking: give each "
            "hypothesis the score of the recogniser, such as -ln(rank) if only the order is known"
        )
    if reading := given.reading_options(likely[0], missing):
        options, stream = reading
        return f"`{options} {rank_by(weights, stream)}` ranks by {likely[0].label!r} alone; {TUNE}"
    return (
        f"no option reads {likely[0].label!r} from this format: `rescorer convert` makes JSON lines of it, "
        f"and `--stream {_option(missing, likely[0])} {rank_by(weights, missing)}` reads them; {TUNE}"
    )


def advise_own_score(given: Input, weights: Weights) -> str:
    """Name the options that rank by one stream alone: the one that best explains the order of the lists."""
    own = find_own_score(given.lists, given.streams)
    which = "the only score" if len(given.streams) == 1 else f"the score {own.stream!r}"
    doubt = (
        ""
        if own.explains_order
        else "; nothing shows that the recogniser ranked by it, so let `rescorer inspect` check it"
    )
    return f"`{rank_by(weights, own.stream)}` ranks by {which} alone{doubt}"


def advise_field(given: Input, stream: str) -> str:
    """Name the option that reads a missing stream from a field that looks like it; empty if none does."""
    likely = [field for field in given.unread() if field.is_likely]
    similar = find_similar(stream, [field.name for field in likely])
    for field in sorted(likely, key=lambda field: field.name != similar):
        if not field.parent and (reading := given.reading_options(field, stream)) and reading[1] == stream:
            return f", or `{reading[0]}` reads the field {field.label!r}"
    return ""


def describe_scores(given: Input) -> str:
    """Say which streams were read or, if there are none, which fields of the hypotheses have numbers."""
    if streams := given.streams:
        return f"streams: {', '.join(streams)}"
    names = name_fields(given.unread())
    return f"no scores at all; the hypotheses have numbers in: {names}" if names else "no scores at all"


def advise_tuning(lists: Sequence[NBestList], weights: Weights) -> str:
    """Return a warning if the scores are like an end-to-end model's and the weights were never tuned for such
    scores; otherwise an empty text."""
    found = find_untuned_weights(lists, weights)
    if found is None:
        return ""
    without = " ".join(f"-w {shlex.quote(f'lm:{name}=0')}" for name, weight in weights.lm.items() if weight)
    return f"{found.describe()}. Rank by the scores alone, `{without}`; {TUNE}"


def rank_by(weights: Weights, stream: str) -> str:
    """Return the options that make one stream alone decide, such as ``-w acoustic=1 -w lm:mixture=0``."""
    return " ".join(f"-w {shlex.quote(change)}" for change in _changes_to_rank_by(weights, stream))


def _changes_to_rank_by(weights: Weights, stream: str) -> Iterator[str]:
    for name, weight in weights.streams.items():
        if weight and name != stream:
            yield f"{name}=0"
    if weights.streams.get(stream, 0.0) <= 0.0:
        yield f"{stream}=1"
    yield from (f"lm:{name}=0" for name, weight in weights.lm.items() if weight)
    yield from (f"{name}=0" for name in OWN_TERMS if getattr(weights, name))
    yield from (f"reranker:{name}=0" for name, weight in weights.rerankers.items() if weight)


def rank_by_own_score(given: Input, weights: Weights) -> list[str]:
    """Return the changes of weights, such as ``lm:mixture=0``, that make the lists' own score alone decide.

    Empty if the lists have no score, or one that the weights use, and if no score explains their order.
    """
    used = {name for name, weight in weights.streams.items() if weight}
    if not given.streams or not used or used & {*given.streams} or any(map(is_rescored, given.lists)):
        return []
    own = find_own_score(given.lists, given.streams)
    return list(_changes_to_rank_by(weights, own.stream)) if own.explains_order else []


class OwnScore(NamedTuple):
    """The stream that best explains the order of lists, as a recogniser's total does."""

    stream: str
    n_lists: int
    """Number of lists whose hypotheses have different scores. The others tell nothing."""
    n_first: int
    """Number of those lists whose first hypothesis has the best score, perhaps with others."""
    expected: float
    """Expected value of ``n_first`` if the order of each list were random."""
    variance: float
    """Its variance."""

    @property
    def share(self) -> float:
        """``n_first`` divided by ``n_lists``; 1 without such lists."""
        return self.n_first / self.n_lists if self.n_lists else 1.0

    @property
    def explains_order(self) -> bool:
        """Whether the first is the best always, or beyond chance; a cost without its sign fails both."""
        beyond_chance = self.n_first > self.expected + 2 * math.sqrt(self.variance)
        return self.n_lists > 0 and (self.n_first == self.n_lists or beyond_chance)


def find_own_score(lists: Sequence[NBestList], streams: Sequence[str]) -> OwnScore:
    """Find the stream by which the first hypothesis is the best most often beyond what chance would give."""

    def measure(stream: str) -> OwnScore:
        columns = [nbest.streams[stream] for nbest in lists if stream in nbest.streams]
        different = [values for values in columns if len({*values}) > 1]
        chances = [values.count(max(values)) / len(values) for values in different]
        return OwnScore(
            stream,
            len(different),
            sum(values[0] == max(values) for values in different),
            math.fsum(chances),
            math.fsum(chance * (1 - chance) for chance in chances),
        )

    return max(map(measure, streams), key=lambda found: found.n_first - found.expected)


def _option(stream: str, field: UnreadField) -> str:
    return shlex.quote(f"{stream}={field.name}{field.units}")


def describe_unread(given: Input, weights: Weights | None) -> str:
    """Describe unread fields that look like hypotheses and, if weights are given, those that look like
    scores; empty if there are none."""
    scores = describe_unread_scores(given, weights) if weights else ""
    return "\n".join(filter(None, (describe_unread_lists(given), scores)))


def describe_unread_lists(given: Input) -> str:
    """Describe arrays that look like hypotheses, but are not read; empty if there are none."""
    found = find_unread_lists(given.lists)
    if not found:
        return ""
    try:
        name = choose(given.options.find_format(as_local(given.source))).format.name
    except RescorerError:
        name = ""
    reading = "rename it to 'candidates' to read it"
    if name in FIELD_READERS:
        reading = f"`--map {shlex.quote(found[0].map_option)}` reads it"
    return f"warning: lists have {found[0].description}, which is not read as their hypotheses; {reading}"


def describe_unread_scores(given: Input, weights: Weights) -> str:
    """Describe fields that look like scores, but are not read; empty if there are none.

    If the weights use a stream of the lists, only fields whose name is that of a score are described. If
    ``--stream`` is given, no fields are.
    """
    used = any(weights.streams.get(name) for name in given.streams) or any(weights.rerankers.values())
    if given.options.streams or (given.streams and not used):
        return ""
    likely = [field for field in given.unread() if field.is_likely]
    if used:
        named = [field for field in likely if field.is_named and not field.parent]
        reading = given.reading_options(named[0], named[0].name) if named else None
        if not reading or reading[1] != named[0].name:
            return ""
        reads = f"`{reading[0]}` reads {'it' if len(named) == 1 else 'the first'}"
        return f"note: no stream is read from {name_fields(named)}; {reads}"
    if not likely:
        return ""
    reading = given.reading_options(likely[0], next(iter(weights.streams), "acoustic"))
    advice = (
        f"; `{reading[0]} {rank_by(weights, reading[1])}` ranks by {likely[0].label!r} alone; {TUNE}"
        if reading
        else ""
    )
    return (
        "warning: no score of the hypotheses is read, and language models alone decide the ranking; fields "
        f"that look like scores: {name_fields(likely)}{advice}"
    )

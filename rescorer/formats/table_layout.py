"""Find out how a table of hypotheses is laid out, and read its rows: csv, tsv and other delimited text.

Cells are quoted as in RFC 4180 and Python's csv module. Many programs, however, write tab-separated text
without quoting, so that a quotation mark is part of the text. If the marks in a line do not enclose cells,
the line is therefore split at its delimiters, provided that this gives the expected number of cells. A mark
that is not closed does not swallow other rows.

The layout of a table is its delimiter, its header, and the role of each column: id, text, reference, group,
rank or score. Options may name the columns; others are guessed from a header with usual names. If a guess is
doubtful, an error names the options that would decide it, because a wrong guess, such as a reference for a
text or a file name for the id of several segments, would give a wrong error rate that looks right.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType

from rescorer.errors import ConfigError, FormatError, did_you_mean
from rescorer.formats.common import NATURAL, STREAM, Units, parse_number
from rescorer.formats.fields import FieldMap, StreamField
from rescorer.formats.io.text_io import NumberedLine, NumberedLines

DELIMITERS: Mapping[str, str] = MappingProxyType({"tab": "\t", "comma": ",", "semicolon": ";", "pipe": "|"})
"""Delimiters by their names in options. They have names because a comma itself would end the option."""
MAX_COLUMNS = 1000
MAX_ROW_CHARACTERS = 1 << 20
"""Maximum length of a row that takes several lines. Rows on one line are limited by ``max_line_bytes``."""
MAX_CELL_CHARACTERS = csv.field_size_limit()
QUOTE = '"'


class RowError(FormatError):
    """A line is not a valid row."""

    cells: tuple[str, ...] = ()
    """The line, split at its delimiters. One cell may be the id of the list to which the row belongs."""


NumberedRow = tuple[int, list[str] | FormatError]
"""The number of a row's first line, and the cells of the row, or an error in their place."""


def parse_rows(
    lines: Iterable[NumberedLine], delimiter: str, file: str, n_columns: int = 0
) -> Iterator[NumberedRow]:
    """Yield the rows in numbered lines. Blank lines between rows are skipped.

    Args:
        file: name of the file for messages.
        n_columns: number of cells that each row should have; 0 to expect as many as the first row has.
    """
    upcoming = NumberedLines(lines)
    for number, text in upcoming:
        if isinstance(text, FormatError):
            yield number, text
        elif text.strip():
            try:
                cells = _parse_row(text, upcoming, delimiter, n_columns)
                n_columns = n_columns or len(cells)
                if len(cells) != n_columns:
                    message = f"expected {n_columns} columns as in the first row, got {len(cells)}"
                    raise ValueError(f"{message}; is a delimiter in a text, without quotation marks?")
            except ValueError as error:
                row_error = RowError(str(error), file=file, line=number)
                row_error.cells = tuple(text.split(delimiter, MAX_COLUMNS))
                yield number, row_error
            else:
                yield number, cells


def split_cells(text: str, delimiter: str, n_columns: int = 0) -> list[str] | None:
    """Split the text of one row into its cells; return None if its quotation marks do not enclose cells.

    Args:
        n_columns: expected number of cells. If marks enclose no cells, and splitting at all delimiters gives
            this number, the marks are part of the cells.
    """
    if QUOTE not in text:
        return text.split(delimiter)
    try:
        (cells,) = csv.reader([text], delimiter=delimiter, strict=True)
    except (csv.Error, ValueError):  # ValueError: a bare carriage return made two rows
        cells = text.split(delimiter)
        return cells if len(cells) == n_columns and "\n" not in text else None
    return cells


def join_cells(cells: Sequence[str], delimiter: str) -> str:
    """Format a row, without its line end, so that ``split_cells`` returns the same cells."""
    marks = (delimiter, QUOTE, "\n", "\r")
    quoted = (
        QUOTE + cell.replace(QUOTE, QUOTE * 2) + QUOTE if any(mark in cell for mark in marks) else cell
        for cell in cells
    )
    return delimiter.join(quoted)


def _parse_row(text: str, upcoming: NumberedLines, delimiter: str, n_columns: int) -> list[str]:
    """Parse the row that begins with a line. If it continues, take its other lines from ``upcoming``.

    Raises:
        ValueError: the line is not a valid row.
    """
    if text.count(delimiter) >= MAX_COLUMNS:
        raise ValueError(f"more than {MAX_COLUMNS:,} columns")
    cells = split_cells(text, delimiter)
    if cells is None:
        cells = _join_lines(text, upcoming, delimiter, n_columns) or split_cells(text, delimiter, n_columns)
    if cells is None:
        raise ValueError(
            "a quoted cell that is not closed, has text after its closing quotation mark, or is longer than "
            f"{MAX_CELL_CHARACTERS:,} characters"
        )
    if any(len(cell) > MAX_CELL_CHARACTERS for cell in cells):
        raise ValueError(f"a cell of more than {MAX_CELL_CHARACTERS:,} characters")
    return cells


def _join_lines(text: str, upcoming: NumberedLines, delimiter: str, n_columns: int) -> list[str] | None:
    """Parse a row of several lines, which ends with the line that makes the number of quotation marks even.

    If there is no such row, put the lines back and return None. Do so also if each of the lines has the
    expected number of cells by itself: `"well` in one row and `done"` in the next are separate texts.
    """
    taken: list[NumberedLine] = []
    parts, size, n_quotes = [text], len(text), text.count(QUOTE)
    while n_quotes % 2 and size <= MAX_ROW_CHARACTERS and (item := next(upcoming, None)):
        taken.append(item)
        if isinstance(item[1], FormatError):
            break
        parts.append(item[1])
        size += len(item[1]) + 1
        n_quotes += item[1].count(QUOTE)
    is_closed = len(parts) == len(taken) + 1 and not n_quotes % 2 and size <= MAX_ROW_CHARACTERS
    are_rows = n_columns > 1 and all(part.count(delimiter) == n_columns - 1 for part in parts)
    whole = "\n".join(parts)
    cells = None
    if is_closed and not are_rows and whole.count(delimiter) < MAX_COLUMNS:
        cells = split_cells(whole, delimiter)
    if cells is None:
        upcoming.put_back(taken)
    return cells


STREAM_PREFIX = "scores."
"""Prefix of columns of scores: ``scores.NAME`` is the stream NAME, as in flattened JSON lines."""
SCORE_SEPARATOR = "+"
"""Separates the columns in the option ``score`` if it names several: ``score=am+lm``."""
EVEN_SHARE = 0.9
"""In a table without a header, the share of the lines that must have the same number of delimiters."""
MAX_NAMES = 8
"""Maximum number of columns that a message names."""
PUNCTUATION = re.compile(r"[^a-z0-9]+")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ROLE_NAMES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "id": _words("id utt uttid utteranceid key sampleid segmentid segid clipid"),
        "file": _words(
            "utterance segment clip sample file fileid filename filepath path audio audioid audiofile "
            "audiopath audiofilepath audiofilename wav wavfile wavpath recording recordingid"
        ),
        "text": _words(
            "text hyp hyptext hypothesis hypothesistext hypotheses transcript transcription sentence "
            "prediction predicted predictedtext pred predtext recognized recognizedtext recognised "
            "recognisedtext asr asrtext asroutput output candidate decoded result"
        ),
        "reference": _words(
            "reference referencetext ref reftext target groundtruth gold goldtext truth label expected"
        ),
        "group": _words("group speaker speakerid spk spkid"),
        "rank": _words("rank nbestrank hyprank hypothesisrank"),
    }
)
"""Usual names of columns by role, in lower case and without punctuation.

A column with one of the names for ``file`` has the ids of lists only if no column has a name for ``id``.
"""
TIME_NAMES = _words("start end begin starttime endtime startms endms offset duration from to channel")
"""Names of columns of times. They show that rows with the same file are segments of it, not hypotheses."""
PROBABILITY, COST = Units("prob"), Units("e", "cost")
SCORE_UNITS: Mapping[str, Units] = MappingProxyType(
    dict.fromkeys(_words("confidence conf prob probability posterior"), PROBABILITY)
    | dict.fromkeys(_words("cost nll totalcost"), COST)
    | dict.fromkeys(_words("score totalscore logscore logprob logprobability avglogprob logp"), NATURAL)
    | dict.fromkeys(_words("loglik loglikelihood"), NATURAL)
)
"""Names of columns with a whole score, and its units. ``score`` is a natural logarithm, as in JSON lines."""
COMPONENT_NAMES = _words(
    "am amscore acoustic acousticscore lm lmscore graph graphscore ctc ctcscore decoder decoderscore "
    "attention attentionscore firstpass"
)
"""Names of columns with one of several scores of a hypothesis, such as the acoustic score."""
ROLES = ("id", "text", "reference", "group", "rank")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options that the user gave for a table. What an option does not say has to be guessed.

    An option gives a column by its name in the header, or by its number, from 1.
    """

    id: str | None = None
    """Column of ids; None to guess it. If it is empty, every row is a list whose id is the row's number."""
    text: str = ""
    reference: str = ""
    group: str = ""
    rank: str = ""
    score: str = ""
    """Columns of scores, separated by ``+``."""
    units: Units | None = None
    """Units of the scores in the columns that ``score`` names."""
    streams: Mapping[str, StreamField] = field(default_factory=dict)
    """Further columns of scores, by stream name."""
    delimiter: str = ""
    has_header: bool | None = None

    def with_fields(self, names: FieldMap) -> TableOptions:
        """Return these options with the columns that ``--map`` and ``--stream`` name.

        Raises:
            ConfigError: a column is named twice.
        """
        defaults = FieldMap()
        roles = ("id", "text", "reference", "group")
        mapped = {role: name for role in roles if (name := getattr(names, role)) != getattr(defaults, role)}
        for role in mapped:
            if getattr(self, role):
                raise ConfigError(f"--map {role}=… and --format table:{role}=… both name a column; give one")
        return replace(self, **mapped, streams=names.streams)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a table. Columns are given by their numbers, from 0."""

    delimiter: str
    has_header: bool
    names: tuple[str, ...]
    """Names of the columns: those of the header, or their numbers from 1."""
    columns: Mapping[str, int]
    """The column of each role. A role for which there is no column is left out."""
    streams: Mapping[str, tuple[int, Units]]
    """The column of scores of each stream, and the units of the scores."""
    is_guessed: bool = False
    """Whether roles were guessed, so that the user should be shown which role each column got."""

    @property
    def others(self) -> dict[str, int]:
        """The columns without a role and without scores, by name; empty if the table has no header."""
        return self._unused if self.has_header else {}

    @property
    def _unused(self) -> dict[str, int]:
        used = {*self.columns.values(), *(column for column, _ in self.streams.values())}
        return {name: index for index, name in enumerate(self.names) if index not in used and name.strip()}

    def describe(self) -> str:
        """Describe the roles of the columns for a message."""
        roles = [f"{role}={self.names[column]}" for role, column in self.columns.items()]
        roles += [] if "id" in self.columns else ["id=number of the row"]
        scores = [
            f"stream {name}={self.names[column]} ({_describe_units(units)})"
            for name, (column, units) in self.streams.items()
        ]
        kept = ", ".join(islice(self._unused, MAX_NAMES))
        return ", ".join([*roles, *scores]) + (f"; not read: {kept}" if kept else "")


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The first rows of a table, split into cells."""

    delimiter: str
    has_header: bool
    names: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    """The rows after the header."""
    file: str

    def find(self, role: str, name: str) -> int:
        """Return the column that an option names; raise ConfigError if the table does not have it."""
        if self.has_header and name in self.names:
            return self.names.index(name)
        if name.isdecimal() and len(name) < 5 and 1 <= int(name) <= len(self.names):
            return int(name) - 1
        columns, hint = f"1 to {len(self.names)}", ""
        if self.has_header:
            columns = ", ".join(map(repr, islice(self.names, MAX_NAMES)))
            hint = did_you_mean(name, self.names)
        message = f"the table has no such column; its columns: {columns}{hint}"
        raise ConfigError(f"{self.file}: {role}={name!r}: {message}")

    def match(self, names: Iterable[str], taken: Iterable[int]) -> list[int]:
        """Return the columns that have one of the given names and are not taken yet."""
        if not self.has_header:
            return []
        wanted, used = frozenset(names), set(taken)
        return [i for i, name in enumerate(self.names) if i not in used and _plain(name) in wanted]

    def find_units(self, column: int) -> Units:
        """Return the units that the name of a column implies; by default, natural logarithms."""
        return SCORE_UNITS.get(_plain(self.names[column]), NATURAL)

    def is_numeric(self, column: int) -> bool:
        """Whether more than half of a column's cells are numbers. The others may be damaged."""
        cells = [row[column] for row in self.rows if column < len(row)]
        return 2 * sum(isinstance(parse_number(cell), float) for cell in cells) > len(cells)

    def refuse(self, problem: str, advice: str) -> FormatError:
        """Return the error about a table whose columns cannot be guessed.

        Args:
            advice: the options that would decide, without ``table:``.
        """
        if self.has_header:
            what, shown = "its columns are", ", ".join(islice(self.names, MAX_NAMES))
        else:
            what = "it has no header with usual names; its first row is"
            shown = " | ".join(self.rows[0][:MAX_NAMES])
        message = f"a table: {problem}; {what} {shown[:200]!r}; say which with --format table:{advice}"
        return FormatError(message, file=self.file)


def find_layout(lines: Sequence[NumberedLine], options: TableOptions, file: str) -> Layout | None:
    """Find the layout of a table from its first lines. Return None if it has no rows.

    Raises:
        ConfigError: options name a column that the table does not have, or one column twice.
        FormatError: the options do not name all columns that are needed, and these cannot be guessed.
    """
    sheet = _read_sheet(lines, options, file)
    if sheet is None:
        return None
    columns = {role: sheet.find(role, name) for role in ROLES if (name := getattr(options, role))}
    streams = {name: (sheet.find(name, item.field), item.units) for name, item in options.streams.items()}
    scores = [sheet.find("score", name) for name in options.score.split(SCORE_SEPARATOR) if name.strip()]
    for column in scores:
        name = STREAM if len(scores) == 1 else sheet.names[column]
        streams[name] = column, options.units or sheet.find_units(column)
    named = [*columns.values(), *(column for column, _ in streams.values())]
    given = {*named}
    if len(given) < len(named):
        raise ConfigError(f"{file}: options name one column of the table twice")
    is_complete = "text" in columns and ("id" in columns or options.id == "")
    if sheet.has_header:
        _guess_by_name(sheet, options, columns, set(given))
        streams = streams or _guess_streams(sheet, {*given, *columns.values()}, options.units)
    elif not is_complete:
        streams = _guess_by_content(sheet, options, columns, streams)
    ordered = {role: columns[role] for role in ROLES if role in columns}
    is_usual = [column in given or _plain(sheet.names[column]) == role for role, column in ordered.items()]
    is_usual += [
        column in given or sheet.names[column] == STREAM_PREFIX + name
        for name, (column, _) in streams.items()
    ]
    has_id = options.id == "" or "id" in ordered
    is_transcript = not sheet.has_header and len(sheet.names) == 2
    n_used = len({*ordered.values(), *(column for column, _ in streams.values())})
    is_dropped = not sheet.has_header and n_used < len(sheet.names)
    is_guessed = is_dropped or not (is_transcript or (has_id and all(is_usual)))
    return Layout(sheet.delimiter, sheet.has_header, sheet.names, ordered, streams, is_guessed)


def has_header(lines: Sequence[str]) -> bool:
    """Whether the first of a file's first lines is a header with usual names of columns."""
    if not lines or lines[0].lstrip()[:1] in ("{", "["):
        return False
    try:
        sheet = _read_sheet(list(enumerate(lines, start=1)), TableOptions(), "")
    except FormatError:
        return True  # two columns of one name
    return sheet is not None and sheet.has_header


def looks_like_table(lines: Sequence[str]) -> str:
    """Return the evidence that lines are a table whose columns can be guessed, or an empty string."""
    if not lines or lines[0].lstrip()[:1] in ("{", "["):
        return ""
    try:
        layout = find_layout(list(enumerate(lines, start=1)), TableOptions(), "")
    except (ConfigError, FormatError):
        return ""
    if layout is None or len(layout.names) < 2:
        return ""
    counts = Counter(line.count(layout.delimiter) for line in lines)
    is_even = counts.most_common(1)[0][1] >= EVEN_SHARE * len(lines)
    if not layout.has_header and not (layout.delimiter == "\t" and is_even):
        return ""
    columns = "columns of an id, a text and perhaps a score"
    return "a header with usual names" if layout.has_header else columns


def _read_sheet(lines: Sequence[NumberedLine], options: TableOptions, file: str) -> _Sheet | None:
    """Split the first lines into cells.

    If the options give no delimiter, the one that gives the header with the most columns is chosen; if none
    gives a header, the first one that all lines contain.
    """
    texts = [(number, text) for number, text in lines if isinstance(text, str) and text.strip()]
    if not texts:
        return None
    delimiters = [options.delimiter] if options.delimiter else list(DELIMITERS.values())
    sheets = [sheet for delimiter in delimiters if (sheet := _split(texts, delimiter, options, file))]
    with_header = [sheet for sheet in sheets if sheet.has_header]
    if with_header:
        return max(with_header, key=lambda sheet: len(sheet.names))
    in_all = [sheet for sheet in sheets if all(sheet.delimiter in text for _, text in texts)]
    return next(iter(in_all or sheets), None)


def _split(
    texts: Sequence[tuple[int, str]], delimiter: str, options: TableOptions, file: str
) -> _Sheet | None:
    n_columns = 0
    if split_cells(texts[0][1], delimiter) is None:  # perhaps not quoted: as many cells as most lines
        counts = Counter(text.count(delimiter) + 1 for _, text in texts)
        n_columns = counts.most_common(1)[0][0]
    rows = [row for _, row in parse_rows(texts, delimiter, file, n_columns) if isinstance(row, list)]
    if not rows:
        return None
    names = tuple(name.strip() for name in rows[0])
    has_header = _is_header(names, options) if options.has_header is None else options.has_header
    if has_header:
        if repeated := next((name for name, count in Counter(filter(None, names)).items() if count > 1), ""):
            raise FormatError(f"two columns of the table are called {repeated!r}", file=file)
        return _Sheet(delimiter, True, names, rows[1:], file)
    return _Sheet(delimiter, False, tuple(map(str, range(1, len(names) + 1))), rows, file)


def _is_header(names: Sequence[str], options: TableOptions) -> bool:
    """Whether a first row is a header: it has a name that options give, or usual names and no number."""
    scores = options.score.split(SCORE_SEPARATOR)
    given = [*(getattr(options, role) or "" for role in ROLES), *scores]
    given += [item.field for item in options.streams.values()]
    if any(name and name in names and not name.isdecimal() for name in given):
        return True
    usual = frozenset().union(*ROLE_NAMES.values())
    is_usual = len(names) > 1 and sum(_plain(name) in usual for name in names) > 1
    has_text = any(_plain(name) in ROLE_NAMES["text"] for name in names)
    is_scored = len(names) > 1 and has_text and any(_is_score_name(name) for name in names)
    return (is_usual or is_scored) and not any(isinstance(parse_number(name), float) for name in names)


def _guess_by_name(sheet: _Sheet, options: TableOptions, columns: dict[str, int], taken: set[int]) -> None:
    """Give roles that options leave open to columns with usual names.

    Raises:
        FormatError: several columns could have one role, or no column could be the text or the id.
    """

    def choose(role: str, usual: str = "") -> bool:
        """Give a role to the only column with a usual name for it; return whether there is such a column."""
        found = sheet.match(ROLE_NAMES[usual or role], taken)
        exact = [column for column in found if _plain(sheet.names[column]) == role]
        if role != "text" and len(found) > 1 and len(exact) == 1:
            found = exact
        if len(found) > 1 or (role == "text" and not found):
            candidates = " and ".join(repr(sheet.names[column]) for column in found[:MAX_NAMES])
            problem = f"{candidates} could each be the {role}" if found else f"no column is the {role}"
            raise sheet.refuse(problem, f"{role}=COLUMN")
        if found:
            columns[role] = found[0]
            taken.add(found[0])
        return bool(found)

    if "text" not in columns:
        choose("text")
    if options.id is None and not choose("id") and choose("id", "file") and sheet.match(TIME_NAMES, taken):
        name = sheet.names[columns["id"]]
        raise sheet.refuse(
            f"{name!r} may be the id of several segments, because there are times",
            f"id=COLUMN, or id={name} if its rows are hypotheses for one text",
        )
    for role in ("reference", "group", "rank"):
        if role not in columns:
            choose(role)
    if options.id is None and not {"id", "reference"} & columns.keys():
        raise sheet.refuse("no column is the id of a list", "id=COLUMN, or id= if every row is a list")


def _guess_streams(sheet: _Sheet, taken: set[int], units: Units | None) -> dict[str, tuple[int, Units]]:
    """Find columns of scores by their names. Return the column and the units of each stream."""
    streams = {
        name.removeprefix(STREAM_PREFIX): (column, units or NATURAL)
        for column, name in enumerate(sheet.names)
        if column not in taken and name.startswith(STREAM_PREFIX) and name != STREAM_PREFIX
    }
    if streams:
        return streams
    found = sheet.match([*SCORE_UNITS, *COMPONENT_NAMES], taken)
    is_total = len(found) == 1 and _plain(sheet.names[found[0]]) in SCORE_UNITS
    return {
        STREAM if is_total else sheet.names[column]: (column, units or sheet.find_units(column))
        for column in found
    }


def _guess_by_content(
    sheet: _Sheet, options: TableOptions, columns: dict[str, int], streams: Mapping[str, tuple[int, Units]]
) -> dict[str, tuple[int, Units]]:
    """Give roles to the columns of a table without a header: the id first, then the text and perhaps a score.

    Returns:
        The column and the units of each stream.

    Raises:
        FormatError: there are further columns, or the first column does not have ids.
    """
    taken = {*columns.values(), *(column for column, _ in streams.values())}
    if options.id is None and "id" not in columns and 0 not in taken:
        columns["id"] = 0
    free = [column for column in range(len(sheet.names)) if column not in {*taken, *columns.values()}]
    numeric = [] if streams else [column for column in free if sheet.is_numeric(column)]
    texts = [] if "text" in columns else [column for column in free if column not in numeric]
    if len(numeric) == 1:
        streams = {STREAM: (numeric[0], options.units or NATURAL)}
    if len(texts) == 1:
        columns["text"] = texts[0]
    ids = [row[columns.get("id", 0)] for row in sheet.rows]
    are_ids = options.id is not None or all(map(_is_id, ids))
    if options.has_header is None and options.id is None and _may_name_ids(ids):
        raise sheet.refuse("the first row may be a header", "header=yes,id=1,text=2, or header=no")
    is_clear = max(len(numeric), len(texts)) < 2 and not {*free} - {*texts, *numeric}
    if not are_ids or "text" not in columns or not is_clear:
        raise sheet.refuse("its columns cannot be guessed", "id=1,text=2,score=3, or header=yes")
    return dict(streams)


def _is_id(cell: str) -> bool:
    """Whether a cell may be an id in a table without a header: it is one token, and not a score."""
    return len(cell.split()) == 1 and (cell.strip().isdecimal() or not isinstance(parse_number(cell), float))


def _may_name_ids(cells: Sequence[str]) -> bool:
    """Whether the first cell of a column may be its heading: it is a word, and all others have digits."""
    first, *others = cells
    has_digits = [any(map(str.isdecimal, cell)) for cell in others]
    return bool(others) and first.strip().replace("_", "").isalpha() and all(has_digits)


def _is_score_name(name: str) -> bool:
    return _plain(name) in SCORE_UNITS or _plain(name) in COMPONENT_NAMES or name.startswith(STREAM_PREFIX)


def _plain(name: str) -> str:
    """Return the name of a column in lower case and without punctuation."""
    return PUNCTUATION.sub("", name.lower())


def _describe_units(units: Units) -> str:
    if units.base == "prob":
        return "probabilities"
    return f"log base {units.base}" + (", lower is better" if units.sign == "cost" else "")

"""Read and write tables of hypotheses: csv, tsv and other delimited text, or one JSON object per row.

    id,text,score              utt<TAB>hyp<TAB>confidence           u1<TAB>two be<TAB>-310.2
    u1,"two, be",-310.2        u1<TAB>two be<TAB>0.81               u1<TAB>to be<TAB>-310.9

Every row is a hypothesis. The rows of a list have the same id and follow each other. ``table_layout`` finds
the role of each column, such as id or text. Scores are natural log-probabilities, unless an option or the
name of their column says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList, quote
from rescorer.formats.common import (
    ListWriter,
    Row,
    add_location,
    build_list,
    collect,
    line_writer,
    parse_number,
    parse_units,
)
from rescorer.formats.fields import FieldMap
from rescorer.formats.io.folders import Lists, Sample, take_head
from rescorer.formats.io.json_io import is_number, parse_object
from rescorer.formats.io.text_io import Source, read_lines, source_name
from rescorer.formats.table_layout import (
    DELIMITERS,
    STREAM_PREFIX,
    Layout,
    NumberedLine,
    NumberedRow,
    RowError,
    TableOptions,
    find_layout,
    join_cells,
    looks_like_table,
    parse_rows,
)
from rescorer.types import NBestList

SCATTERED_ID = (
    "duplicate id: its rows do not follow each other, so that only the first of them were read as its list; "
    "sort the table by id"
)


def read_lists(
    source: Source,
    *,
    base: str = "",
    sign: str = "",
    delimiter: str = "",
    header: bool | None = None,
    names: FieldMap | None = None,
    note: Callable[[str], None] | None = None,
    **columns: str,
) -> Lists:
    """Yield the lists of a table, and an error in place of a list with an unreadable row or a repeated id.

    Args:
        base: base of the scores in the columns that the option ``score`` names, or ``prob``. By default, it
            is the base that a column's name implies, or else e.
        sign: sign of these scores.
        delimiter: character between columns; by default it is detected from the first rows.
        header: whether the first row has the names of the columns; by default this is detected.
        names: columns as ``--map`` and ``--stream`` name them.
        note: called with a description of the columns if their roles were guessed.
        columns: the column of each role and of ``score``, by its name or number; see ``TableOptions``.

    Raises:
        ConfigError: options are invalid, or name a column that the table does not have.
        FormatError: the source cannot be opened, or its columns cannot be guessed.
    """
    units = parse_units(base or "e", sign or "log_prob", "table: ") if base or sign else None
    options = TableOptions(**columns, units=units, delimiter=delimiter, has_header=header)  # type: ignore[arg-type]
    if names is not None:
        options = options.with_fields(names)
    return _read_lists(source, options, note)


def _read_lists(source: Source, options: TableOptions, note: Callable[[str], None] | None) -> Lists:
    file = source_name(source)
    lines = read_lines(source)
    head = list(take_head(lines))
    first = next((text for _, text in head if isinstance(text, str) and text.strip()), "")
    numbered = chain(head, lines)
    if first.lstrip().startswith("{"):
        keys = tuple(parse_object(first, file, head[0][0]))
        header = replace(options, delimiter=",", has_header=True)
        layout = find_layout([(1, join_cells(keys, ","))], header, file)
        rows = _parse_objects(numbered, keys, file)
    else:
        layout = find_layout(head, options, file)
        rows = parse_rows(numbered, layout.delimiter, file, len(layout.names)) if layout else iter(())
    if layout is None:
        yield from (text for _, text in numbered if isinstance(text, FormatError))
        return
    if note is not None and layout.is_guessed:
        note(f"{file}: read as a table: {layout.describe()}; --format table:… says otherwise")
    seen: set[str] = set()
    for list_id, group in groupby(_find_ids(rows, layout, file), key=lambda row: row.id):
        hypotheses, problem = collect(group, lambda row: sum(map(_count_characters, row.cells)))
        error = next((row.error for row in hypotheses if row.error is not None), None)
        if problem:
            error = FormatError(f"list {quote(list_id)} {problem}", file=file, line=hypotheses[0].line)
        if error is None and list_id in seen:
            error = InvalidList(SCATTERED_ID, list_id=list_id, file=file, line=hypotheses[0].line)
        yield error if error is not None else _build(list_id, hypotheses, layout, file)
        seen.add(list_id)


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file is a table whose columns can be guessed, or an empty string."""
    return "" if sample.is_folder else looks_like_table(sample.lines)


def may_have_columns(sample: Sample) -> bool:
    """Whether a file can be a table if options name its columns: it is not JSON, and has a delimiter."""
    is_json = sample.first[:1] in ("{", "[")
    return not sample.is_folder and not is_json and any(mark in sample.first for mark in DELIMITERS.values())


@dataclass(frozen=True, slots=True)
class _TableRow:
    """A row of a table with the id of its list, or with an error if the row cannot be read."""

    id: str
    line: int
    cells: Sequence[Any] = ()
    error: InputError | None = None


def _find_ids(rows: Iterator[NumberedRow], layout: Layout, file: str) -> Iterator[_TableRow]:
    """Yield the rows with the ids of their lists. A damaged row without an id belongs to the list before."""
    column = layout.columns.get("id")

    def find_id(cells: Sequence[Any], number: int) -> str:
        value = number if column is None else cells[column] if column < len(cells) else ""
        return str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""

    list_id = ""
    rows = (row for row in rows if not _is_header(row[1], layout))
    for number, (line, cells) in enumerate(rows, start=1):
        if isinstance(cells, FormatError):
            list_id = (find_id(cells.cells, number) if isinstance(cells, RowError) else "") or list_id
            yield _TableRow(list_id, line, error=FormatError(cells.message, file=file, line=line))
            continue
        list_id, error = find_id(cells, number), None
        if not list_id:
            error = FormatError("is empty; expected an id", file=file, line=line, field="id")
        yield _TableRow(list_id, line, cells, error)


def _count_characters(cell: Any) -> int:
    """Return the size of a cell, which is another JSON value than a text if the rows are objects."""
    return len(cell) if isinstance(cell, str) else len(str(cell))


def _is_header(cells: Sequence[Any] | FormatError, layout: Layout) -> bool:
    """Whether a row is a copy of the header. Files that were joined from several tables have such rows."""
    if isinstance(cells, FormatError) or not layout.has_header:
        return False
    stripped = (cell.strip() if isinstance(cell, str) else cell for cell in cells)
    return all(cell == name for cell, name in zip(stripped, layout.names, strict=True))


def _parse_objects(
    lines: Iterator[NumberedLine], keys: Sequence[str], file: str
) -> Iterator[tuple[int, list[Any] | FormatError]]:
    """Yield the line number and the values of each JSON object, one object per line.

    Args:
        keys: keys of the values, which are yielded in the same order.
    """
    for number, text in lines:
        if isinstance(text, FormatError):
            yield number, text
        elif text.strip():
            try:
                record = parse_object(text, file, number)
            except FormatError as error:
                yield number, error
            else:
                yield number, [record.get(key) for key in keys]


def _build(list_id: str, rows: Sequence[_TableRow], layout: Layout, file: str) -> NBestList | InvalidList:
    """Build a list from its rows. If there is a column of ranks, sort the rows by it."""
    try:
        if (column := layout.columns.get("rank")) is not None:
            rows = sorted(rows, key=lambda row: _parse_rank(row, column, list_id))
        others = layout.others
        hypotheses = [_build_row(row, layout, others, list_id) for row in rows]
        reference = _find_common("reference", rows, layout, list_id)
        group = _find_common("group", rows, layout, list_id)
    except InvalidList as error:
        return add_location(error, file, error.line or rows[0].line)
    units = {name: units for name, (_, units) in layout.streams.items()}
    return build_list(list_id, hypotheses, units, file, reference=reference, group=group or "")


def _build_row(row: _TableRow, layout: Layout, others: Mapping[str, int], list_id: str) -> Row:
    text = row.cells[layout.columns["text"]]
    if not isinstance(text, str):
        name = layout.names[layout.columns["text"]]
        raise InvalidList("expected a text", list_id=list_id, field=name, line=row.line)
    scores = {name: _parse_score(row.cells[column]) for name, (column, _) in layout.streams.items()}
    values = ((name, _parse_field(row.cells[column])) for name, column in others.items())
    return Row(text, scores, {name: value for name, value in values if value not in ("", None)}, row.line)


def _parse_score(cell: Any) -> Any:
    """Parse a score; return None, which stands for a missing score, if the cell is empty."""
    return (parse_number(cell.strip()) if cell.strip() else None) if isinstance(cell, str) else cell


def _parse_field(cell: Any) -> Any:
    """Return a cell as a number if Python would write the number in the same way, or else unchanged."""
    if isinstance(cell, str) and cell[-1:].isdigit() and len(cell) < 30:
        number = parse_number(cell)
        for value in (number, int(number) if isinstance(number, float) and number.is_integer() else number):
            if repr(value) == cell:
                return value
    return cell


def _parse_rank(row: _TableRow, column: int, list_id: str) -> float:
    cell = row.cells[column]
    rank = parse_number(cell.strip()) if isinstance(cell, str) else cell
    if not is_number(rank) or rank != rank:
        raise InvalidList("the rank is not a number", list_id=list_id, field="rank", line=row.line)
    return float(rank)


def _find_common(role: str, rows: Sequence[_TableRow], layout: Layout, list_id: str) -> str | None:
    """Return the reference or the group that the rows of a list state; None if they state none.

    Args:
        role: ``reference`` or ``group``.

    Raises:
        InvalidList: rows of the list state different ones.
    """
    if (column := layout.columns.get(role)) is None:
        return None
    found: str | None = None
    for row in rows:
        cell = row.cells[column]
        value = None if cell is None else str(cell)
        if found is not None and value and value != found:
            message = f"the rows of the list have different texts here: {found[:50]!r} and {value[:50]!r}"
            raise InvalidList(message, list_id=list_id, field=role, line=row.line)
        found = value or found
    return found


def writer(target: str | Path, *, delimiter: str = "") -> ListWriter:
    """Write a table with a header: ``id,text``, a column ``scores.NAME`` per stream, ``reference,group``.

    The streams are those of the first list. The default delimiter is a tab if the file name ends in .tsv or
    .tab, and a comma otherwise. The writer raises InvalidList if a list has a stream that the first list does
    not have, or an id or text that a table cannot hold.
    """
    name = str(target).removesuffix(".gz")
    mark = delimiter or ("\t" if name.endswith((".tsv", ".tab")) else ",")
    header: list[str] = []

    def format_lines(nbest: NBestList) -> Iterator[str]:
        nonlocal header
        _check_cells(nbest)
        if not header:
            names = [STREAM_PREFIX + name for name in nbest.streams]
            header += ["id", "text", *names, "reference", "group"]
            yield join_cells(header, mark)
        streams = [name.removeprefix(STREAM_PREFIX) for name in header[2:-2]]
        if unknown := [name for name in nbest.streams if name not in streams]:
            message = "the first list does not have this stream, so the table has no column for it"
            raise InvalidList(message, list_id=nbest.id, field=unknown[0])
        for index, hypothesis in enumerate(nbest.hypotheses):
            scores = [repr(nbest.streams[name][index]) if name in nbest.streams else "" for name in streams]
            row = [nbest.id, hypothesis.text, *scores, nbest.reference or "", nbest.group]
            yield join_cells(row, mark)

    return line_writer(target, format_lines)


def _check_cells(nbest: NBestList) -> None:
    """Raise InvalidList if a reader would change one of the cells."""
    named: dict[str, str] = {"id": nbest.id, "reference": nbest.reference or "", "group": nbest.group}
    named |= {f"hypotheses[{index}]": hypothesis.text for index, hypothesis in enumerate(nbest.hypotheses)}
    named |= {f"stream {name}": name for name in nbest.streams}
    for field, cell in named.items():
        if "\0" in cell or "\r" in cell:
            message = "contains a carriage return or NUL, which readers of tables change"
            raise InvalidList(message, list_id=nbest.id, field=field)
    if not nbest.id or nbest.id != nbest.id.strip():
        raise InvalidList("expected an id without white space around it", list_id=nbest.id, field="id")


def find_losses(nbest: NBestList, **_: object) -> set[str]:
    """Describe what a list loses in a table: an empty reference is read back as a missing one."""
    return {"references that are empty"} if nbest.reference == "" else set()

"""Read and write JSON documents: one or several per file, value by value, or one per line."""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, TypeVar

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import DUPLICATE_ID
from rescorer.formats.io.json_records import SURROGATE_ESCAPE
from rescorer.formats.io.json_stream import JsonCursor, JsonStream, JsonValue, build_object
from rescorer.formats.io.text_io import Source, open_output, read_lines, read_text_chunks
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

WriteMember = Callable[[str, Any], None]
STARTS_DOCUMENT = re.compile(r"\s*[\[{]")
"""Matches lines with which a document may start."""


def parse_document(text: str, file: str, line: int = 1) -> Any:
    """Return the JSON value of a text.

    Args:
        line: 1-based line of the file on which the text starts.

    Raises:
        FormatError: If the text is not JSON, or contains a duplicate key or an unpaired surrogate.
    """
    try:
        value = json.loads(text, object_pairs_hook=build_object)
        if SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg} at column {error.colno}"
        raise FormatError(message, file=file, line=line + error.lineno - 1) from None
    except UnicodeEncodeError:
        raise FormatError("unpaired surrogate; expected Unicode text", file=file) from None
    except (ValueError, RecursionError) as error:  # thousands of digits or brackets, or a duplicate key
        raise FormatError(f"cannot parse JSON: {error}", file=file) from None
    return value


def parse_units(score: str, base: str, sign: str) -> Units:
    """Parse the options of a format in which the score is a field that the user names.

    Raises:
        ConfigError: If only one of score and base is given, or the base or sign is unknown.
    """
    if bool(score) != bool(base):
        raise ConfigError("a score and its base must be given together: score=FIELD,base=e (2, 10, prob, …)")
    try:
        return Units(base or "e", sign)  # type: ignore[arg-type]  # checked by Units
    except ValueError as error:
        raise ConfigError(str(error)) from None


class UnusableFile(FormatError):
    """A document says that nothing in its file can be read, not only that it cannot be read itself."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file, before its value is read."""

    cursor: JsonCursor
    label: str
    """Tells it from others in ids: its line in a file with one per line; otherwise its position, from 1."""
    line: int | None
    """The line on which the document stands, if it takes only one."""
    is_only: bool
    """Whether it is the only one of its file, as far as can be known before it is read."""


Result = TypeVar("Result")


def read_documents(
    source: Source,
    file: str,
    read: Callable[[Document], Iterator[Result]],
    parse: Callable[[str, str, int], Any] = parse_document,
    *,
    prefers_lines: bool = False,
) -> Iterator[Result | FormatError]:
    """Yield what is read from each document of a file: one, several one after another, or one per line.

    A document that is broken loses what comes after the damage in it; then its error is yielded, and the next
    document is read. That is certain to start where lines are documents, or where only the first line of a
    document is not indented. Otherwise the error says that the rest of the file is not read.

    Args:
        read: Reads the value of a document, with all that is in it. It may raise FormatError, for a document
            that is not what it should be.
        parse: Parses a document that stands on one line, given its text, file and line.
        prefers_lines: Whether lines are documents also if the first line is neither a document nor the start
            of one. Then no error is raised, only yielded.

    Raises:
        FormatError: If the file cannot be opened, its first line is not valid text, or the last document that
            can be read is broken.
    """
    lines = _Lines(read_lines(source))
    head: list[tuple[int, str | FormatError]] = []
    for line, text in lines:
        head.append((line, text))
        if isinstance(text, FormatError) and not prefers_lines:
            raise text
        if isinstance(text, FormatError) or text.strip():
            break
    first = head[-1][1] if head else ""
    if _is_by_line(first, lines, prefers_lines):
        lines.put_back(head)
        yield from _read_lines(lines, file, read, parse)
    else:
        texts = "\n".join(str(text) for _, text in head)
        stream = JsonStream(chain([texts], _join_lines(lines)), file)
        yield from _read_stream(stream, file, read)


def _is_by_line(first: str | FormatError, lines: _Lines, prefers_lines: bool) -> bool:
    """Whether lines are documents, given the first that is not blank, and the others."""
    if isinstance(first, FormatError) or _is_json(first):
        return True
    if not first.strip():
        return False
    damage, second = _find_damage(first), lines.peek()
    is_second_whole = isinstance(second, str) and second.startswith(("{", "[")) and _is_json(second)
    if damage == "cut":  # the document goes on, or its end is lost
        return prefers_lines and is_second_whole and not first.lstrip().startswith("[")
    if damage == "several":
        return is_second_whole
    return prefers_lines or is_second_whole


def _read_stream(
    stream: JsonStream, file: str, read: Callable[[Document], Iterator[Result]]
) -> Iterator[Result | FormatError]:
    """Read documents one after another; an empty file has one, which is broken."""
    for number in count(1):
        is_there = stream.start_document()
        if not is_there and number > 1:
            return
        first_line = stream.place[0]
        try:
            yield from read(Document(stream, f"{number}", None, number == 1))
            if number == 1 and not is_there:
                return
        except FormatError as error:
            may_go_on = stream.skip_broken()
            if number == 1 and not may_go_on:
                raise
            where = f"; document {number} starts in line {first_line}, "
            rest = f"the next one in line {stream.place[0]}" if may_go_on else "and the rest is not read"
            located = FormatError(f"{error.message}{where}{rest}", file=file, line=error.line)
            if not may_go_on:
                raise located from None
            yield located


class _Lines:
    """Numbered lines of a file, some of which can be put back."""

    def __init__(self, lines: Iterator[tuple[int, str | FormatError]]) -> None:
        self._lines = lines
        self._back: deque[tuple[int, str | FormatError]] = deque()

    def __iter__(self) -> Iterator[tuple[int, str | FormatError]]:
        return self

    def __next__(self) -> tuple[int, str | FormatError]:
        return self._back.popleft() if self._back else next(self._lines)

    def put_back(self, lines: Sequence[tuple[int, str | FormatError]]) -> None:
        """Make these the next lines."""
        self._back.extendleft(reversed(lines))

    def peek(self) -> str | FormatError:
        """Return the next line that is not blank, which stays the next line; an empty string at the end."""
        for line, text in self:
            if isinstance(text, FormatError) or text.strip():
                self.put_back([(line, text)])
                return text
        return ""


def _read_lines(
    lines: _Lines,
    file: str,
    read: Callable[[Document], Iterator[Result]],
    parse: Callable[[str, str, int], Any],
) -> Iterator[Result | FormatError]:
    """Read a file whose first line is a document; others may take several lines, or share one."""
    tried = 0  # the last line of a text that could not be read as one document
    is_skipping = False  # the indented lines of a broken document
    labels: Counter[int] = Counter()
    for line, text in lines:
        is_skipping = is_skipping and not (isinstance(text, str) and text.startswith(("{", "[")))
        if isinstance(text, FormatError):
            yield text
        elif text.strip() and not is_skipping:
            try:
                values = _parse_line(text, file, line, parse)
            except FormatError as error:
                if line <= tried or not STARTS_DOCUMENT.match(text):
                    yield error
                    continue
                joined = _join_document(lines, line, text, file)
                if isinstance(joined, _Broken):
                    tried, is_skipping = joined.last_line, joined.is_indented
                    yield joined.error if is_skipping else error
                    continue
                values = [joined]
            is_only = not labels and not lines.peek()
            for value in values:
                labels[line] += 1
                label = f"{line}" if labels[line] == 1 else f"{line}.{labels[line]}"
                try:
                    yield from read(Document(JsonValue(value), label, line, is_only))
                except UnusableFile:
                    raise
                except FormatError as error:
                    yield error


def _parse_line(text: str, file: str, line: int, parse: Callable[[str, str, int], Any]) -> list[Any]:
    """Parse the documents of a line; raises FormatError unless all are complete."""
    try:
        return [parse(text, file, line)]
    except FormatError as error:
        if "Extra data" not in error.message:
            raise
        stream = JsonStream(iter([text]), file, line)
        values = []
        while stream.start_document():
            values.append(stream.read_value())
        return values


@dataclass(frozen=True, slots=True)
class _Broken:
    """A text of several lines that is no document."""

    error: FormatError
    last_line: int
    is_indented: bool


def _join_document(lines: _Lines, line: int, text: str, file: str) -> Any | _Broken:
    """Read the document that starts in a line and may take several; put back lines that it does not take."""
    taken: list[tuple[int, str | FormatError]] = []

    def take() -> Iterator[str]:
        yield text
        for number, more in lines:
            taken.append((number, more))
            if isinstance(more, FormatError):
                raise more
            yield f"\n{more}"

    stream = JsonStream(take(), file, line, min_characters=1)
    try:
        value = stream.read_value()
    except FormatError as error:
        lines.put_back(taken)
        second = taken[0][1] if taken else ""
        is_indented = isinstance(second, str) and second.startswith((" ", "\t"))
        is_syntax = error.message.startswith("not JSON")  # it has a place; brackets too deep have none
        return _Broken(error, stream.place[0] if is_syntax or not taken else taken[-1][0], is_indented)
    last, column = stream.place
    last_text = next((more for number, more in taken if number == last), text)
    rest = [(last, last_text[column:])] if isinstance(last_text, str) else []
    lines.put_back([*rest, *(entry for entry in taken if entry[0] > last)])
    return value


def _join_lines(lines: Iterable[tuple[int, str | FormatError]]) -> Iterator[str]:
    for _, text in lines:
        if isinstance(text, FormatError):
            raise text
        yield f"\n{text}"


def _find_damage(text: str) -> Literal["cut", "several", "other"]:
    """Say why a line is no document: it ends too early, more follows on it, or something else."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return "several"
        is_cut = error.pos >= len(text.rstrip()) and not error.msg.startswith("Unterminated")
        return "cut" if is_cut else "other"
    except (ValueError, RecursionError):
        return "other"
    return "other"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def read_objects(source: Source, file: str) -> Iterator[JsonStream]:
    """Yield a stream before each object of a file, one after another; the caller must read its members.

    Raises:
        FormatError: If the file cannot be opened, or has anything but objects.
    """
    stream = JsonStream(read_text_chunks(source), file)
    while True:
        expect_object(stream, file)
        yield stream
        if stream.peek() != "{":
            stream.expect_end()
            return


def expect_object(document: JsonCursor, file: str, field: str = "", line: int | None = None) -> None:
    """Raise FormatError if the next value is not an object."""
    if document.peek() != "{":
        if not document.peek() or document.describe_next() == "a number":
            document.read_value()  # raises a more precise error if this is not a value at all
        message = f"expected a JSON object, got {document.describe_next()}"
        raise FormatError(message, file=file, field=field, line=line)


def read_member_lists(
    document: JsonStream,
    parse_list: Callable[[str, Any, str], NBestList | InvalidList],
    file: str,
    seen: set[str],
) -> Iterator[NBestList | InputError]:
    """Yield the list in each member of the next object, or an error for invalid lists and duplicate ids.

    Args:
        parse_list: Builds a list from a member's key and value and the file name; may raise InvalidList.
        seen: Ids that have occurred; those of the members are added.
    """
    for list_id in document.read_members(allow_duplicates=True):
        record = document.read_value()
        try:
            if list_id in seen:
                raise InvalidList(DUPLICATE_ID, list_id=list_id, file=file)
            yield parse_list(list_id, record, file)
        except InvalidList as error:
            yield error
        seen.add(list_id)


@contextmanager
def object_writer(target: str | Path, before: str = "{", after: str = "}") -> Iterator[WriteMember]:
    """Write one object, one member per line, between ``before`` and ``after``.

    Yields a function that writes a key and its value, and raises InvalidList for a duplicate key.
    """
    written: set[str] = set()
    with open_output(target) as stream:
        stream.write(before)

        def write(key: str, value: Any) -> None:
            if key in written:
                raise InvalidList("already written; expected each id once", list_id=key, field="id")
            member = f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
            stream.write(f"{',' if written else ''}\n{member}")
            written.add(key)

        yield write
        stream.write(f"\n{after}\n")

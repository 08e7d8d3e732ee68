"""Read JSON documents of any format; read and write mlm-scoring, SegLST and requests of this service.

``read_documents`` reads a file that is one document, or has one after another, or one per line.

mlm-scoring: one JSON object, one member per utterance, scores in nats.

    {"1272-128104-0000": {"hyp_1": {"score": -1.2, "text": "yeah well"}, "hyp_2": {...}, "ref": "yeah well"}}

SegLST, the segments of meeteval and the CHiME challenges: one list per segment.

    [{"session_id": "S05", "speaker": "P03", "start_time": "11.370", "end_time": "12.5", "words": "so um"}]

Each segment has one text, so each list has one hypothesis. Segments have no ids. The id of a list consists of
the session, the speaker and the start in seconds with three decimals, as far as the segment has them:
``S05-P03-11.370``. Without a start, the last part is the ``segment_index``, or else the position in the file.
The speaker is the group of the list.

Requests of this service: the JSON form of ``RescoreRequest`` in ``proto/``.

    {"lists": [{"id": "u1", "hypotheses": [{"text": "a b"}, {"text": "a"}], "streams": [{"name": "acoustic",
        "base": "LOG_BASE_E", "sign": "SCORE_SIGN_LOG_PROB", "values": [-9.0, -9.5]}]}]}

A file contains one request, or one per line. Only the lists are read. The other keys of a request, such as
``model``, say how the service ranks its lists; commands have options for that.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.common import (
    DUPLICATE_ID,
    STREAM,
    FoundLists,
    ListWriter,
    LogBase,
    Row,
    Sign,
    Units,
    build_list,
    check_reserved,
    check_text,
    check_type,
    json_writer,
    parse_at,
    parse_number,
    parse_units,
    reject_duplicates,
    stream_to_nats,
)
from rescorer.formats.fields import (
    as_objects,
    parse_phrases,
    parse_utterances,
    phrase_records,
    utterance_records,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.json_io import (
    JsonCursor,
    JsonStream,
    JsonValue,
    build_object,
    describe_type,
    is_number,
    parse_value,
    without,
    yield_late_errors,
)
from rescorer.formats.io.text_io import (
    NumberedLine,
    NumberedLines,
    Source,
    read_lines,
    read_text_chunks,
    source_name,
)
from rescorer.types import Hypothesis, NBestList

STARTS_DOCUMENT = re.compile(r"\s*[\[{]")
"""Matches a line with which a document may start."""


def parse_score_units(score: str, base: str, sign: str) -> Units:
    """Parse the base and sign of the scores in a field that the user names.

    Args:
        score: name of the field; empty if the user names none.

    Raises:
        ConfigError: only one of score and base is given, or the base or sign is unknown.
    """
    if bool(score) != bool(base):
        raise ConfigError("a score and its base must be given together: score=FIELD,base=e (2, 10, prob, …)")
    return parse_units(base or "e", sign)


class UnusableFile(FormatError):
    """A document, such as an invalid header, makes its whole file unusable."""


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON document of a file, before its value is read."""

    cursor: JsonCursor
    label: str
    """The document's number, for ids: its line if the file has a document per line, or else its position."""
    line: int | None
    """The first line of the document; None if documents are not read line by line."""
    is_only: bool
    """Whether the file has no other document, as far as this can be known before this one is read."""


Result = TypeVar("Result")


def read_documents(
    source: Source,
    file: str,
    read: Callable[[Document], Iterator[Result]],
    *,
    prefers_lines: bool = False,
    first_line: int = 1,
) -> Iterator[Result | FormatError]:
    """Read a file with one document, several one after another, or one per line; yield what ``read`` yields.

    If a document is broken, its content after the damage is lost, and an error is yielded. Reading then
    continues with the next document, if it is certain where that starts: on the next line if lines are
    documents, or at the next bracket that is not indented if documents are indented. Otherwise the error says
    that the rest of the file is not read.

    Args:
        read: reads the value of a document, to its end. It may raise FormatError if a document is not what it
            should be.
        prefers_lines: whether lines count as documents even if the first line is neither a document nor the
            start of one. In such files, errors are yielded instead of raised, and objects may have duplicate
            keys.
        first_line: number of the first line; not 1 for a later part of a file with a document per line, and 0
            if it is not known.

    Raises:
        FormatError: the file cannot be opened, its first line is not valid text, or the last document that
            can be read is broken.
    """
    lines = NumberedLines(read_lines(source, first=first_line))
    if first_line != 1:
        yield from _read_lines(lines, file, read, None if prefers_lines else build_object)
        return
    texts = (item for item in lines if isinstance(item[1], FormatError) or item[1].strip())
    line, first = next(texts, (1, ""))
    if isinstance(first, FormatError) and not prefers_lines:
        raise first
    if _is_by_line(first, lines, prefers_lines):
        lines.put_back([(line, first)])
        yield from _read_lines(lines, file, read, None if prefers_lines else build_object)
    else:
        stream = JsonStream(chain([str(first)], _join_lines(lines)), file, line)
        yield from _read_stream(stream, file, read)


def _is_by_line(first: str | FormatError, lines: NumberedLines, prefers_lines: bool) -> bool:
    """Whether each line of a file is a document.

    Args:
        first: the first line that is not blank.
        lines: the lines after it, of which the next one is looked at.
    """
    if isinstance(first, FormatError) or not (damage := _find_damage(first)):
        return True
    if not first.strip():
        return False
    second = lines.peek()
    is_second_whole = isinstance(second, str) and second.startswith(("{", "[")) and not _find_damage(second)
    if damage == "cut":  # the document continues, or its end is lost
        return prefers_lines and is_second_whole and not first.lstrip().startswith("[")
    if damage == "several":
        return is_second_whole
    return prefers_lines or is_second_whole


def _read_stream(
    stream: JsonStream, file: str, read: Callable[[Document], Iterator[Result]]
) -> Iterator[Result | FormatError]:
    """Read documents that stand one after another. An empty file counts as one broken document."""
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
            is_next_found = stream.skip_broken()
            if number == 1 and not is_next_found:
                raise
            where = f"; document {number} starts in line {first_line}, "
            rest = f"the next one in line {stream.place[0]}" if is_next_found else "and the rest is not read"
            located = FormatError(f"{error.message}{where}{rest}", file=file, line=error.line)
            if not is_next_found:
                raise located from None
            yield located


BuildObject = Callable[[list[tuple[str, Any]]], Any] | None
"""A function that builds an object from its members. None builds a dict, which keeps the last value of a
duplicate key."""


def _read_lines(
    lines: NumberedLines, file: str, read: Callable[[Document], Iterator[Result]], build: BuildObject
) -> Iterator[Result | FormatError]:
    """Read a file whose first line is a document. Later documents may take several lines, or share a line."""
    tried = 0  # the last line of a text that could not be read as one document
    is_skipping = False  # the indented lines of a broken document
    labels: Counter[int] = Counter()
    for line, text in lines:
        is_skipping = is_skipping and not (isinstance(text, str) and text.startswith(("{", "[")))
        if isinstance(text, FormatError):
            yield text
        elif text.strip() and not is_skipping:
            try:
                values = _parse_line(text, file, line, build)
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


def _parse_line(text: str, file: str, line: int, build: BuildObject) -> list[Any]:
    """Parse the documents of a line; raise FormatError if one of them is incomplete or invalid."""
    try:
        return [parse_value(text, file, line, build)]
    except FormatError as error:
        if "Extra data" not in error.message:
            is_located = build is None or error.message.startswith("not JSON")
            raise error if is_located else FormatError(error.message, file=file) from None
        stream = JsonStream(iter([text]), file, line)
        values = []
        while stream.start_document():
            values.append(stream.read_value())
        return values


@dataclass(frozen=True, slots=True)
class _Broken:
    """A text of several lines that starts like a document, but is not one."""

    error: FormatError
    last_line: int
    is_indented: bool


def _join_document(lines: NumberedLines, line: int, text: str, file: str) -> Any | _Broken:
    """Read a document that starts in a line and may continue in the next lines; put unused lines back.

    Args:
        lines: the lines after the first one.
        line: number of the first line.
        text: the first line.
    """
    taken: list[NumberedLine] = []

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


def _join_lines(lines: Iterable[NumberedLine]) -> Iterator[str]:
    for _, text in lines:
        if isinstance(text, FormatError):
            raise text
        yield f"\n{text}"


def _find_damage(text: str) -> Literal["cut", "several", "other", ""]:
    """Say why a line is not one document; "" if it is.

    ``cut`` means that it ends too early, ``several`` that another document follows, ``other`` anything else.
    """
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return "several"
        is_cut = error.pos >= len(text.rstrip()) and not error.msg.startswith("Unterminated")
        return "cut" if is_cut else "other"
    except (ValueError, RecursionError):
        return "other"
    return ""


def read_records(
    source: Source,
    parse_record: Callable[[Any, int, int | None], NBestList | InvalidList],
    *,
    prefers_lines: bool = False,
) -> Lists:
    """Yield one list per record. Records are the documents of a file, or the elements of its arrays.

    Args:
        parse_record: builds a list from a record, its position in the file from 1, and the first line of its
            document (None if the file is not read by line). It may raise InvalidList.
        prefers_lines: as for ``read_documents``. In addition, an empty file is then no error.
    """
    file, positions = source_name(source), count(1)

    def read(document: Document) -> Iterator[NBestList | InvalidList]:
        cursor, line = document.cursor, document.line
        is_missing = prefers_lines and not cursor.peek()
        for _ in cursor.read_elements() if cursor.peek() == "[" else range(not is_missing):
            record, position = cursor.read_value(), next(positions)
            yield parse_at(file, line, parse_record, record, position, line)

    return read_documents(source, file, read, prefers_lines=prefers_lines)


def read_objects(source: Source, file: str) -> Iterator[JsonStream]:
    """Move through a file to each object, and yield the JSON stream, from which the caller must read it.

    Raises:
        FormatError: the file cannot be opened, or a document in it is not an object.
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
    file: str, objects: Iterable[JsonStream], parse_list: Callable[[str, Any, str], NBestList | InvalidList]
) -> Lists:
    """Yield the list in each member of some objects, or an error if a list is invalid or an id is repeated.

    Args:
        objects: JSON streams that are about to read an object, whose keys are the ids of lists.
        parse_list: builds a list from a member's key and value and the file name; it may raise InvalidList.
    """

    def find() -> FoundLists:
        for stream in objects:
            for key in stream.read_members(allow_duplicates=True):
                yield key, None, parse_at(file, None, parse_list, key, stream.read_value(), file)

    return reject_duplicates(find(), file)


HYPOTHESIS_KEY = re.compile(r"hyp_([0-9]{1,9})")


@yield_late_errors
def read_mlm(source: Source) -> Lists:
    """Yield the list of each utterance, with the stream ``first_pass``.

    Hypotheses are in the order of the numbers in their keys. Reading stops after a syntax error. If a list
    has already been yielded, the error is yielded last.

    Raises:
        FormatError: the file cannot be read, or is not a JSON object, and no list has been yielded yet.
    """
    file = source_name(source)
    return read_member_lists(file, read_objects(source, file), _parse_mlm_list)


def _parse_mlm_list(list_id: str, record: Any, file: str) -> NBestList | InvalidList:
    record = check_type(record, dict, list_id)
    ranked_keys = sorted((int(m[1]), key) for key in record if (m := HYPOTHESIS_KEY.fullmatch(key)))
    rows = []
    for index, (_, key) in enumerate(ranked_keys):
        item = record[key]
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            message = 'expected an object with a string "text"'
            raise InvalidList(message, list_id=list_id, field=key, hypothesis=index)
        rows.append(Row(item["text"], {STREAM: item.get("score")}, without(item, ("text", "score"))))
    reference = check_text(record.get("ref"), list_id, "ref")
    fields = without(record, {"ref", *(key for _, key in ranked_keys)})
    return build_list(list_id, rows, {}, file, reference=reference, fields=fields)


def mlm_writer(target: str | Path) -> ListWriter:
    """Write one utterance per line, with the stream ``first_pass`` if the list has it."""

    def format_value(nbest: NBestList) -> dict[str, Any]:
        record: dict[str, Any] = {}
        for index, hypothesis in enumerate(nbest.hypotheses):
            check_reserved(nbest, hypothesis.fields, ("score", "text"), "score and text", index)
            score = {"score": nbest.streams[STREAM][index]} if STREAM in nbest.streams else {}
            record[f"hyp_{index + 1}"] = {**score, "text": hypothesis.text, **hypothesis.fields}
        record |= {} if nbest.reference is None else {"ref": nbest.reference}
        reserved = ["ref", *filter(HYPOTHESIS_KEY.fullmatch, nbest.fields)]
        check_reserved(nbest, nbest.fields, reserved, "ref and hyp_N")
        return record | dict(nbest.fields)

    return json_writer(target, format_value, "{", "}", once=True, named=True)


def looks_like_mlm(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    document = sample.document
    for record in document.values() if isinstance(document, dict) else ():
        if isinstance(record, dict) and isinstance(record.get("hyp_1"), dict):
            return 'a JSON object with "hyp_1"'
    return ""


SESSION_KEY = "session_id"
TEXT_KEY = "words"
SPEAKER_KEY = "speaker"
START_KEY = "start_time"
INDEX_KEY = "segment_index"
ID_KEY = "id"
"""Key of an explicit id. The writer adds it to a segment if its other keys would give another id."""
RESERVED_KEYS = (ID_KEY, SPEAKER_KEY, TEXT_KEY)
"""Keys of a segment that do not become fields of its list."""


def is_segment(record: Any) -> bool:
    """Whether a JSON value is a segment: an object with a session and words."""
    return isinstance(record, dict) and SESSION_KEY in record and isinstance(record.get(TEXT_KEY), str)


def find_id(segment: Mapping[str, Any], position: int) -> str:
    """Return the id of a segment.

    >>> find_id({"session_id": "S05", "speaker": "P03", "start_time": "11.37", "words": ""}, 1)
    'S05-P03-11.370'

    Args:
        position: 1-based position of the segment in its file.
    """
    own, start = segment.get(ID_KEY), segment.get(START_KEY)
    if isinstance(own, str) and own:
        return own
    start = parse_number(start) if isinstance(start, str) else start
    last = f"{start:.3f}" if is_number(start) else segment.get(INDEX_KEY, position)
    parts = [segment.get(SESSION_KEY), segment.get(SPEAKER_KEY), last]
    return "-".join(str(part) for part in parts if part is not None)


@yield_late_errors
def read_seglst(source: Source) -> Lists:
    """Yield one list per segment, with the segment's text as the only hypothesis.

    Raises:
        FormatError: the source cannot be opened, or is not JSON.
    """
    seen, file = set[str](), source_name(source)
    return read_records(source, lambda record, position, _: _parse_segment(record, position, seen, file))


def _parse_segment(record: Any, position: int, seen: set[str], file: str) -> NBestList | InvalidList:
    if not isinstance(record, dict):
        message = f"expected a segment as an object, got {describe_type(record)}"
        raise InvalidList(message, list_id=str(position))
    list_id = find_id(record, position)
    if not is_segment(record):
        key = TEXT_KEY if SESSION_KEY in record else SESSION_KEY
        check_type(record.get(key), str, list_id, key)
    if list_id in seen:
        raise InvalidList(DUPLICATE_ID, list_id=list_id)
    seen.add(list_id)
    speaker = record.get(SPEAKER_KEY)
    group, fields = "" if speaker is None else str(speaker), without(record, RESERVED_KEYS)
    return build_list(list_id, [Row(record[TEXT_KEY])], {}, file, group=group, fields=fields)


def seglst_writer(target: str | Path) -> ListWriter:
    """Write an array with one segment per line; the segment has the list's first text.

    If a list was not read from segments, its id becomes the name of the session. A segment gets an ``id``
    only if its other keys would give another id.
    """

    def format_value(nbest: NBestList) -> dict[str, Any]:
        check_reserved(nbest, nbest.fields, RESERVED_KEYS)
        segment = {SESSION_KEY: nbest.id, **nbest.fields}
        segment |= {SPEAKER_KEY: nbest.group} if nbest.group else {}
        is_found = START_KEY in segment or INDEX_KEY in segment  # else the position would be in its id
        named = {} if is_found and find_id(segment, 0) == nbest.id else {ID_KEY: nbest.id}
        return {**named, **segment, TEXT_KEY: nbest.hypotheses[0].text}

    return json_writer(target, format_value)


def read_entries(
    records: Sequence[tuple[int, dict[str, Any]]], file: str, field: str
) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the id, and the text or speaker of each segment, to read references or groups.

    Args:
        field: name of the field to yield: ``speaker`` for the speaker, any other name for the text.

    Raises:
        FormatError: a record is not a segment, or has no speaker.
    """
    for position, (number, record) in enumerate(records, start=1):
        value = record.get(SPEAKER_KEY if field == SPEAKER_KEY else TEXT_KEY)
        if not is_segment(record) or value is None:
            expected = f"expected a segment with {SESSION_KEY}, {SPEAKER_KEY} and {TEXT_KEY}"
            raise FormatError(expected, file=file, line=number)
        yield number, find_id(record, position), str(value)


def looks_like_seglst(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    document = sample.document
    first = document[0] if isinstance(document, list) and document else document
    is_found = is_segment(first) and "hypotheses" not in first
    return f"segments of meeteval (SegLST), with {SESSION_KEY!r} and {TEXT_KEY!r}" if is_found else ""


LISTS_KEY = "lists"
BASES: Mapping[str, LogBase] = {
    f"LOG_BASE_{base.upper().replace('.', '_')}": base  # LOG_BASE_1_0001
    for base in get_args(LogBase)
}
SIGNS: Mapping[str, Sign] = {f"SCORE_SIGN_{sign.upper()}": sign for sign in get_args(Sign)}


@yield_late_errors
def read_service_request(source: Source) -> Lists:
    """Yield the lists of requests. A list without an id gets as its id its number in the file, from 1.

    Raises:
        FormatError: the source cannot be opened, or is not JSON with an array ``lists``.
    """
    file, numbers = source_name(source), count(1)

    def read(document: Document) -> Lists:
        for record in _read_records(document, file):
            yield parse_at(file, document.line, _parse_request_list, record, str(next(numbers)))

    return read_documents(source, file, read)


def _read_records(document: Document, file: str) -> Iterator[Any]:
    """Yield each list of a request as a JSON value; raise FormatError if the document is not a request."""
    cursor = document.cursor
    expect_object(cursor, file, line=document.line)
    found = False
    for key in cursor.read_members():
        if key == LISTS_KEY and cursor.peek() == "[":
            found = True
            yield from (cursor.read_value() for _ in cursor.read_elements())
        else:
            cursor.read_value()
    if not found:
        raise FormatError(f"expected a request with an array {LISTS_KEY!r}", file=file, line=document.line)


def _parse_request_list(record: Any, number: str) -> NBestList:
    record = check_type(record, dict, number)
    list_id = check_type(record.get("id", ""), str, number, "id") or number
    hypotheses = []
    for index, item in enumerate(check_type(record.get("hypotheses", []), list, list_id, "hypotheses")):
        field = f"hypotheses[{index}]"
        item = check_type(item, dict, list_id, field)
        text = check_type(item.get("text", ""), str, list_id, f"{field}.text")
        fields = check_type(item.get("fields", {}), dict, list_id, f"{field}.fields")
        hypotheses.append(Hypothesis(text, fields, item.get("partial") is True))
    if not hypotheses:
        raise InvalidList("no hypotheses; expected at least one", list_id=list_id)
    streams: dict[str, tuple[float, ...]] = {}
    for index, stream in enumerate(check_type(record.get("streams", []), list, list_id, "streams")):
        name, values = _parse_stream(stream, f"streams[{index}]", list_id, len(hypotheses))
        if name in streams:
            raise InvalidList("duplicate name", list_id=list_id, field=f"streams[{index}].name")
        streams[name] = values
    return NBestList(
        list_id,
        tuple(hypotheses),
        streams,
        context=check_type(record.get("context", ""), str, list_id, "context"),
        fields=check_type(record.get("fields", {}), dict, list_id, "fields"),
        previous=parse_utterances(record.get("previous"), "previous", list_id),
        phrases=parse_phrases(record.get("phrases"), "phrases", list_id),
    )


def _parse_stream(stream: Any, field: str, list_id: str, n_values: int) -> tuple[str, tuple[float, ...]]:
    stream = check_type(stream, dict, list_id, field)
    name = check_type(stream.get("name"), str, list_id, f"{field}.name")
    for key, known in (("base", [*BASES]), ("sign", [*SIGNS])):
        if stream.get(key) not in known:
            message = f"not declared; expected one of {', '.join(known)}"
            raise InvalidList(message, list_id=list_id, field=f"{field}.{key}")
    units = Units(BASES[stream["base"]], SIGNS[stream["sign"]])
    values = check_type(stream.get("values"), list, list_id, f"{field}.values")
    if not name or len(values) != n_values or None in values:
        message = f"{len(values)} values; expected a name and one number for each of {n_values} hypotheses"
        raise InvalidList(message, list_id=list_id, field=field)
    return name, stream_to_nats(name, values, units, list_id=list_id) or ()


def service_request_writer(target: str | Path) -> ListWriter:
    """Write one request with all lists. Scores are written as natural log-probabilities."""
    return json_writer(target, _build_record, f'{{"{LISTS_KEY}": [', "]}")


def _build_record(nbest: NBestList) -> dict[str, Any]:
    units = {"base": "LOG_BASE_E", "sign": "SCORE_SIGN_LOG_PROB"}
    hypotheses = [
        {"text": h.text}
        | ({"fields": dict(h.fields)} if h.fields else {})
        | ({"partial": True} if h.partial else {})
        for h in nbest.hypotheses
    ]
    record: dict[str, Any] = {"id": nbest.id, "hypotheses": hypotheses}
    record["streams"] = [{"name": name, **units, "values": [*v]} for name, v in nbest.streams.items()]
    record |= {"context": nbest.context} if nbest.context else {}
    record |= {"previous": as_objects(utterance_records(nbest.previous))} if nbest.previous else {}
    record |= {"phrases": as_objects(phrase_records(nbest.phrases))} if nbest.phrases else {}
    return record | ({"fields": dict(nbest.fields)} if nbest.fields else {})


def looks_like_service_request(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    document = sample.document
    is_request = isinstance(document, dict) and isinstance(document.get(LISTS_KEY), list)
    return f"a request of this service: JSON with an array {LISTS_KEY!r}" if is_request else ""

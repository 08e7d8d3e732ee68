"""Read and write files that are JSON documents: mlm-scoring, SegLST, and requests of this service.

``read_documents`` reads files of one document, of several one after another, or of one per line.

mlm-scoring: one JSON object, one member per utterance, scores in nats.

    {"1272-128104-0000": {"hyp_1": {"score": -1.2, "text": "yeah well"}, "hyp_2": {...}, "ref": "yeah well"}}

SegLST, the segments of meeteval and the CHiME challenges: one list per segment.

    [{"session_id": "S05", "speaker": "P03", "start_time": "11.370", "end_time": "12.5", "words": "so um"}]

Each segment has one text, so each list has one hypothesis. Segments have no ids. The id of a list is the
session, followed by the speaker and the start in seconds with three decimals, as far as the segment has them:
``S05-P03-11.370``; without a start, by the ``segment_index`` or else the position in the file. The speaker is
the group of the list.

Requests of this service: the JSON form of ``RescoreRequest`` in ``proto/``.

    {"lists": [{"id": "u1", "hypotheses": [{"text": "a b"}, {"text": "a"}], "streams": [{"name": "acoustic",
        "base": "LOG_BASE_E", "sign": "SCORE_SIGN_LOG_PROB", "values": [-9.0, -9.5]}]}]}

A file contains one request, or one per line. Only its lists are read; its other keys, such as ``model``, say
how the service ranks them, and commands have options for that.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.common import (
    DUPLICATE_ID,
    ListWriter,
    LogBase,
    Row,
    Sign,
    Units,
    build_list,
    check_reserved,
    json_writer,
    parse_at,
    parse_number,
    parse_units,
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
    parse_value,
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
"""Matches lines with which a document may start."""


def parse_document(text: str, file: str, line: int = 1) -> Any:
    """Return the JSON value of a text that begins in a line of a file.

    Raises:
        FormatError: the text is not JSON, or contains a duplicate key or an unpaired surrogate.
    """
    try:
        return parse_value(text, file, line, build_object)
    except FormatError as error:
        if error.message.startswith("not JSON"):
            raise
        raise FormatError(error.message, file=file) from None


def parse_score_units(score: str, base: str, sign: str) -> Units:
    """Parse the options of a format in which the score is a field that the user names.

    Raises:
        ConfigError: only one of score and base is given, or the base or sign is unknown.
    """
    if bool(score) != bool(base):
        raise ConfigError("a score and its base must be given together: score=FIELD,base=e (2, 10, prob, …)")
    return parse_units(base or "e", sign)


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
        FormatError: the file cannot be opened, its first line is not valid text, or the last document that
            can be read is broken.
    """
    lines = NumberedLines(read_lines(source))
    head: list[NumberedLine] = []
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


def _is_by_line(first: str | FormatError, lines: NumberedLines, prefers_lines: bool) -> bool:
    """Whether lines are documents, given the first that is not blank, and the others."""
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


def _read_lines(
    lines: NumberedLines,
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


def _join_document(lines: NumberedLines, line: int, text: str, file: str) -> Any | _Broken:
    """Read the document that starts in a line and may take several; put back lines that it does not take."""
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
    """Say why a line is no document: it ends too early, more follows, or another reason; empty if it is."""
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
    parse: Callable[[str, str, int], Any] = parse_document,
    *,
    prefers_lines: bool = False,
) -> Lists:
    """Yield the list of each document that is a record, and of each element of one that is an array.

    Args:
        parse_record: Builds a list from a record, its position in the file from 1, and its line, if it has
            one; may raise InvalidList.
        parse: As for ``read_documents``.
        prefers_lines: As for ``read_documents``; then an empty file has no records.
    """
    file, positions = source_name(source), count(1)

    def read(document: Document) -> Iterator[NBestList | InvalidList]:
        cursor, line = document.cursor, document.line
        is_missing = prefers_lines and not cursor.peek()
        for _ in cursor.read_elements() if cursor.peek() == "[" else range(not is_missing):
            record, position = cursor.read_value(), next(positions)
            yield parse_at(file, line, partial(parse_record, record, position, line))

    return read_documents(source, file, read, parse, prefers_lines=prefers_lines)


def read_objects(source: Source, file: str) -> Iterator[JsonStream]:
    """Yield a stream before each object of a file, one after another; the caller must read its members.

    Raises:
        FormatError: the file cannot be opened, or has anything but objects.
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
) -> Lists:
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


STREAM = "first_pass"
HYPOTHESIS_KEY = re.compile(r"hyp_([0-9]{1,9})")


def read_mlm(source: Source) -> Lists:
    """Yield the list of each utterance, with the stream ``first_pass``, ordered by the numbers in the keys.

    After a syntax error, reading stops; if a list has already been yielded, the error is yielded last.

    Raises:
        FormatError: the file cannot be read, or is not a JSON object, and no list has been yielded yet.
    """
    return yield_late_errors(_read_mlm_lists(source))


def _read_mlm_lists(source: Source) -> Lists:
    file = source_name(source)
    seen: set[str] = set()
    for document in read_objects(source, file):
        yield from read_member_lists(document, _parse_mlm_list, file, seen)


def _parse_mlm_list(list_id: str, record: Any, file: str) -> NBestList | InvalidList:
    def invalid(message: str, field: str, hypothesis: int | None = None) -> InvalidList:
        return InvalidList(message, list_id=list_id, field=field, hypothesis=hypothesis, file=file)

    if not isinstance(record, dict):
        raise invalid(f"expected an object, got {describe_type(record)}", "")
    ranked_keys = sorted((int(m[1]), key) for key in record if (m := HYPOTHESIS_KEY.fullmatch(key)))
    rows = []
    for index, (_, key) in enumerate(ranked_keys):
        item = record[key]
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            raise invalid('expected an object with a string "text"', key, index)
        other_fields = {name: value for name, value in item.items() if name not in ("text", "score")}
        rows.append(Row(item["text"], {STREAM: item.get("score")}, other_fields))
    reference = record.get("ref")
    if reference is not None and not isinstance(reference, str):
        raise invalid(f"expected a string, got {describe_type(reference)}", "ref")
    known = {"ref", *(key for _, key in ranked_keys)}
    fields = {name: value for name, value in record.items() if name not in known}
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
"""Key of an id that a segment has after all: the writer's, where the other keys give another."""
RESERVED_KEYS = (ID_KEY, SPEAKER_KEY, TEXT_KEY)
"""Keys that do not become fields of a list."""


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
    is_timed = isinstance(start, (int, float)) and not isinstance(start, bool)
    last = f"{start:.3f}" if is_timed else segment.get(INDEX_KEY, position)
    parts = [segment.get(SESSION_KEY), segment.get(SPEAKER_KEY), last]
    return "-".join(str(part) for part in parts if part is not None)


def read_seglst(source: Source) -> Lists:
    """Yield the list of each segment, with its text as the only hypothesis.

    Raises:
        FormatError: the source cannot be opened, or is not JSON.
    """
    seen, file = set[str](), source_name(source)
    return yield_late_errors(
        read_records(source, lambda record, position, _: _parse_segment(record, position, seen, file))
    )


def _parse_segment(record: Any, position: int, seen: set[str], file: str) -> NBestList | InvalidList:
    if not isinstance(record, dict):
        message = f"expected a segment as an object, got {describe_type(record)}"
        raise InvalidList(message, list_id=str(position))
    list_id = find_id(record, position)
    if not is_segment(record):
        key = TEXT_KEY if SESSION_KEY in record else SESSION_KEY
        expected = f"expected a string, got {describe_type(record.get(key))}"
        raise InvalidList(expected, list_id=list_id, field=key)
    if list_id in seen:
        raise InvalidList(DUPLICATE_ID, list_id=list_id)
    seen.add(list_id)
    speaker = record.get(SPEAKER_KEY)
    fields = {key: value for key, value in record.items() if key not in RESERVED_KEYS}
    group = "" if speaker is None else str(speaker)
    return build_list(list_id, [Row(record[TEXT_KEY])], {}, file, group=group, fields=fields)


def seglst_writer(target: str | Path) -> ListWriter:
    """Write an array with one segment per line: the first text of each list.

    A list that was not read from segments is a session with its id as the name. A segment has an ``id`` only
    if its other keys would give another.
    """

    def format_value(nbest: NBestList) -> dict[str, Any]:
        reserved = sorted(nbest.fields.keys() & {*RESERVED_KEYS})
        check_reserved(nbest, nbest.fields, reserved, ", ".join(reserved))
        segment = {SESSION_KEY: nbest.id, **nbest.fields}
        segment |= {SPEAKER_KEY: nbest.group} if nbest.group else {}
        is_found = START_KEY in segment or INDEX_KEY in segment  # else the position would be in its id
        named = {} if is_found and find_id(segment, 0) == nbest.id else {ID_KEY: nbest.id}
        return {**named, **segment, TEXT_KEY: nbest.hypotheses[0].text}

    return json_writer(target, format_value)


def read_entries(
    records: Sequence[tuple[int, dict[str, Any]]], file: str, field: str
) -> Iterator[tuple[int, str, str]]:
    """Yield number, id and text of segments, for references; their speaker if that is the name of the field.

    Raises:
        FormatError: a record is no segment, or has no speaker.
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

TYPE_NAMES: Mapping[type, str] = {dict: "an object", list: "an array", str: "a string"}


def read_service_request(source: Source) -> Lists:
    """Yield the lists of requests; a list without an id gets its number in the file as id.

    Raises:
        FormatError: the source cannot be opened, or is not JSON with an array ``lists``.
    """
    file, numbers = source_name(source), count(1)

    def read(document: Document) -> Lists:
        for record in _read_records(document, file):
            yield parse_at(file, document.line, partial(_parse_request_list, record, str(next(numbers))))

    return yield_late_errors(read_documents(source, file, read))


def _read_records(document: Document, file: str) -> Iterator[Any]:
    """Yield the lists of a request as they are; raises FormatError if the document is no request."""
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
    record = _check(record, dict, "", number)
    list_id = _check(record.get("id", ""), str, "id", number) or number
    hypotheses = []
    for index, item in enumerate(_check(record.get("hypotheses", []), list, "hypotheses", list_id)):
        field = f"hypotheses[{index}]"
        item = _check(item, dict, field, list_id)
        text = _check(item.get("text", ""), str, f"{field}.text", list_id)
        fields = _check(item.get("fields", {}), dict, f"{field}.fields", list_id)
        hypotheses.append(Hypothesis(text, fields, item.get("partial") is True))
    if not hypotheses:
        raise InvalidList("no hypotheses; expected at least one", list_id=list_id)
    streams: dict[str, tuple[float, ...]] = {}
    for index, stream in enumerate(_check(record.get("streams", []), list, "streams", list_id)):
        name, values = _parse_stream(stream, f"streams[{index}]", list_id, len(hypotheses))
        if name in streams:
            raise InvalidList("duplicate name", list_id=list_id, field=f"streams[{index}].name")
        streams[name] = values
    context = _check(record.get("context", ""), str, "context", list_id)
    fields = _check(record.get("fields", {}), dict, "fields", list_id)
    previous = parse_utterances(record.get("previous"), "previous", list_id)
    phrases = parse_phrases(record.get("phrases"), "phrases", list_id)
    return NBestList(
        list_id, tuple(hypotheses), streams, context, fields=fields, previous=previous, phrases=phrases
    )


def _parse_stream(stream: Any, field: str, list_id: str, n_values: int) -> tuple[str, tuple[float, ...]]:
    stream = _check(stream, dict, field, list_id)
    name = _check(stream.get("name"), str, f"{field}.name", list_id)
    for key, known in (("base", [*BASES]), ("sign", [*SIGNS])):
        if stream.get(key) not in known:
            message = f"not declared; expected one of {', '.join(known)}"
            raise InvalidList(message, list_id=list_id, field=f"{field}.{key}")
    units = Units(BASES[stream["base"]], SIGNS[stream["sign"]])
    values = _check(stream.get("values"), list, f"{field}.values", list_id)
    if not name or len(values) != n_values or None in values:
        message = f"{len(values)} values; expected a name and one number for each of {n_values} hypotheses"
        raise InvalidList(message, list_id=list_id, field=field)
    return name, stream_to_nats(name, values, units, list_id=list_id) or ()


def _check(value: Any, kind: type, field: str, list_id: str) -> Any:
    if not isinstance(value, kind):
        message = f"expected {TYPE_NAMES[kind]}, got {describe_type(value)}"
        raise InvalidList(message, list_id=list_id, field=field)
    return value


def service_request_writer(target: str | Path) -> ListWriter:
    """Write one request with all lists; scores are natural log-probabilities."""
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

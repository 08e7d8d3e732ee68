"""Read and write the segments of meeteval and the CHiME challenges (SegLST): one list per segment.

    [{"session_id": "S05", "speaker": "P03", "start_time": "11.370", "end_time": "12.5", "words": "so um"}]

Each segment has one text, so each list has one hypothesis. Segments have no ids. The id of a list is the
session, followed by the speaker and the start in seconds with three decimals, as far as the segment has them:
``S05-P03-11.370``; without a start, by the ``segment_index`` or else the position in the file. The speaker is
the group of the list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import DUPLICATE_ID, Row, Write, add_location, build_list, parse_number
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.io.json_stream import yield_late_errors
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, source_name
from rescorer.formats.json_documents.documents import Document, read_documents
from rescorer.types import NBestList

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


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield the list of each segment, with its text as the only hypothesis.

    Raises:
        FormatError: If the source cannot be opened, or is not JSON.
    """
    file = source_name(source)
    positions, seen = count(1), set[str]()

    def read(document: Document) -> Iterator[NBestList | InputError]:
        cursor = document.cursor
        for _ in cursor.read_elements() if cursor.peek() == "[" else [0]:
            record, position = cursor.read_value(), next(positions)
            try:
                yield _parse_segment(record, position, seen, file)
            except InvalidList as error:
                yield add_location(error, file, document.line)

    return yield_late_errors(read_documents(source, file, read))


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


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write an array with one segment per line: the first text of each list.

    A list that was not read from segments is a session with its id as the name. A segment has an ``id`` only
    if its other keys would give another.
    """
    is_first = True
    with open_output(target) as stream:
        stream.write("[")

        def write(nbest: NBestList) -> None:
            nonlocal is_first
            if reserved := sorted(nbest.fields.keys() & {*RESERVED_KEYS}):
                message = f"the names {', '.join(reserved)} are reserved by the format; rename these fields"
                raise InvalidList(message, list_id=nbest.id, field="fields")
            segment = {SESSION_KEY: nbest.id, **nbest.fields}
            segment |= {SPEAKER_KEY: nbest.group} if nbest.group else {}
            is_found = START_KEY in segment or INDEX_KEY in segment  # else the position would be in its id
            named = {} if is_found and find_id(segment, 0) == nbest.id else {ID_KEY: nbest.id}
            segment = {**named, **segment, TEXT_KEY: nbest.hypotheses[0].text}
            stream.write(f"{'' if is_first else ','}\n{json.dumps(segment, ensure_ascii=False)}")
            is_first = False

        yield write
        stream.write("\n]\n")


def read_entries(
    records: Sequence[tuple[int, dict[str, Any]]], file: str, field: str
) -> Iterator[tuple[int, str, str]]:
    """Yield number, id and text of segments, for references; their speaker if that is the name of the field.

    Raises:
        FormatError: If a record is no segment, or has no speaker.
    """
    for position, (number, record) in enumerate(records, start=1):
        value = record.get(SPEAKER_KEY if field == SPEAKER_KEY else TEXT_KEY)
        if not is_segment(record) or value is None:
            expected = f"expected a segment with {SESSION_KEY}, {SPEAKER_KEY} and {TEXT_KEY}"
            raise FormatError(expected, file=file, line=number)
        yield number, find_id(record, position), str(value)


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    for document in () if sample.is_folder else sample.documents[:1]:
        first = document[0] if isinstance(document, list) and document else document
        if is_segment(first) and "hypotheses" not in first:
            return f"segments of meeteval (SegLST), with {SESSION_KEY!r} and {TEXT_KEY!r}"
    return ""

"""Read and write NeMo manifests with the beams or the text that a model has recognised.

    {"audio_filepath": "calls/u1.wav", "duration": 2.5, "text": "the sea was calm",
     "pred_text": "the see was calm", "beams": [["the see was calm", -3.1], ["the sea was calm", -3.4]]}

``examples/asr/transcribe_speech.py`` and ``speech_to_text_eval.py`` write one line per recording, or per part
of one: ``text`` is its reference, ``pred_text`` the best hypothesis, and ``beams`` has all hypotheses with
their natural log-probabilities if the decoder returns them. A line without beams has ``pred_text`` as its
only hypothesis.

Lines have no ids. The id of a list is the name of its audio file without folder and suffix, followed by the
``offset`` if the line is a part of the file that does not begin with it: ``u1``, ``u1-12.5``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

from rescorer.errors import InputError, InvalidList
from rescorer.formats.common import DUPLICATE_ID, Row, Write, add_location, build_list
from rescorer.formats.io.json_records import describe_type, parse_value
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, source_name
from rescorer.formats.json_documents.documents import Document, read_documents
from rescorer.types import NBestList

FORMAT = "manifest"
"""Name of the format."""
STREAM = "first_pass"
AUDIO_KEY = "audio_filepath"
REFERENCE_KEY = "text"
BEAMS_KEY = "beams"
PREDICTION_KEY = "pred_text"
GROUP_KEY = "speaker"
ID_KEY = "id"
"""Key of an id that a line has after all: the writer's, where the name of the audio file is another."""
RESERVED_KEYS = (REFERENCE_KEY, BEAMS_KEY, PREDICTION_KEY, GROUP_KEY, ID_KEY)
"""Keys that do not become fields of a list."""


def find_id(record: Mapping[str, Any], number: int) -> str:
    """Return the id of a line of a manifest: its own, else that of its audio, else its number.

    >>> find_id({"audio_filepath": "calls/u1.wav", "offset": 12.5}, 3)
    'u1-12.5'

    Args:
        number: 1-based number of the line.
    """
    own, audio, offset = (record.get(key) for key in (ID_KEY, AUDIO_KEY, "offset"))
    if isinstance(own, str) and own:
        return own
    if not isinstance(audio, str):
        return str(number)
    stem = PurePosixPath(audio.replace("\\", "/")).stem
    is_part = isinstance(offset, (int, float)) and not isinstance(offset, bool) and offset
    return (f"{stem}-{offset}" if is_part else stem) or str(number)


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield the list of each line or object, with the stream ``first_pass`` if it has beams with scores.

    Raises:
        FormatError: If the source cannot be opened.
    """
    file = source_name(source)
    seen: set[str] = set()
    positions = count(1)

    def read(document: Document) -> Iterator[NBestList | InputError]:
        cursor = document.cursor
        for _ in cursor.read_elements() if cursor.peek() == "[" else range(bool(cursor.peek())):
            record, position = cursor.read_value(), next(positions)
            try:
                yield _read_record(record, document.line or position, seen, file, document.line)
            except InvalidList as error:
                yield add_location(error, file, document.line)

    return read_documents(source, file, read, parse_value, prefers_lines=True)


def _read_record(
    record: Any, number: int, seen: set[str], file: str, line: int | None
) -> NBestList | InvalidList:
    if not isinstance(record, dict):
        raise InvalidList(f"expected a JSON object, got {describe_type(record)}", list_id=str(number))
    list_id = find_id(record, number)
    if list_id in seen:
        raise InvalidList(DUPLICATE_ID, list_id=list_id)
    seen.add(list_id)
    return _parse_list(record, list_id, file, line)


def _parse_list(record: dict[str, Any], list_id: str, file: str, line: int | None) -> NBestList | InvalidList:
    texts = {}
    for key in (REFERENCE_KEY, PREDICTION_KEY, GROUP_KEY):
        texts[key] = record.get(key)
        if not isinstance(texts[key], str | None):
            message = f"expected a string, got {describe_type(texts[key])}"
            raise InvalidList(message, list_id=list_id, field=key)
    beams = record.get(BEAMS_KEY)
    if beams is None:
        if texts[PREDICTION_KEY] is None:
            message = f"missing, and so is {PREDICTION_KEY}: the manifest has not been through a recogniser"
            raise InvalidList(message, list_id=list_id, field=BEAMS_KEY)
        beams = [[texts[PREDICTION_KEY]]]
    if not isinstance(beams, list):
        message = f"expected an array, got {describe_type(beams)}"
        raise InvalidList(message, list_id=list_id, field=BEAMS_KEY)
    rows = [_parse_beam(beam, list_id, index, line) for index, beam in enumerate(beams)]
    return build_list(
        list_id,
        rows,
        {},
        file,
        reference=texts[REFERENCE_KEY],
        group=texts[GROUP_KEY] or "",
        fields={key: value for key, value in record.items() if key not in RESERVED_KEYS},
    )


def _parse_beam(beam: Any, list_id: str, index: int, line: int | None) -> Row:
    """Parse a pair of text and score, or a text without a score."""
    pair = beam if isinstance(beam, list) else [beam]
    if not 1 <= len(pair) <= 2 or not isinstance(pair[0], str):
        message = f"expected a pair of text and score, got {describe_type(beam)}"
        raise InvalidList(message, list_id=list_id, hypothesis=index, field=f"{BEAMS_KEY}[{index}]")
    return Row(pair[0], {STREAM: pair[1]} if len(pair) == 2 else {}, {}, line)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one line per list, with ``beams``, and the first of them as ``pred_text``.

    A list has an ``id`` only if the name of its audio file would be another.
    """
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            reserved = nbest.fields.keys() & {*RESERVED_KEYS}
            if reserved:
                names = ", ".join(sorted(reserved))
                message = f"the names {names} are reserved by the format; rename these fields"
                raise InvalidList(message, list_id=nbest.id, field="fields")
            scores = nbest.streams.get(STREAM)
            beams = [
                [hypothesis.text] if scores is None else [hypothesis.text, scores[index]]
                for index, hypothesis in enumerate(nbest.hypotheses)
            ]
            named = {} if find_id(nbest.fields, 0) == nbest.id else {ID_KEY: nbest.id}
            texts = {REFERENCE_KEY: nbest.reference, GROUP_KEY: nbest.group or None}
            record = {
                **named,
                **nbest.fields,
                **{key: text for key, text in texts.items() if text is not None},
                PREDICTION_KEY: nbest.hypotheses[0].text,
                BEAMS_KEY: beams,
            }
            print(json.dumps(record, ensure_ascii=False), file=stream)

        yield write


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    for record in () if sample.is_folder else sample.documents:
        if isinstance(record, dict) and record.keys() & {AUDIO_KEY, PREDICTION_KEY}:
            key = next((key for key in (BEAMS_KEY, PREDICTION_KEY) if key in record), "")
            return f"a manifest of NeMo, with {key!r}" if key else ""
    return ""

"""Read and write requests of this service as JSON: the JSON form of ``RescoreRequest`` in ``proto/``.

    {"lists": [{"id": "u1", "hypotheses": [{"text": "a b"}, {"text": "a"}], "streams": [{"name": "acoustic",
        "base": "LOG_BASE_E", "sign": "SCORE_SIGN_LOG_PROB", "values": [-9.0, -9.5]}]}]}

A file contains one request, or one per line. Only its lists are read; its other keys, such as ``model``, say
how the service ranks them, and commands have options for that.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, get_args

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import Write, add_location
from rescorer.formats.conversation_fields import (
    parse_phrases,
    parse_utterances,
    phrase_records,
    utterance_records,
)
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.io.json_stream import yield_late_errors
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, source_name
from rescorer.formats.json_documents.documents import Document, expect_object, read_documents
from rescorer.formats.score_units import LogBase, Sign, Units, stream_to_nats
from rescorer.types import Hypothesis, NBestList

LISTS_KEY = "lists"
BASES: Mapping[str, LogBase] = {
    f"LOG_BASE_{base.upper().replace('.', '_')}": base  # LOG_BASE_1_0001
    for base in get_args(LogBase)
}
SIGNS: Mapping[str, Sign] = {f"SCORE_SIGN_{sign.upper()}": sign for sign in get_args(Sign)}

TYPE_NAMES: Mapping[type, str] = {dict: "an object", list: "an array", str: "a string"}


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield the lists of requests; a list without an id gets its number in the file as id.

    Raises:
        FormatError: If the source cannot be opened, or is not JSON with an array ``lists``.
    """
    return yield_late_errors(_read_lists(source, source_name(source)))


def _read_lists(source: Source, file: str) -> Iterator[NBestList | InputError]:
    numbers = count(1)

    def read(document: Document) -> Iterator[NBestList | InputError]:
        for record in _read_records(document, file):
            number = str(next(numbers))
            try:
                yield _parse_list(record, number)
            except InvalidList as error:
                yield add_location(error, file, document.line)

    return read_documents(source, file, read)


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
        message = f"expected a request with an array {LISTS_KEY!r}"
        raise FormatError(message, file=file, line=document.line)


def _parse_list(record: Any, number: str) -> NBestList:
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


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one request with all lists; scores are natural log-probabilities."""
    is_first = True
    with open_output(target) as stream:
        stream.write(f'{{"{LISTS_KEY}": [')

        def write(nbest: NBestList) -> None:
            nonlocal is_first
            record = json.dumps(_build_record(nbest), ensure_ascii=False)
            stream.write(f"{'' if is_first else ','}\n{record}")
            is_first = False

        yield write
        stream.write("\n]}\n")


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
    # in the message, each utterance and phrase is an object
    previous = utterance_records(nbest.previous)
    record |= {"previous": [{"text": p} if isinstance(p, str) else p for p in previous]} if previous else {}
    phrases = phrase_records(nbest.phrases)
    record |= {"phrases": [{"text": p} if isinstance(p, str) else p for p in phrases]} if phrases else {}
    return record | ({"fields": dict(nbest.fields)} if nbest.fields else {})


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    for document in () if sample.is_folder else sample.documents[:1]:
        if isinstance(document, dict) and isinstance(document.get(LISTS_KEY), list):
            return f"a request of this service: JSON with an array {LISTS_KEY!r}"
    return ""

"""Read and write segments of Whisper: one list per segment.

    {"text": " a b", "segments": [{"id": 0, "seek": 0, "start": 0.0, "end": 2.5, "text": " a b",
        "tokens": [50364, 257], "avg_logprob": -0.3, "no_speech_prob": 0.1, ...}], ...}     openai-whisper
    [{"id": 1, "seek": 0, "text": " a b", ...}, ...]                                        faster-whisper
    {"transcription": [{"offsets": {"from": 0, "to": 2500}, "text": " a b"}]}               whisper.cpp
    {"segments": [{"candidates": [{"text": " a b", "avg_logprob": -0.3}, ...]}]}            several texts

A file contains one document, or one document or segment per line; a folder contains one file per recording,
``talk.json``. Whisper prints one text per segment; a segment with an array ``candidates``, ``alternatives``
or ``nbest`` has these as its hypotheses.

``avg_logprob`` is a mean in nats: the log-probability of all tokens, divided by their number plus one. The
stream ``first_pass`` is their sum if every hypothesis of the list has ``tokens``, otherwise the mean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import DUPLICATE_ID, Row, Write, add_location, build_list
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.io.json_stream import JsonStream, yield_late_errors
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, source_name
from rescorer.formats.io.utterance_folder import read_list_files
from rescorer.formats.json_documents.documents import open_documents
from rescorer.types import NBestList

STREAM = "first_pass"
SCORE_KEY = "avg_logprob"
SEGMENT_KEYS = ("segments", "transcription")
"""Keys of the arrays that contain segments."""
HYPOTHESIS_KEYS = ("candidates", "alternatives", "nbest")
"""Keys of the hypotheses of a segment, in order of preference."""
LIST_FIELDS = ("seek", "start", "end", "offsets", "timestamps", "speaker")
"""Keys that describe a segment, not its text."""
SUFFIX = ".json"
OWN_KEYS = re.compile(rf'"(seek|{SCORE_KEY})"\s*:')
"""Keys that only Whisper's tools write."""


class Segment(NamedTuple):
    """A segment and where it was found."""

    position: str
    """Number of the segment, after that of its document if there are several."""
    value: Any
    line: int | None
    """Line, or None if the file is one document over several lines."""


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield one list per segment of a file or folder.

    The id of a list is the name of the file and the number of the segment, such as ``talk-12``; a segment's
    own id is kept if it is text. Large documents are read one segment at a time. Keys of a document besides
    its segments are not kept; those of a segment become fields.

    Raises:
        FormatError: If the source cannot be opened, or is not JSON with segments.
    """
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        return read_list_files(
            source, lambda name, path: yield_late_errors(_read_file(path, name)), (SUFFIX,)
        )
    name = Path(source_name(source).strip("<>")).name.removesuffix(".gz")
    return yield_late_errors(_read_file(source, Path(name).stem))


def _read_file(source: Source, name: str) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    seen: set[str] = set()
    for segment in _locate_segments(source, file):
        if isinstance(segment, FormatError):
            yield segment
            continue
        own_id = segment.value.get("id") if isinstance(segment.value, dict) else None
        list_id = own_id if isinstance(own_id, str) and own_id else f"{name}-{segment.position}"
        try:
            if list_id in seen:
                raise InvalidList(DUPLICATE_ID, list_id=list_id)
            yield _parse_segment(segment, list_id, file)
        except InvalidList as error:
            yield add_location(error, file, segment.line)
        seen.add(list_id)


def _locate_segments(source: Source, file: str) -> Iterator[Segment | FormatError]:
    documents = open_documents(source, file)
    if isinstance(documents, JsonStream):
        for position, value in _stream_segments(documents, file):
            yield Segment(position, value, None)
        documents.expect_end()
        return
    first = list(islice(documents, 2))
    for line, document in chain(first, documents):
        if isinstance(document, FormatError):
            yield document
            continue
        found = _find_segments(document)
        if found is None:
            yield Segment(_number(document, line), document, line)
            continue
        prefix = f"{line}-" if len(first) > 1 else ""
        yield from (Segment(f"{prefix}{position}", value, line) for position, value in found)


def _stream_segments(document: JsonStream, file: str) -> Iterator[tuple[str, Any]]:
    """Yield number and value of each segment of a document."""
    if document.peek() == "[":
        yield from _read_segments(document)
        return
    if document.peek() != "{":
        document.read_value()  # raises a more precise error if this is no value at all
        raise FormatError("expected an object with segments, or an array of segments", file=file)
    found = False
    for key in document.read_members():
        if key in SEGMENT_KEYS and document.peek() == "[":
            found = True
            yield from _read_segments(document)
        else:
            document.read_value()
    if not found:
        raise FormatError(f"no segments; expected an array named {' or '.join(SEGMENT_KEYS)}", file=file)


def _read_segments(document: JsonStream) -> Iterator[tuple[str, Any]]:
    for index in document.read_elements():
        value = document.read_value()
        nested = _find_segments(value)
        if nested is None:
            yield _number(value, index), value
        else:
            yield from ((f"{index}-{position}", segment) for position, segment in nested)


def _find_segments(document: Any) -> Iterator[tuple[str, Any]] | None:
    """Return number and value of each segment of a document, or None if it is a segment itself."""
    if isinstance(document, dict):
        document = next((document[key] for key in SEGMENT_KEYS if isinstance(document.get(key), list)), None)
    if not isinstance(document, list):
        return None
    return ((_number(value, index), value) for index, value in enumerate(document))


def _number(segment: Any, default: int) -> str:
    """Return the number that a segment gives itself, or its position."""
    number = segment.get("id") if isinstance(segment, dict) else None
    return str(number if isinstance(number, int) and not isinstance(number, bool) else default)


def _parse_segment(segment: Segment, list_id: str, file: str) -> NBestList | InvalidList:
    record = segment.value
    if not isinstance(record, dict):
        raise InvalidList(f"expected a segment as an object, got {describe_type(record)}", list_id=list_id)
    fields = {key: value for key, value in record.items() if key != "id"}
    key = next((key for key in HYPOTHESIS_KEYS if isinstance(fields.get(key), list) and fields[key]), "")
    if key:
        items = fields.pop(key)
    else:
        items = [{name: value for name, value in fields.items() if name not in LIST_FIELDS}]
        fields = {name: value for name, value in fields.items() if name in LIST_FIELDS}
    has_tokens = all(isinstance(item, dict) and isinstance(item.get("tokens"), list) for item in items)
    rows = [_parse_row(item, list_id, i, has_tokens, segment.line) for i, item in enumerate(items)]
    return build_list(list_id, rows, {}, file, fields=fields)


def _parse_row(item: Any, list_id: str, index: int, has_tokens: bool, line: int | None) -> Row:
    def invalid(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=list_id, hypothesis=index, field=field)

    if not isinstance(item, dict):
        raise invalid(f"expected an object, got {describe_type(item)}", "")
    text, score = item.get("text"), item.get(SCORE_KEY)
    if not isinstance(text, str):
        raise invalid(f"expected a string, got {describe_type(text)}", "text")
    if score is None:
        scores = {}
    elif isinstance(score, (int, float)) and not isinstance(score, bool) and abs(score) < math.inf:
        scores = {STREAM: score * _divisor(item, has_tokens)}
    else:
        raise invalid(f"{str(score)[:100]!r} is not a finite number", SCORE_KEY)
    return Row(text, scores, {key: value for key, value in item.items() if key != "text"}, line)


def _divisor(item: Any, has_tokens: bool) -> int:
    """Return the number by which the sum of the log-probabilities was divided, if it is known."""
    return len(item["tokens"]) + 1 if has_tokens else 1


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one document whose ``segments`` have an ``id`` and ``candidates``.

    The stream ``first_pass`` is written as ``avg_logprob``: per token if every hypothesis of the list has the
    field ``tokens``.
    """
    written: set[str] = set()
    with open_output(target) as stream:
        stream.write('{"segments": [')

        def write(nbest: NBestList) -> None:
            if nbest.id in written:
                raise InvalidList("already written; expected each id once", list_id=nbest.id, field="id")
            reserved = ("id", *SEGMENT_KEYS, *HYPOTHESIS_KEYS)
            if nbest.fields.keys() & {*reserved}:
                message = f"the names {', '.join(reserved)} are reserved by the format; rename these fields"
                raise InvalidList(message, list_id=nbest.id, field="fields")
            has_tokens = all(isinstance(h.fields.get("tokens"), list) for h in nbest.hypotheses)
            candidates = [_build_candidate(nbest, i, has_tokens) for i in range(len(nbest.hypotheses))]
            record = {"id": nbest.id, **nbest.fields, "candidates": candidates}
            stream.write(f"{',' if written else ''}\n{json.dumps(record, ensure_ascii=False)}")
            written.add(nbest.id)

        yield write
        stream.write("\n]}\n")


def _build_candidate(nbest: NBestList, index: int, has_tokens: bool) -> dict[str, Any]:
    hypothesis = nbest.hypotheses[index]
    if "text" in hypothesis.fields:
        message = "the name text is reserved by the format; rename this field"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="fields")
    candidate = {"text": hypothesis.text, **hypothesis.fields}
    if STREAM in nbest.streams:
        candidate[SCORE_KEY] = nbest.streams[STREAM][index] / _divisor(hypothesis.fields, has_tokens)
    return candidate


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file or folder has this format, or an empty string."""
    has_suffix = not sample.is_folder or any(name.endswith(SUFFIX) for name in sample.names)
    if not has_suffix or not sample.first.startswith(("{", "[")) or '"hypotheses"' in sample.text:
        return ""
    if match := OWN_KEYS.search(sample.text):
        return f"JSON with segments of Whisper, which have {match[1]!r}"
    match = re.search(rf'"({"|".join(SEGMENT_KEYS)})"\s*:\s*\[', sample.text)
    has_other_lists = re.search(r'"(alternatives|N[bB]est|choices)"\s*:\s*\[', sample.text)
    return f"JSON with an array {match[1]!r}" if match and not has_other_lists else ""

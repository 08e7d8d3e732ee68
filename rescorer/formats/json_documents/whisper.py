"""Read and write segments of Whisper: one list per segment.

    {"text": " a b", "segments": [{"id": 0, "seek": 0, "start": 0.0, "end": 2.5, "text": " a b",
        "tokens": [50364, 257], "avg_logprob": -0.3, "no_speech_prob": 0.1, ...}], ...}     openai-whisper
    [{"id": 1, "seek": 0, "text": " a b", ...}, ...]                                        faster-whisper
    {"transcription": [{"offsets": {"from": 0, "to": 2500}, "text": " a b"}]}               whisper.cpp
    {"segments": [{"candidates": [{"text": " a b", "avg_logprob": -0.3}, ...]}]}            several texts

A file contains one document, several one after another, or one document or segment per line; a folder
contains one file per recording, ``talk.json``. Whisper prints one text per segment; a segment with an array
of texts, or of objects with a ``text``, under a name in ``HYPOTHESIS_KEYS`` has these as its hypotheses.

``avg_logprob`` is a mean in nats: the log-probability of all tokens, divided by their number plus one. The
stream ``first_pass`` is their sum if every hypothesis of the list has ``tokens``, otherwise the mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import DUPLICATE_ID, Row, Write, add_location, build_list
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.io.json_stream import JsonCursor, yield_late_errors
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, source_name
from rescorer.formats.io.utterance_folder import read_list_files
from rescorer.formats.json_documents.documents import Document, parse_units, read_documents
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

STREAM = "first_pass"
SCORE_KEY = "avg_logprob"
SEGMENT_KEYS = ("segments", "transcription")
"""Keys of the arrays that contain segments."""
HYPOTHESIS_KEYS = ("candidates", "alternatives", "beams", "hypotheses", "n_best", "nBest", "nbest")
"""Keys of the hypotheses of a segment, in order of preference."""
OTHER_LISTS = ("alternatives", "NBest", "nBest", "nbest", "choices")
"""Names of arrays in segments that other services have, too; they are Whisper's beside its own keys."""
LIST_FIELDS = ("seek", "start", "end", "offsets", "timestamps", "speaker")
"""Keys that describe a segment, not its text."""
SUFFIX = ".json"
OWN_KEYS = ("seek", SCORE_KEY)
"""Keys of segments, or of their hypotheses, that only Whisper's tools write."""


class Segment(NamedTuple):
    """A segment and where it was found."""

    position: str
    """Number of the segment, after that of its document if there are several."""
    value: Any
    line: int | None
    """Line, or None if the file is one document over several lines."""


@dataclass(frozen=True, slots=True)
class _Score:
    """The field of the score that the user names; without one, it is ``avg_logprob``."""

    key: str
    units: Units


def read_lists(
    source: Source, *, score: str = "", base: str = "", sign: str = "log_prob"
) -> Iterator[NBestList | InputError]:
    """Yield one list per segment of a file or folder.

    The id of a list is the name of the file and the number of the segment, such as ``talk-12``; a segment's
    own id is kept if it is text. Large documents are read one segment at a time. Keys of a document besides
    its segments are not kept; those of a segment become fields.

    Args:
        score: Key of the score that becomes the stream ``first_pass``, instead of ``avg_logprob``.
        base: Base of this score, required if there is one.
        sign: Sign of this score, ``log_prob`` or ``cost``.

    Raises:
        ConfigError: If only one of score and base is given, or the base or sign is unknown.
        FormatError: If the source cannot be opened, or is not JSON with segments.
    """
    chosen = _Score(score, parse_units(score, base, sign))
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        return read_list_files(
            source, lambda name, path: yield_late_errors(_read_file(path, name, chosen)), (SUFFIX,)
        )
    name = Path(source_name(source).strip("<>")).name.removesuffix(".gz")
    return yield_late_errors(_read_file(source, Path(name).stem, chosen))


def _read_file(source: Source, name: str, score: _Score) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    seen: set[str] = set()
    for segment in read_documents(source, file, lambda document: _locate_segments(document, file)):
        if isinstance(segment, FormatError):
            yield segment
            continue
        own_id = segment.value.get("id") if isinstance(segment.value, dict) else None
        list_id = own_id if isinstance(own_id, str) and own_id else f"{name}-{segment.position}"
        try:
            if list_id in seen:
                raise InvalidList(DUPLICATE_ID, list_id=list_id)
            yield _parse_segment(segment, list_id, file, score)
        except InvalidList as error:
            yield add_location(error, file, segment.line)
        seen.add(list_id)


def _locate_segments(document: Document, file: str) -> Iterator[Segment]:
    """Yield each segment of a document; raises FormatError if it has none."""
    prefix = "" if document.is_only else f"{document.label}-"
    if document.line is None:
        for position, value in _stream_segments(document.cursor, file):
            yield Segment(f"{prefix}{position}", value, None)
        return
    whole = document.cursor.read_value()
    found = _find_segments(whole)
    if found is None:
        yield Segment(_number(whole, document.label), whole, document.line)
        return
    yield from (Segment(f"{prefix}{position}", value, document.line) for position, value in found)


def _stream_segments(document: JsonCursor, file: str) -> Iterator[tuple[str, Any]]:
    """Yield number and value of each segment of a document."""
    if document.peek() == "[":
        yield from _read_segments(document)
        return
    if document.peek() != "{":
        document.read_value()  # raises a more precise error if this is no value at all
        raise FormatError("expected an object with segments, or an array of segments", file=file)
    found = False
    others: dict[str, Any] = {}
    for key in document.read_members():
        if key in SEGMENT_KEYS and document.peek() == "[":
            found = True
            yield from _read_segments(document)
        else:
            others[key] = document.read_value()
    if not found and not _is_segment(others):
        raise FormatError(f"no segments; expected an array named {' or '.join(SEGMENT_KEYS)}", file=file)
    if not found:
        yield _number(others, 0), others


def _read_segments(document: JsonCursor) -> Iterator[tuple[str, Any]]:
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


def _number(segment: Any, default: int | str) -> str:
    """Return the number that a segment gives itself, or its position."""
    number = segment.get("id") if isinstance(segment, dict) else None
    return str(number if isinstance(number, int) and not isinstance(number, bool) else default)


def _parse_segment(segment: Segment, list_id: str, file: str, score: _Score) -> NBestList | InvalidList:
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
    if score.key:
        rows = [replace(row, scores={STREAM: row.fields.get(score.key)}) for row in rows]
    return build_list(list_id, rows, {STREAM: score.units}, file, fields=fields)


def _parse_row(item: Any, list_id: str, index: int, has_tokens: bool, line: int | None) -> Row:
    def invalid(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=list_id, hypothesis=index, field=field)

    if isinstance(item, str):
        return Row(item, {}, {}, line)
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
    if sample.is_folder and not any(name.endswith(SUFFIX) for name in sample.names):
        return ""
    for document in sample.documents:
        if key := _find_own_key(document):
            return f"JSON with segments of Whisper, which have {key!r}"
        if isinstance(document, dict):
            key = next((key for key in SEGMENT_KEYS if isinstance(document.get(key), list)), "")
            if key and not any(
                isinstance(s, dict) and any(k in s for k in OTHER_LISTS) for s in document[key]
            ):
                return f"JSON with an array {key!r}"
    return ""


def _find_own_key(document: Any, depth: int = 0) -> str:
    """Find a key of Whisper in a segment, in one of its hypotheses, or in the segments of a document."""
    if isinstance(document, list) and depth < 2:
        return next((key for item in document if (key := _find_own_key(item, depth + 1))), "")
    if not isinstance(document, dict) or "hypotheses" in document:
        return ""
    for key in (*SEGMENT_KEYS, *HYPOTHESIS_KEYS):
        for item in document[key] if isinstance(document.get(key), list) else ():
            if own := _find_own_key(item, 2):
                return own
    return next((key for key in OWN_KEYS if key in document), "")


def _is_segment(record: dict[str, Any]) -> bool:
    return any(key in record for key in OWN_KEYS)

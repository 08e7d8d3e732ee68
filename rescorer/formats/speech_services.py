"""Read and write segments of Whisper, and the JSON responses of speech services and dialogue logs.

Whisper gives one list per segment:

    {"text": " a b", "segments": [{"id": 0, "seek": 0, "start": 0.0, "end": 2.5, "text": " a b",
        "tokens": [50364, 257], "avg_logprob": -0.3, "no_speech_prob": 0.1, ...}], ...}     openai-whisper
    [{"id": 1, "seek": 0, "text": " a b", ...}, ...]                                        faster-whisper
    {"transcription": [{"offsets": {"from": 0, "to": 2500}, "text": " a b"}]}               whisper.cpp
    {"segments": [{"candidates": [{"text": " a b", "avg_logprob": -0.3}, ...]}]}            several texts

A file contains one document, several one after another, or one document or segment per line. A folder
contains one file per recording, such as ``talk.json``. Whisper prints one text per segment. If a segment has
an array of texts, or of objects with a ``text``, under a key in ``HYPOTHESIS_KEYS``, these are its
hypotheses.

``avg_logprob`` is the log-probability of all tokens in nats, divided by the number of tokens plus one. The
stream ``first_pass`` is the undivided log-probability if every hypothesis of the list has ``tokens``, and
``avg_logprob`` otherwise.

Speech services and dialogue logs give arrays of alternatives:

    {"results": [{"alternatives": [{"transcript": "a b", "confidence": 0.9}, ...]}]}         Google and others
    {"NBest": [{"Confidence": 0.9, "Lexical": "a b", "Display": "A B."}, ...]}               Azure
    {"results": {"transcripts": [...], "segments": [{"alternatives": [...]}], "items": [...]}}   AWS
    {"results": {"channels": [{"alternatives": [...]}], "utterances": [...]}}                Deepgram
    {"alternatives": [{"confidence": 297.0, "text": "a b"}, ...]} {"partial": "a"} ...       vosk
    {"choices": [{"text": "a b"}, {"message": {"content": "a c"}}]}                          OpenAI
    [[{"text": "a b", "nbest": [{"hyp": "a b", "score": -45.7}, ...]}]]                      dialogue logs

A file contains one document, several one after another, or one per line. A folder contains one file per
utterance, such as ``u1.json``. Not read as lists are alternatives of single words, results that the service
marks as interim, and partial results. If a document has a text but no list, the text becomes a list with one
hypothesis.

A confidence is not a log-probability, so it remains a field of its hypothesis like all other keys. Scores are
only read if their field and base are given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.common import (
    STREAM,
    FoundLists,
    ListWriter,
    Row,
    Units,
    build_list,
    check_reserved,
    check_type,
    json_writer,
    parse_at,
    parse_number,
    reject_duplicates,
)
from rescorer.formats.io.folders import Lists, Sample, read_list_files
from rescorer.formats.io.json_io import JsonCursor, describe_type, is_number, without, yield_late_errors
from rescorer.formats.io.text_io import Source, source_name
from rescorer.formats.json_documents import Document, parse_score_units, read_documents
from rescorer.types import NBestList

SCORE_KEY = "avg_logprob"
SEGMENT_KEYS = ("segments", "transcription")
"""Keys of the arrays that contain segments."""
HYPOTHESIS_KEYS = ("candidates", "alternatives", "beams", "hypotheses", "n_best", "nBest", "nbest")
"""Keys under which a segment may have its hypotheses, in order of preference."""
OTHER_LISTS = ("alternatives", "NBest", "nBest", "nbest", "choices")
"""Keys of arrays in segments of other services. A segment with one of these keys does not suggest Whisper."""
LIST_FIELDS = ("seek", "start", "end", "offsets", "timestamps", "speaker")
"""Keys of a segment with a single text that become fields of its list, not of the hypothesis."""
SUFFIX = ".json"
OWN_KEYS = ("seek", SCORE_KEY)
"""Keys of segments, or of their hypotheses, that only Whisper's tools write."""


class Segment(NamedTuple):
    """A segment and the place where it was found."""

    position: str
    """Number of the segment, such as ``12``. In a file of several documents, it follows theirs: ``3-12``."""
    value: Any
    line: int | None
    """First line of the document; None if the file is not read by line."""


def read_whisper(source: Source, *, score: str = "", base: str = "", sign: str = "log_prob") -> Lists:
    """Yield one list per segment of a file or folder.

    The id of a list is the name of the file and the number of the segment, such as ``talk-12``. If the
    segment has an ``id`` that is a text, this is the id instead. Large documents are read one segment at a
    time. The other keys of a segment become fields of its list. The other keys of a document are not kept.

    Args:
        score: key of the score that becomes the stream ``first_pass``, instead of ``avg_logprob``.
        base: base of this score; required if ``score`` is given.
        sign: sign of this score, ``log_prob`` or ``cost``.

    Raises:
        ConfigError: only one of score and base is given, or the base or sign is unknown.
        FormatError: the source cannot be opened, or is not JSON with segments.
    """
    units = parse_score_units(score, base, sign)
    name = Path(source_name(source).strip("<>")).name.removesuffix(".gz")
    return _read_all(source, Path(name).stem, lambda path, name: _read_file(path, name, score, units))


def _read_all(source: Source, name: str, read_file: Callable[[Source, str], Lists]) -> Lists:
    """Read a file, or each file of a folder.

    Args:
        name: beginning of the ids of a file's lists; in a folder, it is the name of each file.
    """
    read = yield_late_errors(read_file)
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        return read_list_files(source, lambda name, path: read(path, name), (SUFFIX,))
    return read(source, name)


def _read_file(source: Source, name: str, score: str, units: Units) -> Lists:
    file = source_name(source)

    def find() -> FoundLists:
        for segment in read_documents(source, file, lambda document: _locate_segments(document, file)):
            if isinstance(segment, FormatError):
                yield "", None, segment
                continue
            own_id = segment.value.get("id") if isinstance(segment.value, dict) else None
            list_id = own_id if isinstance(own_id, str) and own_id else f"{name}-{segment.position}"
            nbest = parse_at(file, segment.line, _parse_segment, segment, list_id, file, score, units)
            yield list_id, segment.line, nbest

    return reject_duplicates(find(), file)


def _locate_segments(document: Document, file: str) -> Iterator[Segment]:
    """Yield each segment of a document; raise FormatError if it has none."""
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
    """Yield the number and the value of each segment of a document."""
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
    if not found and not any(key in others for key in OWN_KEYS):
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
    """Return the number and value of each segment of a document, or None if the document is a segment."""
    if isinstance(document, dict):
        document = next((document[key] for key in SEGMENT_KEYS if isinstance(document.get(key), list)), None)
    if not isinstance(document, list):
        return None
    return ((_number(value, index), value) for index, value in enumerate(document))


def parse_segments(document: Any, name: str) -> Iterator[NBestList | InvalidList]:
    """Yield the list of each segment of a document that is already in memory, as ``read_whisper`` does.

    Args:
        name: beginning of the ids.
    """
    units = parse_score_units("", "", "log_prob")
    for position, value in _find_segments(document) or iter([(_number(document, 0), document)]):
        segment, list_id = Segment(position, value, None), f"{name}-{position}"
        yield parse_at("", None, _parse_segment, segment, list_id, "", "", units)


def _number(segment: Any, default: int | str) -> str:
    """Return the ``id`` of a segment if it is a number, or else the default."""
    number = segment.get("id") if isinstance(segment, dict) else None
    return str(number if type(number) is int else default)


def _parse_segment(
    segment: Segment, list_id: str, file: str, score: str, units: Units
) -> NBestList | InvalidList:
    record = segment.value
    if not isinstance(record, dict):
        raise InvalidList(f"expected a segment as an object, got {describe_type(record)}", list_id=list_id)
    fields = without(record, ("id",))
    key = next((key for key in HYPOTHESIS_KEYS if isinstance(fields.get(key), list) and fields[key]), "")
    if key:
        items = fields.pop(key)
    else:
        items = [without(fields, LIST_FIELDS)]
        fields = without(fields, items[0])
    has_tokens = all(isinstance(item, dict) and isinstance(item.get("tokens"), list) for item in items)
    rows = [_parse_candidate(item, list_id, i, has_tokens, segment.line) for i, item in enumerate(items)]
    if score:
        rows = [replace(row, scores={STREAM: row.fields.get(score)}) for row in rows]
    return build_list(list_id, rows, {STREAM: units}, file, fields=fields)


def _parse_candidate(item: Any, list_id: str, index: int, has_tokens: bool, line: int | None) -> Row:
    if isinstance(item, str):
        return Row(item, line=line)
    item = check_type(item, dict, list_id, hypothesis=index)
    text, score = check_type(item.get("text"), str, list_id, "text", index), item.get(SCORE_KEY)
    if score is not None and not (is_number(score) and abs(score) < math.inf):
        message = f"{str(score)[:100]!r} is not a finite number"
        raise InvalidList(message, list_id=list_id, hypothesis=index, field=SCORE_KEY)
    scores = {} if score is None else {STREAM: score * _divisor(item, has_tokens)}
    return Row(text, scores, without(item, ("text",)), line)


def _divisor(item: Any, has_tokens: bool) -> int:
    """Return the number by which Whisper divided the log-probability of all tokens; 1 if it is not known."""
    return len(item["tokens"]) + 1 if has_tokens else 1


def whisper_writer(target: str | Path) -> ListWriter:
    """Write one document whose ``segments`` have an ``id`` and ``candidates``.

    The stream ``first_pass`` is written as ``avg_logprob``. It is divided by the number of tokens plus one if
    every hypothesis of the list has the field ``tokens``.
    """
    reserved = ("id", *SEGMENT_KEYS, *HYPOTHESIS_KEYS)

    def format_value(nbest: NBestList) -> dict[str, Any]:
        check_reserved(nbest, nbest.fields, reserved, ", ".join(reserved))
        has_tokens = all(isinstance(h.fields.get("tokens"), list) for h in nbest.hypotheses)
        candidates = []
        for index, hypothesis in enumerate(nbest.hypotheses):
            if "text" in hypothesis.fields:
                message = "the name text is reserved by the format; rename this field"
                raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="fields")
            candidate: dict[str, Any] = {"text": hypothesis.text, **hypothesis.fields}
            if STREAM in nbest.streams:
                candidate[SCORE_KEY] = nbest.streams[STREAM][index] / _divisor(hypothesis.fields, has_tokens)
            candidates.append(candidate)
        return {"id": nbest.id, **nbest.fields, "candidates": candidates}

    return json_writer(target, format_value, '{"segments": [', "]}", once=True)


def looks_like_whisper(sample: Sample) -> str:
    """Return the evidence that a file or folder has this format, or an empty string."""
    if sample.is_folder and not any(name.endswith(SUFFIX) for name in sample.names):
        return ""
    for document in sample.documents:
        if key := _find_own_key(document):
            return f"JSON with segments of Whisper, which have {key!r}"
        if isinstance(document, dict):
            key = next((key for key in SEGMENT_KEYS if isinstance(document.get(key), list)), "")
            segments = [segment for segment in document.get(key, ()) if isinstance(segment, dict)]
            if key and not any(name in segment for segment in segments for name in OTHER_LISTS):
                return f"JSON with an array {key!r}"
    return ""


def _find_own_key(document: Any, depth: int = 0) -> str:
    """Find one of ``OWN_KEYS`` in a segment, in one of its hypotheses, or in the segments of a document."""
    if isinstance(document, list) and depth < 2:
        return next((key for item in document if (key := _find_own_key(item, depth + 1))), "")
    if not isinstance(document, dict) or "hypotheses" in document:
        return ""
    for key in (*SEGMENT_KEYS, *HYPOTHESIS_KEYS):
        for item in document[key] if isinstance(document.get(key), list) else ():
            if own := _find_own_key(item, 2):
                return own
    return next((key for key in OWN_KEYS if key in document), "")


FORMAT = "alternatives"
"""Name of the format."""
LIST_KEYS = (
    *("alternatives", "Alternatives", "hypotheses", "beams", "candidates", "n_best"),
    *("NBest", "nBest", "nbest", "choices"),
)
"""Keys of the arrays that are n-best lists."""
TEXT_KEYS = ("transcript", "Transcript", "Lexical", "lexical", "text", "hyp")
"""Keys under which a hypothesis may have its text, in order of preference."""
WORD_KEYS = ("content", "Content", "word", "Word", "words")
"""If an alternative has one of these keys and no text, it is a single word, or an array of words."""
FINAL_KEYS = ("isFinal", "is_final", "final")
"""Keys that are false in interim results."""
PARTIAL_KEYS = ("IsPartial", "is_partial", "isPartial")
"""Keys that are true in interim results."""
TRANSCRIPTS_KEY = "transcripts"
"""Key of AWS's array of whole texts. AWS writes words, and segments if it is asked for them, elsewhere."""
ID_KEYS = ("utterance_id", "id", "RequestId", "requestId")
"""Keys under which the object that contains a list may have an id, in order of preference."""
OTHER_KEYS = frozenset({"hypotheses", "beams", "candidates", "n_best", "lists", "utts", "audio_filepath"})
"""Keys that show another format, in the outer object of a document, or in the elements of its outer array."""
REFERENCE_KEY = "reference"
MAX_STREAMED_DEPTH = 8
"""Maximum depth of nested arrays that are read element by element. Deeper arrays are read as a whole."""
MAX_PATH_CHARACTERS = 300
"""Length to which paths are cut. Lists with longer paths may get equal paths, and then need ids."""


class LocatedList(NamedTuple):
    """A list and its position in a document."""

    path: str
    """Keys and indices that lead to the list, such as ``results[0].alternatives``."""
    container: dict[str, Any]
    """The object that contains the list."""
    items: list[Any]
    line: int | None = None
    """First line of the document; None if the file is not read by line."""


def read_speech_services(
    source: Source, *, text: str = "", score: str = "", base: str = "", sign: str = "log_prob"
) -> Lists:
    """Yield every list in the documents of a file or folder.

    The id of a list is the id of the object that contains the list. If the object has none, the id is the
    list's path in the document, such as ``results[0].alternatives``. In a folder, the id is the file name,
    followed by the path if the file contains several lists. A text ``reference`` of the object is the
    reference of the list, and the other keys of the object become fields of the list.

    Large documents are streamed: the elements of outer arrays, and of the arrays directly inside an outer
    object, are read one at a time. Lists in these arrays are yielded before the other lists of the object.
    After a syntax error, reading of the document stops. If a list has already been yielded, the error is
    yielded last.

    Args:
        text: key of the text, such as ``Display``; if empty, the usual keys are tried.
        score: key of the score that becomes the stream ``first_pass``; if empty, no scores are read.
        base: base of the score; required if ``score`` is given.
        sign: sign of the score, ``log_prob`` or ``cost``.

    Raises:
        ConfigError: only one of score and base is given, or the base or sign is unknown.
        FormatError: the source cannot be opened, or a document is not JSON.
    """
    reader = _Reader((text,) if text else TEXT_KEYS, score, {STREAM: parse_score_units(score, base, sign)})
    return _read_all(source, "", reader.read_file)


@dataclass(frozen=True, slots=True)
class _Reader:
    """Builds lists from documents according to the options of ``read_speech_services``."""

    text_keys: tuple[str, ...]
    score_key: str
    units: dict[str, Units]

    def read_file(self, source: Source, name: str = "") -> Lists:
        """Yield the lists of a file.

        Args:
            name: the id of the file's only list. If there are several lists, their ids begin with it.
        """
        file = source_name(source)
        return reject_duplicates(self._find_lists(source, file, name), file)

    def _find_lists(self, source: Source, file: str, name: str) -> FoundLists:
        located = read_documents(source, file, _locate_lists)
        first = list(islice(located, 2 if name else 0))
        if name and not first:
            message = "no lists; expected an array named alternatives or NBest, or a text"
            yield "", None, FormatError(message, file=file)
        for found in chain(first, located):
            if isinstance(found, FormatError):
                yield "", None, found
                continue
            id_key = "" if name else _find_id_key(found.container)
            list_id = found.container[id_key] if id_key else found.path
            if name:
                list_id = name if len(first) == 1 else f"{name}.{found.path}"
            fields = without(found.container, {*LIST_KEYS, id_key})
            yield (
                list_id,
                found.line,
                parse_at(file, found.line, self._parse_list, found, list_id, fields, file),
            )

    def _parse_list(
        self, found: LocatedList, list_id: str, fields: dict[str, Any], file: str
    ) -> NBestList | InvalidList:
        rows = [self._parse_alternative(item, list_id, i, found.line) for i, item in enumerate(found.items)]
        has_reference = isinstance(fields.get(REFERENCE_KEY), str)
        reference = fields.pop(REFERENCE_KEY) if has_reference else None
        return build_list(list_id, rows, self.units, file, reference=reference, fields=fields)

    def _parse_alternative(self, item: Any, list_id: str, index: int, line: int | None) -> Row:
        if isinstance(item, str):
            return Row(item, line=line)
        item = check_type(item, dict, list_id, hypothesis=index)
        text_key = next((key for key in self.text_keys if key in item), "message")
        text = item.get(text_key)
        if text_key == "message" and isinstance(text, dict):
            text = text.get("content")
        if not isinstance(text, str):
            keys = ", ".join(self.text_keys)
            message = f"no text in {keys}; expected a string, got {describe_type(text)}"
            raise InvalidList(message, list_id=list_id, hypothesis=index, field=text_key)
        score = item.get(self.score_key)
        score = parse_number(score) if isinstance(score, str) else score
        scores = {STREAM: score} if self.score_key else {}
        return Row(text, scores, without(item, (text_key, self.score_key)), line)


def _find_id_key(container: dict[str, Any]) -> str:
    """Return the key of the id in an object, or an empty string if the object has no id."""
    return next((key for key in ID_KEYS if isinstance(value := container.get(key), str) and value), "")


def _locate_lists(document: Document) -> Iterator[LocatedList]:
    """Yield each list of a document."""
    is_first_of_several = document.line is None and document.is_only
    prefix = "" if is_first_of_several else f"{document.label}."
    yield from (found._replace(line=document.line) for found in _stream_lists(document.cursor, prefix))


def _stream_lists(cursor: JsonCursor, path: str, depth: int = 0) -> Iterator[LocatedList]:
    """Yield the lists in the next value of a document. Its outer arrays are read element by element.

    Args:
        path: path of the value.
        depth: number of arrays around the value.
    """
    if cursor.peek() == "[" and depth < MAX_STREAMED_DEPTH:
        for index in cursor.read_elements():
            yield from _stream_lists(cursor, f"{path}[{index}]", depth + 1)
    elif cursor.peek() == "{" and depth == 0:
        container: dict[str, Any] = {}
        is_found = False
        for key in cursor.read_members():
            if cursor.peek() != "[" or key in LIST_KEYS:
                container[key] = cursor.read_value()
                continue
            container[key] = []
            for index in cursor.read_elements():
                element = cursor.read_value()
                lists = list(_find_lists(element, _extend_path(path, f"{key}[{index}]")))
                is_found = is_found or bool(lists)
                container[key] += [] if lists else [element]
                if not _is_interim(container):
                    yield from lists
        yield from _find_lists_or_text(container, path, is_found)
    else:
        yield from _find_lists_or_text(cursor.read_value(), path, is_inside=depth > 0)


def _find_lists_or_text(
    value: Any, path: str, is_found: bool = False, is_inside: bool = False
) -> Iterator[LocatedList]:
    """Yield the lists in a value; if there are none, its text as a list.

    Args:
        is_found: whether lists were found before, so that the text does not count.
        is_inside: whether the value is an element of an array. A text there may be something else, such as a
            word, so it counts only next to vosk's array ``result``.
    """
    for found in _find_lists(value, path):
        is_found = True
        yield found
    if is_found or not isinstance(value, dict) or _is_interim(value):
        return
    for holder_path, holder in ((path, value), (_extend_path(path, "results"), value.get("results"))):
        transcripts = holder.get(TRANSCRIPTS_KEY) if isinstance(holder, dict) else None
        if isinstance(transcripts, list) and transcripts:
            for index, item in enumerate(transcripts):
                place = _extend_path(holder_path, f"{TRANSCRIPTS_KEY}[{index}]")
                yield LocatedList(place, {}, [item])
            return
    if isinstance(value.get("text"), str) and (not is_inside or isinstance(value.get("result"), list)):
        yield LocatedList(_extend_path(path, "text"), {}, [value])


def _find_lists(document: Any, prefix: str) -> Iterator[LocatedList]:
    """Yield every list in a value. Lists directly in an object come before lists that are nested deeper."""
    stack = [iter([(prefix, document)])]
    while stack:
        path, value = next(stack[-1], ("", None))
        if value is None:
            stack.pop()
            continue
        if isinstance(value, dict):
            if _is_interim(value):
                continue
            for key in LIST_KEYS:
                items = value.get(key)
                if isinstance(items, list) and not _is_of_words(items, value):
                    yield LocatedList(_extend_path(path, key), value, items)
        stack.append(_nested_values(path, value))


def _is_interim(value: dict[str, Any]) -> bool:
    """Whether a result is interim: a final result for the same words will follow.

    Google writes ``stability`` in interim results only, and leaves out ``isFinal`` if it is false.
    """
    if any(value.get(key) is False for key in FINAL_KEYS) or any(value.get(k) is True for k in PARTIAL_KEYS):
        return True
    return "stability" in value and not any(value.get(key) for key in FINAL_KEYS)


def _is_of_words(items: list[Any], container: dict[str, Any]) -> bool:
    """Whether alternatives are no hypotheses: they are single words, or arrays of words without texts."""
    if items and all(isinstance(item, str) for item in items):
        return any(isinstance(container.get(key), str) for key in WORD_KEYS)
    return bool(items) and all(
        isinstance(item, dict)
        and any(key in item for key in WORD_KEYS)
        and not any(key in item for key in (*TEXT_KEYS, "message"))
        for item in items
    )


def _nested_values(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each array and object directly in a value, except n-best lists.

    This is a generator because the paths of a large array could fill the memory if they were all stored.
    """
    if isinstance(value, list):
        for index, element in enumerate(value):
            if isinstance(element, (list, dict)):
                yield f"{path}[{index}]"[:MAX_PATH_CHARACTERS], element
    elif isinstance(value, dict):
        for key, member in value.items():
            if key not in LIST_KEYS and isinstance(member, (list, dict)):
                yield _extend_path(path, key), member


def _extend_path(path: str, key: str) -> str:
    dot = "." if path and not path.endswith(".") else ""
    return f"{path}{dot}{key}"[:MAX_PATH_CHARACTERS]


def speech_services_writer(target: str | Path) -> ListWriter:
    """Write one document whose ``results`` have an ``id`` and ``alternatives``.

    The stream ``first_pass`` is written as ``score`` in nats; read it back with ``score=score,base=e``.
    """
    reserved = (REFERENCE_KEY, *LIST_KEYS, ID_KEYS[0])

    def format_value(nbest: NBestList) -> dict[str, Any]:
        check_reserved(nbest, nbest.fields, reserved, ", ".join(reserved))
        alternatives = []
        for index, hypothesis in enumerate(nbest.hypotheses):
            own_keys = ("transcript", "score")
            check_reserved(nbest, hypothesis.fields, own_keys, "transcript and score", index)
            score = {"score": nbest.streams[STREAM][index]} if STREAM in nbest.streams else {}
            alternatives.append({"transcript": hypothesis.text, **score, **hypothesis.fields})
        id_key = ID_KEYS[0] if ID_KEYS[1] in nbest.fields else ID_KEYS[1]
        reference = {} if nbest.reference is None else {REFERENCE_KEY: nbest.reference}
        return {id_key: nbest.id, "alternatives": alternatives, **reference, **nbest.fields}

    return json_writer(target, format_value, '{"results": [', "]}", once=True)


def looks_like_speech_services(sample: Sample) -> str:
    """Return the evidence that a file or folder has this format, or an empty string."""
    has_suffix = not sample.is_folder or any(name.endswith(SUFFIX) for name in sample.names)
    if not has_suffix or looks_like_whisper(sample):
        return ""
    for document in sample.documents:
        first = document[0] if isinstance(document, list) and document else document
        if isinstance(first, dict) and first.keys() & OTHER_KEYS:
            continue
        if found := next(_find_lists(document, ""), None):
            return f"JSON with an array {found.path.rpartition('.')[2]!r}"
        if found := next(_find_lists_or_text(document, ""), None):
            key = found.path.rpartition(".")[2].partition("[")[0]
            if key == TRANSCRIPTS_KEY or isinstance(document.get("result"), list):
                return f"JSON with a {key!r} of a speech service"
        elif isinstance(document, dict) and isinstance(document.get("partial"), str):
            return "JSON with the 'partial' results of vosk"
    return ""

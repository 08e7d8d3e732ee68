"""Owns the alternatives in the JSON answers of speech services and dialogue logs, with their confidences.

    {"results": [{"alternatives": [{"transcript": "a b", "confidence": 0.9}, ...]}]}         Google and others
    {"NBest": [{"Confidence": 0.9, "Lexical": "a b", "Display": "A B."}, ...]}               Azure
    {"choices": [{"text": "a b"}, {"message": {"content": "a c"}}]}                          OpenAI
    [[{"text": "a b", "nbest": [{"hyp": "a b", "score": -45.7}, ...]}]]                      dialogue logs

One document a file, or one a line. A confidence is no log-probability: it stays a field of its hypothesis,
as all else does; a score is read where its field, base and sign are told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.document import parse_document
from rescorer.formats.records import json_kind
from rescorer.formats.rows import Row, Write, list_of, placed
from rescorer.formats.sample import Sample
from rescorer.formats.source import Source, open_output, read_lines, source_name
from rescorer.formats.streams import Units
from rescorer.types import NBestList

STREAM = "first_pass"
LISTS = ("alternatives", "NBest", "nBest", "nbest", "choices")
"""Keys whose arrays of objects are lists."""
TEXTS = ("transcript", "Lexical", "lexical", "text", "hyp")
"""Keys of a hypothesis's text, the first of them that it has."""
IDS = ("id", "utterance_id", "RequestId", "requestId")
"""Keys of the object around a list whose text is the list's id."""


class Found(NamedTuple):
    """A list where it stands in a document."""

    path: str
    around: dict[str, Any]
    """The object that holds it."""
    items: list[Any]


def read_lists(
    source: Source, *, text: str = "", score: str = "", base: str = "", sign: str = "log_prob"
) -> Iterator[NBestList | InputError]:
    """Yields every list found, in the order of the document; the id is that of the object around it, or else
    its path, such as ``results[0].alternatives``; the object's other keys are the list's fields.

    Args:
        text: the field of the text, instead of the usual ones: ``Display``.
        score: the field of a score, which becomes the stream ``first_pass``; none: scores are not read.
        base: of the score; there is no default, for nothing in the file tells it.
        sign: ``log_prob`` or ``cost``.

    Raises:
        ConfigError: a score without a base, or a base or sign that is none.
        FormatError: the source cannot be opened, or a document is no JSON.
    """
    if bool(score) != bool(base):
        raise ConfigError("a score and its base go together: score=FIELD,base=e (2, 10, …)")
    try:
        units = {STREAM: Units(base or "e", sign)}  # type: ignore[arg-type]  # checked by Units
    except ValueError as fault:
        raise ConfigError(str(fault)) from None
    return _lists(source, (text,) if text else TEXTS, score, units)


def _lists(
    source: Source, texts: tuple[str, ...], score: str, units: dict[str, Units]
) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    seen: set[str] = set()
    for line, document in _documents(source, file):
        if isinstance(document, FormatError):
            yield document
            continue
        for found in _found(document, f"{line}." if line else ""):
            list_id = next((v for v in map(found.around.get, IDS) if v and isinstance(v, str)), found.path)
            try:
                rows = [_row(item, list_id, i, texts, score, line) for i, item in enumerate(found.items)]
                if list_id in seen:
                    raise InvalidList("is here a second time", list_id=list_id)
            except InvalidList as fault:
                yield placed(fault, file, line)
            else:
                fields = {key: value for key, value in found.around.items() if key not in LISTS + IDS}
                yield list_of(list_id, rows, units, file, fields=fields)
            seen.add(list_id)


def _documents(source: Source, file: str) -> Iterator[tuple[int | None, Any]]:
    """Each line's document with the line's number, where the first is one by itself; or that of the file."""
    by_line = False
    begun: list[str] = []
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            if not by_line:
                raise text
            yield line, text
        elif text.strip():
            by_line = by_line or (not begun and _is_json(text))
            if by_line:
                try:
                    yield line, parse_document(text, file, line)
                except FormatError as fault:
                    yield line, fault
        if isinstance(text, str) and not by_line:
            begun.append(text)
    if not by_line:
        yield None, parse_document("\n".join(begun), file)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _found(document: Any, prefix: str) -> Iterator[Found]:
    """Every list of a document, those of an object before those inside its other values."""
    stack = [(prefix, document)]
    while stack:
        path, value = stack.pop()
        inside: list[tuple[str, Any]] = []
        if isinstance(value, list):
            inside = [(f"{path}[{index}]", each) for index, each in enumerate(value)]
        elif isinstance(value, dict):
            dot = "." if path and not path.endswith(".") else ""
            inside = [(f"{path}{dot}{key}", each) for key, each in value.items() if key not in LISTS]
            for key in LISTS:
                if isinstance(value.get(key), list):
                    yield Found(f"{path}{dot}{key}", value, value[key])
        stack.extend(each for each in reversed(inside) if isinstance(each[1], (list, dict)))


def _row(item: Any, list_id: str, index: int, texts: tuple[str, ...], score: str, line: int | None) -> Row:
    def fault(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=list_id, hypothesis=index, field=field)

    if not isinstance(item, dict):
        raise fault(f"expected an object, not {json_kind(item)}", "")
    key = next((key for key in texts if key in item), "message")
    value = item.get(key)
    if key == "message" and isinstance(value, dict):
        value = value.get("content")
    if not isinstance(value, str):
        raise fault(f"no text in {', '.join(texts)}; expected a string, not {json_kind(value)}", key)
    rest = {name: each for name, each in item.items() if name not in (key, score)}
    return Row(value, {STREAM: item.get(score)} if score else {}, rest, line)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Writes one document of ``results`` with ``id`` and ``alternatives``.

    The stream ``first_pass`` is written as ``score``, in nats: to be read with ``score=score,base=e``.
    """
    written: set[str] = set()
    with open_output(target) as stream:
        stream.write('{"results": [')

        def write(nbest: NBestList) -> None:
            if nbest.id in written or nbest.fields.keys() & {*LISTS, *IDS}:
                message = f"the id is there a second time, or a field is called like one of {LISTS + IDS}"
                raise InvalidList(message, list_id=nbest.id)
            alternatives = [_alternative(nbest, index) for index in range(len(nbest.hypotheses))]
            record = {"id": nbest.id, "alternatives": alternatives, **nbest.fields}
            stream.write(f"{',' if written else ''}\n{json.dumps(record, ensure_ascii=False)}")
            written.add(nbest.id)

        yield write
        stream.write("\n]}\n")


def _alternative(nbest: NBestList, index: int) -> dict[str, Any]:
    hypothesis = nbest.hypotheses[index]
    if hypothesis.fields.keys() & {"transcript", "score"}:
        message = "fields called transcript or score have no place here"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="fields")
    score = {"score": nbest.streams[STREAM][index]} if STREAM in nbest.streams else {}
    return {"transcript": hypothesis.text, **score, **hypothesis.fields}


def looks_like(sample: Sample) -> str:
    """What says that a file is of this format; empty where nothing does."""
    if sample.is_folder or not sample.first.startswith(("{", "[")):
        return ""
    match = re.search(rf'"({"|".join(LISTS)})"\s*:\s*\[', sample.text)
    return f"JSON with an array {match[1]!r}" if match else ""

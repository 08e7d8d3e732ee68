"""Owns the alternatives in the JSON answers of speech services and dialogue logs, with their confidences.

    {"results": [{"alternatives": [{"transcript": "a b", "confidence": 0.9}, ...]}]}         Google and others
    {"NBest": [{"Confidence": 0.9, "Lexical": "a b", "Display": "A B."}, ...]}               Azure
    {"choices": [{"text": "a b"}, {"message": {"content": "a c"}}]}                          OpenAI
    [[{"text": "a b", "nbest": [{"hyp": "a b", "score": -45.7}, ...]}]]                      dialogue logs

One document a file, or one a line; or a folder with a file an utterance, ``u1.json``. A confidence is no
log-probability: it stays a field of its hypothesis, as all else does; a score is read where its field, base
and sign are told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import Row, Write, add_location, build_list
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.io.json_stream import JsonStream, yield_late_errors
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.io.utterance_folder import read_list_files
from rescorer.formats.nbest.json_document import parse_document
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

STREAM = "first_pass"
LISTS = ("alternatives", "NBest", "nBest", "nbest", "choices")
"""Keys whose arrays of objects are lists."""
TEXTS = ("transcript", "Lexical", "lexical", "text", "hyp")
"""Keys of a hypothesis's text, the first of them that it has."""
IDS = ("utterance_id", "id", "RequestId", "requestId")
"""Keys of the object around a list whose text is the list's id, the first of them that has one."""
SUFFIX = ".json"
DEEPEST = 8
"""Arrays in one another that are read element by element; those further inside are read whole."""

LONGEST_PATH = 300
"""Characters of a path, which is cut there; lists below it need ids of their own to be told apart."""


class Found(NamedTuple):
    """A list where it stands in a document."""

    path: str
    around: dict[str, Any]
    """The object that holds it."""
    items: list[Any]


def read_lists(
    source: Source, *, text: str = "", score: str = "", base: str = "", sign: str = "log_prob"
) -> Iterator[NBestList | InputError]:
    """Yields every list found; the id is that of the object around it, or else its path, such as
    ``results[0].alternatives``; the object's other keys are the list's fields.

    A document is read element by element of its outer arrays, and of those in the object that it is, which
    come before what else that has. In a folder the id is the file's name, with the path behind it where there
    are several lists in a file. Nothing is read of a document after a fault of its own.

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
    reader = _Reader((text,) if text else TEXTS, score, units)
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        return read_list_files(
            source, lambda name, path: yield_late_errors(reader.file(path, name)), (SUFFIX,)
        )
    return yield_late_errors(reader.file(source))


@dataclass(frozen=True, slots=True)
class _Reader:
    """What is told about the lists to read."""

    texts: tuple[str, ...]
    score: str
    units: dict[str, Units]

    def file(self, source: Source, name: str = "") -> Iterator[NBestList | InputError]:
        """The lists of a file; ``name`` is what the only one is called, and several begin with."""
        file = source_name(source)
        places = _places(source, file)
        first = list(islice(places, 2 if name else 0))
        if name and not first:
            yield FormatError(f"no lists; expected an array, {', '.join(LISTS)}", file=file)
        seen: set[str] = set()
        for line, found in chain(first, places):
            if isinstance(found, FormatError):
                yield found
                continue
            key = "" if name else _id_key(found.around)
            list_id = found.around[key] if key else found.path
            if name:
                list_id = name if len(first) == 1 else f"{name}.{found.path}"
            try:
                rows = [self._row(item, list_id, i, line) for i, item in enumerate(found.items)]
                if list_id in seen:
                    raise InvalidList("is here a second time", list_id=list_id)
            except InvalidList as fault:
                yield add_location(fault, file, line)
            else:
                fields = {k: value for k, value in found.around.items() if k not in LISTS and k != key}
                yield build_list(list_id, rows, self.units, file, fields=fields)
            seen.add(list_id)

    def _row(self, item: Any, list_id: str, index: int, line: int | None) -> Row:
        def fault(message: str, field: str) -> InvalidList:
            return InvalidList(message, list_id=list_id, hypothesis=index, field=field)

        if not isinstance(item, dict):
            raise fault(f"expected an object, not {describe_type(item)}", "")
        key = next((key for key in self.texts if key in item), "message")
        value = item.get(key)
        if key == "message" and isinstance(value, dict):
            value = value.get("content")
        if not isinstance(value, str):
            raise fault(
                f"no text in {', '.join(self.texts)}; expected a string, not {describe_type(value)}", key
            )
        rest = {name: each for name, each in item.items() if name not in (key, self.score)}
        return Row(value, {STREAM: item.get(self.score)} if self.score else {}, rest, line)


def _id_key(around: dict[str, Any]) -> str:
    """The key of a list's id; empty where it has none."""
    return next((key for key in IDS if isinstance(value := around.get(key), str) and value), "")


def _places(source: Source, file: str) -> Iterator[tuple[int | None, Found | FormatError]]:
    """Each list with the number of its line, where the first line is a document by itself; or without."""
    lines = read_lines(source)
    begun = []
    for line, text in lines:
        if isinstance(text, FormatError):
            raise text
        if _is_json(text):
            for number, document in _documents(chain([(line, text)], lines), file):
                if isinstance(document, FormatError):
                    yield number, document
                else:
                    yield from ((number, found) for found in _found(document, f"{number}."))
            return
        begun.append(text)
        if text.strip():
            break
    document = JsonStream(chain(["\n".join(begun)], _texts(lines)), file)
    yield from ((None, found) for found in _found_on_the_way(document))
    document.expect_end()


def _documents(lines: Iterator[tuple[int, str | FormatError]], file: str) -> Iterator[tuple[int, Any]]:
    """Each line's document, or what is wrong with it."""
    for line, text in lines:
        if isinstance(text, FormatError):
            yield line, text
        elif text.strip():
            try:
                yield line, parse_document(text, file, line)
            except FormatError as fault:
                yield line, fault


def _texts(lines: Iterator[tuple[int, str | FormatError]]) -> Iterator[str]:
    for _, text in lines:
        if isinstance(text, FormatError):
            raise text
        yield f"\n{text}"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _found_on_the_way(document: JsonStream, path: str = "", depth: int = 0) -> Iterator[Found]:
    """The lists of the value that comes next, those of outer arrays as soon as they are read."""
    if document.peek() == "[" and depth < DEEPEST:
        for index in document.read_elements():
            yield from _found_on_the_way(document, f"{path}[{index}]", depth + 1)
    elif document.peek() == "{" and depth == 0:
        around: dict[str, Any] = {}
        for key in document.read_members():
            if document.peek() != "[" or key in LISTS:
                around[key] = document.read_value()
                continue
            around[key] = []
            for index in document.read_elements():
                element = document.read_value()
                inside = list(_found(element, f"{key}[{index}]"))
                around[key] += [] if inside else [element]
                yield from inside
        yield from _found(around, path)
    else:
        yield from _found(document.read_value(), path)


def _found(document: Any, prefix: str) -> Iterator[Found]:
    """Every list of a document, those of an object before those inside its other values."""
    stack = [iter([(prefix, document)])]
    while stack:
        path, value = next(stack[-1], ("", None))
        if value is None:
            stack.pop()
            continue
        if isinstance(value, dict):
            for key in LISTS:
                if isinstance(value.get(key), list):
                    yield Found(_longer(path, key), value, value[key])
        stack.append(_inside(path, value))


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Path and value of the arrays and objects that are no lists, one at a time: paths may be long."""
    if isinstance(value, list):
        for index, each in enumerate(value):
            if isinstance(each, (list, dict)):
                yield f"{path}[{index}]"[:LONGEST_PATH], each
    elif isinstance(value, dict):
        for key, each in value.items():
            if key not in LISTS and isinstance(each, (list, dict)):
                yield _longer(path, key), each


def _longer(path: str, key: str) -> str:
    dot = "." if path and not path.endswith(".") else ""
    return f"{path}{dot}{key}"[:LONGEST_PATH]


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Writes one document of ``results`` with ``id`` and ``alternatives``.

    The stream ``first_pass`` is written as ``score``, in nats: to be read with ``score=score,base=e``.
    """
    written: set[str] = set()
    with open_output(target) as stream:
        stream.write('{"results": [')

        def write(nbest: NBestList) -> None:
            key = IDS[0] if IDS[1] in nbest.fields else IDS[1]
            if nbest.id in written or nbest.fields.keys() & {*LISTS, IDS[0]}:
                message = (
                    f"the id is there a second time, or a field is called like one of {(*LISTS, IDS[0])}"
                )
                raise InvalidList(message, list_id=nbest.id)
            alternatives = [_alternative(nbest, index) for index in range(len(nbest.hypotheses))]
            record = {key: nbest.id, "alternatives": alternatives, **nbest.fields}
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
    """What says that a file or folder is of this format; empty where nothing does."""
    named = not sample.is_folder or any(name.endswith(SUFFIX) for name in sample.names)
    if not named or not sample.first.startswith(("{", "[")):
        return ""
    match = re.search(rf'"({"|".join(LISTS)})"\s*:\s*\[', sample.text)
    return f"JSON with an array {match[1]!r}" if match else ""

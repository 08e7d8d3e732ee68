"""Read and write the alternatives in JSON responses of speech services, and in dialogue logs.

    {"results": [{"alternatives": [{"transcript": "a b", "confidence": 0.9}, ...]}]}         Google and others
    {"NBest": [{"Confidence": 0.9, "Lexical": "a b", "Display": "A B."}, ...]}               Azure
    {"choices": [{"text": "a b"}, {"message": {"content": "a c"}}]}                          OpenAI
    [[{"text": "a b", "nbest": [{"hyp": "a b", "score": -45.7}, ...]}]]                      dialogue logs

A file contains one document, or one document per line; a folder contains one file per utterance, ``u1.json``.
A confidence is not a log-probability, so it remains a field of its hypothesis like all other keys. Scores are
only read if their field and base are given.
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
from rescorer.formats.common import DUPLICATE_ID, Row, Write, add_location, build_list
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.io.json_stream import JsonStream, yield_late_errors
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, source_name
from rescorer.formats.io.utterance_folder import read_list_files
from rescorer.formats.json_documents import whisper
from rescorer.formats.json_documents.documents import open_documents
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

FORMAT = "alternatives"
"""Name of the format."""
STREAM = "first_pass"
LIST_KEYS = ("alternatives", "NBest", "nBest", "nbest", "choices")
"""Keys of the arrays that are n-best lists."""
TEXT_KEYS = ("transcript", "Lexical", "lexical", "text", "hyp")
"""Keys of the text of a hypothesis, in order of preference."""
ID_KEYS = ("utterance_id", "id", "RequestId", "requestId")
"""Keys of the id in the object that contains a list, in order of preference."""
SUFFIX = ".json"
MAX_STREAMED_DEPTH = 8
"""Largest nesting depth of arrays that are read element by element; deeper arrays are read as a whole."""
MAX_PATH_CHARACTERS = 300
"""Length at which paths are truncated. Lists with longer paths can only be distinguished if they have ids."""


class LocatedList(NamedTuple):
    """A list and its position in a document."""

    path: str
    container: dict[str, Any]
    """The object that contains the list."""
    items: list[Any]


def read_lists(
    source: Source, *, text: str = "", score: str = "", base: str = "", sign: str = "log_prob"
) -> Iterator[NBestList | InputError]:
    """Yield every list in the documents of a file or folder.

    A list takes the id of the object that contains it; if there is none, its id is its path, such as
    ``results[0].alternatives``. In a folder, the id is the file name, followed by the path if the file
    contains several lists. The object's other keys become fields of the list.

    Large documents are streamed: the elements of outer arrays, and of the arrays directly inside an outer
    object, are read one at a time. Lists in these arrays are yielded before the other lists of the object.
    After a syntax error, reading of the document stops; if a list has already been yielded, the error is
    yielded last.

    Args:
        text: Key of the text, such as ``Display``; if empty, the usual keys are tried.
        score: Key of the score that becomes the stream ``first_pass``; if empty, no scores are read.
        base: Base of the score, required if there is one.
        sign: Sign of the score, ``log_prob`` or ``cost``.

    Raises:
        ConfigError: If only one of score and base is given, or the base or sign is unknown.
        FormatError: If the source cannot be opened, or a document is not JSON.
    """
    if bool(score) != bool(base):
        raise ConfigError("a score and its base must be given together: score=FIELD,base=e (2, 10, …)")
    try:
        units = {STREAM: Units(base or "e", sign)}  # type: ignore[arg-type]  # checked by Units
    except ValueError as error:
        raise ConfigError(str(error)) from None
    reader = _Reader((text,) if text else TEXT_KEYS, score, units)
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        return read_list_files(
            source, lambda name, path: yield_late_errors(reader.read_file(path, name)), (SUFFIX,)
        )
    return yield_late_errors(reader.read_file(source))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Builds lists from documents according to the options of ``read_lists``."""

    text_keys: tuple[str, ...]
    score_key: str
    units: dict[str, Units]

    def read_file(self, source: Source, name: str = "") -> Iterator[NBestList | InputError]:
        """Yield the lists of a file.

        Args:
            name: Id of the file's only list, or prefix of the ids if it contains several.
        """
        file = source_name(source)
        located = _locate_lists(source, file)
        first = list(islice(located, 2 if name else 0))
        if name and not first:
            yield FormatError(f"no lists; expected an array named {' or '.join(LIST_KEYS)}", file=file)
        seen: set[str] = set()
        for line, found in chain(first, located):
            if isinstance(found, FormatError):
                yield found
                continue
            id_key = "" if name else _find_id_key(found.container)
            list_id = found.container[id_key] if id_key else found.path
            if name:
                list_id = name if len(first) == 1 else f"{name}.{found.path}"
            try:
                rows = [self._parse_row(item, list_id, i, line) for i, item in enumerate(found.items)]
                if list_id in seen:
                    raise InvalidList(DUPLICATE_ID, list_id=list_id)
            except InvalidList as error:
                yield add_location(error, file, line)
            else:
                excluded = {*LIST_KEYS, id_key}
                fields = {key: value for key, value in found.container.items() if key not in excluded}
                yield build_list(list_id, rows, self.units, file, fields=fields)
            seen.add(list_id)

    def _parse_row(self, item: Any, list_id: str, index: int, line: int | None) -> Row:
        def invalid(message: str, field: str) -> InvalidList:
            return InvalidList(message, list_id=list_id, hypothesis=index, field=field)

        if not isinstance(item, dict):
            raise invalid(f"expected an object, got {describe_type(item)}", "")
        text_key = next((key for key in self.text_keys if key in item), "message")
        text = item.get(text_key)
        if text_key == "message" and isinstance(text, dict):
            text = text.get("content")
        if not isinstance(text, str):
            keys = ", ".join(self.text_keys)
            raise invalid(f"no text in {keys}; expected a string, got {describe_type(text)}", text_key)
        fields = {key: value for key, value in item.items() if key not in (text_key, self.score_key)}
        return Row(text, {STREAM: item.get(self.score_key)} if self.score_key else {}, fields, line)


def _find_id_key(container: dict[str, Any]) -> str:
    """Return the key of the id, or an empty string if there is none."""
    return next((key for key in ID_KEYS if isinstance(value := container.get(key), str) and value), "")


def _locate_lists(source: Source, file: str) -> Iterator[tuple[int | None, LocatedList | FormatError]]:
    """Yield each list and the number of its line, or None if the file is one document over several lines."""
    documents = open_documents(source, file)
    if isinstance(documents, JsonStream):
        yield from ((None, found) for found in _stream_lists(documents))
        documents.expect_end()
        return
    for line, document in documents:
        if isinstance(document, FormatError):
            yield line, document
        else:
            yield from ((line, found) for found in _find_lists(document, f"{line}."))


def _stream_lists(document: JsonStream, path: str = "", depth: int = 0) -> Iterator[LocatedList]:
    """Yield the lists of the next value, reading its outer arrays element by element."""
    if document.peek() == "[" and depth < MAX_STREAMED_DEPTH:
        for index in document.read_elements():
            yield from _stream_lists(document, f"{path}[{index}]", depth + 1)
    elif document.peek() == "{" and depth == 0:
        container: dict[str, Any] = {}
        for key in document.read_members():
            if document.peek() != "[" or key in LIST_KEYS:
                container[key] = document.read_value()
                continue
            container[key] = []
            for index in document.read_elements():
                element = document.read_value()
                lists = list(_find_lists(element, f"{key}[{index}]"))
                container[key] += [] if lists else [element]
                yield from lists
        yield from _find_lists(container, path)
    else:
        yield from _find_lists(document.read_value(), path)


def _find_lists(document: Any, prefix: str) -> Iterator[LocatedList]:
    """Yield every list of a document; lists directly in an object come before more deeply nested ones."""
    stack = [iter([(prefix, document)])]
    while stack:
        path, value = next(stack[-1], ("", None))
        if value is None:
            stack.pop()
            continue
        if isinstance(value, dict):
            for key in LIST_KEYS:
                if isinstance(value.get(key), list):
                    yield LocatedList(_extend_path(path, key), value, value[key])
        stack.append(_nested_values(path, value))


def _nested_values(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value of the arrays and objects in a value, except lists.

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


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one document whose ``results`` have an ``id`` and ``alternatives``.

    The stream ``first_pass`` is written as ``score`` in nats; read it back with ``score=score,base=e``.
    """
    written: set[str] = set()
    with open_output(target) as stream:
        stream.write('{"results": [')

        def write(nbest: NBestList) -> None:
            id_key = ID_KEYS[0] if ID_KEYS[1] in nbest.fields else ID_KEYS[1]
            if nbest.id in written:
                raise InvalidList("already written; expected each id once", list_id=nbest.id, field="id")
            reserved = (*LIST_KEYS, ID_KEYS[0])
            if nbest.fields.keys() & {*reserved}:
                message = f"the names {', '.join(reserved)} are reserved by the format; rename these fields"
                raise InvalidList(message, list_id=nbest.id, field="fields")
            alternatives = [_build_alternative(nbest, index) for index in range(len(nbest.hypotheses))]
            record = {id_key: nbest.id, "alternatives": alternatives, **nbest.fields}
            stream.write(f"{',' if written else ''}\n{json.dumps(record, ensure_ascii=False)}")
            written.add(nbest.id)

        yield write
        stream.write("\n]}\n")


def _build_alternative(nbest: NBestList, index: int) -> dict[str, Any]:
    hypothesis = nbest.hypotheses[index]
    if hypothesis.fields.keys() & {"transcript", "score"}:
        message = "the names transcript and score are reserved by the format; rename these fields"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="fields")
    score = {"score": nbest.streams[STREAM][index]} if STREAM in nbest.streams else {}
    return {"transcript": hypothesis.text, **score, **hypothesis.fields}


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file or folder has this format, or an empty string."""
    has_suffix = not sample.is_folder or any(name.endswith(SUFFIX) for name in sample.names)
    if not has_suffix or not sample.first.startswith(("{", "[")) or whisper.OWN_KEYS.search(sample.text):
        return ""
    match = re.search(rf'"({"|".join(LIST_KEYS)})"\s*:\s*\[', sample.text)
    return f"JSON with an array {match[1]!r}" if match else ""

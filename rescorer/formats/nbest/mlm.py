"""Owns the lists of mlm-scoring: one JSON object, an utterance a member, scores in nats.

{"1272-128104-0000": {"hyp_1": {"score": -1.2, "text": "yeah well"}, "hyp_2": {...}, "ref": "yeah well"}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rescorer.errors import InputError, InvalidList
from rescorer.formats.common import Row, Write, build_list
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.io.json_stream import yield_late_errors
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, source_name
from rescorer.formats.nbest.json_document import member_lists, object_writer, open_document
from rescorer.types import NBestList

STREAM = "first_pass"
HYPOTHESIS = re.compile(r"hyp_([0-9]{1,9})")


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yields each utterance's list, hypotheses by their numbers, with the stream ``first_pass``.

    Nothing is read after a fault of the document's, which is the last that is yielded.

    Raises:
        FormatError: the file cannot be read, or is no JSON object, before there is a list.
    """
    return yield_late_errors(_lists(source))


def _lists(source: Source) -> Iterator[NBestList | InputError]:
    document = open_document(source)
    yield from member_lists(document, _list, source_name(source))
    document.expect_end()


def _list(list_id: str, record: Any, file: str) -> NBestList | InvalidList:
    def fault(message: str, field: str, hypothesis: int | None = None) -> InvalidList:
        return InvalidList(message, list_id=list_id, field=field, hypothesis=hypothesis, file=file)

    if not isinstance(record, dict):
        raise fault(f"expected an object, not {describe_type(record)}", "")
    numbered = sorted((int(m[1]), key) for key in record if (m := HYPOTHESIS.fullmatch(key)))
    rows = []
    for index, (_, key) in enumerate(numbered):
        item = record[key]
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            raise fault('expected an object with a string "text"', key, index)
        rest = {name: value for name, value in item.items() if name not in ("text", "score")}
        rows.append(Row(item["text"], {STREAM: item.get("score")}, rest))
    reference = record.get("ref")
    if reference is not None and not isinstance(reference, str):
        raise fault(f"expected a string, not {describe_type(reference)}", "ref")
    known = {"ref", *(key for _, key in numbered)}
    fields = {name: value for name, value in record.items() if name not in known}
    return build_list(list_id, rows, {}, file, reference=reference, fields=fields)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Writes an utterance a line, from the stream ``first_pass`` where a list has one."""
    with object_writer(target) as put:

        def write(nbest: NBestList) -> None:
            record: dict[str, Any] = {}
            for index, hypothesis in enumerate(nbest.hypotheses):
                score = {"score": nbest.streams[STREAM][index]} if STREAM in nbest.streams else {}
                record[f"hyp_{index + 1}"] = {**score, "text": hypothesis.text, **hypothesis.fields}
                if hypothesis.fields.keys() & {"score", "text"}:
                    message = "fields called score or text have no place here"
                    raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="fields")
            record |= {} if nbest.reference is None else {"ref": nbest.reference}
            if any(name == "ref" or HYPOTHESIS.fullmatch(name) for name in nbest.fields):
                message = "fields called ref or hyp_N have no place here"
                raise InvalidList(message, list_id=nbest.id, field="fields")
            put(nbest.id, record | dict(nbest.fields))

        yield write


def looks_like(sample: Sample) -> str:
    """What says that a file is of this format; empty where nothing does."""
    document = not sample.is_folder and sample.first.startswith("{")
    return 'a JSON object with "hyp_1"' if document and re.search(r'"hyp_1"\s*:\s*\{', sample.text) else ""

"""Read and write n-best lists of mlm-scoring: one JSON object, one member per utterance, scores in nats.

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
from rescorer.formats.json_documents.documents import object_writer, read_member_lists, read_objects
from rescorer.types import NBestList

STREAM = "first_pass"
HYPOTHESIS_KEY = re.compile(r"hyp_([0-9]{1,9})")


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield the list of each utterance, with the stream ``first_pass``, ordered by the numbers in the keys.

    After a syntax error, reading stops; if a list has already been yielded, the error is yielded last.

    Raises:
        FormatError: If the file cannot be read, or is not a JSON object, and no list has been yielded yet.
    """
    return yield_late_errors(_read_lists(source))


def _read_lists(source: Source) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    seen: set[str] = set()
    for document in read_objects(source, file):
        yield from read_member_lists(document, _parse_list, file, seen)


def _parse_list(list_id: str, record: Any, file: str) -> NBestList | InvalidList:
    def invalid(message: str, field: str, hypothesis: int | None = None) -> InvalidList:
        return InvalidList(message, list_id=list_id, field=field, hypothesis=hypothesis, file=file)

    if not isinstance(record, dict):
        raise invalid(f"expected an object, got {describe_type(record)}", "")
    ranked_keys = sorted((int(m[1]), key) for key in record if (m := HYPOTHESIS_KEY.fullmatch(key)))
    rows = []
    for index, (_, key) in enumerate(ranked_keys):
        item = record[key]
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            raise invalid('expected an object with a string "text"', key, index)
        other_fields = {name: value for name, value in item.items() if name not in ("text", "score")}
        rows.append(Row(item["text"], {STREAM: item.get("score")}, other_fields))
    reference = record.get("ref")
    if reference is not None and not isinstance(reference, str):
        raise invalid(f"expected a string, got {describe_type(reference)}", "ref")
    known = {"ref", *(key for _, key in ranked_keys)}
    fields = {name: value for name, value in record.items() if name not in known}
    return build_list(list_id, rows, {}, file, reference=reference, fields=fields)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one utterance per line, with the stream ``first_pass`` if the list has it."""
    with object_writer(target) as write_member:

        def write(nbest: NBestList) -> None:
            record: dict[str, Any] = {}
            for index, hypothesis in enumerate(nbest.hypotheses):
                score = {"score": nbest.streams[STREAM][index]} if STREAM in nbest.streams else {}
                record[f"hyp_{index + 1}"] = {**score, "text": hypothesis.text, **hypothesis.fields}
                if hypothesis.fields.keys() & {"score", "text"}:
                    message = "the names score and text are reserved by the format; rename these fields"
                    raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="fields")
            record |= {} if nbest.reference is None else {"ref": nbest.reference}
            if any(name == "ref" or HYPOTHESIS_KEY.fullmatch(name) for name in nbest.fields):
                message = "the names ref and hyp_N are reserved by the format; rename these fields"
                raise InvalidList(message, list_id=nbest.id, field="fields")
            write_member(nbest.id, record | dict(nbest.fields))

        yield write


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    for document in () if sample.is_folder else sample.documents[:1]:
        for record in document.values() if isinstance(document, dict) else ():
            if isinstance(record, dict) and isinstance(record.get("hyp_1"), dict):
                return 'a JSON object with "hyp_1"'
    return ""

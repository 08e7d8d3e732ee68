"""Read and write ESPnet 1 recognition results (``data.json``): hypotheses in word pieces, scores in nats.

{"utts": {"u1": {"output": [{"name": "target1[1]", "rec_text": "▁HE LLO<eos>", "score": -12.95,
                             "text": "HELLO"}, {"name": "target1[2]", ...}], "utt2spk": "spk"}}}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import Row, Write, build_list, parse_number, split_words
from rescorer.formats.io.json_records import describe_type
from rescorer.formats.io.json_stream import yield_late_errors
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, source_name
from rescorer.formats.json_documents.documents import (
    expect_object,
    object_writer,
    read_member_lists,
    read_objects,
)
from rescorer.formats.pieces import SENTENCE, SENTENCEPIECE, join_text
from rescorer.types import NBestList

STREAM = "first_pass"
TENSOR = re.compile(r"tensor\(([^,()]*)(?:,[^()]*)?\)")


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield the list of each utterance, with the stream ``first_pass``; hypotheses keep the order of the
    outputs.

    Word pieces are joined into words if ``▁`` marks word starts, and sentence marks are removed. A hypothesis
    keeps its ``rec_text`` as a field if the text differs, and all other keys. ``utt2spk`` becomes the group
    of the list.

    After a syntax error, reading stops; if a list has already been yielded, the error is yielded last.

    Raises:
        FormatError: If the file cannot be read, or is not an object with ``utts``, and no list has been
            yielded yet.
    """
    return yield_late_errors(_read_lists(source))


def _read_lists(source: Source) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    seen: set[str] = set()
    for document in read_objects(source, file):
        found = False
        for key in document.read_members():
            if key != "utts":
                document.read_value()
                continue
            found = True
            expect_object(document, file, key)
            yield from read_member_lists(document, _parse_list, file, seen)
        if not found:
            raise FormatError("expected a JSON object, got nothing", file=file, field="utts")


def join_pieces(text: str) -> str:
    """Join word pieces into words and remove sentence marks."""
    return " ".join(split_words(join_text(text, (SENTENCE, SENTENCEPIECE))))


def parse_score(value: Any) -> Any:
    """Convert a number written as text, such as ``-12.9`` or ``tensor(-12.9)``.

    Any other value is returned unchanged; if it is not a number, the list is rejected later.
    """
    if not isinstance(value, str):
        return value
    match = TENSOR.fullmatch(value.strip())
    return parse_number(match[1] if match else value)


def _parse_list(list_id: str, record: Any, file: str) -> NBestList | InvalidList:
    def invalid(message: str, field: str, hypothesis: int | None = None) -> InvalidList:
        return InvalidList(message, list_id=list_id, field=field, hypothesis=hypothesis, file=file)

    outputs = record.get("output") if isinstance(record, dict) else None
    if not isinstance(outputs, list):
        raise invalid(f"expected an array, got {describe_type(outputs)}", "output")
    rows = []
    references: list[Any] = []
    for index, item in enumerate(outputs):
        if not isinstance(item, dict) or not isinstance(item.get("rec_text"), str):
            raise invalid("expected an object with a string rec_text", f"output[{index}]", index)
        text = join_pieces(item["rec_text"])
        consumed = {"score", "text", "name"} | ({"rec_text"} if item["rec_text"] == text else set())
        other_fields = {name: value for name, value in item.items() if name not in consumed}
        rows.append(Row(text, {STREAM: parse_score(item.get("score"))}, other_fields))
        references.append(item.get("text"))
    reference = references[0] if references else None
    if any(other != reference for other in references) or not isinstance(reference, str | None):
        raise invalid("expected the same string in all outputs", "output[].text")
    group = record.get("utt2spk", "")
    if not isinstance(group, str):
        raise invalid(f"expected a string, got {describe_type(group)}", "utt2spk")
    fields = {name: value for name, value in record.items() if name not in ("output", "utt2spk")}
    return build_list(list_id, rows, {}, file, reference=reference, group=group, fields=fields)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Write one utterance per line, with the stream ``first_pass`` if the list has it."""
    with object_writer(target, '{"utts": {', "}}") as write_member:

        def write(nbest: NBestList) -> None:
            outputs = [_build_output(nbest, index) for index in range(len(nbest.hypotheses))]
            if nbest.fields.keys() & {"output", "utt2spk"}:
                message = "the names output and utt2spk are reserved by the format; rename these fields"
                raise InvalidList(message, list_id=nbest.id, field="fields")
            group = {"utt2spk": nbest.group} if nbest.group else {}
            write_member(nbest.id, {"output": outputs, **group, **nbest.fields})

        yield write


def _build_output(nbest: NBestList, index: int) -> dict[str, Any]:
    hypothesis = nbest.hypotheses[index]
    other_fields = {name: value for name, value in hypothesis.fields.items() if name != "rec_text"}
    rec_text = hypothesis.fields.get("rec_text", hypothesis.text)
    if other_fields.keys() & {"score", "text", "name"}:
        message = "the names score, text and name are reserved by the format; rename these fields"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="fields")
    if not isinstance(rec_text, str):
        message = f"expected a string, got {describe_type(rec_text)}"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="rec_text")
    if join_pieces(rec_text) != " ".join(split_words(hypothesis.text)):
        message = f"{rec_text!r} would be read as {join_pieces(rec_text)!r}"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="rec_text")
    score = {"score": nbest.streams[STREAM][index]} if STREAM in nbest.streams else {}
    reference = {} if nbest.reference is None else {"text": nbest.reference}
    return {"name": f"target1[{index + 1}]", "rec_text": rec_text, **score, **reference, **other_fields}


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    for document in () if sample.is_folder else sample.documents[:1]:
        if isinstance(document, dict) and isinstance(document.get("utts"), dict):
            return 'a JSON object with "utts"'
    return ""

"""Owns the ``data.json`` of ESPnet 1 with recognition results: scores in nats, hypotheses in word pieces.

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
from rescorer.formats.nbest.json_document import expect_object, member_lists, object_writer, open_document
from rescorer.types import NBestList

STREAM = "first_pass"
PIECE = "▁"
"""SentencePiece's mark of a word's start (U+2581)."""
MARKS = re.compile(r"<(?:eos|sos|sos/eos)>")
TENSOR = re.compile(r"tensor\(([^,()]*)(?:,[^()]*)?\)")


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yields each utterance's list in the order of its outputs, with the stream ``first_pass``.

    Where ``▁`` marks the starts of words, pieces are put together; sentence marks are left out. ``rec_text``
    stays with a hypothesis whose text is not the same, other keys in any case. ``utt2spk`` is the group.

    Nothing is read after a fault of the document's, which is the last that is yielded.

    Raises:
        FormatError: the file cannot be read, or is no object with ``utts``, before there is a list.
    """
    return yield_late_errors(_lists(source))


def _lists(source: Source) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    document = open_document(source)
    found = False
    for key in document.read_members():
        if key != "utts":
            document.read_value()
            continue
        found = True
        expect_object(document, file, key)
        yield from member_lists(document, _list, file)
    document.expect_end()
    if not found:
        raise FormatError("expected a JSON object, not nothing", file=file, field="utts")


def plain_text(text: str) -> str:
    """Word pieces put together, without sentence marks."""
    text = MARKS.sub(" ", text)
    if PIECE in text:
        text = "".join(split_words(text)).replace(PIECE, " ")
    return " ".join(split_words(text))


def tensor_number(value: Any) -> Any:
    """A number, out of the text ``tensor(-12.9)`` where it was printed so."""
    if not isinstance(value, str):
        return value
    match = TENSOR.fullmatch(value.strip())
    return parse_number(match[1] if match else value)


def _list(list_id: str, record: Any, file: str) -> NBestList | InvalidList:
    def fault(message: str, field: str, hypothesis: int | None = None) -> InvalidList:
        return InvalidList(message, list_id=list_id, field=field, hypothesis=hypothesis, file=file)

    outputs = record.get("output") if isinstance(record, dict) else None
    if not isinstance(outputs, list):
        raise fault(f"expected an array, not {describe_type(outputs)}", "output")
    rows = []
    references: list[Any] = []
    for index, item in enumerate(outputs):
        if not isinstance(item, dict) or not isinstance(item.get("rec_text"), str):
            raise fault("expected an object with the string rec_text", f"output[{index}]", index)
        text = plain_text(item["rec_text"])
        drop = {"score", "text", "name"} | ({"rec_text"} if item["rec_text"] == text else set())
        rest = {name: value for name, value in item.items() if name not in drop}
        rows.append(Row(text, {STREAM: tensor_number(item.get("score"))}, rest))
        references.append(item.get("text"))
    reference = references[0] if references else None
    if any(each != reference for each in references) or not isinstance(reference, str | None):
        raise fault("expected one string for all outputs", "output[].text")
    group = record.get("utt2spk", "")
    if not isinstance(group, str):
        raise fault(f"expected a string, not {describe_type(group)}", "utt2spk")
    fields = {name: value for name, value in record.items() if name not in ("output", "utt2spk")}
    return build_list(list_id, rows, {}, file, reference=reference, group=group, fields=fields)


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Writes an utterance a line, from the stream ``first_pass`` where a list has one."""
    with object_writer(target, '{"utts": {', "}}") as put:

        def write(nbest: NBestList) -> None:
            outputs = [_output(nbest, index) for index in range(len(nbest.hypotheses))]
            if nbest.fields.keys() & {"output", "utt2spk"}:
                message = "fields called output or utt2spk have no place here"
                raise InvalidList(message, list_id=nbest.id, field="fields")
            group = {"utt2spk": nbest.group} if nbest.group else {}
            put(nbest.id, {"output": outputs, **group, **nbest.fields})

        yield write


def _output(nbest: NBestList, index: int) -> dict[str, Any]:
    hypothesis = nbest.hypotheses[index]
    rest = {name: value for name, value in hypothesis.fields.items() if name != "rec_text"}
    written = hypothesis.fields.get("rec_text", hypothesis.text)
    if rest.keys() & {"score", "text", "name"} or not isinstance(written, str):
        message = "fields called score, text or name have no place here, and rec_text is a string"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="fields")
    if plain_text(written) != " ".join(split_words(hypothesis.text)):
        message = f"{written!r} would be read as {plain_text(written)!r}"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="rec_text")
    score = {"score": nbest.streams[STREAM][index]} if STREAM in nbest.streams else {}
    reference = {} if nbest.reference is None else {"text": nbest.reference}
    return {"name": f"target1[{index + 1}]", "rec_text": written, **score, **reference, **rest}


def looks_like(sample: Sample) -> str:
    """What says that a file is of this format; empty where nothing does."""
    document = not sample.is_folder and sample.first.startswith("{")
    return 'a JSON object with "utts"' if document and re.search(r'"utts"\s*:\s*\{', sample.text) else ""

"""Read and write the results of ESPnet 1 (``data.json``) and ESPnet 2 (output folders).

ESPnet 1 has hypotheses in word pieces, and scores in nats:

{"utts": {"u1": {"output": [{"name": "target1[1]", "rec_text": "▁HE LLO<eos>", "score": -12.95,
                             "text": "HELLO"}, {"name": "target1[2]", ...}], "utt2spk": "spk"}}}

ESPnet 2 has the folders ``1best_recog``, ``2best_recog``, …, with ``text`` and ``score``:

    2best_recog/text:  u1 HELLO YOU          2best_recog/score:  u1 tensor(-12.9)          in nats

The n-th folder contains the n-th hypothesis of each utterance that has one. Each line of the optional file
``token`` becomes a field of its hypothesis.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.common import (
    DUPLICATE_ID,
    ListWriter,
    Row,
    Write,
    add_location,
    build_list,
    check_reserved,
    format_key,
    format_texts,
    json_writer,
    parse_number,
    read_keyed_lines,
    split_words,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.json_io import describe_type, yield_late_errors
from rescorer.formats.io.text_io import Source, make_folder, open_output, source_name
from rescorer.formats.json_documents import expect_object, read_member_lists, read_objects
from rescorer.formats.pieces import SENTENCE, SENTENCEPIECE, join_text
from rescorer.types import NBestList

STREAM = "first_pass"
TENSOR = re.compile(r"tensor\(([^,()]*)(?:,[^()]*)?\)")


def read_espnet1(source: Source) -> Lists:
    """Yield the list of each utterance, with the stream ``first_pass``; hypotheses keep the order of the
    outputs.

    Word pieces are joined into words if ``▁`` marks word starts, and sentence marks are removed. A hypothesis
    keeps its ``rec_text`` as a field if the text differs, and all other keys. ``utt2spk`` becomes the group
    of the list.

    After a syntax error, reading stops; if a list has already been yielded, the error is yielded last.

    Raises:
        FormatError: the file cannot be read, or is not an object with ``utts``, and no list has been
            yielded yet.
    """
    return yield_late_errors(_read_lists(source))


def _read_lists(source: Source) -> Lists:
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


def espnet1_writer(target: str | Path) -> ListWriter:
    """Write one utterance per line, with the stream ``first_pass`` if the list has it."""

    def format_value(nbest: NBestList) -> dict[str, Any]:
        outputs = [_build_output(nbest, index) for index in range(len(nbest.hypotheses))]
        check_reserved(nbest, nbest.fields, ("output", "utt2spk"), "output and utt2spk")
        group = {"utt2spk": nbest.group} if nbest.group else {}
        return {"output": outputs, **group, **nbest.fields}

    return json_writer(target, format_value, '{"utts": {', "}}", once=True, named=True)


def _build_output(nbest: NBestList, index: int) -> dict[str, Any]:
    hypothesis = nbest.hypotheses[index]
    other_fields = {name: value for name, value in hypothesis.fields.items() if name != "rec_text"}
    rec_text = hypothesis.fields.get("rec_text", hypothesis.text)
    check_reserved(nbest, other_fields, ("score", "text", "name"), "score, text and name", index)
    if not isinstance(rec_text, str):
        message = f"expected a string, got {describe_type(rec_text)}"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="rec_text")
    if join_pieces(rec_text) != " ".join(split_words(hypothesis.text)):
        message = f"{rec_text!r} would be read as {join_pieces(rec_text)!r}"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="rec_text")
    score = {"score": nbest.streams[STREAM][index]} if STREAM in nbest.streams else {}
    reference = {} if nbest.reference is None else {"text": nbest.reference}
    return {"name": f"target1[{index + 1}]", "rec_text": rec_text, **score, **reference, **other_fields}


def looks_like_espnet1(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    document = sample.document
    is_found = isinstance(document, dict) and isinstance(document.get("utts"), dict)
    return 'a JSON object with "utts"' if is_found else ""


FOLDER_NAME = re.compile(r"([1-9][0-9]{0,5})best_recog")
FILES = ("text", "score", "token")


class Entry(NamedTuple):
    """One hypothesis, or the error if it cannot be read."""

    key: str
    row: Row
    error: FormatError | None = None


def read_espnet2(source: Source) -> Lists:
    """Yield the list of each utterance, with the stream ``first_pass``, reading all folders in parallel.

    All folders must contain the utterances in the same order. An unreadable line in one folder, or a
    duplicate id, yields an error in place of the list; reading stops with an error if the keys of the files
    do not match.

    Raises:
        FormatError: the source is not a folder with ``1best_recog/text``, or a file cannot be opened.
    """
    paths = find_folders(source)
    first, *others = (_EntryReader(path) for path in paths)
    file = str(paths[0] / "text")
    seen: set[str] = set()
    error = None
    while (entry := first.next()) is not None:
        entries = [entry, *(other.next_if(entry.key) for other in others)]
        error = next((entry.error for entry in entries if entry and entry.error), None)
        if error is not None:
            yield error
        elif entry.key in seen:
            yield InvalidList(DUPLICATE_ID, list_id=entry.key, file=file, line=entry.row.line)
        else:
            rows = [(path, entry.row) for path, entry in zip(paths, entries, strict=True) if entry]
            nbest = build_list(entry.key, [row for _, row in rows], {}, file)
            if isinstance(nbest, InvalidList) and nbest.hypothesis is not None:
                path, row = rows[nbest.hypothesis]
                nbest = add_location(nbest, str(path / "score"), row.line)
            yield nbest
        seen.add(entry.key)
    for path, other in zip(paths[1:], others, strict=True):
        if error is None and (unmatched := other.next()) is not None:
            message = f"{unmatched.key!r} is missing from {paths[0].name}, or the order differs"
            yield unmatched.error or FormatError(message, file=str(path / "text"), line=unmatched.row.line)


def find_folders(source: Source) -> list[Path]:
    """Return the folders ``1best_recog``, ``2best_recog``, … in numerical order.

    Raises:
        FormatError: there are no such folders, or a number is missing.
    """
    folder = Path(source) if isinstance(source, (str, Path)) else None
    paths = list(folder.iterdir()) if folder is not None and folder.is_dir() else []
    numbered = sorted((int(m[1]), path) for path in paths if (m := FOLDER_NAME.fullmatch(path.name)))
    if [number for number, _ in numbered] != list(range(1, len(numbered) + 1)) or not numbered:
        raise FormatError("expected the folders 1best_recog, 2best_recog, …", file=source_name(source))
    return [path for _, path in numbered]


class _EntryReader:
    """Iterates over the entries of one folder, looking one entry ahead."""

    def __init__(self, folder: Path) -> None:
        self._entries = _read_entries(folder)
        self._ahead = next(self._entries, None)

    def next(self) -> Entry | None:
        entry, self._ahead = self._ahead, next(self._entries, None)
        return entry

    def next_if(self, key: str) -> Entry | None:
        """Return the next entry if it has this key or its key is unknown, otherwise None."""
        return self.next() if self._ahead and self._ahead.key in (key, "") else None


def _read_entries(folder: Path) -> Iterator[Entry]:
    """Yield the hypotheses of one folder; ends with an error when the keys of its files differ."""
    paths = [folder / name for name in FILES if (folder / name).is_file() or name == "text"]
    for lines in zip_longest(*map(read_keyed_lines, paths)):
        present = [line for line in lines if line is not None]
        keys = dict.fromkeys(line.key for line in present if line.error is None)
        number = present[0].line
        error = next((line.error for line in present if line.error), None)
        values = {path.name: line.value for path, line in zip(paths, lines, strict=True) if line is not None}
        key = next(iter(keys), "")
        if len(values) < len(paths) or len(keys) > 1:
            names = ", ".join(path.name for path in paths)
            message = f"{names} do not have the same keys in the same order"
            error = FormatError(message, file=str(folder), line=number)
            yield Entry(key, Row(""), error)
            return
        scores = {STREAM: parse_score(values["score"])} if "score" in values else {}
        tokens = {"token": values["token"]} if "token" in values else {}
        yield Entry(key, Row(values["text"], scores, tokens, number), error)


@contextmanager
def espnet2_writer(target: str | Path) -> Iterator[Write]:
    """Write the folders, with scores from the stream ``first_pass``.

    The writer raises InvalidList for a list whose id contains white space, or if some lists have the stream
    and others do not.
    """
    folder = make_folder(target)
    files: dict[tuple[int, str], TextIO] = {}
    with ExitStack() as stack:
        has_scores: bool | None = None

        def write_line(rank: int, name: str, line: str) -> None:
            if (rank, name) not in files:
                path = make_folder(folder / f"{rank}best_recog") / name
                files[rank, name] = stack.enter_context(open_output(path))
            files[rank, name].write(f"{line}\n")

        def write(nbest: NBestList) -> None:
            nonlocal has_scores
            key, texts = format_key(nbest), format_texts(nbest)
            if has_scores is not None and has_scores != (STREAM in nbest.streams):
                message = "some lists have this stream and others do not; all or none must have it"
                raise InvalidList(message, list_id=nbest.id, field=STREAM)
            has_scores = STREAM in nbest.streams
            for index, text in enumerate(texts):
                write_line(index + 1, "text", f"{key} {text}")
                if STREAM in nbest.streams:
                    write_line(index + 1, "score", f"{key} {nbest.streams[STREAM][index]!r}")

        yield write


def looks_like_espnet2(sample: Sample) -> str:
    """Return the evidence that a folder has this format, or an empty string."""
    return "a folder with 1best_recog" if "1best_recog" in sample.names else ""

"""Read and write the results of ESPnet 1 (``data.json``) and ESPnet 2 (output folders).

ESPnet 1 has hypotheses in word pieces, and scores in nats:

{"utts": {"u1": {"output": [{"name": "target1[1]", "rec_text": "▁HE LLO<eos>", "score": -12.95,
                             "text": "HELLO"}, {"name": "target1[2]", ...}], "utt2spk": "spk"}}}

ESPnet 2 has the folders ``1best_recog``, ``2best_recog``, …, with ``text`` and ``score``:

    2best_recog/text:  u1 HELLO YOU          2best_recog/score:  u1 tensor(-12.9)          in nats

The n-th folder contains the n-th hypothesis of each utterance that has at least n. The folders may also
contain a file ``token``, whose lines become a field of the hypotheses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.common import (
    STREAM,
    FoundLists,
    ListWriter,
    Row,
    add_location,
    archive_writer,
    build_list,
    check_reserved,
    check_type,
    format_key,
    format_texts,
    json_writer,
    parse_number,
    read_keyed_lines,
    reject_duplicates,
    split_words,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.json_io import JsonStream, without, yield_late_errors
from rescorer.formats.io.text_io import Source, source_name
from rescorer.formats.json_documents import expect_object, read_member_lists, read_objects
from rescorer.formats.pieces import SENTENCE, SENTENCEPIECE, join_text
from rescorer.types import NBestList

TENSOR = re.compile(r"tensor\(([^,()]*)(?:,[^()]*)?\)")


@yield_late_errors
def read_espnet1(source: Source) -> Lists:
    """Yield the list of each utterance, with the stream ``first_pass``.

    Hypotheses are in the order of the outputs. Word pieces are joined into words if ``▁`` marks word starts,
    and sentence marks are removed. If this changes ``rec_text``, the hypothesis keeps ``rec_text`` as a
    field; it also keeps all other keys. ``utt2spk`` becomes the group of the list.

    Reading stops after a syntax error. If a list has already been yielded, the error is yielded last.

    Raises:
        FormatError: the file cannot be read, or is not an object with ``utts``, and no list has been
            yielded yet.
    """
    file = source_name(source)
    return read_member_lists(file, _find_utterances(source, file), _parse_list)


def _find_utterances(source: Source, file: str) -> Iterator[JsonStream]:
    """Move through a file to each object ``utts``, and yield the JSON stream that is about to read it."""
    for document in read_objects(source, file):
        found = False
        for key in document.read_members():
            if key != "utts":
                document.read_value()
                continue
            found = True
            expect_object(document, file, key)
            yield document
        if not found:
            raise FormatError("expected a JSON object, got nothing", file=file, field="utts")


def join_pieces(text: str) -> str:
    """Join word pieces into words and remove sentence marks."""
    return " ".join(split_words(join_text(text, (SENTENCE, SENTENCEPIECE))))


def parse_score(value: Any) -> Any:
    """Convert a number that is written as text, such as ``-12.9`` or ``tensor(-12.9)``.

    Any other value is returned unchanged; if it is not a number, ``build_list`` rejects the list.
    """
    if not isinstance(value, str):
        return value
    match = TENSOR.fullmatch(value.strip())
    return parse_number(match[1] if match else value)


def _parse_list(list_id: str, record: Any, file: str) -> NBestList | InvalidList:
    outputs = check_type(record.get("output") if isinstance(record, dict) else None, list, list_id, "output")
    rows = []
    references: list[Any] = []
    for index, item in enumerate(outputs):
        if not isinstance(item, dict) or not isinstance(item.get("rec_text"), str):
            message, field = "expected an object with a string rec_text", f"output[{index}]"
            raise InvalidList(message, list_id=list_id, field=field, hypothesis=index)
        text = join_pieces(item["rec_text"])
        consumed = {"score", "text", "name"} | ({"rec_text"} if item["rec_text"] == text else set())
        rows.append(Row(text, {STREAM: parse_score(item.get("score"))}, without(item, consumed)))
        references.append(item.get("text"))
    reference = references[0] if references else None
    if any(other != reference for other in references) or not isinstance(reference, str | None):
        message = "expected the same string in all outputs"
        raise InvalidList(message, list_id=list_id, field="output[].text")
    group = check_type(record.get("utt2spk", ""), str, list_id, "utt2spk")
    fields = without(record, ("output", "utt2spk"))
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
    other_fields = without(hypothesis.fields, ("rec_text",))
    check_reserved(nbest, other_fields, ("score", "text", "name"), "score, text and name", index)
    rec_text = hypothesis.fields.get("rec_text", hypothesis.text)
    rec_text = check_type(rec_text, str, nbest.id, "rec_text", index)
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
    """One hypothesis of one folder. If its lines cannot be read, it has an error."""

    key: str
    """Id of the utterance; empty if it cannot be read."""
    row: Row
    error: FormatError | None = None


def read_espnet2(source: Source) -> Lists:
    """Yield the list of each utterance, with the stream ``first_pass``, reading all folders in parallel.

    All folders must contain the utterances in the same order. An unreadable line in one folder, or a
    duplicate id, yields an error in place of the list. Reading stops with an error where the keys of the
    files or folders do not match.

    Raises:
        FormatError: the source is not a folder with ``1best_recog/text``, or a file cannot be opened.
    """
    paths = find_folders(source)
    yield from reject_duplicates(_join_folders(paths), str(paths[0] / "text"))


def _join_folders(paths: list[Path]) -> FoundLists:
    """Yield the id, the line and the list of each utterance, or an error in place of the list."""
    first, *others = (_EntryReader(path) for path in paths)
    error = None
    while (entry := first.next()) is not None:
        entries = [entry, *(other.next_if(entry.key) for other in others)]
        error = next((entry.error for entry in entries if entry and entry.error), None)
        rows = [(path, entry.row) for path, entry in zip(paths, entries, strict=True) if entry]
        nbest = error or build_list(entry.key, [row for _, row in rows], {}, str(paths[0] / "text"))
        if isinstance(nbest, InvalidList) and nbest.hypothesis is not None:
            path, row = rows[nbest.hypothesis]
            nbest = add_location(nbest, str(path / "score"), row.line)
        yield entry.key, entry.row.line, nbest
    for path, other in zip(paths[1:], others, strict=True):
        if error is None and (unmatched := other.next()) is not None:
            message = f"{unmatched.key!r} is missing from {paths[0].name}, or the order differs"
            line = unmatched.row.line
            yield "", line, unmatched.error or FormatError(message, file=str(path / "text"), line=line)


def find_folders(source: Source) -> list[Path]:
    """Return the folders ``1best_recog``, ``2best_recog``, … in numerical order.

    Raises:
        FormatError: there are no such folders, or a number between 1 and the largest is missing.
    """
    folder = Path(source) if isinstance(source, (str, Path)) else None
    paths = list(folder.iterdir()) if folder is not None and folder.is_dir() else []
    numbered = sorted((int(m[1]), path) for path in paths if (m := FOLDER_NAME.fullmatch(path.name)))
    if [number for number, _ in numbered] != list(range(1, len(numbered) + 1)) or not numbered:
        raise FormatError("expected the folders 1best_recog, 2best_recog, …", file=source_name(source))
    return [path for _, path in numbered]


class _EntryReader:
    """Iterates over the entries of one folder. It reads one entry ahead, so that the next key is known."""

    def __init__(self, folder: Path) -> None:
        self._entries = _read_entries(folder)
        self._ahead = next(self._entries, None)

    def next(self) -> Entry | None:
        entry, self._ahead = self._ahead, next(self._entries, None)
        return entry

    def next_if(self, key: str) -> Entry | None:
        """Return the next entry if it has this key, or a key that could not be read; otherwise None."""
        return self.next() if self._ahead and self._ahead.key in (key, "") else None


def _read_entries(folder: Path) -> Iterator[Entry]:
    """Yield the hypotheses of one folder. End with an error where the keys of the folder's files differ."""
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


def espnet2_writer(target: str | Path) -> ListWriter:
    """Write the folders, with scores from the stream ``first_pass``.

    The writer raises InvalidList for a list whose id contains white space. It also does so for a list that
    lacks the stream although the first list has it, or the reverse.
    """
    has_scores: bool | None = None

    def format_archives(nbest: NBestList) -> dict[str, list[str]]:
        nonlocal has_scores
        key, columns = format_key(nbest), {"text": format_texts(nbest)}
        if has_scores not in (None, STREAM in nbest.streams):
            message = "some lists have this stream and others do not; all or none must have it"
            raise InvalidList(message, list_id=nbest.id, field=STREAM)
        has_scores = STREAM in nbest.streams
        columns |= {"score": list(map(repr, nbest.streams[STREAM]))} if has_scores else {}
        return {
            f"{rank}best_recog/{name}": [f"{key} {values[rank - 1]}"]
            for rank in range(1, len(nbest.hypotheses) + 1)
            for name, values in columns.items()
        }

    return archive_writer(target, format_archives)


def looks_like_espnet2(sample: Sample) -> str:
    """Return the evidence that a folder has this format, or an empty string."""
    return "a folder with 1best_recog" if "1best_recog" in sample.names else ""

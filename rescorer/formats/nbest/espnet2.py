"""Read and write ESPnet 2 output folders: ``1best_recog``, ``2best_recog``, …, with ``text`` and ``score``.

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
from typing import NamedTuple, TextIO

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import (
    DUPLICATE_ID,
    Row,
    Write,
    add_location,
    build_list,
    format_key,
    format_texts,
    split_words,
)
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.targets import make_folder
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.json_documents.espnet1 import STREAM, parse_score
from rescorer.types import NBestList

FOLDER_NAME = re.compile(r"([1-9][0-9]{0,5})best_recog")
FILES = ("text", "score", "token")


class Entry(NamedTuple):
    """One hypothesis, or the error if it cannot be read."""

    key: str
    row: Row
    error: FormatError | None = None


class Line(NamedTuple):
    """One line of a file, or the error if it cannot be read."""

    number: int
    key: str
    value: str
    error: FormatError | None = None


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield the list of each utterance, with the stream ``first_pass``, reading all folders in parallel.

    All folders must contain the utterances in the same order. An unreadable line in one folder, or a
    duplicate id, yields an error in place of the list; reading stops with an error if the keys of the files
    do not match.

    Raises:
        FormatError: If the source is not a folder with ``1best_recog/text``, or a file cannot be opened.
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
        FormatError: If there are no such folders, or a number is missing.
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
    for lines in zip_longest(*(_read_lines(path) for path in paths)):
        present = [line for line in lines if line is not None]
        keys = dict.fromkeys(line.key for line in present if line.error is None)
        number = present[0].number
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


def _read_lines(path: Path) -> Iterator[Line]:
    for number, text in read_lines(path):
        if isinstance(text, FormatError):
            yield Line(number, "", "", text)
        elif text.strip():
            key, *values = split_words(text)
            yield Line(number, key, " ".join(values))


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
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


def looks_like(sample: Sample) -> str:
    """Return the evidence that a folder has this format, or an empty string."""
    return "a folder with 1best_recog" if "1best_recog" in sample.names else ""

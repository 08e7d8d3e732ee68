"""Owns the output folders of ESPnet 2: ``1best_recog``, ``2best_recog``, …, each with ``text`` and ``score``.

    2best_recog/text:  u1 HELLO YOU          2best_recog/score:  u1 tensor(-12.9)          in nats

The n-th folder holds the n-th hypothesis of the utterances that have one; ``token`` is kept where it is.
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
    Row,
    Write,
    add_location,
    build_list,
    format_key,
    format_texts,
    split_words,
)
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.io.utterance_folder import make_folder
from rescorer.formats.nbest.espnet1 import STREAM, tensor_number
from rescorer.types import NBestList

FOLDER = re.compile(r"([1-9][0-9]{0,5})best_recog")
FILES = ("text", "score", "token")


class Entry(NamedTuple):
    """One hypothesis, or why it cannot be read."""

    key: str
    row: Row
    fault: FormatError | None = None


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yields each utterance's list, the folders read side by side, with the stream ``first_pass``.

    The folders hold their utterances in one order; a list with a fault in any of them is its fault. Where the
    files no longer go together, reading stops.

    Raises:
        FormatError: the source is no folder with ``1best_recog/text``, or a file cannot be opened.
    """
    paths = recog_folders(source)
    first, *others = (_Hypotheses(path) for path in paths)
    file = str(paths[0] / "text")
    seen: set[str] = set()
    fault = None
    while (entry := first.next()) is not None:
        found = [entry, *(other.take(entry.key) for other in others)]
        fault = next((each.fault for each in found if each and each.fault), None)
        if fault is not None:
            yield fault
        elif entry.key in seen:
            message = "is here a second time"
            yield InvalidList(message, list_id=entry.key, file=file, line=entry.row.line)
        else:
            present = [(path, each.row) for path, each in zip(paths, found, strict=True) if each]
            nbest = build_list(entry.key, [row for _, row in present], {}, file)
            if isinstance(nbest, InvalidList) and nbest.hypothesis is not None:
                path, row = present[nbest.hypothesis]
                nbest = add_location(nbest, str(path / "score"), row.line)
            yield nbest
        seen.add(entry.key)
    for path, other in zip(paths[1:], others, strict=True):
        if fault is None and (left := other.next()) is not None:
            message = f"{left.key!r} is not in {paths[0].name}, or not in the same order"
            yield left.fault or FormatError(message, file=str(path / "text"), line=left.row.line)


def recog_folders(source: Source) -> list[Path]:
    """The folders in the order of their numbers."""
    folder = Path(source) if isinstance(source, (str, Path)) else None
    inside = list(folder.iterdir()) if folder is not None and folder.is_dir() else []
    numbered = sorted((int(m[1]), path) for path in inside if (m := FOLDER.fullmatch(path.name)))
    if [number for number, _ in numbered] != list(range(1, len(numbered) + 1)) or not numbered:
        raise FormatError("expected the folders 1best_recog, 2best_recog, …", file=source_name(source))
    return [path for _, path in numbered]


class _Hypotheses:
    """The entries of one folder, with a look at the next."""

    def __init__(self, folder: Path) -> None:
        self._entries = _entries(folder)
        self._ahead = next(self._entries, None)

    def next(self) -> Entry | None:
        entry, self._ahead = self._ahead, next(self._entries, None)
        return entry

    def take(self, key: str) -> Entry | None:
        """The next entry, where it is the one asked for, or does not tell which it is."""
        return self.next() if self._ahead and self._ahead.key in (key, "") else None


def _entries(folder: Path) -> Iterator[Entry]:
    """Text, score and tokens side by side; ends with a fault where the keys are not the same."""
    present = [folder / name for name in FILES if (folder / name).is_file() or name == "text"]
    for lines in zip_longest(*(_lines(path) for path in present)):
        keys = dict.fromkeys(line[1] for line in lines if line is not None and line[3] is None)
        number = next(line[0] for line in lines if line is not None)
        fault = next((line[3] for line in lines if line is not None and line[3]), None)
        values = {path.name: line[2] for path, line in zip(present, lines, strict=True) if line is not None}
        key = next(iter(keys), "")
        if len(values) < len(present) or len(keys) > 1:
            said = ", ".join(path.name for path in present)
            message = f"{said} do not have the same keys in one order"
            fault = FormatError(message, file=str(folder), line=number)
            yield Entry(key, Row(""), fault)
            return
        scores = {STREAM: tensor_number(values["score"])} if "score" in values else {}
        tokens = {"token": values["token"]} if "token" in values else {}
        yield Entry(key, Row(values["text"], scores, tokens, number), fault)


def _lines(path: Path) -> Iterator[tuple[int, str, str, FormatError | None]]:
    """Number, key and value of each line, or its fault."""
    for number, text in read_lines(path):
        if isinstance(text, FormatError):
            yield number, "", "", text
        elif text.strip():
            key, *values = split_words(text)
            yield number, key, " ".join(values), None


@contextmanager
def writer(target: str | Path) -> Iterator[Write]:
    """Writes folders; scores are those of the stream ``first_pass``, which all lists have or none.

    A list is refused whose id holds white space.
    """
    folder = make_folder(target)
    files: dict[tuple[int, str], TextIO] = {}
    with ExitStack() as stack:
        scored: list[bool] = []

        def put(rank: int, name: str, line: str) -> None:
            if (rank, name) not in files:
                path = make_folder(folder / f"{rank}best_recog") / name
                files[rank, name] = stack.enter_context(open_output(path))
            files[rank, name].write(f"{line}\n")

        def write(nbest: NBestList) -> None:
            key, texts = format_key(nbest), format_texts(nbest)
            if scored and scored[0] != (STREAM in nbest.streams):
                message = "some lists have this stream and some do not"
                raise InvalidList(message, list_id=nbest.id, field=STREAM)
            scored[:] = [STREAM in nbest.streams]
            for index, text in enumerate(texts):
                put(index + 1, "text", f"{key} {text}")
                if STREAM in nbest.streams:
                    put(index + 1, "score", f"{key} {nbest.streams[STREAM][index]!r}")

        yield write


def looks_like(sample: Sample) -> str:
    """What says that a folder is of this format; empty where nothing does."""
    return "a folder with 1best_recog" if "1best_recog" in sample.names else ""

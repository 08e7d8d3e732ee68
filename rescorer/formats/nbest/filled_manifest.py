"""Add chosen texts to the lines of the NeMo manifest that was recognised, as ``pred_text``.

    --to manifest:manifest=test.json

NeMo's tools compare ``pred_text`` with ``text``, so each line is written as it is in the manifest, with the
first hypothesis of its list. The ids of lists are names of audio files or, in formats without ids, numbers of
lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from rescorer.errors import InvalidList
from rescorer.formats.common import Write
from rescorer.formats.io.json_records import parse_object
from rescorer.formats.io.text_io import open_output, read_lines_strict
from rescorer.formats.nbest.manifest import AUDIO_KEY, BEAMS_KEY, ID_KEY, PREDICTION_KEY, STREAM, find_id
from rescorer.formats.nbest.manifest import writer as plain_writer
from rescorer.types import NBestList

BY_ORDER = "order"
"""Value of the option ``by`` for lists whose ids are numbers of lines."""


@contextmanager
def writer(target: str | Path, *, manifest: str = "", by: str = "") -> Iterator[Write]:
    """Write the line of each list; without a manifest, write one as ``manifest.writer`` does.

    The line has ``pred_text``, and ``beams`` only if the list has several hypotheses. A list without a line
    is invalid.

    Args:
        manifest: Manifest that was recognised.
        by: What the ids of lists are: ``order``, numbers of lines, or ``name``, names of audio files; if
            empty, the first list decides.

    Raises:
        FormatError: If the target cannot be written, or the manifest cannot be read.
    """
    if not manifest:
        with plain_writer(target) as write:
            yield write
        return
    lines = _ManifestLines(manifest, by)
    with open_output(target) as stream:
        yield lambda nbest: print(json.dumps(lines.fill(nbest), ensure_ascii=False), file=stream)


def parse_by(text: str) -> str:
    """Check what the ids of lists are in a manifest.

    Raises:
        ValueError: If it is neither ``order`` nor ``name``.
    """
    if text not in (BY_ORDER, "name"):
        raise ValueError("expected order or name")
    return text


def list_names(record: Mapping[str, Any]) -> dict[str, None]:
    """Return the names that a list may have for a line of a manifest, in the order of preference."""
    own, audio = record.get(ID_KEY), record.get(AUDIO_KEY)
    names = [own] if isinstance(own, str) else []
    if isinstance(audio, str):
        path = PurePosixPath(audio.replace("\\", "/"))
        names += [find_id(record, 0), path.name, str(path), audio]
    return dict.fromkeys(filter(None, names))


class _ManifestLines:
    """The lines of a manifest, by the ids that lists may have for them: names, or numbers of lines.

    Raises:
        FormatError: If the file cannot be read, or has a line that is no object.
    """

    def __init__(self, file: str, by: str) -> None:
        self._file = file
        lines = ((line, text) for line, text in read_lines_strict(file) if text.strip())
        self._records = [parse_object(text, file, line) for line, text in lines]
        self._numbers = {str(number): number - 1 for number in range(1, len(self._records) + 1)}
        self._names: dict[str, int | None] = {}
        """Line of each name; None if several lines have it."""
        for index, record in enumerate(self._records):
            for name in list_names(record):
                self._names[name] = index if self._names.get(name, index) == index else None
        self._by_number = by == BY_ORDER if by else None
        self._written: set[int] = set()

    def fill(self, nbest: NBestList) -> dict[str, Any]:
        """Return the line of a list with its hypotheses; raises InvalidList if there is none."""
        index = self._find(nbest.id)
        if index in self._written:
            raise InvalidList("already written; expected each line once", list_id=nbest.id, field="id")
        self._written.add(index)
        kept = {key: value for key, value in self._records[index].items() if key != BEAMS_KEY}
        scores = nbest.streams.get(STREAM)
        texts = [hypothesis.text for hypothesis in nbest.hypotheses]
        pairs = [[text] if scores is None else [text, scores[rank]] for rank, text in enumerate(texts)]
        beams = {BEAMS_KEY: pairs} if len(pairs) > 1 else {}
        return {**kept, PREDICTION_KEY: nbest.hypotheses[0].text, **beams}

    def _find(self, list_id: str) -> int:
        number, name = self._numbers.get(list_id), self._names.get(list_id)
        if self._by_number is None and None not in (number, name) and number != name:
            message = (
                f"could be line {list_id} of {self._file} or an audio file there; add by=order or by=name"
            )
            raise InvalidList(message, list_id=list_id, field="id")
        by_number = name is None if self._by_number is None else self._by_number
        index = number if by_number else name
        if index is None:
            several = "several lines" if list_id in self._names else "no line"
            kind = "number" if by_number and self._by_number is not None else "name or number"
            message = f"{several} of {self._file} with this {kind}"
            raise InvalidList(message, list_id=list_id, field="id")
        self._by_number = by_number
        return index

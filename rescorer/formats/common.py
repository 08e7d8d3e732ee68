"""Shared code of the text formats: hypotheses as rows, numbers in columns, and texts that fit on one line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rescorer.errors import InvalidList
from rescorer.formats.score_units import NATURAL, Units, stream_to_nats
from rescorer.types import Hypothesis, NBestList

Write = Callable[[NBestList], None]
"""Writes one list; raises InvalidList, and writes nothing, if the format cannot hold the list."""

WORD_SEPARATOR = re.compile(r"[ \t\r\f\v]+")
"""ASCII white space. Other Unicode white space is part of a word, as in the tools that write these files."""
LINE_BREAK = re.compile(r"[\n\r\0]")
"""Characters that cannot occur in a line; NUL is among them because ``read_lines`` rejects it."""
DUPLICATE_ID = "duplicate id; only the first list with this id is read"
"""Error message of readers for a list whose id has occurred before."""


@dataclass(frozen=True, slots=True)
class Row:
    """One hypothesis of a file; its scores are in the file's units and not yet checked."""

    text: str
    scores: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    line: int | None = None


def split_words(text: str) -> list[str]:
    """Split a text at ASCII white space."""
    return [word for word in WORD_SEPARATOR.split(text) if word]


def parse_number(text: str) -> float | str:
    """Parse a column as a number; return text that is not a number unchanged, for ``build_list`` to reject.

    Underscores, which Python allows between digits, are not accepted.
    """
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text


def parse_finite(text: str) -> float:
    """Parse a finite number.

    Raises:
        ValueError: If the text is not a finite number.
    """
    value = parse_number(text)
    if isinstance(value, str) or not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def build_list(
    list_id: str,
    rows: Sequence[Row],
    units: Mapping[str, Units],
    file: str,
    *,
    reference: str | None = None,
    group: str = "",
    fields: Mapping[str, Any] | None = None,
) -> NBestList | InvalidList:
    """Build a list from its rows, or return the error; streams not in ``units`` are in nats."""
    if not list_id:
        return InvalidList("is empty; expected an id", field="id", file=file)
    if not rows:
        return InvalidList("no hypotheses; expected at least one", list_id=list_id, file=file)
    streams = {}
    try:
        for name in stream_names(row.scores for row in rows):
            values = [row.scores.get(name) for row in rows]
            nats = stream_to_nats(name, values, units.get(name, NATURAL), list_id=list_id, field=name)
            if nats is not None:
                streams[name] = nats
    except InvalidList as error:
        return add_location(error, file, None if error.hypothesis is None else rows[error.hypothesis].line)
    hypotheses = tuple(Hypothesis(row.text, row.fields) for row in rows)
    return NBestList(list_id, hypotheses, streams, reference=reference, group=group, fields=fields or {})


def stream_names(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Return the names of the streams for which at least one hypothesis has a value, in input order."""
    return dict.fromkeys(name for scores in rows for name, value in scores.items() if value is not None)


def add_location(error: InvalidList, file: str, line: int | None) -> InvalidList:
    """Return a copy of an error with its file and line."""
    return InvalidList(
        error.message,
        list_id=error.list_id,
        hypothesis=error.hypothesis,
        field=error.field,
        file=file,
        line=line,
    )


def format_texts(nbest: NBestList) -> list[str]:
    """Return the text of each hypothesis with single spaces between words.

    Raises:
        InvalidList: If a text contains a line break or NUL.
    """
    for index, hypothesis in enumerate(nbest.hypotheses):
        if LINE_BREAK.search(hypothesis.text):
            raise InvalidList(
                "contains a line break or NUL; expected a text that fits on one line",
                list_id=nbest.id,
                hypothesis=index,
                field="text",
            )
    return [" ".join(split_words(hypothesis.text)) for hypothesis in nbest.hypotheses]


def format_key(nbest: NBestList) -> str:
    """Return the id of a list, for formats in which it is the first column of a line.

    Raises:
        InvalidList: If the id is empty or contains white space.
    """
    if split_words(nbest.id) != [nbest.id] or LINE_BREAK.search(nbest.id):
        message = "expected a non-empty id without white space, which the format needs"
        raise InvalidList(message, list_id=nbest.id, field="id")
    return nbest.id


def count_words(hypothesis: Hypothesis) -> int:
    """Return the hypothesis field ``nwords`` if it is valid, else the number of words in the text."""
    nwords = hypothesis.fields.get("nwords")
    if isinstance(nwords, int) and not isinstance(nwords, bool) and 0 <= nwords < 10**9:
        return nwords
    return len(split_words(hypothesis.text))


def stream_from_nats(nbest: NBestList, name: str, units: Units, missing: float | None = None) -> list[float]:
    """Return the values of a stream, converted from nats to the units of a file.

    Args:
        missing: Value to write, in the file's units, for lists without the stream; None if the stream is
            required.

    Raises:
        InvalidList: If the list does not have the stream, and ``missing`` is None, or a score does not exist
            in the units of the file.
    """
    if name in nbest.streams:
        try:
            return [units.from_nats(value) for value in nbest.streams[name]]
        except ValueError as error:
            raise InvalidList(str(error), list_id=nbest.id, field=name) from None
    if missing is None:
        present = ", ".join(nbest.streams) or "none"
        message = f"the format needs this stream, but the list does not have it; its streams: {present}"
        raise InvalidList(message, list_id=nbest.id, field=name)
    return [missing] * len(nbest.hypotheses)

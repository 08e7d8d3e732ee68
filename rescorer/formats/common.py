"""Owns what the text formats share: hypotheses in rows, their numbers, and the texts that fit on a line."""

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
"""Adds one list to an output; where the format cannot hold it, raises InvalidList and writes none of it."""

WORD_SEPARATOR = re.compile(r"[ \t\r\f\v]+")
"""Between words. Other white space of Unicode belongs to words, as in the tools that write these files."""
LINE_BREAK = re.compile(r"[\n\r\0]")
DUPLICATE_ID = "duplicate id; only the first list with this id is read"
"""Error message of readers."""


@dataclass(frozen=True, slots=True)
class Row:
    """One hypothesis as a file has it; scores are in the file's units and not yet checked."""

    text: str
    scores: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    line: int | None = None


def split_words(text: str) -> list[str]:
    """Words between ASCII spaces."""
    return [word for word in WORD_SEPARATOR.split(text) if word]


def parse_number(text: str) -> float | str:
    """The number that a column holds, or the column itself, for ``build_list`` to refuse by its name."""
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text


def parse_finite(text: str) -> float:
    """The finite number that a text is; raises ValueError where it is none."""
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
    """The rows as one list, or what is wrong with it; a stream without units of its own is in nats."""
    if not list_id:
        return InvalidList("is empty; expected an id", field="id", file=file)
    if not rows:
        return InvalidList("no hypotheses; expected one at least", list_id=list_id, file=file)
    streams = {}
    try:
        for name in stream_names(row.scores for row in rows):
            values = [row.scores.get(name) for row in rows]
            nats = stream_to_nats(name, values, units.get(name, NATURAL), list_id=list_id, field=name)
            if nats is not None:
                streams[name] = nats
    except InvalidList as fault:
        return add_location(
            fault, file, rows[fault.hypothesis].line if fault.hypothesis is not None else None
        )
    hypotheses = tuple(Hypothesis(row.text, row.fields) for row in rows)
    return NBestList(list_id, hypotheses, streams, reference=reference, group=group, fields=fields or {})


def stream_names(scores: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Streams that at least one hypothesis has a value for; others need no look at every hypothesis."""
    return dict.fromkeys(name for each in scores for name, value in each.items() if value is not None)


def add_location(fault: InvalidList, file: str, line: int | None) -> InvalidList:
    """The same fault with its place in a file."""
    return InvalidList(
        fault.message,
        list_id=fault.list_id,
        hypothesis=fault.hypothesis,
        field=fault.field,
        file=file,
        line=line,
    )


def format_texts(nbest: NBestList) -> list[str]:
    """Each hypothesis as words with one space between.

    Raises:
        InvalidList: a text holds a line break, which a line cannot.
    """
    for index, hypothesis in enumerate(nbest.hypotheses):
        if LINE_BREAK.search(hypothesis.text):
            raise InvalidList(
                "holds a line break or NUL, which a line cannot; expected words and spaces",
                list_id=nbest.id,
                hypothesis=index,
                field="text",
            )
    return [" ".join(split_words(hypothesis.text)) for hypothesis in nbest.hypotheses]


def format_key(nbest: NBestList) -> str:
    """The id, where a line can begin with it.

    Raises:
        InvalidList: it is empty or holds white space.
    """
    if split_words(nbest.id) != [nbest.id] or LINE_BREAK.search(nbest.id):
        raise InvalidList("a line's key cannot hold white space", list_id=nbest.id, field="id")
    return nbest.id


def count_words(hypothesis: Hypothesis) -> int:
    """The number of words as it came, or else as the text has them."""
    nwords = hypothesis.fields.get("nwords")
    if isinstance(nwords, int) and not isinstance(nwords, bool) and 0 <= nwords < 10**9:
        return nwords
    return len(split_words(hypothesis.text))


def stream_from_nats(nbest: NBestList, name: str, units: Units, missing: float | None = None) -> list[float]:
    """A stream's values in the units of a file.

    Args:
        missing: value, in the file's units, for a list without the stream; None: there must be one.

    Raises:
        InvalidList: the list has no such stream.
    """
    if name in nbest.streams:
        return [value / units.nats_per_unit for value in nbest.streams[name]]
    if missing is None:
        has = ", ".join(nbest.streams) or "none"
        raise InvalidList(
            f"no such stream, and the format needs it; the list has {has}", list_id=nbest.id, field=name
        )
    return [missing] * len(nbest.hypotheses)

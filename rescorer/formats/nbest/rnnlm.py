"""Owns the lists that ``-nbest`` of the recurrent-network toolkits reads: the first column is the list's id.

    u1 -2301.5 -18.42 4 <s> yeah well my sue </s>       CUED-RNNLM: id, acoustic, LM, number of words, words
    u1 yeah well my sue                                  Mikolov's rnnlm: id, words

The base of CUED's scores is that of the tool that wrote them, and has to be told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import (
    Row,
    Write,
    build_list,
    count_words,
    format_key,
    format_texts,
    parse_number,
    split_words,
    stream_from_nats,
)
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, source_name
from rescorer.formats.score_units import Base, Units
from rescorer.types import NBestList

BASES: dict[str, Base] = {"e": "e", "10": "10"}
STREAMS = ("acoustic", "lm")
COUNT = re.compile("[0-9]{1,9}")
BEGIN, END = "<s>", "</s>"
Line = tuple[str, Row | FormatError]
"""A list's id, and a hypothesis of it or why it cannot be read."""


def read_cued(source: Source, *, base: str = "") -> Iterator[NBestList | InputError]:
    """Yields the lists of CUED-RNNLM, with the streams ``acoustic`` and ``lm``.

    Sentence marks at both ends are left out; the number of words stays as ``nwords``. Lines of one id stand
    together; an id that was met before is a fault, and so is a list with a line that cannot be read.

    Args:
        base: of both scores, ``e`` or ``10``.

    Raises:
        ConfigError: no base is given.
        FormatError: the source cannot be opened.
    """
    units = _units(base)
    return _lists(source, _cued, dict.fromkeys(STREAMS, units))


def read_mikolov(source: Source) -> Iterator[NBestList | InputError]:
    """Yields the lists of Mikolov's rnnlm, which have no scores; ids are as in ``read_cued``.

    Raises:
        FormatError: the source cannot be opened.
    """
    return _lists(source, lambda columns, line: Row(" ".join(columns[1:]), line=line), {})


def _lists(
    source: Source, parse: Callable[[list[str], int], Row], units: dict[str, Units]
) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    seen: set[str] = set()
    for list_id, lines in groupby(_lines(source, parse, file), lambda line: line[0]):
        found = [each for _, each in lines]
        fault = next((each for each in found if isinstance(each, FormatError)), None)
        if fault is not None:
            yield fault
        elif list_id in seen:
            yield InvalidList("is here a second time", list_id=list_id, file=file)
        else:
            yield build_list(list_id, [each for each in found if isinstance(each, Row)], units, file)
        seen.add(list_id)


def _lines(source: Source, parse: Callable[[list[str], int], Row], file: str) -> Iterator[Line]:
    """A line that is no text belongs to the list before it."""
    list_id = ""
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield list_id, text
        elif columns := split_words(text):
            list_id = columns[0]
            try:
                yield list_id, parse(columns, line)
            except ValueError as fault:
                yield list_id, FormatError(str(fault), file=file, line=line)


def _cued(columns: list[str], line: int) -> Row:
    if len(columns) < 4 or not COUNT.fullmatch(columns[3]):
        raise ValueError("expected id, acoustic score, LM score, number of words, words")
    _, acoustic, lm, nwords, *words = columns
    words = words[1:] if words[:1] == [BEGIN] else words
    words = words[:-1] if words[-1:] == [END] else words
    scores = {"acoustic": parse_number(acoustic), "lm": parse_number(lm)}
    return Row(" ".join(words), scores, {"nwords": int(nwords)}, line)


def _units(base: str) -> Units:
    if base not in BASES:
        said = f"base={base}" if base else "nothing"
        raise ConfigError(f"CUED's lists do not tell their scores' base: give base=e or base=10, not {said}")
    return Units(BASES[base])


@contextmanager
def cued_writer(target: str | Path, *, base: str = "", missing: float | None = None) -> Iterator[Write]:
    """Writes CUED-RNNLM's lines, from the streams ``acoustic`` and ``lm``.

    Args:
        base: of both scores, ``e`` or ``10``.
        missing: score where a list has no such stream; None: it is refused.

    Raises:
        ConfigError: no base is given.
    """
    units = _units(base)

    def lines(nbest: NBestList) -> Iterator[str]:
        scores = (stream_from_nats(nbest, name, units, missing) for name in STREAMS)
        for hypothesis, text, acoustic, lm in zip(
            nbest.hypotheses, format_texts(nbest), *scores, strict=True
        ):
            yield " ".join(
                filter(None, (f"{acoustic!r} {lm!r} {count_words(hypothesis)} {BEGIN}", text, END))
            )

    with _writer(target, lines) as write:
        yield write


@contextmanager
def mikolov_writer(target: str | Path) -> Iterator[Write]:
    """Writes Mikolov's lines: ids and words."""
    with _writer(target, format_texts) as write:
        yield write


@contextmanager
def _writer(target: str | Path, lines: Callable[[NBestList], Iterator[str] | list[str]]) -> Iterator[Write]:
    written: set[str] = set()
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            key, whole = format_key(nbest), list(lines(nbest))
            if key in written:
                raise InvalidList("is there a second time; expected each id once", list_id=key, field="id")
            stream.writelines(f"{key} {line}\n" for line in whole)
            written.add(key)

        yield write


def looks_like_cued(sample: Sample) -> str:
    """What says that a file is CUED-RNNLM's; empty where nothing does."""
    rows = [split_words(line) for line in sample.lines]
    fits = (
        not sample.is_folder
        and rows
        and all(
            len(row) > 4
            and isinstance(parse_number(row[1]), float)
            and isinstance(parse_number(row[2]), float)
            and COUNT.fullmatch(row[3])
            and row[4] == BEGIN
            for row in rows
        )
    )
    return "lines of an id, two scores, a count and <s>" if fits else ""


def looks_like_mikolov(sample: Sample) -> str:
    """Nothing says it: any text is an id and words."""
    return ""

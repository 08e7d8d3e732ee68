"""Read and write the n-best files of RNNLM toolkits (option ``-nbest``); their first column is the list id.

    u1 -2301.5 -18.42 4 <s> yeah well my sue </s>       CUED-RNNLM: id, acoustic, LM, number of words, words
    u1 yeah well my sue                                  Mikolov's rnnlm: id, words

CUED-RNNLM files do not state the base of their scores, so it must be given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import (
    DUPLICATE_ID,
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
SENTENCE_START, SENTENCE_END = "<s>", "</s>"
ParsedLine = tuple[str, Row | FormatError]
"""List id, and the hypothesis or the error if the line cannot be read."""


def read_cued(source: Source, *, base: str = "") -> Iterator[NBestList | InputError]:
    """Yield the lists of a CUED-RNNLM file, with the streams ``acoustic`` and ``lm``.

    Sentence marks at both ends are removed; the number of words becomes the field ``nwords``. The lines of a
    list are consecutive. An unreadable line, or a duplicate id, yields an error in place of the list.

    Args:
        base: Base of both scores, ``e`` or ``10``.

    Raises:
        ConfigError: If no valid base is given.
        FormatError: If the source cannot be opened.
    """
    units = _parse_base(base)
    return _read_lists(source, _parse_cued_row, dict.fromkeys(STREAMS, units))


def read_mikolov(source: Source) -> Iterator[NBestList | InputError]:
    """Yield the lists of a file of Mikolov's rnnlm, which have no scores; otherwise like ``read_cued``.

    Raises:
        FormatError: If the source cannot be opened.
    """
    return _read_lists(source, lambda columns, line: Row(" ".join(columns[1:]), line=line), {})


def _read_lists(
    source: Source, parse_row: Callable[[list[str], int], Row], units: dict[str, Units]
) -> Iterator[NBestList | InputError]:
    file = source_name(source)
    seen: set[str] = set()
    for list_id, lines in groupby(_parse_lines(source, parse_row, file), lambda line: line[0]):
        results = [result for _, result in lines]
        error = next((result for result in results if isinstance(result, FormatError)), None)
        if error is not None:
            yield error
        elif list_id in seen:
            yield InvalidList(DUPLICATE_ID, list_id=list_id, file=file)
        else:
            yield build_list(list_id, [result for result in results if isinstance(result, Row)], units, file)
        seen.add(list_id)


def _parse_lines(
    source: Source, parse_row: Callable[[list[str], int], Row], file: str
) -> Iterator[ParsedLine]:
    """Parse every line; an error for a line that is not valid text is assigned to the preceding list."""
    list_id = ""
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield list_id, text
        elif columns := split_words(text):
            list_id = columns[0]
            try:
                yield list_id, parse_row(columns, line)
            except ValueError as error:
                yield list_id, FormatError(str(error), file=file, line=line)


def _parse_cued_row(columns: list[str], line: int) -> Row:
    if len(columns) < 4 or not COUNT.fullmatch(columns[3]):
        raise ValueError("expected id, acoustic score, LM score, number of words, words")
    _, acoustic, lm, nwords, *words = columns
    words = words[1:] if words[:1] == [SENTENCE_START] else words
    words = words[:-1] if words[-1:] == [SENTENCE_END] else words
    scores = {"acoustic": parse_number(acoustic), "lm": parse_number(lm)}
    return Row(" ".join(words), scores, {"nwords": int(nwords)}, line)


def _parse_base(base: str) -> Units:
    if base not in BASES:
        given = f"base={base}" if base else "nothing"
        raise ConfigError(
            f"CUED-RNNLM files do not state the base of their scores; expected base=e or base=10, got {given}"
        )
    return Units(BASES[base])


@contextmanager
def cued_writer(target: str | Path, *, base: str = "", missing: float | None = None) -> Iterator[Write]:
    """Write a CUED-RNNLM file, with scores from the streams ``acoustic`` and ``lm``.

    Args:
        base: Base of both scores, ``e`` or ``10``.
        missing: Score to write for lists that lack one of the streams; if None, such lists are rejected.

    Raises:
        ConfigError: If no valid base is given.
    """
    units = _parse_base(base)

    def format_lines(nbest: NBestList) -> Iterator[str]:
        scores = (stream_from_nats(nbest, name, units, missing) for name in STREAMS)
        texts = format_texts(nbest)
        for hypothesis, text, acoustic, lm in zip(nbest.hypotheses, texts, *scores, strict=True):
            columns = f"{acoustic!r} {lm!r} {count_words(hypothesis)} {SENTENCE_START}"
            yield " ".join(filter(None, (columns, text, SENTENCE_END)))

    with _writer(target, format_lines) as write:
        yield write


@contextmanager
def mikolov_writer(target: str | Path) -> Iterator[Write]:
    """Write a file of Mikolov's rnnlm: ids and words."""
    with _writer(target, format_texts) as write:
        yield write


@contextmanager
def _writer(
    target: str | Path, format_lines: Callable[[NBestList], Iterator[str] | list[str]]
) -> Iterator[Write]:
    written: set[str] = set()
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            key, lines = format_key(nbest), list(format_lines(nbest))
            if key in written:
                raise InvalidList("already written; expected each id once", list_id=key, field="id")
            stream.writelines(f"{key} {line}\n" for line in lines)
            written.add(key)

        yield write


def looks_like_cued(sample: Sample) -> str:
    """Return the evidence that a file is in CUED-RNNLM format, or an empty string."""
    rows = [split_words(line) for line in sample.lines]
    if sample.is_folder or not rows or not all(_is_cued_row(row) for row in rows):
        return ""
    return "lines of an id, two scores, a count and <s>"


def _is_cued_row(columns: list[str]) -> bool:
    return (
        len(columns) > 4
        and isinstance(parse_number(columns[1]), float)
        and isinstance(parse_number(columns[2]), float)
        and COUNT.fullmatch(columns[3]) is not None
        and columns[4] == SENTENCE_START
    )


def looks_like_mikolov(sample: Sample) -> str:
    """Return an empty string: any text could be ids and words, so the format is never detected."""
    return ""

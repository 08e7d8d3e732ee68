"""Owns n-best lists in SRInterp format: one file an utterance, its name the id, features before the words.

    am=-2301.5 lm=-18.42 duration=-12 yeah well my sue

The features are any, the same on every line of a file (nbest-optimize(1), ``-srinterp-format``). Nothing in
the file tells their base and sign.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import (
    LINE_BREAK,
    WORD_SEPARATOR,
    Row,
    Write,
    build_list,
    format_texts,
    parse_number,
    split_words,
    stream_from_nats,
)
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, read_lines
from rescorer.formats.io.utterance_folder import create_file, make_folder, read_single_list_files
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

FEATURE = re.compile(r"([^=]+)=(.*)", re.DOTALL)


def read_lists(source: Source, *, base: str = "", sign: str = "log_prob") -> Iterator[NBestList | InputError]:
    """Yields each file's list, or what is wrong with it; every feature is a stream of its name.

    The words begin after the last ``NAME=VALUE`` in a row: a first word with ``=`` in it cannot be told from
    a feature, and is refused as one.

    Args:
        base: of all features; there is no default. A count among them is multiplied as a score is, which its
            weight takes up.
        sign: of all features, ``log_prob`` or ``cost``.

    Raises:
        ConfigError: no base is given, or a base or sign that is none.
        FormatError: the source cannot be opened, or has no name.
    """
    units = _units(base, sign)  # a wrong one shows before the first list is asked for
    return read_single_list_files(source, lambda list_id, path: _read_file(list_id, path, units))


def _read_file(list_id: str, path: Path, units: Units) -> NBestList | InputError:
    rows: list[Row] = []
    for line, text in read_lines(path):
        if isinstance(text, FormatError):
            return text
        if text.strip():
            try:
                rows.append(_row(text, line))
            except ValueError as fault:
                return FormatError(str(fault), file=str(path), line=line)
    features = {name for row in rows for name in row.scores}
    return build_list(list_id, rows, dict.fromkeys(features, units), str(path))


def _row(text: str, line: int) -> Row:
    columns = split_words(text)
    scores: dict[str, float | str] = {}
    for column in columns:
        match = FEATURE.fullmatch(column)
        if not match:
            break
        if match[1] in scores:
            raise ValueError(f"the feature {match[1][:40]!r} is here a second time")
        scores[match[1]] = parse_number(match[2])
    if not scores:
        raise ValueError(f"{text[:40]!r}: expected NAME=VALUE … words")
    return Row(" ".join(columns[len(scores) :]), scores, {}, line)


def looks_like(sample: Sample) -> str:
    """What says that a file or folder is of this format; empty where nothing does."""
    names = set()
    said = False
    for line in sample.lines:
        try:
            row = _row(line, 0)
        except ValueError:
            return ""
        if any(isinstance(value, str) for value in row.scores.values()):
            return ""
        names.add(tuple(row.scores))
        said = said or bool(row.text)
    return "lines of NAME=NUMBER and words" if len(names) == 1 and said else ""


def _units(base: str, sign: str) -> Units:
    if not base:
        raise ConfigError("the features do not tell their base: give base=e (2, 10, …)")
    try:
        return Units(base, sign)  # type: ignore[arg-type]  # checked by Units
    except ValueError as fault:
        raise ConfigError(str(fault)) from None


@contextmanager
def writer(target: str | Path, *, base: str = "", sign: str = "log_prob") -> Iterator[Write]:
    """Writes a file a list into a folder, with all its streams.

    A list is refused that has no streams, one whose name holds ``=`` or white space, or a text that would be
    read as a feature.

    Raises:
        ConfigError: as ``read_lists``.
    """
    units = _units(base, sign)
    folder = make_folder(target)

    def write(nbest: NBestList) -> None:
        lines = _lines(nbest, units)
        with create_file(folder, nbest.id) as stream:
            stream.writelines(f"{line}\n" for line in lines)

    yield write


def _lines(nbest: NBestList, units: Units) -> list[str]:
    if not nbest.streams:
        raise InvalidList("no streams; expected a feature at least", list_id=nbest.id, field="streams")
    for name in nbest.streams:
        if not name or "=" in name or WORD_SEPARATOR.search(name) or LINE_BREAK.search(name):
            raise InvalidList("a feature's name cannot hold = or white space", list_id=nbest.id, field=name)
    lines = []
    columns = zip(*(stream_from_nats(nbest, name, units) for name in nbest.streams), strict=True)
    for place, (text, values) in enumerate(zip(format_texts(nbest), columns, strict=True)):
        if FEATURE.fullmatch(text.partition(" ")[0]):
            message = "its first word would be read as a feature"
            raise InvalidList(message, list_id=nbest.id, hypothesis=place, field="text")
        scores = (f"{name}={value!r}" for name, value in zip(nbest.streams, values, strict=True))
        lines.append(" ".join([*scores, text]).rstrip(" "))
    return lines

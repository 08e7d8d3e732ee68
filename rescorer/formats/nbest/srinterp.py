"""Read and write n-best lists in SRInterp format: one file per utterance, features before the words.

    am=-2301.5 lm=-18.42 duration=-12 yeah well my sue

The file name is the utterance id. Features may have any names, but all lines of a file must have the same
ones (nbest-optimize(1), ``-srinterp-format``). Files do not state the base and sign of their features.
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
from rescorer.formats.io.targets import make_folder
from rescorer.formats.io.text_io import Source, read_lines
from rescorer.formats.io.utterance_folder import create_file, read_single_list_files
from rescorer.formats.score_units import Units
from rescorer.types import NBestList

FEATURE = re.compile(r"([^=]+)=(.*)", re.DOTALL)


def read_lists(source: Source, *, base: str = "", sign: str = "log_prob") -> Iterator[NBestList | InputError]:
    """Yield the list of each file, or the error if it is invalid; every feature becomes a stream.

    The words begin after the leading columns of the form ``NAME=VALUE``. A first word that contains ``=`` is
    indistinguishable from a feature, so its list is rejected.

    Args:
        base: Base of all features. Counts are converted like scores; the weight of such a feature compensates
            for the conversion.
        sign: Sign of all features, ``log_prob`` or ``cost``.

    Raises:
        ConfigError: If the base is missing, or the base or sign is unknown.
        FormatError: If the source cannot be opened, or has no name.
    """
    units = _parse_units(base, sign)  # outside the generator, to raise before the first list is requested
    return read_single_list_files(source, lambda list_id, path: _read_file(list_id, path, units))


def _read_file(list_id: str, path: Path, units: Units) -> NBestList | InputError:
    rows: list[Row] = []
    for line, text in read_lines(path):
        if isinstance(text, FormatError):
            return text
        if text.strip():
            try:
                rows.append(_parse_row(text, line))
            except ValueError as error:
                return FormatError(str(error), file=str(path), line=line)
    features = {name for row in rows for name in row.scores}
    return build_list(list_id, rows, dict.fromkeys(features, units), str(path))


def _parse_row(text: str, line: int) -> Row:
    columns = split_words(text)
    scores: dict[str, float | str] = {}
    for column in columns:
        match = FEATURE.fullmatch(column)
        if not match:
            break
        if match[1] in scores:
            raise ValueError(f"duplicate feature {match[1][:40]!r}")
        scores[match[1]] = parse_number(match[2])
    if not scores:
        raise ValueError(f"expected NAME=VALUE … words, got {text[:40]!r}")
    return Row(" ".join(columns[len(scores) :]), scores, {}, line)


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file or folder has this format, or an empty string."""
    feature_names = set()
    has_words = False
    for line in sample.lines:
        try:
            row = _parse_row(line, 0)
        except ValueError:
            return ""
        if any(isinstance(value, str) for value in row.scores.values()):
            return ""
        feature_names.add(tuple(row.scores))
        has_words = has_words or bool(row.text)
    return "lines of NAME=NUMBER and words" if len(feature_names) == 1 and has_words else ""


def _parse_units(base: str, sign: str) -> Units:
    if not base:
        raise ConfigError("SRInterp files do not state the base of their features; give base=e (2, 10, …)")
    try:
        return Units(base, sign)  # type: ignore[arg-type]  # checked by Units
    except ValueError as error:
        raise ConfigError(str(error)) from None


@contextmanager
def writer(target: str | Path, *, base: str = "", sign: str = "log_prob") -> Iterator[Write]:
    """Write one file per list into a folder, with all streams.

    The writer raises InvalidList for a list that has no streams, a stream whose name contains ``=`` or white
    space, or a text whose first word would be read as a feature.

    Raises:
        ConfigError: As for ``read_lists``.
    """
    units = _parse_units(base, sign)
    folder = make_folder(target)

    def write(nbest: NBestList) -> None:
        lines = _format_lines(nbest, units)
        with create_file(folder, nbest.id) as stream:
            stream.writelines(f"{line}\n" for line in lines)

    yield write


def _format_lines(nbest: NBestList, units: Units) -> list[str]:
    if not nbest.streams:
        message = "no streams; the format needs at least one feature"
        raise InvalidList(message, list_id=nbest.id, field="streams")
    for name in nbest.streams:
        if not name or "=" in name or WORD_SEPARATOR.search(name) or LINE_BREAK.search(name):
            message = "the name of a feature cannot contain = or white space; rename this stream"
            raise InvalidList(message, list_id=nbest.id, field=name)
    lines = []
    columns = zip(*(stream_from_nats(nbest, name, units) for name in nbest.streams), strict=True)
    for index, (text, values) in enumerate(zip(format_texts(nbest), columns, strict=True)):
        if FEATURE.fullmatch(text.partition(" ")[0]):
            message = "the first word would be read as a feature"
            raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="text")
        scores = (f"{name}={value!r}" for name, value in zip(nbest.streams, values, strict=True))
        lines.append(" ".join([*scores, text]).rstrip(" "))
    return lines

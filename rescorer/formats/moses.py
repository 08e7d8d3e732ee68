"""Read and write the n-best lists of translation systems: Moses, Marian and others with lines of four parts.

    0 ||| the house is small ||| LM0= -12.5 TranslationModel0= -1.5 -2.25 WordPenalty0= -4 ||| -7.25
    0 ||| the home is small ||| LM0= -14.0 TranslationModel0= -1.25 -2.5 WordPenalty0= -4 ||| -8.5

The parts are the number of the sentence, counted from 0; the text; features; and the decoder's total. Moses
may add a fifth part, the alignment of words. Names of features end with ``=``, or with ``:`` in old versions.

Translation is ranked as speech is: every feature becomes a score stream in nats, whatever it counts, and the
total becomes the stream ``first_pass``, so that weights are those of the decoder. The values of a feature
with several become the streams ``TranslationModel0.0``, ``TranslationModel0.1``, …. A feature that other
hypotheses of a list have is 0 where it is missing, because decoders leave out what is 0.

The id of a list is the number of the sentence counted from 1, which is the number of its line in the source
text and in a file of references.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.common import (
    COUNT,
    NATURAL,
    STREAM,
    FoundLists,
    ListSize,
    ListWriter,
    Row,
    build_list,
    collect,
    format_texts,
    line_writer,
    parse_number,
    reject_duplicates,
    split_words,
    stream_from_nats,
    stream_names,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.text_io import Source, read_lines, source_name
from rescorer.types import NBestList

BAR = "|||"
EXPECTED = "expected number ||| text ||| NAME= values … ||| total"
ALIGNMENT_FIELD = "alignment"
"""Field of a hypothesis for the fifth part of its line."""
FEATURE_COST = 40
"""Bytes by which a column of features counts in the size of a list, in addition to its characters."""


def read_moses(source: Source) -> Lists:
    """Yield one list for the consecutive lines of each sentence, or an error if one of them is invalid.

    Raises:
        FormatError: the source cannot be opened.
    """
    file = source_name(source)

    def find() -> FoundLists:
        for list_id, lines in groupby(_parse_lines(source, file), lambda line: line[0]):
            numbered, problem = collect(lines, lambda line: _measure(line[1]))
            results = [result for _, result in numbered]
            rows = [result for result in results if isinstance(result, Row)]
            error = next((result for result in results if isinstance(result, FormatError)), None)
            try:
                if problem:
                    raise ValueError(problem)
                rows = [] if error else _fill(rows)
            except ValueError as too_large:
                error = FormatError(f"sentence {list_id} {too_large}", file=file)
            yield list_id, None, error or build_list(list_id, rows, {}, file)

    return reject_duplicates(find(), file)


def _measure(result: Row | FormatError) -> int:
    if isinstance(result, FormatError):
        return len(result.message)
    fields = sum(map(len, map(str, result.fields.values())))
    return len(result.text) + fields + sum(FEATURE_COST + len(name) for name in result.scores)


def _fill(rows: Sequence[Row]) -> list[Row]:
    """Give every hypothesis the features of all others, with the value 0.

    Raises:
        ValueError: this would take too much memory, because most hypotheses have features of their own.
    """
    zeros = dict.fromkeys(stream_names(row.scores for row in rows), 0.0)
    ListSize().add(FEATURE_COST * len(zeros) * len(rows))
    return [replace(row, scores={**zeros, **row.scores}) for row in rows]


def _parse_lines(source: Source, file: str) -> Iterator[tuple[str, Row | FormatError]]:
    """Yield the list id and the hypothesis of each line, or an error in place of the hypothesis.

    A line without a number belongs to the list of the line before it.
    """
    list_id = ""
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield list_id, text
        elif columns := split_words(text):
            if COUNT.fullmatch(columns[0]):
                list_id = str(int(columns[0]) + 1)
            try:
                yield list_id, _parse_row(columns, line)
            except ValueError as error:
                yield list_id, FormatError(str(error), file=file, line=line)


def _parse_row(columns: Sequence[str], line: int) -> Row:
    """Parse the columns of a line; raise ValueError if they are not those of the format."""
    bars = [place for place, column in enumerate(columns) if column == BAR]
    if len(bars) not in (3, 4):
        raise ValueError(f"{len(bars) + 1} parts between {BAR}; {EXPECTED}")
    number, text, features, total, *alignment = (
        columns[begin + 1 : end] for begin, end in zip([-1, *bars], [*bars, len(columns)], strict=True)
    )
    if len(number) != 1 or not COUNT.fullmatch(number[0]):
        raise ValueError(f"{' '.join(number)[:40]!r} is not the number of a sentence; {EXPECTED}")
    if len(total) != 1:
        raise ValueError(f"{' '.join(total)[:40]!r} is not a total; {EXPECTED}")
    scores = {**_parse_features(features), STREAM: parse_number(total[0])}
    fields = {ALIGNMENT_FIELD: " ".join(alignment[0])} if alignment else {}
    return Row(" ".join(text), scores, fields, line)


def _parse_features(columns: Sequence[str]) -> dict[str, float | str]:
    """Return the values of all features by the name of their stream."""
    features: dict[str, list[float | str]] = {}
    values: list[float | str] | None = None
    for column in columns:
        if isinstance(parse_number(column), float) and values is not None:
            values.append(parse_number(column))
            continue
        name, equals, value = column.rpartition("=")
        if not equals and column.endswith(":"):
            name = column[:-1]
        if not name or name in features or name == STREAM:
            problem = "a second feature of this name" if name in features else "expected NAME= and numbers"
            raise ValueError(f"features: {column[:40]!r}: {problem}")
        values = features[name] = [parse_number(value)] if value and equals else []
    scores: dict[str, float | str] = {}
    for name, numbers in features.items():
        if not numbers:
            raise ValueError(f"features: {name[:40]!r} has no value")
        names = [name] if len(numbers) == 1 else [f"{name}.{index}" for index in range(len(numbers))]
        if clash := scores.keys() & {*names}:
            raise ValueError(f"features: a second value for {min(clash)[:40]!r}")
        scores |= zip(names, numbers, strict=True)
    return scores


def looks_like_moses(sample: Sample) -> str:
    """Return the evidence that a file has this format, or an empty string."""
    rows = [split_words(line) for line in sample.lines]
    begin = all(len(row) > 1 and row[1] == BAR and COUNT.fullmatch(row[0]) for row in rows)
    is_moses = bool(rows) and begin and all(row.count(BAR) in (3, 4) for row in rows)
    return f"lines of a number, text, features and total between {BAR}" if is_moses else ""


def moses_writer(target: str | Path, *, missing: float | None = None) -> ListWriter:
    """Write all streams as features, and ``first_pass`` as the total.

    A list whose id is a number above that of the list before gets this number minus 1, as it was read; ids of
    another kind are lost, and lists are counted from 0.

    The writer raises InvalidList for a text with the word ``|||``, a stream that cannot be the name of a
    feature, and an id that is a number but not above that of the list before.

    Args:
        missing: total for lists that lack the stream ``first_pass``; None if such lists are rejected.
    """
    following = 0

    def format_lines(nbest: NBestList) -> list[str]:
        nonlocal following
        number = following
        if COUNT.fullmatch(nbest.id):
            number = int(nbest.id) - 1
            if number < following:
                message = (
                    f"the number of a sentence; expected {following + 1} or more, since sentences ascend"
                )
                raise InvalidList(message, list_id=nbest.id, field="id")
        texts, features = format_texts(nbest), _format_features(nbest)
        totals = stream_from_nats(nbest, STREAM, NATURAL, missing)
        lines = []
        for index, (text, total) in enumerate(zip(texts, totals, strict=True)):
            if BAR in text.split():
                message = f"the word {BAR} would end the text"
                raise InvalidList(message, list_id=nbest.id, hypothesis=index, field="text")
            parts = [str(number), text, features[index], repr(total)]
            alignment = nbest.hypotheses[index].fields.get(ALIGNMENT_FIELD)
            if isinstance(alignment, str) and BAR not in split_words(alignment) and alignment.isprintable():
                parts.append(alignment)
            lines.append(f" {BAR} ".join(parts))
        following = number + 1
        return lines

    return line_writer(target, format_lines, once=False)


def _is_next(feature: str, parts: Sequence[str], name: str) -> bool:
    """Whether a stream is the next value of a feature, whose first is ``FEATURE.0``."""
    return parts[0] == f"{feature}.0" and name == f"{feature}.{len(parts)}"


def _format_features(nbest: NBestList) -> list[str]:
    """Return the features of each hypothesis. Streams ``NAME.0``, ``NAME.1``, … become one feature."""
    names = [name for name in nbest.streams if name != STREAM]
    for name in names:
        if split_words(name) != [name] or {"=", "\n", "\0"} & {*name} or name.endswith(":") or name == BAR:
            message = "cannot be the name of a feature, because of =, : or white space; rename this stream"
            raise InvalidList(message, list_id=nbest.id, field=name)
    groups: list[tuple[str, list[str]]] = []
    alone = {*names, STREAM, ""}  # a feature may not have the name of a stream, too
    for name in names:
        feature, _, index = name.rpartition(".")
        if index == "0" and feature not in alone:
            groups.append((feature, [name]))
        elif groups and _is_next(*groups[-1], name):
            groups[-1][1].append(name)
        else:
            groups.append((name, [name]))
    columns = [f"{feature if len(parts) > 1 else parts[0]}=" for feature, parts in groups]
    features = []
    for hypothesis in range(len(nbest.hypotheses)):
        values = (" ".join(repr(nbest.streams[name][hypothesis]) for name in parts) for _, parts in groups)
        features.append(" ".join(f"{column} {value}" for column, value in zip(columns, values, strict=True)))
    return features

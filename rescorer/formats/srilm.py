"""Read and write the n-best lists of SRILM and SRInterp: one file per utterance, named after its id.

SRILM's files (nbest-format(5)) are of three kinds, which the first line tells:

    -2301.5 -18.42 4 yeah well my sue              columns: log10 acoustic, log10 LM, number of words, words
    NBestList1.0, then (-103298) yeah well my sue                  one combined score in bytelogs
    NBestList2.0, then (-103298) yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 ) …     also word scores and times

A bytelog is 1024/10000.5 nats (SRILM's Prob.h). Further scores may be in other folders, one file per
utterance (see *score-dir* in nbest-scripts(1)):

    lists/u1: -2301.5 -18.42 4 yeah well my sue        rnn/u1: -17.25        durations/u1: 12.5

The n-th line of ``rnn/u1`` is the score of the n-th hypothesis in ``lists/u1``.

SRInterp has features before the words (nbest-optimize(1), ``-srinterp-format``):

    am=-2301.5 lm=-18.42 duration=-12 yeah well my sue

Features may have any names, but all lines of a file must have the same ones. Files do not state the base and
sign of their features.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.common import (
    LINE_BREAK,
    STREAM,
    WORD_SEPARATOR,
    FormatLines,
    ListSize,
    ListWriter,
    Row,
    Units,
    build_list,
    count_words,
    folder_writer,
    format_texts,
    has_scores,
    parse_finite,
    parse_number,
    parse_scored_words,
    parse_units,
    split_words,
    stream_from_nats,
)
from rescorer.formats.fields import TIME_DECIMALS, WORDS_FIELD, get_word_times, is_finite_number
from rescorer.formats.io.folders import Lists, Sample, ends_with_id, read_list_files
from rescorer.formats.io.text_io import Source, read_lines_strict
from rescorer.types import NBestList

LOG10 = Units("10")
"""Default units of SRILM scores."""


@dataclass(frozen=True, slots=True)
class ScoreFolder:
    """A folder that has further scores, those of one stream, and the units of the scores."""

    folder: Path
    units: Units = LOG10


def parse_score_folders(text: str) -> Mapping[str, ScoreFolder]:
    """Parse the option ``NAME[/BASE[/SIGN]]=DIR;…``. Return the folder of scores for each stream name.

    An example is ``rnn=rnn;duration/e/cost=dur``.

    Raises:
        ValueError: the text is malformed, repeats a stream, or names an unknown base or sign.
    """
    folders: dict[str, ScoreFolder] = {}
    for part in text.split(";"):
        stream, equals, folder = (piece.strip() for piece in part.partition("="))
        name, *units = stream.split("/")
        if not (equals and name and folder) or len(units) > 2 or name in folders:
            raise ValueError(f"{part!r}: expected NAME[/BASE[/SIGN]]=DIR;… with each name once")
        folders[name] = ScoreFolder(Path(folder), Units(*units) if units else LOG10)  # type: ignore[arg-type]
    return folders


def _read_scores(folder: Path, list_id: str, size: int) -> list[float]:
    """Return the scores of one list, in the units of the folder.

    Args:
        size: number of hypotheses in the list.

    Raises:
        FormatError: the file is missing, is not a column of finite numbers, or has the wrong number of
            lines.
    """
    path = next((p for p in (folder / list_id, folder / f"{list_id}.gz") if p.is_file()), None)
    if path is None:
        raise FormatError(f"no scores for list {list_id!r}; expected a file of that name", file=str(folder))
    values: list[float] = []
    for line, text in read_lines_strict(path):
        if not text.strip():
            continue
        try:
            values.append(parse_finite(text.strip()))
        except ValueError:
            message = f"{text.strip()[:40]!r}: expected one finite number"
            raise FormatError(message, file=str(path), line=line) from None
    if len(values) != size:
        message = f"expected {size} numbers, one per hypothesis of the list, got {len(values)}"
        raise FormatError(message, file=str(path))
    return values


BYTELOG = Units("bytelog")
COLUMN_STREAMS = {"acoustic": LOG10, "lm": LOG10}
"""The streams in files with columns, and their units."""
BYTELOG_STREAMS = {STREAM: BYTELOG, "acoustic": BYTELOG, "lm": BYTELOG}
"""The streams in the other two formats, and their units. NBestList1.0 has only ``first_pass``."""
NO_SCORES: Mapping[str, ScoreFolder] = MappingProxyType({})
NBESTLIST1_HEADER, NBESTLIST2_HEADER = "NBestList1.0", "NBestList2.0"

SCORE_AND_WORDS = re.compile(r"\s*\(\s*((?:[^\s()]|\([^\s()]*\))+)\s*\)\s*(.*)")
TOKEN_COLUMNS = 11
"""Number of columns that a word takes in NBestList2.0: ``yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 )``."""
TOKEN_LABELS = ("(", "st:", "et:", "g:", "a:", ")")
FRAME_S = 0.01
"""Length of a frame in seconds. A word ends a frame after ``et:``, the start of its last frame (NBest.cc)."""
HMM_STATE = re.compile(r"-[0-9]$")
"""Matches the end of the names of HMM states, which NBestList2.0 lists after the word of the states."""


def read_srilm(source: Source, *, scores: Mapping[str, ScoreFolder] = NO_SCORES) -> Lists:
    """Yield the list of each file, or an error if the file is invalid.

    The streams are ``acoustic`` and ``lm``, or ``first_pass`` in NBestList1.0, or all three in NBestList2.0.
    The number of words, which may include pauses, becomes the field ``nwords`` of the hypothesis. In
    NBestList2.0, the words become the field ``words``, with times as in a ctm and scores in bytelogs. An id
    may contain spaces.

    Args:
        scores: folders of additional streams, by stream name.

    Raises:
        ConfigError: ``scores`` names a stream that the files already have.
        FormatError: the source cannot be opened or has no name, or a folder of ``scores`` does not exist.
    """
    for score in scores.values():
        if not score.folder.is_dir():
            raise FormatError("the folder of scores does not exist", file=str(score.folder))
    yield from read_list_files(source, lambda list_id, path: _read_srilm_file(list_id, path, scores))


def _read_srilm_file(list_id: str, path: Path, scores: Mapping[str, ScoreFolder]) -> Lists:
    header, rows = _read_rows(path, _row_parsers)
    units = BYTELOG_STREAMS if header else COLUMN_STREAMS
    if duplicates := units.keys() & scores.keys():
        raise ConfigError(f"{path}: already has a stream {min(duplicates)}; use another name in scores=")
    for name, score in scores.items() if rows else ():
        values = _read_scores(score.folder, list_id, len(rows))
        rows = [
            replace(row, scores={**row.scores, name: value}) for row, value in zip(rows, values, strict=True)
        ]
    units = units | {name: score.units for name, score in scores.items()}
    yield build_list(list_id, rows, units, str(path))


RowParser = Callable[[str, int], Row]
"""Parses a line, given its text and its number; raises ValueError if the line is invalid."""


WORD_FIELDS_COST = 4
"""Factor for the characters of lines with words and times, each of which becomes several objects."""


def _read_rows(path: Path, parsers: Mapping[str, RowParser]) -> tuple[str, list[Row]]:
    """Return the header of a file and its hypotheses.

    Args:
        parsers: the parser of lines for each header that a file may have; "" stands for no header.

    Raises:
        FormatError: a line cannot be read.
    """
    header, rows, size = "", list[Row](), ListSize()
    for line, text in read_lines_strict(path):
        if line == 1 and text.strip() in parsers:
            header = text.strip()
        elif text.strip():
            try:
                size.add(len(text) * (WORD_FIELDS_COST if header else 1))
                rows.append(parsers[header](text, line))
            except ValueError as error:
                raise FormatError(str(error), file=str(path), line=line) from None
    return header, rows


def _looks_like_nbestlist(header: str, sample: Sample) -> str:
    """Return the evidence that a file or folder has the format with a header, or an empty string."""
    return f"the first line {header}" if sample.first == header else ""


looks_like_nbestlist1 = partial(_looks_like_nbestlist, NBESTLIST1_HEADER)
looks_like_nbestlist2 = partial(_looks_like_nbestlist, NBESTLIST2_HEADER)


def looks_like_columns(sample: Sample) -> str:
    """Return the evidence that a file or folder has columns of scores, or an empty string."""
    if not sample.lines or not all(has_scores(split_words(line)) for line in sample.lines):
        return ""
    if all(map(ends_with_id, sample.lines)):  # numbers that were spoken, in a trn
        return ""
    return "lines of two scores, a count and words"


def _parse_columns(text: str, line: int) -> Row:
    return parse_scored_words(split_words(text), line, "log10 acoustic, log10 LM, number of words, words")


def _parse_nbestlist1(text: str, line: int) -> Row:
    match = SCORE_AND_WORDS.fullmatch(text)
    if not match:
        raise ValueError("expected (score) words")
    return Row(" ".join(split_words(match[2])), {STREAM: parse_number(match[1])}, {}, line)


def _parse_nbestlist2(text: str, line: int) -> Row:
    """Parse a line of words with times and scores. Skip the phones and HMM states that follow each word."""
    row = _parse_nbestlist1(text, line)
    columns = split_words(row.text)
    words: list[dict[str, float | str]] = []
    end_s = -math.inf
    for begin in range(0, len(columns), TOKEN_COLUMNS):
        token = columns[begin : begin + TOKEN_COLUMNS]
        if len(token) < TOKEN_COLUMNS or (token[1], *token[2:10:2], token[10]) != TOKEN_LABELS:
            raise ValueError(f"expected WORD ( st: T et: T g: B a: B ), got {' '.join(token)!r}")
        start, end, lm, acoustic = (float(parse_number(value)) for value in token[3:10:2])
        if not all(map(math.isfinite, (start, end, lm, acoustic))):
            raise ValueError(f"expected finite numbers, got {' '.join(token)!r}")
        if HMM_STATE.search(token[0]) or start <= end_s:
            continue
        end_s = end
        times = {"start_s": start, "duration_s": round(end - start + FRAME_S, TIME_DECIMALS)}
        words.append({"word": token[0], **times, "lm": lm, "acoustic": acoustic})
    scores = dict(row.scores)
    for name in ("acoustic", "lm"):
        scores[name] = math.fsum(float(word[name]) for word in words)
    return Row(" ".join(str(word["word"]) for word in words), scores, {WORDS_FIELD: words}, line)


_row_parsers = {
    "": _parse_columns,  # files with columns have no header
    NBESTLIST1_HEADER: _parse_nbestlist1,
    NBESTLIST2_HEADER: _parse_nbestlist2,
}


def srilm_writer(
    target: str | Path, *, missing: float | None = None, scores: Mapping[str, ScoreFolder] = NO_SCORES
) -> ListWriter:
    """Write one file with columns per list into a folder, with the streams ``acoustic`` and ``lm``.

    Args:
        missing: log10 score for lists that lack one of these streams; None if such lists are rejected.
        scores: folders for additional streams, which every list must have.
    """
    return _writer(target, lambda nbest: _format_columns(nbest, missing), scores)


def nbestlist1_writer(target: str | Path, *, scores: Mapping[str, ScoreFolder] = NO_SCORES) -> ListWriter:
    """Write one NBestList1.0 file per list into a folder, with ``first_pass`` rounded to whole bytelogs."""
    return _writer(target, _format_nbestlist1, scores)


def nbestlist2_writer(
    target: str | Path, *, missing: float | None = None, scores: Mapping[str, ScoreFolder] = NO_SCORES
) -> ListWriter:
    """Write one NBestList2.0 file per list into a folder.

    The scores are the streams ``first_pass``, ``acoustic`` and ``lm`` in whole bytelogs; the times come from
    the field ``words``. If the words in this field have no scores, the first word gets the scores of the
    hypothesis.

    The writer raises InvalidList if words have no times, overlap, or are named like HMM states, or if the
    scores of the words do not sum to the score of the hypothesis.

    Args:
        missing: bytelog score for lists that lack one of these streams; None if such lists are rejected.
        scores: folders for additional streams, which every list must have.
    """
    return _writer(target, lambda nbest: _format_nbestlist2(nbest, missing), scores)


def _writer(target: str | Path, format_lines: FormatLines, scores: Mapping[str, ScoreFolder]) -> ListWriter:
    further = {score.folder: partial(_format_scores, name, score.units) for name, score in scores.items()}
    return folder_writer(target, format_lines, further=further)


def _format_scores(name: str, units: Units, nbest: NBestList) -> list[str]:
    return list(map(repr, stream_from_nats(nbest, name, units)))


def _format_columns(nbest: NBestList, missing: float | None) -> Iterator[str]:
    scores = (stream_from_nats(nbest, name, units, missing) for name, units in COLUMN_STREAMS.items())
    for hypothesis, text, acoustic, lm in zip(nbest.hypotheses, format_texts(nbest), *scores, strict=True):
        yield f"{acoustic!r} {lm!r} {count_words(hypothesis)} {text}".rstrip(" ")


def _format_nbestlist1(nbest: NBestList) -> Iterator[str]:
    yield NBESTLIST1_HEADER
    for text, score in zip(format_texts(nbest), stream_from_nats(nbest, STREAM, BYTELOG), strict=True):
        yield f"({round(score)}) {text}".rstrip(" ")


def _format_nbestlist2(nbest: NBestList, missing: float | None) -> Iterator[str]:
    yield NBESTLIST2_HEADER
    texts = format_texts(nbest)
    scores = {name: stream_from_nats(nbest, name, units, missing) for name, units in BYTELOG_STREAMS.items()}
    for index, text in enumerate(texts):
        words = get_word_times(nbest, index, split_words(text))
        lm_scores, acoustic_scores = (
            _get_word_scores(nbest, index, name, scores[name][index]) for name in ("lm", "acoustic")
        )
        tokens = []
        end_s = -math.inf
        for word, lm, acoustic in zip(words, lm_scores, acoustic_scores, strict=True):
            start_s = round(float(word["start_s"]), TIME_DECIMALS)
            if HMM_STATE.search(word["word"]) or start_s <= end_s:
                message = f"{word['word']!r} at {start_s!r} s would be read as a phone of the previous word"
                raise InvalidList(message, list_id=nbest.id, hypothesis=index, field=WORDS_FIELD)
            end_s = round(start_s + word["duration_s"] - FRAME_S, TIME_DECIMALS)
            tokens.append(f"{word['word']} ( st: {start_s!r} et: {end_s!r} g: {lm} a: {acoustic} )")
        yield " ".join([f"({round(scores[STREAM][index])})", *tokens])


def _get_word_scores(nbest: NBestList, index: int, name: str, total: float) -> list[int]:
    """Return the scores that a stream has for the words of a hypothesis, in whole bytelogs.

    Args:
        total: score of the hypothesis, which must be the sum of the word scores.
    """
    values = [word.get(name) for word in get_word_times(nbest, index)]
    scores = [round(value) for value in values if value is not None and is_finite_number(value)]
    if len(scores) < len(values):
        scores = [round(total)] + [0] * (len(values) - 1)
    if abs(sum(scores) - total) > (len(scores) + 1) / 2:
        message = f"the word scores sum to {sum(scores)} bytelogs, but the hypothesis has {total:g}"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field=name)
    return scores


FEATURE = re.compile(r"([^=]+)=(.*)", re.DOTALL)


def read_srinterp(source: Source, *, base: str = "", sign: str = "log_prob") -> Lists:
    """Yield the list of each file, or an error if the file is invalid; every feature becomes a stream.

    The words begin after the leading columns of the form ``NAME=VALUE``. A first word that contains ``=``
    cannot be told from a feature, so its list is rejected.

    Args:
        base: base of all features. Features that are counts are converted as if they were scores; a tuned
            weight of such a feature compensates for the factor.
        sign: sign of all features, ``log_prob`` or ``cost``.

    Raises:
        ConfigError: the base is missing, or the base or sign is unknown.
        FormatError: the source cannot be opened, or has no name.
    """
    units = _parse_units(base, sign)  # outside the generator, to raise before the first list is requested
    return read_list_files(source, lambda list_id, path: _read_srinterp_file(list_id, path, units))


def _read_srinterp_file(list_id: str, path: Path, units: Units) -> Lists:
    _, rows = _read_rows(path, {"": _parse_features})
    features = {name for row in rows for name in row.scores}
    yield build_list(list_id, rows, dict.fromkeys(features, units), str(path))


def _parse_features(text: str, line: int) -> Row:
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


def looks_like_srinterp(sample: Sample) -> str:
    """Return the evidence that a file or folder has this format, or an empty string."""
    try:
        rows = [_parse_features(line, 0) for line in sample.lines]
    except ValueError:
        return ""
    if any(isinstance(value, str) for row in rows for value in row.scores.values()):
        return ""
    is_uniform = len({tuple(row.scores) for row in rows}) == 1
    return "lines of NAME=NUMBER and words" if is_uniform and any(row.text for row in rows) else ""


def _parse_units(base: str, sign: str) -> Units:
    if not base:
        raise ConfigError("SRInterp files do not state the base of their features; give base=e (2, 10, …)")
    return parse_units(base, sign)


def srinterp_writer(target: str | Path, *, base: str = "", sign: str = "log_prob") -> ListWriter:
    """Write one file per list into a folder, with all streams.

    The writer raises InvalidList for a list that has no streams, a stream whose name contains ``=`` or white
    space, or a text whose first word would be read as a feature.

    Raises:
        ConfigError: as for ``read_srinterp``.
    """
    units = _parse_units(base, sign)
    return folder_writer(target, lambda nbest: _format_features(nbest, units))


def _format_features(nbest: NBestList, units: Units) -> list[str]:
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

"""Read and write the n-best lists of SRILM and SRInterp: one file per utterance, named after its id.

SRILM's files (nbest-format(5)) are of three kinds, which the first line tells:

    -2301.5 -18.42 4 yeah well my sue              columns: log10 acoustic, log10 LM, number of words, words
    NBestList1.0, then (-103298) yeah well my sue                  one combined score in bytelogs
    NBestList2.0, then (-103298) yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 ) …     also word scores and times

A bytelog is 1024/10000.5 nats (SRILM's Prob.h). Additional scores may be in other folders, with one file per
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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import (
    COUNT,
    LINE_BREAK,
    WORD_SEPARATOR,
    ListWriter,
    Row,
    Units,
    Write,
    build_list,
    count_words,
    folder_writer,
    format_texts,
    has_scores,
    parse_finite,
    parse_number,
    parse_units,
    split_words,
    stream_from_nats,
)
from rescorer.formats.fields import TIME_DECIMALS, WORDS_FIELD, get_word_times, is_finite_number
from rescorer.formats.io.folders import Lists, Sample, create_files, ends_with_id, read_single_list_files
from rescorer.formats.io.text_io import Source, make_folder, read_lines_strict
from rescorer.types import NBestList

LOG10 = Units("10")
"""Default units of SRILM scores."""


@dataclass(frozen=True, slots=True)
class ScoreFolder:
    """Folder with the scores of one stream, and their units."""

    folder: Path
    units: Units = LOG10


def parse_score_folders(text: str) -> Mapping[str, ScoreFolder]:
    """Parse ``NAME[/BASE[/SIGN]]=DIR;…``, such as ``rnn=rnn;duration/e/cost=dur``, into folders by stream.

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
        size: Number of hypotheses in the list.

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
"""Units of the streams of files with columns."""
BYTELOG_STREAMS = {"first_pass": BYTELOG, "acoustic": BYTELOG, "lm": BYTELOG}
"""Units of the streams of the other two formats; NBestList1.0 has only ``first_pass``."""
NO_SCORES: Mapping[str, ScoreFolder] = MappingProxyType({})
NBESTLIST1_HEADER, NBESTLIST2_HEADER = "NBestList1.0", "NBestList2.0"

SCORE_AND_WORDS = re.compile(r"\s*\(\s*((?:[^\s()]|\([^\s()]*\))+)\s*\)\s*(.*)")
TOKEN_COLUMNS = 11
"""Number of columns of a word in NBestList2.0: ``yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 )``."""
TOKEN_LABELS = ("(", "st:", "et:", "g:", "a:", ")")
FRAME_S = 0.01
"""Length of a frame; ``et:`` is the start of a word's last frame (SRILM's NBest.cc)."""
HMM_STATE = re.compile(r"-[0-9]$")
"""Suffix of the HMM states that NBestList2.0 contains between the words."""


def read_srilm(source: Source, *, scores: Mapping[str, ScoreFolder] = NO_SCORES) -> Lists:
    """Yield the list of each file, or the error if it is invalid.

    The streams are ``acoustic`` and ``lm``, or ``first_pass`` in NBestList1.0, or all three in NBestList2.0.
    The number of words, which may include pauses, becomes the field ``nwords`` of the hypothesis. In
    NBestList2.0, the words become the field ``words``, with times as in a ctm and scores in bytelogs. An id
    may contain spaces.

    Args:
        scores: Folders of additional streams, by stream name.

    Raises:
        ConfigError: a name in ``scores`` clashes with an existing stream.
        FormatError: the source cannot be opened or has no name, or a folder of ``scores`` does not exist.
    """
    for score in scores.values():
        if not score.folder.is_dir():
            raise FormatError("the folder of scores does not exist", file=str(score.folder))
    yield from read_single_list_files(source, lambda list_id, path: _read_srilm_file(list_id, path, scores))


def _read_srilm_file(list_id: str, path: Path, scores: Mapping[str, ScoreFolder]) -> NBestList | InputError:
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
    return build_list(list_id, rows, units, str(path))


RowParser = Callable[[str, int], Row]
"""Parses a line, given its number; raises ValueError if it is invalid."""


def _read_rows(path: Path, parsers: Mapping[str, RowParser]) -> tuple[str, list[Row]]:
    """Return the header of a file, which says how it is parsed, and its hypotheses.

    Raises:
        FormatError: a line cannot be read.
    """
    header, rows = "", list[Row]()
    for line, text in read_lines_strict(path):
        if line == 1 and text.strip() in parsers:
            header = text.strip()
        elif text.strip():
            try:
                rows.append(parsers[header](text, line))
            except ValueError as error:
                raise FormatError(str(error), file=str(path), line=line) from None
    return header, rows


def looks_like_nbestlist1(sample: Sample) -> str:
    """Return the evidence that a file or folder is in NBestList1.0 format, or an empty string."""
    return f"the first line {NBESTLIST1_HEADER}" if sample.first == NBESTLIST1_HEADER else ""


def looks_like_nbestlist2(sample: Sample) -> str:
    """Return the evidence that a file or folder is in NBestList2.0 format, or an empty string."""
    return f"the first line {NBESTLIST2_HEADER}" if sample.first == NBESTLIST2_HEADER else ""


def looks_like_columns(sample: Sample) -> str:
    """Return the evidence that a file or folder has columns of scores, or an empty string."""
    if not sample.lines or not all(has_scores(split_words(line)) for line in sample.lines):
        return ""
    if all(map(ends_with_id, sample.lines)):  # numbers that were spoken, in a trn
        return ""
    return "lines of two scores, a count and words"


def _parse_columns(text: str, line: int) -> Row:
    columns = split_words(text)
    if len(columns) < 3 or not COUNT.fullmatch(columns[2]):
        raise ValueError("expected log10 acoustic, log10 LM, number of words, words")
    acoustic, lm, nwords, *words = columns
    scores = {"acoustic": parse_number(acoustic), "lm": parse_number(lm)}
    return Row(" ".join(words), scores, {"nwords": int(nwords)}, line)


def _parse_nbestlist1(text: str, line: int) -> Row:
    match = SCORE_AND_WORDS.fullmatch(text)
    if not match:
        raise ValueError("expected (score) words")
    return Row(" ".join(split_words(match[2])), {"first_pass": parse_number(match[1])}, {}, line)


def _parse_nbestlist2(text: str, line: int) -> Row:
    """Parse words with times and scores, skipping the phones and HMM states inside the previous word."""
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
        missing: Log10 score for lists that lack one of these streams; None: such lists are rejected.
        scores: Folders for additional streams, which every list must have.
    """
    return _writer(target, scores, lambda nbest: _format_columns(nbest, missing))


def nbestlist1_writer(target: str | Path, *, scores: Mapping[str, ScoreFolder] = NO_SCORES) -> ListWriter:
    """Write one NBestList1.0 file per list into a folder, with ``first_pass`` rounded to whole bytelogs."""
    return _writer(target, scores, _format_nbestlist1)


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
        missing: Bytelog score for lists that lack one of these streams; None: such lists are rejected.
        scores: Folders for additional streams, which every list must have.
    """
    return _writer(target, scores, lambda nbest: _format_nbestlist2(nbest, missing))


@contextmanager
def _writer(
    target: str | Path, scores: Mapping[str, ScoreFolder], format_lines: Callable[[NBestList], Iterator[str]]
) -> Iterator[Write]:
    folder = make_folder(target)
    for score in scores.values():
        make_folder(score.folder)

    def write(nbest: NBestList) -> None:
        lines_by_folder = {folder: list(format_lines(nbest))}
        for name, score in scores.items():
            lines_by_folder[score.folder] = list(map(repr, stream_from_nats(nbest, name, score.units)))
        with create_files(list(lines_by_folder), nbest.id) as streams:
            for stream, lines in zip(streams, lines_by_folder.values(), strict=True):
                stream.writelines(f"{line}\n" for line in lines)

    yield write


def _format_columns(nbest: NBestList, missing: float | None) -> Iterator[str]:
    scores = (stream_from_nats(nbest, name, units, missing) for name, units in COLUMN_STREAMS.items())
    for hypothesis, text, acoustic, lm in zip(nbest.hypotheses, format_texts(nbest), *scores, strict=True):
        yield f"{acoustic!r} {lm!r} {count_words(hypothesis)} {text}".rstrip(" ")


def _format_nbestlist1(nbest: NBestList) -> Iterator[str]:
    yield NBESTLIST1_HEADER
    for text, score in zip(format_texts(nbest), stream_from_nats(nbest, "first_pass", BYTELOG), strict=True):
        yield f"({round(score)}) {text}".rstrip(" ")


def _format_nbestlist2(nbest: NBestList, missing: float | None) -> Iterator[str]:
    yield NBESTLIST2_HEADER
    texts = format_texts(nbest)
    scores = {name: stream_from_nats(nbest, name, units, missing) for name, units in BYTELOG_STREAMS.items()}
    for index, text in enumerate(texts):
        words = get_word_times(nbest, index)
        if " ".join(word["word"] for word in words) != text:
            message = "differ from the words of the text"
            raise InvalidList(message, list_id=nbest.id, hypothesis=index, field=WORDS_FIELD)
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
        yield " ".join([f"({round(scores['first_pass'][index])})", *tokens])


def _get_word_scores(nbest: NBestList, index: int, name: str, total: float) -> list[int]:
    """Return a stream's score of each word of a hypothesis, in whole bytelogs.

    Args:
        total: Score of the hypothesis, which the word scores must sum to.
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
    """Yield the list of each file, or the error if it is invalid; every feature becomes a stream.

    The words begin after the leading columns of the form ``NAME=VALUE``. A first word that contains ``=`` is
    indistinguishable from a feature, so its list is rejected.

    Args:
        base: Base of all features. Counts are converted like scores; the weight of such a feature compensates
            for the conversion.
        sign: Sign of all features, ``log_prob`` or ``cost``.

    Raises:
        ConfigError: the base is missing, or the base or sign is unknown.
        FormatError: the source cannot be opened, or has no name.
    """
    units = _parse_units(base, sign)  # outside the generator, to raise before the first list is requested
    return read_single_list_files(source, lambda list_id, path: _read_srinterp_file(list_id, path, units))


def _read_srinterp_file(list_id: str, path: Path, units: Units) -> NBestList | InputError:
    _, rows = _read_rows(path, {"": _parse_row})
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


def looks_like_srinterp(sample: Sample) -> str:
    """Return the evidence that a file or folder has this format, or an empty string."""
    try:
        rows = [_parse_row(line, 0) for line in sample.lines]
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
        ConfigError: as for ``read_lists``.
    """
    units = _parse_units(base, sign)
    return folder_writer(target, lambda nbest: _format_lines(nbest, units))


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

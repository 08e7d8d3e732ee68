"""Owns SRILM's n-best files (nbest-format(5)): one file an utterance, its name the id, alone or in a folder.

    -2301.5 -18.42 4 yeah well my sue              three columns: log10 acoustic, log10 LM, number of words
    NBestList1.0, then (-103298) yeah well my sue                  one fused score in bytelogs
    NBestList2.0, then (-103298) yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 ) …     and those of words

The first line tells which. A bytelog b is ln p = b·1024/10000.5 (SRILM's Prob.h). Further scores may
lie in folders beside (``score_folders.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import (
    Row,
    Write,
    build_list,
    count_words,
    format_texts,
    parse_number,
    split_words,
    stream_from_nats,
)
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, read_lines
from rescorer.formats.io.utterance_folder import create_files, make_folder, read_single_list_files
from rescorer.formats.nbest.score_folders import ScoreFolder, read_scores, score_lines
from rescorer.formats.score_units import Units
from rescorer.formats.word_times import TIME_DECIMALS, WORDS_FIELD, get_word_times, is_finite_number
from rescorer.types import NBestList

LOG10, BYTELOG = Units("10"), Units("bytelog")
COLUMNS = {"acoustic": LOG10, "lm": LOG10}
BYTELOGS = {"first_pass": BYTELOG, "acoustic": BYTELOG, "lm": BYTELOG}
NO_SCORES: Mapping[str, ScoreFolder] = MappingProxyType({})
FUSED_HEADER, WORDS_HEADER = "NBestList1.0", "NBestList2.0"

COUNT = re.compile("[0-9]{1,9}")
FUSED = re.compile(r"\s*\(\s*((?:[^\s()]|\([^\s()]*\))+)\s*\)\s*(.*)")
TOKEN_FIELDS = 11
"""Of a word in 2.0: ``yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 )``."""
TOKEN_FRAME = ("(", "st:", "et:", "g:", "a:", ")")
FRAME_S = 0.01
"""``et:`` is where a word's last frame begins (SRILM's NBest.cc)."""
STATE = re.compile(r"-[0-9]$")
"""What HMM states end in, which 2.0 writes among the words."""


def read_lists(
    source: Source, *, scores: Mapping[str, ScoreFolder] = NO_SCORES
) -> Iterator[NBestList | InputError]:
    """Yields each file's list, or what is wrong with it.

    Streams are ``acoustic`` and ``lm``; in 1.0 ``first_pass``, the fused score; in 2.0 all three. The third
    column stays in the hypothesis as ``nwords`` (it may count pauses), the words of 2.0 as ``words``, with
    their times as a ctm has them and their bytelog scores. An id may hold spaces.

    Args:
        scores: further streams, each from a folder with a file a list.

    Raises:
        ConfigError: ``scores`` has a name that the lists use themselves.
        FormatError: the source cannot be opened, or has no name; a folder of ``scores`` is not there.
    """
    for each in scores.values():
        if not each.folder.is_dir():
            raise FormatError("no such folder of scores", file=str(each.folder))
    yield from read_single_list_files(source, lambda list_id, path: _read_file(list_id, path, scores))


def _read_file(list_id: str, path: Path, scores: Mapping[str, ScoreFolder]) -> NBestList | InputError:
    rows: list[Row] = []
    header = ""
    for line, text in read_lines(path):
        if isinstance(text, FormatError):
            return text
        if line == 1 and text.strip() in _parsers:
            header = text.strip()
        elif text.strip():
            try:
                rows.append(_parsers[header](text, line))
            except ValueError as fault:
                raise FormatError(str(fault), file=str(path), line=line) from None
    units = BYTELOGS if header else COLUMNS
    if twice := units.keys() & scores.keys():
        raise ConfigError(f"{path}: has a stream {min(twice)} of its own; give scores= another name")
    further = read_scores(scores, list_id, len(rows)) if rows else {}
    for name, values in further.items():
        rows = [replace(row, scores={**row.scores, name: v}) for row, v in zip(rows, values, strict=True)]
    return build_list(list_id, rows, units | {name: each.units for name, each in scores.items()}, str(path))


def looks_fused(sample: Sample) -> str:
    """What says that a file or folder is NBestList1.0; empty where nothing does."""
    return f"the first line {FUSED_HEADER}" if sample.first == FUSED_HEADER else ""


def looks_like_words(sample: Sample) -> str:
    """What says that a file or folder is NBestList2.0; empty where nothing does."""
    return f"the first line {WORDS_HEADER}" if sample.first == WORDS_HEADER else ""


def looks_like_columns(sample: Sample) -> str:
    """What says that a file or folder has three columns; empty where nothing does."""
    columns = [split_words(line)[:3] for line in sample.lines]
    for each in columns:
        if len(each) < 3 or isinstance(parse_number(each[0]), str) or isinstance(parse_number(each[1]), str):
            return ""
        if not COUNT.fullmatch(each[2]):
            return ""
    return "lines of two scores, a count and words" if columns else ""


def _columns(text: str, line: int) -> Row:
    columns = split_words(text)
    if len(columns) < 3 or not COUNT.fullmatch(columns[2]):
        raise ValueError("expected log10 acoustic, log10 LM, number of words, words")
    acoustic, lm, nwords, *words = columns
    scores = {"acoustic": parse_number(acoustic), "lm": parse_number(lm)}
    return Row(" ".join(words), scores, {"nwords": int(nwords)}, line)


def _fused(text: str, line: int) -> Row:
    match = FUSED.fullmatch(text)
    if not match:
        raise ValueError("expected (score) words")
    return Row(" ".join(split_words(match[2])), {"first_pass": parse_number(match[1])}, {}, line)


def _tokens(text: str, line: int) -> Row:
    """Words with times; their phones and states, which lie inside the word before, are left out."""
    fused = _fused(text, line)
    columns = split_words(fused.text)
    words: list[dict[str, float | str]] = []
    end_s = -math.inf
    for place in range(0, len(columns), TOKEN_FIELDS):
        token = columns[place : place + TOKEN_FIELDS]
        if len(token) < TOKEN_FIELDS or (token[1], *token[2:10:2], token[10]) != TOKEN_FRAME:
            raise ValueError(f"expected WORD ( st: T et: T g: B a: B ), not {' '.join(token)!r}")
        start, end, lm, acoustic = (float(parse_number(value)) for value in token[3:10:2])
        if not all(map(math.isfinite, (start, end, lm, acoustic))):
            raise ValueError(f"expected finite numbers, not {' '.join(token)!r}")
        if STATE.search(token[0]) or start <= end_s:
            continue
        end_s = end
        times = {"start_s": start, "duration_s": round(end - start + FRAME_S, TIME_DECIMALS)}
        words.append({"word": token[0], **times, "lm": lm, "acoustic": acoustic})
    scores = dict(fused.scores)
    for name in ("acoustic", "lm"):
        scores[name] = math.fsum(float(word[name]) for word in words)
    return Row(" ".join(str(word["word"]) for word in words), scores, {WORDS_FIELD: words}, line)


_parsers = {"": _columns, FUSED_HEADER: _fused, WORDS_HEADER: _tokens}


def writer(
    target: str | Path, *, missing: float | None = None, scores: Mapping[str, ScoreFolder] = NO_SCORES
) -> AbstractContextManager[Write]:
    """Writes a file of three columns a list into a folder, from the streams ``acoustic`` and ``lm``.

    Args:
        missing: log10 score where a list has no such stream; None: it is refused.
        scores: folders for further streams, which every list must have.
    """
    return _writer(target, scores, lambda nbest: _column_lines(nbest, missing))


def fused_writer(
    target: str | Path, *, scores: Mapping[str, ScoreFolder] = NO_SCORES
) -> AbstractContextManager[Write]:
    """Writes a file of NBestList1.0 a list into a folder, from ``first_pass``, rounded to whole bytelogs."""
    return _writer(target, scores, _fused_lines)


def words_writer(
    target: str | Path, *, missing: float | None = None, scores: Mapping[str, ScoreFolder] = NO_SCORES
) -> AbstractContextManager[Write]:
    """Writes a file of NBestList2.0 a list into a folder, in whole bytelogs, from the streams ``first_pass``,
    ``acoustic`` and ``lm`` and the times in the field ``words``.

    Where words have no scores of their own there, the first of them gets that of the hypothesis. A list is
    refused whose words have no times, overlap, or are called like HMM states; or whose scores are not the
    sums of its words'.

    Args:
        missing: bytelog score where a list has no such stream; None: it is refused.
    """
    return _writer(target, scores, lambda nbest: _token_lines(nbest, missing))


@contextmanager
def _writer(
    target: str | Path,
    scores: Mapping[str, ScoreFolder],
    lines_of: Callable[[NBestList], Iterator[str]],
) -> Iterator[Write]:
    folder = make_folder(target)
    for each in scores.values():
        make_folder(each.folder)
    yield lambda nbest: _write(nbest, {folder: list(lines_of(nbest))} | score_lines(scores, nbest))


def _write(nbest: NBestList, lines: Mapping[Path, list[str]]) -> None:
    with create_files(list(lines), nbest.id) as streams:
        for stream, text in zip(streams, lines.values(), strict=True):
            stream.writelines(f"{line}\n" for line in text)


def _column_lines(nbest: NBestList, missing: float | None) -> Iterator[str]:
    scores = (stream_from_nats(nbest, name, units, missing) for name, units in COLUMNS.items())
    for hypothesis, text, acoustic, lm in zip(nbest.hypotheses, format_texts(nbest), *scores, strict=True):
        yield f"{acoustic!r} {lm!r} {count_words(hypothesis)} {text}".rstrip(" ")


def _fused_lines(nbest: NBestList) -> Iterator[str]:
    yield FUSED_HEADER
    for text, score in zip(format_texts(nbest), stream_from_nats(nbest, "first_pass", BYTELOG), strict=True):
        yield f"({round(score)}) {text}".rstrip(" ")


def _token_lines(nbest: NBestList, missing: float | None) -> Iterator[str]:
    yield WORDS_HEADER
    texts = format_texts(nbest)
    scores = {name: stream_from_nats(nbest, name, units, missing) for name, units in BYTELOGS.items()}
    for index, text in enumerate(texts):
        words = get_word_times(nbest, index)
        if " ".join(each["word"] for each in words) != text:
            message = "are not the words of the text; expected the same"
            raise InvalidList(message, list_id=nbest.id, hypothesis=index, field=WORDS_FIELD)
        of_words = [_of_words(nbest, index, name, scores[name][index]) for name in ("lm", "acoustic")]
        tokens = []
        end_s = -math.inf
        for each, lm, acoustic in zip(words, *of_words, strict=True):
            start = round(float(each["start_s"]), TIME_DECIMALS)
            if STATE.search(each["word"]) or start <= end_s:
                message = f"{each['word']!r} at {start!r} s would be read as a phone of the word before"
                raise InvalidList(message, list_id=nbest.id, hypothesis=index, field=WORDS_FIELD)
            end_s = round(start + each["duration_s"] - FRAME_S, TIME_DECIMALS)
            tokens.append(f"{each['word']} ( st: {start!r} et: {end_s!r} g: {lm} a: {acoustic} )")
        yield " ".join([f"({round(scores['first_pass'][index])})", *tokens])


def _of_words(nbest: NBestList, index: int, name: str, total: float) -> list[int]:
    """A stream's scores of the words, in whole bytelogs."""
    own = [each.get(name) for each in get_word_times(nbest, index)]
    numbers = [round(value) for value in own if value is not None and is_finite_number(value)]
    if len(numbers) < len(own):
        numbers = [round(total)] + [0] * (len(own) - 1)
    if abs(sum(numbers) - total) > (len(numbers) + 1) / 2:
        message = f"the words' scores are {sum(numbers)} bytelogs together, the hypothesis's {total:g}"
        raise InvalidList(message, list_id=nbest.id, hypothesis=index, field=name)
    return numbers

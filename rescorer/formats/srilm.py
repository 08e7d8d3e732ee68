"""Owns SRILM's n-best files (nbest-format(5)): one file an utterance, its name the id, alone or in a folder.

    -2301.5 -18.42 4 yeah well my sue              three columns: log10 acoustic, log10 LM, number of words
    NBestList1.0, then (-103298) yeah well my sue                  one fused score in bytelogs
    NBestList2.0, then (-103298) yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 ) …     and those of words

The first line tells which. A bytelog b is ln p = b·1024/10000.5 (SRILM's Prob.h).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, get_args

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.formats.folders import make_folder, new_file, utterance_files
from rescorer.formats.rows import Row, Write, line_texts, list_of, number, stream_of, words_of
from rescorer.formats.source import Source, read_lines
from rescorer.formats.streams import Units
from rescorer.types import NBestList

Version = Literal["columns", "1.0"]
LOG10, BYTELOG = Units("10"), Units("bytelog")
COLUMNS = {"acoustic": LOG10, "lm": LOG10}
BYTELOGS = {"first_pass": BYTELOG, "acoustic": BYTELOG, "lm": BYTELOG}
HEADERS = ("NBestList1.0", "NBestList2.0")

FUSED = re.compile(r"\s*\(\s*(\S+?)\s*\)\s*(.*)")
TOKEN_FIELDS = 11
"""Of a word in 2.0: ``yeah ( st: 0.49 et: 0.94 g: -320 a: -8634 )``."""
TOKEN_FRAME = ("(", "st:", "et:", "g:", "a:", ")")
STATE = re.compile(r"-[0-9]$")
"""What HMM states end in, which 2.0 writes among the words."""


def read_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yields each file's list, or what is wrong with it.

    Streams are ``acoustic`` and ``lm``; in 1.0 ``first_pass``, the fused score; in 2.0 all three. The third
    column stays in the hypothesis as ``nwords`` (it may count pauses), the words of 2.0 with their times (s)
    and bytelog scores as ``words``. An id may hold spaces.

    Raises:
        FormatError: the source cannot be opened, or has no name.
    """
    seen: dict[str, Path] = {}
    for list_id, path in utterance_files(source):
        if list_id in seen:
            yield FormatError(f"the list {list_id!r} is in {seen[list_id]} too", file=str(path))
            continue
        seen[list_id] = path
        try:
            yield _read_file(list_id, path)
        except FormatError as fault:
            yield fault


def _read_file(list_id: str, path: Path) -> NBestList | InputError:
    rows: list[Row] = []
    header = ""
    for line, text in read_lines(path):
        if isinstance(text, FormatError):
            return text
        if line == 1 and text.strip() in HEADERS:
            header = text.strip()
        elif text.strip():
            try:
                rows.append(_parsers[header](text, line))
            except ValueError as fault:
                raise FormatError(str(fault), file=str(path), line=line) from None
    return list_of(list_id, rows, BYTELOGS if header else COLUMNS, str(path))


def _columns(text: str, line: int) -> Row:
    columns = words_of(text)
    if len(columns) < 3 or not re.fullmatch("[0-9]{1,9}", columns[2]):
        raise ValueError("expected log10 acoustic, log10 LM, number of words, words")
    acoustic, lm, nwords, *words = columns
    scores = {"acoustic": number(acoustic), "lm": number(lm)}
    return Row(" ".join(words), scores, {"nwords": int(nwords)}, line)


def _fused(text: str, line: int) -> Row:
    match = FUSED.fullmatch(text)
    if not match:
        raise ValueError("expected (score) words")
    return Row(" ".join(words_of(match[2])), {"first_pass": number(match[1])}, {}, line)


def _tokens(text: str, line: int) -> Row:
    """Words with times; their phones and states, which lie inside the word before, are left out."""
    fused = _fused(text, line)
    columns = words_of(fused.text)
    words: list[dict[str, float | str]] = []
    end_s = -math.inf
    for place in range(0, len(columns), TOKEN_FIELDS):
        token = columns[place : place + TOKEN_FIELDS]
        if len(token) < TOKEN_FIELDS or (token[1], *token[2:10:2], token[10]) != TOKEN_FRAME:
            raise ValueError(f"expected WORD ( st: T et: T g: B a: B ), not {' '.join(token)!r}")
        start, end, lm, acoustic = (float(number(value)) for value in token[3:10:2])
        if not all(map(math.isfinite, (start, end, lm, acoustic))):
            raise ValueError(f"expected finite numbers, not {' '.join(token)!r}")
        if STATE.search(token[0]) or start <= end_s:
            continue
        end_s = end
        words.append({"word": token[0], "start": start, "end": end, "lm": lm, "acoustic": acoustic})
    scores = dict(fused.scores)
    for name in ("acoustic", "lm"):
        scores[name] = math.fsum(float(word[name]) for word in words)
    return Row(" ".join(str(word["word"]) for word in words), scores, {"words": words}, line)


_parsers = {"": _columns, HEADERS[0]: _fused, HEADERS[1]: _tokens}


@contextmanager
def writer(
    target: str | Path, *, version: Version = "columns", missing: float | None = None
) -> Iterator[Write]:
    """Writes a file a list into a folder.

    Args:
        version: ``columns``, from the streams ``acoustic`` and ``lm``; ``1.0``, from ``first_pass``, rounded
            to whole bytelogs.
        missing: score where a list has no such stream; None: it is refused.

    Raises:
        ConfigError: no such version.
    """
    if version not in get_args(Version):
        raise ConfigError(f"SRILM version {version!r}: can write {', '.join(get_args(Version))}")
    folder = make_folder(target)
    lines = _column_lines if version == "columns" else _fused_lines

    def write(nbest: NBestList) -> None:
        whole = "".join(f"{line}\n" for line in lines(nbest, missing))
        with new_file(folder, nbest.id) as stream:
            stream.write(whole)

    yield write


def _column_lines(nbest: NBestList, missing: float | None) -> Iterator[str]:
    scores = (stream_of(nbest, name, units, missing) for name, units in COLUMNS.items())
    for hypothesis, text, acoustic, lm in zip(nbest.hypotheses, line_texts(nbest), *scores, strict=True):
        nwords = hypothesis.fields.get("nwords")
        if not isinstance(nwords, int) or isinstance(nwords, bool) or nwords < 0:
            nwords = len(words_of(text))
        yield f"{acoustic!r} {lm!r} {nwords} {text}".rstrip(" ")


def _fused_lines(nbest: NBestList, missing: float | None) -> Iterator[str]:
    yield HEADERS[0]
    scores = stream_of(nbest, "first_pass", BYTELOG, missing)
    for text, score in zip(line_texts(nbest), scores, strict=True):
        yield f"({round(score)}) {text}".rstrip(" ")

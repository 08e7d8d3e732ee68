"""Read and write NIST's text files: transcripts (trn), words with times (ctm); read segments (stm).

The syntax is that of sclite's manual, https://github.com/usnistgov/SCTK/blob/master/doc/infmts.htm:

- trn: ``words (id)``
- ctm: ``file channel start duration word [confidence]``
- stm: ``file channel speaker start end [<labels>] words``

Times are in seconds. Lines that begin with ``;;`` are comments; in a ctm, ``;`` is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import (
    LINE_BREAK,
    WORD_SEPARATOR,
    Write,
    format_texts,
    parse_finite,
    split_words,
)
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, open_output, read_lines, read_lines_strict, source_name
from rescorer.formats.word_times import NUMBER_KEYS, WORDS_FIELD, get_word_times
from rescorer.types import Hypothesis, NBestList

COMMENT = ";;"
IGNORED_TEXT = "ignore_time_segment_in_scoring"
"""Text of an stm segment that is excluded from scoring, in lower case."""
TRN_LINE = re.compile(r"(.*)\(([^()]+)\)\s*")
CTM_LINE = re.compile(r"\s*\S+(\s+\S+)(\s+[\d.]+(e-?\d+)?){2}\s+[^\s\d]\S*(\s+\S+){0,2}\s*")
"""The word must not begin with a digit, because a line of SRILM scores would match otherwise."""
LABELS = re.compile(r"<\S*(\s+|$)")


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A line of a ctm file."""

    file: str
    channel: str
    start_s: float
    duration_s: float
    word: str
    confidence: float | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A line of an stm file."""

    file: str
    channel: str
    speaker: str
    start_s: float
    end_s: float
    text: str
    labels: str = ""

    @property
    def is_ignored(self) -> bool:
        """Whether speech in this segment is excluded from scoring."""
        return IGNORED_TEXT in self.text.lower()


def parse_trn(text: str) -> tuple[str, str] | None:
    """Return the id and the words of a trn line, or None if it does not end with an id in parentheses."""
    match = TRN_LINE.fullmatch(text)
    return (match[2].strip(), match[1].strip()) if match and match[2].strip() else None


def read_ctm(source: Source) -> Iterator[TimedWord]:
    """Yield the words of a ctm in file order.

    Raises:
        FormatError: If a line cannot be read, or contains alternatives (``<ALT_BEGIN>``), which are not
            supported; the error names the file, the line and the field.
    """
    name = source_name(source)
    for line, text in _read_content_lines(source, ";"):
        columns = split_words(text)
        if not 5 <= len(columns) <= 7:
            message = (
                f"expected file, channel, start, duration, word [confidence], got {len(columns)} columns"
            )
            raise FormatError(message, file=name, line=line)
        file, channel, start, duration, word = columns[:5]
        if word.upper().startswith("<ALT"):
            raise FormatError("alternatives in a ctm are not supported", file=name, line=line, field="word")
        confidence = columns[5] if len(columns) > 5 and columns[5].upper() != "NA" else None
        yield TimedWord(
            file,
            channel,
            _parse_seconds(start, name, line, "start"),
            _parse_seconds(duration, name, line, "duration"),
            word,
            None if confidence is None else _parse_field(confidence, name, line, "confidence"),
        )


def read_stm(source: Source) -> Iterator[Segment]:
    """Yield the segments of an stm in file order.

    Raises:
        FormatError: If a line cannot be read; the error names the file, the line and the field.
    """
    name = source_name(source)
    for line, text in _read_content_lines(source):
        yield parse_stm(text, name, line)


def parse_stm(text: str, file: str, line: int) -> Segment:
    """Parse a line of an stm.

    Raises:
        FormatError: If the line cannot be read.
    """
    columns = WORD_SEPARATOR.split(text.strip(), 5)
    if len(columns) < 5:
        message = f"expected file, channel, speaker, start, end, words, got {len(columns)} columns"
        raise FormatError(message, file=file, line=line)
    start = _parse_seconds(columns[3], file, line, "start")
    end = _parse_seconds(columns[4], file, line, "end")
    if end < start:
        message = f"{end:g} is before the start, {start:g}"
        raise FormatError(message, file=file, line=line, field="end")
    words = columns[5].strip() if len(columns) > 5 else ""
    labels = LABELS.match(words)
    cut = labels.end() if labels else 0
    return Segment(columns[0], columns[1], columns[2], start, end, words[cut:], words[:cut].strip())


def is_stm(name: str) -> bool:
    """Return whether a file name ends with ``.stm`` or ``.stm.gz``."""
    return name.lower().removesuffix(".gz").endswith(".stm")


def read_trn_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield each line of a trn file as a list with one hypothesis, or the line's error."""
    name = source_name(source)
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield text
        elif text.strip() and not text.startswith(COMMENT):
            entry = parse_trn(text)
            if entry is None:
                yield FormatError("expected words (id)", file=name, line=line)
            else:
                yield NBestList(entry[0], (Hypothesis(entry[1]),))


def read_ctm_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Yield one list with one hypothesis per file and channel, with word times in the field ``words``.

    All words of a channel must be adjacent. Reading stops at the first line that cannot be read: its error is
    yielded last.
    """
    words: list[TimedWord] = []
    try:
        for word in read_ctm(source):
            if words and (word.file, word.channel) != (words[0].file, words[0].channel):
                yield _build_channel_list(words)
                words = []
            words.append(word)
    except FormatError as error:
        yield error
    else:
        if words:
            yield _build_channel_list(words)


def _build_channel_list(words: list[TimedWord]) -> NBestList:
    times = [
        {"word": word.word, "start_s": word.start_s, "duration_s": word.duration_s}
        | ({} if word.confidence is None else {"confidence": word.confidence})
        for word in words
    ]
    text = " ".join(word.word for word in words)
    return NBestList(f"{words[0].file} {words[0].channel}", (Hypothesis(text, {WORDS_FIELD: times}),))


@contextmanager
def trn_writer(target: str | Path) -> Iterator[Write]:
    """Write the first hypothesis of each list; reject an id with a parenthesis or a line break."""
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            if not nbest.id.strip() or re.search(r"[()\n\r\0]", nbest.id):
                message = "expected a non-empty id without parentheses and line breaks"
                raise InvalidList(message, list_id=nbest.id, field="id")
            stream.write(f"{format_texts(nbest)[0]} ({nbest.id})\n".lstrip())

        yield write


@contextmanager
def ctm_writer(target: str | Path) -> Iterator[Write]:
    """Write the first hypothesis of each list from its field ``words``; the id names file and channel."""
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            for word in _get_timed_words(nbest):
                confidence = "" if word.confidence is None else f" {word.confidence!r}"
                times = f"{word.start_s!r} {word.duration_s!r}"
                stream.write(f"{word.file} {word.channel} {times} {word.word}{confidence}\n")

        yield write


def parse_channel(nbest: NBestList) -> tuple[str, str]:
    """Return the file and the channel that a list's id names; the channel is ``1`` if the id names only a
    file.

    Raises:
        InvalidList: If the id is not one or two words.
    """
    parts = split_words(nbest.id)
    if not 1 <= len(parts) <= 2 or LINE_BREAK.search(nbest.id) or parts[0].startswith(";"):
        message = "expected the name of a file, optionally followed by a channel"
        raise InvalidList(message, list_id=nbest.id, field="id")
    return parts[0], parts[1] if parts[1:] else "1"


def _get_timed_words(nbest: NBestList) -> list[TimedWord]:
    file, channel = parse_channel(nbest)
    words = []
    for entry in get_word_times(nbest):
        numbers = {key: entry[key] for key in NUMBER_KEYS if entry.get(key) is not None}
        words.append(TimedWord(file, channel, word=entry["word"], **numbers))
    return words


def looks_like_trn(sample: Sample) -> str:
    """Return the evidence that a file is a trn, or an empty string."""
    lines = [text for text in sample.lines if not text.startswith(COMMENT)]
    fits = lines and not sample.is_folder and all(parse_trn(text) for text in lines)
    return "lines that end with an (id)" if fits and not sample.record else ""


def looks_like_ctm(sample: Sample) -> str:
    """Return the evidence that a file is a ctm, or an empty string."""
    lines = [text for text in sample.lines if not text.startswith(";")]
    fits = lines and not sample.is_folder and all(CTM_LINE.fullmatch(text) for text in lines)
    return "lines of file, channel, start, duration and word" if fits else ""


def _read_content_lines(source: Source, comment: str = COMMENT) -> Iterator[tuple[int, str]]:
    for line, text in read_lines_strict(source):
        if text.strip() and not text.startswith(comment):
            yield line, text


def _parse_field(text: str, file: str, line: int, field: str) -> float:
    try:
        return parse_finite(text)
    except ValueError:
        raise FormatError(f"expected a number, got {text!r}", file=file, line=line, field=field) from None


def _parse_seconds(text: str, file: str, line: int, field: str) -> float:
    value = _parse_field(text, file, line, field)
    if value < 0:
        message = f"expected a non-negative number of seconds, got {text!r}"
        raise FormatError(message, file=file, line=line, field=field)
    return value

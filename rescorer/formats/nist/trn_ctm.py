"""Owns NIST's text files: transcripts with ids (trn), words with times (ctm), references with times (stm).

Lines that begin with ``;;`` are comments, and so are those of a ctm that begin with ``;``. As in sclite's
documentation, a trn line is ``words (id)``; a ctm line ``file channel start duration word [confidence]``; an
stm line ``file channel speaker start end [<labels>] words``; times are in seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InputError, InvalidList
from rescorer.formats.common import BREAKS, SPACES, Write, finite, line_texts, words_of
from rescorer.formats.io.sniff import Sample
from rescorer.formats.io.text_io import Source, good_lines, open_output, read_lines, source_name
from rescorer.types import Hypothesis, NBestList

COMMENT = ";;"
IGNORED = "ignore_time_segment_in_scoring"
TRN = re.compile(r"(.*)\(([^()]+)\)\s*")
CTM = re.compile(r"\s*\S+(\s+\S+)(\s+[\d.]+(e-?\d+)?){2}\s+[^\s\d]\S*(\s+\S+){0,2}\s*")
"""Told from a line of scores by its word, which begins with no digit."""
LABELS = re.compile(r"<\S*(\s+|$)")
WORDS_FIELD = "words"
"""Field of a hypothesis with its words' times: objects with word, start_s, duration_s and confidence."""
TIMES = ("start_s", "duration_s")
TIME_DECIMALS = 6
"""Of durations, which are differences of times."""
NUMBERS = (*TIMES, "confidence")


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
    def ignored(self) -> bool:
        """What is said in this time is not scored."""
        return IGNORED in self.text.lower()


def parse_trn(text: str) -> tuple[str, str] | None:
    """Id and words of a line; None where it has no id in parentheses at its end."""
    match = TRN.fullmatch(text)
    return (match[2].strip(), match[1].strip()) if match and match[2].strip() else None


def read_ctm(source: Source) -> Iterator[TimedWord]:
    """The words in the order of the file.

    Raises:
        FormatError: a line cannot be read; names file, line and field. Alternatives, ``<ALT_BEGIN>``, are
            not read.
    """
    name = source_name(source)
    for line, text in _lines(source, ";"):
        columns = words_of(text)
        if not 5 <= len(columns) <= 7:
            message = (
                f"expected file, channel, start, duration, word [confidence], not {len(columns)} columns"
            )
            raise FormatError(message, file=name, line=line)
        file, channel, start, duration, word = columns[:5]
        if word.upper().startswith("<ALT"):
            raise FormatError("alternatives in a ctm are not read", file=name, line=line, field="word")
        confidence = columns[5] if len(columns) > 5 and columns[5].upper() != "NA" else None
        yield TimedWord(
            file,
            channel,
            _seconds(start, name, line, "start"),
            _seconds(duration, name, line, "duration"),
            word,
            None if confidence is None else _number(confidence, name, line, "confidence"),
        )


def read_stm(source: Source) -> Iterator[Segment]:
    """The segments in the order of the file.

    Raises:
        FormatError: a line cannot be read; names file, line and field.
    """
    name = source_name(source)
    for line, text in _lines(source):
        yield parse_stm(text, name, line)


def parse_stm(text: str, file: str, line: int) -> Segment:
    """The segment of a line; raises FormatError as ``read_stm``."""
    columns = SPACES.split(text.strip(), 5)
    if len(columns) < 5:
        message = f"expected file, channel, speaker, start, end, words, not {len(columns)} columns"
        raise FormatError(message, file=file, line=line)
    start = _seconds(columns[3], file, line, "start")
    end = _seconds(columns[4], file, line, "end")
    if end < start:
        raise FormatError(f"{end:g} is before the start, {start:g}", file=file, line=line, field="end")
    words = columns[5].strip() if len(columns) > 5 else ""
    labels = LABELS.match(words)
    cut = labels.end() if labels else 0
    return Segment(columns[0], columns[1], columns[2], start, end, words[cut:], words[:cut].strip())


def is_stm(name: str) -> bool:
    """Whether a file's name says that it is an stm."""
    return name.lower().removesuffix(".gz").endswith(".stm")


def read_trn_lists(source: Source) -> Iterator[NBestList | InputError]:
    """Each line of a trn file as a list with one hypothesis."""
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
    """The words of each file and channel as a list with one hypothesis, its times in the field ``words``.

    The words of a channel stand together. Nothing after a line that cannot be read is read.
    """
    words: list[TimedWord] = []
    try:
        for word in read_ctm(source):
            if words and (word.file, word.channel) != (words[0].file, words[0].channel):
                yield _channel_list(words)
                words = []
            words.append(word)
    except FormatError as fault:
        yield fault
    else:
        if words:
            yield _channel_list(words)


def _channel_list(words: list[TimedWord]) -> NBestList:
    times = [
        {"word": each.word, "start_s": each.start_s, "duration_s": each.duration_s}
        | ({} if each.confidence is None else {"confidence": each.confidence})
        for each in words
    ]
    text = " ".join(each.word for each in words)
    return NBestList(f"{words[0].file} {words[0].channel}", (Hypothesis(text, {WORDS_FIELD: times}),))


@contextmanager
def trn_writer(target: str | Path) -> Iterator[Write]:
    """Writes the first hypothesis of each list; refuses an id that holds a parenthesis or a line break."""
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            if not nbest.id.strip() or re.search(r"[()\n\r\0]", nbest.id):
                raise InvalidList("expected an id without parentheses", list_id=nbest.id, field="id")
            stream.write(f"{line_texts(nbest)[0]} ({nbest.id})\n".lstrip())

        yield write


@contextmanager
def ctm_writer(target: str | Path) -> Iterator[Write]:
    """Writes the first hypothesis of each list by its field ``words``; the id is its file and channel."""
    with open_output(target) as stream:

        def write(nbest: NBestList) -> None:
            for word in timed_words(nbest):
                confidence = "" if word.confidence is None else f" {word.confidence!r}"
                times = f"{word.start_s!r} {word.duration_s!r}"
                stream.write(f"{word.file} {word.channel} {times} {word.word}{confidence}\n")

        yield write


def channel_of(nbest: NBestList) -> tuple[str, str]:
    """File and channel that a list's id tells, the channel 1 where it has one word.

    Raises:
        InvalidList: it is not one or two words.
    """
    place = words_of(nbest.id)
    if not 1 <= len(place) <= 2 or BREAKS.search(nbest.id) or place[0].startswith(";"):
        message = "expected a file's name, or that and a channel's"
        raise InvalidList(message, list_id=nbest.id, field="id")
    return place[0], place[1] if place[1:] else "1"


def timed_words(nbest: NBestList) -> list[TimedWord]:
    """The words of the first hypothesis with their times.

    Raises:
        InvalidList: as ``channel_of`` and ``times_of``.
    """
    file, channel = channel_of(nbest)
    found = []
    for each in times_of(nbest):
        numbers = {name: each[name] for name in NUMBERS if each.get(name) is not None}
        found.append(TimedWord(file, channel, word=each["word"], **numbers))
    return found


def times_of(nbest: NBestList, index: int = 0) -> list[dict[str, Any]]:
    """The objects in a hypothesis's field ``words``, each with word, start_s and duration_s at least.

    Raises:
        InvalidList: it has words and no such field, or one that is no list of words with times.
    """

    def fault(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=nbest.id, hypothesis=index, field=field)

    hypothesis = nbest.hypotheses[index]
    times = hypothesis.fields.get(WORDS_FIELD, None if words_of(hypothesis.text) else [])
    if not isinstance(times, list):
        raise fault("expected the words with their times; the format cannot do without", WORDS_FIELD)
    for number, each in enumerate(times):
        values = each if isinstance(each, dict) else {}
        word = values.get("word")
        if not (isinstance(word, str) and words_of(word) == [word] and not BREAKS.search(word)):
            raise fault("expected a word", f"{WORDS_FIELD}[{number}].word")
        numbers = {name: values[name] for name in NUMBERS if values.get(name) is not None}
        if not {*TIMES} <= numbers.keys() or not all(map(is_finite, numbers.values())):
            raise fault("expected start_s, duration_s and confidence as numbers", f"{WORDS_FIELD}[{number}]")
        for name in TIMES:
            if numbers[name] < 0:
                wrong = f"expected seconds, 0 or more, not {numbers[name]!r}"
                raise fault(wrong, f"{WORDS_FIELD}[{number}].{name}")
    return times


def words_with_times(words: Sequence[str], spans: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    """What the field ``words`` holds of words that begin and end at these seconds."""
    return [
        {"word": word, "start_s": start, "duration_s": round(end - start, TIME_DECIMALS)}
        for word, (start, end) in zip(words, spans, strict=True)
    ]


def looks_like_trn(sample: Sample) -> str:
    """What says that a file is a trn; empty where nothing does."""
    lines = [text for text in sample.lines if not text.startswith(COMMENT)]
    fits = lines and not sample.is_folder and all(parse_trn(text) for text in lines)
    return "lines that end in an (id)" if fits and not sample.record else ""


def looks_like_ctm(sample: Sample) -> str:
    """What says that a file is a ctm; empty where nothing does."""
    lines = [text for text in sample.lines if not text.startswith(";")]
    fits = lines and not sample.is_folder and all(CTM.fullmatch(text) for text in lines)
    return "lines of file, channel, start, duration and word" if fits else ""


def is_finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _lines(source: Source, comment: str = COMMENT) -> Iterator[tuple[int, str]]:
    for line, text in good_lines(source):
        if text.strip() and not text.startswith(comment):
            yield line, text


def _number(text: str, file: str, line: int, field: str) -> float:
    try:
        return finite(text)
    except ValueError:
        raise FormatError(f"expected a number, not {text!r}", file=file, line=line, field=field) from None


def _seconds(text: str, file: str, line: int, field: str) -> float:
    value = _number(text, file, line, field)
    if value < 0:
        raise FormatError(f"expected seconds, 0 or more, not {text!r}", file=file, line=line, field=field)
    return value

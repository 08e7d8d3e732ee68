"""Read and write the files of NIST's scoring tools (trn, ctm, stm), and references by utterance id.

The syntax is that of sclite's manual, https://github.com/usnistgov/SCTK/blob/master/doc/infmts.htm:

- trn: ``words (id)``, or PocketSphinx's ``words (id score)``
- ctm: ``file channel start duration word [confidence]``
- stm: ``file channel speaker start end [<labels>] words``

Times are in seconds. Lines that begin with ``;;`` are comments; in a ctm, ``;`` is enough. A *recording* is
the words of one file and channel in a ctm. If a line of a ctm cannot be read, its whole recording is lost,
because a recording without one of its words would be counted wrongly; other recordings are not affected.

Each segment of an stm is a list, whose words are the only hypothesis. As in sclite, the id of the list is the
speaker and a number, starting at 000. The file, the channel, the times and the labels of the segment are
fields of the list, and the speaker is its group. A segment is excluded from scoring by its text only: the
speakers ``inter_segment_gap`` and ``excluded_region`` have no special meaning.

References are lines ``words (id)`` (NIST trn), ``id words`` (Kaldi's ``text``) or ``id<TAB>text`` (further
columns are ignored); or they are JSON: an object per line, an array of objects, or one object of texts by id.
The objects may be segments of meeteval. Lines that are blank or comments (``;;``) do not count. Groups are
JSON or Kaldi's ``utt2spk``.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rescorer.errors import FormatError, InvalidList, quote
from rescorer.formats import json_documents
from rescorer.formats.common import (
    LINE_BREAK,
    STREAM,
    WORD_SEPARATOR,
    ListSize,
    ListWriter,
    format_texts,
    line_writer,
    parse_finite,
    parse_number,
    split_words,
)
from rescorer.formats.fields import NUMBER_KEYS, WORDS_FIELD, get_word_times, is_finite_number
from rescorer.formats.io.folders import COMMENT, Lists, Sample, ends_with_id
from rescorer.formats.io.json_io import describe_type, parse_object
from rescorer.formats.io.text_io import EncodingError, Source, read_lines, read_lines_strict, source_name
from rescorer.types import Hypothesis, NBestList

Channel = tuple[str, str]
"""Name of a file and name of a channel in that file, such as ``("sw4390", "A")``."""
IGNORED_TEXT = "ignore_time_segment_in_scoring"
"""The text, in lower case, by which a segment of an stm is excluded from scoring."""
IGNORED_TEXTS = (IGNORED_TEXT, IGNORED_TEXT.replace("_", ""))
BEGIN, SEPARATOR, END = TAGS = ("<ALT_BEGIN>", "<ALT>", "<ALT_END>")
"""Words of a ctm that begin, separate and end alternatives; their times are ``*``."""
TOKEN_TYPES = frozenset({"lex", "frag", "fp", "un-lex", "for-lex", "non-lex", "misc", "noscore"})
"""Types of words in the seventh column of a ctm. Lines with a type have the speaker in the eighth column."""
NOT_AVAILABLE = frozenset({"NA", "<NA>"})
"""Values by which a ctm says that a confidence is not known."""
TRN_LINE = re.compile(r"(.*)\(([^()]+)\)\s*")
SCORED_ID = re.compile(r"(\S+)[ \t]+(-\d{3,})")
"""Matches an id followed by PocketSphinx's score, a large negative integer that is not part of the id."""
SCORE_NATS = 1024 * math.log(1.0001)
"""Nats per unit of PocketSphinx's scores: logarithms to the base 1.0001 without their last 10 bits."""
LABELS = re.compile(r"<[^ \t\r\f\v]*([ \t\r\f\v]+|$)")
"""Matches the labels of a segment. As in NIST's reader, its first word is labels if it begins with ``<``."""


@dataclass(frozen=True, slots=True)
class TimedWord:
    """A line of a ctm file."""

    file: str
    channel: str
    start_s: float
    duration_s: float
    word: str
    confidence: float | None = None

    @property
    def middle_s(self) -> float:
        return self.start_s + self.duration_s / 2

    @property
    def text(self) -> str:
        return self.word


@dataclass(frozen=True, slots=True)
class Choice:
    """Alternatives in a ctm, one of which was said. One without words means that nothing was said."""

    file: str
    channel: str
    ways: tuple[tuple[TimedWord, ...], ...]

    @property
    def middle_s(self) -> float:
        """The latest of the middles of all words in the alternatives, by which sclite finds their segment."""
        return max((word.middle_s for way in self.ways for word in way), default=0.0)

    @property
    def text(self) -> str:
        """The alternatives as a trn has them: ``{ a / b }``."""
        ways = (" ".join(word.word for word in way) or "@" for way in self.ways)
        return "{ " + " / ".join(ways) + " }"


@dataclass(frozen=True, slots=True)
class Recording:
    """The words of a file and channel, in file order."""

    file: str
    channel: str
    words: tuple[TimedWord | Choice, ...]
    line: int
    """Number of the recording's first line."""

    @property
    def id(self) -> str:
        """The id of the list that the recording becomes."""
        return f"{self.file} {self.channel}"

    @property
    def has_choices(self) -> bool:
        """Whether the recording has alternatives."""
        return any(isinstance(word, Choice) for word in self.words)


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
        return is_ignored(self.text)


def is_ignored(text: str) -> bool:
    """Whether the text of a segment excludes it from scoring."""
    return any(mark in text.lower() for mark in IGNORED_TEXTS)


def _split_trn(text: str) -> tuple[str, str, int | None] | None:
    """Return the id, the words and PocketSphinx's score of a trn line, or None if the line is not one."""
    match = TRN_LINE.fullmatch(text)
    if not match or not match[2].strip():
        return None
    scored = SCORED_ID.fullmatch(match[2].strip())
    list_id, score = (scored[1], int(scored[2])) if scored else (match[2].strip(), None)
    return list_id, match[1].strip(), score


def parse_trn(text: str) -> tuple[str, str] | None:
    """Return the id and the words of a trn line, or None if the line does not end with an id in parentheses.

    If PocketSphinx has written a score after the id, the score is left out.
    """
    parts = _split_trn(text)
    return parts and parts[:2]


def parse_ctm(text: str, file: str, line: int) -> TimedWord:
    """Parse a line of a ctm. A tag of alternatives becomes a word in upper case whose times are 0.

    Raises:
        FormatError: the line cannot be read.
    """
    columns = split_words(text)
    is_typed = len(columns) == 8 and columns[6].lower() in TOKEN_TYPES
    if not (5 <= len(columns) <= 7 or is_typed):
        message = f"expected file, channel, start, duration, word [confidence], got {len(columns)} columns"
        raise FormatError(message, file=file, line=line)
    name, channel, start, duration, word = columns[:5]
    if word.upper() in TAGS:
        return TimedWord(name, channel, 0.0, 0.0, word.upper())
    if word.upper().startswith("<ALT"):
        raise FormatError(f"expected one of {', '.join(TAGS)}", file=file, line=line, field="word")
    confidence = columns[5] if len(columns) > 5 and columns[5].upper() not in NOT_AVAILABLE else None
    return TimedWord(
        name,
        channel,
        _parse_seconds(start, file, line, "start"),
        _parse_seconds(duration, file, line, "duration"),
        word,
        None if confidence is None else _parse_field(confidence, file, line, "confidence"),
    )


def parse_stm(text: str, file: str, line: int) -> Segment:
    """Parse a line of an stm.

    Raises:
        FormatError: the line cannot be read.
    """
    columns = WORD_SEPARATOR.split(text.strip(), 5)
    if len(columns) < 5:
        message = f"expected file, channel, speaker, start, end, words, got {len(columns)} columns"
        raise FormatError(message, file=file, line=line)
    start = _parse_seconds(columns[3], file, line, "start")
    end = _parse_seconds(columns[4], file, line, "end")
    if end < start:
        raise FormatError(f"{end:g} is before the start, {start:g}", file=file, line=line, field="end")
    words = columns[5].strip() if len(columns) > 5 else ""
    labels = LABELS.match(words)
    cut = labels.end() if labels else 0
    return Segment(columns[0], columns[1], columns[2], start, end, words[cut:], words[:cut].strip())


class DamagedSegment(FormatError):
    """A line of an stm cannot be read."""

    def __init__(self, error: FormatError, columns: Sequence[str]) -> None:
        super().__init__(error.message, file=error.file, line=error.line, field=error.field)
        self.channel = (columns[0], columns[1]) if len(columns) > 1 else None
        """File and channel of the segment; None if the line does not name both."""


def read_segments(source: Source) -> Iterator[Segment | DamagedSegment]:
    """Yield the segments of an stm in file order, and an error for each line that is not a segment."""
    name = source_name(source)
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield DamagedSegment(text, split_words(_readable(text)))
        elif text.strip() and not text.startswith(COMMENT):
            try:
                yield parse_stm(text, name, line)
            except FormatError as error:
                yield DamagedSegment(error, split_words(text))


def _readable(error: FormatError) -> str:
    """Return the text of a damaged line, with replacements for bytes that are not text; "" if it is lost."""
    return error.text if isinstance(error, EncodingError) else ""


def is_stm(name: str) -> bool:
    """Whether a file name ends with ``.stm`` or ``.stm.gz``."""
    return name.lower().removesuffix(".gz").endswith(".stm")


def read_trn_lists(source: Source) -> Lists:
    """Yield each line of a trn file as a list with one hypothesis, or an error if the line cannot be read."""
    name = source_name(source)
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield text
        elif text.strip() and not text.startswith(COMMENT):
            parts = _split_trn(text)
            if parts is None:
                yield FormatError("expected words (id)", file=name, line=line)
                continue
            list_id, words, score = parts
            streams = {} if score is None else {STREAM: (score * SCORE_NATS,)}
            yield NBestList(list_id, (Hypothesis(words),), streams)


class LostRecording(FormatError):
    """A recording cannot be read, or has alternatives, and the reader needs one sequence of words."""

    def __init__(self, channel: Channel, error: FormatError) -> None:
        self.channel, self.list_id = channel, " ".join(channel)
        message = f"{error.message}; recording {quote(self.list_id)} is left out"
        super().__init__(message, file=error.file, line=error.line, field=error.field)


def read_recordings(source: Source) -> Iterator[Recording | FormatError]:
    """Yield the recordings of a ctm in file order, and a ``LostRecording`` for each that is damaged.

    The lines of a recording must be adjacent, except that damaged lines may stand between them. If the lines
    of a recording continue after another recording, they are a new recording.
    """
    reader = _Reader(source_name(source))
    for line, text in read_lines(source):
        if isinstance(text, str):
            if not text.strip() or text.startswith(";"):
                continue
            columns = split_words(text)
            try:
                item: TimedWord | FormatError = parse_ctm(text, reader.file, line)
            except FormatError as error:
                item = error
        else:
            item, columns = text, split_words(_readable(text))
        if len(columns) > 1:
            yield from reader.add((columns[0], columns[1]), item, line)
        elif isinstance(item, FormatError):
            reader.stray = reader.stray or (columns[0] if columns else "", item)
    yield from reader.finish()


@dataclass(slots=True)
class _Reader:
    """Collects lines until their recording is complete, and yields the complete recordings.

    The recording to which the latest lines belong is *open*.
    """

    file: str
    channel: Channel | None = None
    """File and channel of the open recording; None before the first recording."""
    first_line: int = 0
    words: list[TimedWord] | None = None
    """Words of the open recording; None if one of its lines is damaged, so that it is lost."""
    size: ListSize = field(default_factory=ListSize)
    """Size of the open recording."""
    stray: tuple[str, FormatError] | None = None
    """A damaged line after the open recording that names no recording itself: its first column, its error."""
    lost: set[Channel] = field(default_factory=set)
    errors: list[FormatError] = field(default_factory=list)
    """Errors that are yielded after the open recording."""

    def add(
        self, channel: Channel, item: TimedWord | FormatError, line: int
    ) -> Iterator[Recording | FormatError]:
        if channel != self.channel and isinstance(item, FormatError):
            self._lose(channel, item)  # perhaps only the name is damaged, so the open recording continues
            return
        if channel != self.channel:
            yield from self._start(channel, line)
        elif self.stray:
            self._lose(channel, self.stray[1])
            self.stray = None
        if isinstance(item, FormatError):
            self._lose(channel, item)
        elif self.words is not None:
            try:
                self.size.add(len(item.word))
                self.words.append(item)
            except ValueError as problem:
                message = f"the recording {quote(' '.join(channel))} {problem}"
                self._lose(channel, FormatError(message, file=self.file, line=line))

    def finish(self) -> Iterator[Recording | FormatError]:
        """Close the open recording: yield it, unless it is lost, and the errors since its first line."""
        if self.stray:
            if self.channel is None:
                self.errors.append(self.stray[1])
            else:
                self._lose(self.channel, self.stray[1])
            self.stray = None
        if self.channel is not None and self.words is not None:
            try:
                words = _group(self.words, self.file, self.first_line)
                yield Recording(*self.channel, words, self.first_line)
            except FormatError as error:
                self._lose(self.channel, error)
        yield from self.errors
        self.errors.clear()

    def _start(self, channel: Channel, line: int) -> Iterator[Recording | FormatError]:
        stray = self.stray
        if stray and (self.channel is None or stray[0] == channel[0] != self.channel[0]):
            self.stray = None  # the damaged line is the first of this recording
        else:
            stray = None
        yield from self.finish()
        self.channel, self.first_line, self.words = channel, line, None if channel in self.lost else []
        self.size = ListSize()
        if stray:
            self._lose(channel, stray[1])

    def _lose(self, channel: Channel, error: FormatError) -> None:
        if channel not in self.lost:
            self.lost.add(channel)
            self.errors.append(LostRecording(channel, error))
        if channel == self.channel:
            self.words = None


def _group(words: list[TimedWord], file: str, line: int) -> tuple[TimedWord | Choice, ...]:
    """Replace the words between tags such as ``<ALT_BEGIN>`` by a ``Choice``.

    Raises:
        FormatError: a tag is missing, or alternatives are nested.
    """
    grouped: list[TimedWord | Choice] = []
    ways: list[list[TimedWord]] = []  # of the choice that is being read
    for word in words:
        tag = word.word if word.word in TAGS else ""
        if tag and (tag == BEGIN) == bool(ways):
            place = "inside alternatives" if ways else f"without {BEGIN} before it"
            raise FormatError(f"{tag} {place}", file=file, line=line, field="word")
        if tag == END:
            grouped.append(Choice(word.file, word.channel, tuple(map(tuple, ways))))
            ways = []
        elif tag:
            ways.append([])
        else:
            (ways[-1] if ways else grouped).append(word)
    if ways:
        raise FormatError(f"{BEGIN} without {END} after it", file=file, line=line, field="word")
    return tuple(grouped)


def read_ctm_lists(source: Source) -> Lists:
    """Yield one list with one hypothesis per recording, with word times in the field ``words``.

    A recording with alternatives yields an error, because a hypothesis is one sequence of words.
    """
    name = source_name(source)
    for item in read_recordings(source):
        if isinstance(item, Recording) and not item.has_choices:
            yield _build_list(item)
            continue
        error = reject_choices(item, name) if isinstance(item, Recording) else item
        yield FormatError(error.message, file=error.file, line=error.line, field=error.field)


def reject_choices(recording: Recording, file: str) -> LostRecording:
    """Return the error for a recording with alternatives, for readers that need one sequence of words."""
    reason = "which count only where evaluate or compare have an stm as reference"
    error = FormatError(f"has alternatives ({BEGIN}), {reason}", file=file, line=recording.line, field="word")
    return LostRecording((recording.file, recording.channel), error)


def _build_list(recording: Recording) -> NBestList:
    words = [word for word in recording.words if isinstance(word, TimedWord)]
    times = [
        {"word": word.word, "start_s": word.start_s, "duration_s": word.duration_s}
        | ({} if word.confidence is None else {"confidence": word.confidence})
        for word in words
    ]
    text = " ".join(word.word for word in words)
    return NBestList(recording.id, (Hypothesis(text, {WORDS_FIELD: times}),))


def trn_writer(target: str | Path) -> ListWriter:
    """Write the first hypothesis of each list; reject a list whose id has a parenthesis or a line break.

    If a text begins like a comment, a space is written before it, so that it is not read as a comment.
    """

    def format_lines(nbest: NBestList) -> Iterator[str]:
        if not nbest.id.strip() or re.search(r"[()\n\r\0]", nbest.id):
            message = "expected a non-empty id without parentheses and line breaks"
            raise InvalidList(message, list_id=nbest.id, field="id")
        if SCORED_ID.fullmatch(nbest.id.strip()):
            raise InvalidList("would be read as an id and a score", list_id=nbest.id, field="id")
        line = f"{format_texts(nbest)[0]} ({nbest.id})".lstrip()
        yield f" {line}" if line.startswith(COMMENT) else line

    return line_writer(target, format_lines, once=False)


def ctm_writer(target: str | Path) -> ListWriter:
    """Write the first hypothesis of each list. Its field ``words`` has the times; the id of the list names
    file and channel."""

    def format_lines(nbest: NBestList) -> Iterator[str]:
        for word in _get_timed_words(nbest):
            confidence = "" if word.confidence is None else f" {word.confidence!r}"
            times = f"{word.start_s!r} {word.duration_s!r}"
            yield f"{word.file} {word.channel} {times} {word.word}{confidence}"

    return line_writer(target, format_lines, once=False)


def parse_channel(nbest: NBestList) -> tuple[str, str]:
    """Return the file and the channel that the id of a list names. If it names only a file, the channel is 1.

    Raises:
        InvalidList: the id is not one or two words.
    """
    parts = split_words(nbest.id)
    if not 1 <= len(parts) <= 2 or LINE_BREAK.search(nbest.id) or parts[0].startswith(";"):
        message = "expected the name of a file, optionally followed by a channel"
        raise InvalidList(message, list_id=nbest.id, field="id")
    return parts[0], parts[1] if parts[1:] else "1"


def _get_timed_words(nbest: NBestList) -> list[TimedWord]:
    file, channel = parse_channel(nbest)
    words = []
    for position, entry in enumerate(get_word_times(nbest)):
        if entry["word"].upper().startswith(SEPARATOR[:-1]):
            place = f"words[{position}].word"
            raise InvalidList("would be read as a tag of alternatives", list_id=nbest.id, field=place)
        numbers = {key: entry[key] for key in NUMBER_KEYS if entry.get(key) is not None}
        words.append(TimedWord(file, channel, word=entry["word"], **numbers))
    return words


def fits_trn(text: str) -> bool:
    """Whether a line can be read as a trn, and is not a line of a ctm or stm that ends in parentheses."""
    return parse_trn(text) is not None and (ends_with_id(text) or not (fits_ctm(text) or fits_stm(text)))


def is_trn(text: str) -> bool:
    """Whether a line that fits a trn is of no other format. A number in its parentheses may be a score."""
    trn = parse_trn(text) if fits_trn(text) else None
    return trn is not None and (trn[0].isdecimal() or not is_number(trn[0]))


def fits_ctm(text: str) -> bool:
    """Whether a line can be read as a ctm."""
    try:
        parse_ctm(text, "", 0)
    except FormatError:
        return False
    return True


def is_ctm(text: str) -> bool:
    """Whether a line that fits a ctm is of no other format.

    Lines of SRILM and of a trn may also fit. The former have numbers in the columns of file and channel; the
    latter end with an id in parentheses.
    """
    file, channel, *_, word = split_words(text)[:5]
    return not (ends_with_id(text) or (is_number(file) and is_number(channel) and word[0].isdigit()))


def fits_stm(text: str) -> bool:
    """Whether a line has the columns of an stm."""
    columns = split_words(text)
    return len(columns) > 4 and is_number(columns[3]) and is_number(columns[4])


def is_certain_stm(text: str) -> bool:
    """Whether a line that fits an stm is of no other format. In a ctm, the third column would be a number."""
    _, _, speaker, _, _, *words = split_words(text)
    return not ends_with_id(text) and (not is_number(speaker) or (bool(words) and not fits_ctm(text)))


def is_number(text: str) -> bool:
    """Whether a column is a number."""
    return not isinstance(parse_number(text), str)


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


@dataclass(frozen=True, slots=True)
class LineTests:
    """The tests by which lines are recognised as a trn, ctm or stm."""

    comment: str
    """The characters with which comments begin."""
    fits: Callable[[str], bool]
    """Tests whether a line can belong to the format."""
    is_certain: Callable[[str], bool]
    """Tests whether a line that fits can belong to no other format. One such line is enough evidence."""
    evidence: str

    def find_evidence(self, lines: Sequence[str], share: float = 1.0) -> str:
        """Return the evidence that lines have the format, or an empty string.

        Args:
            share: the share of the lines that must fit; comments do not count.
        """
        content = [text for text in lines if not text.startswith(self.comment)]
        fitting = [text for text in content if self.fits(text)]
        has_format = len(fitting) >= share * len(content) and any(map(self.is_certain, fitting))
        return self.evidence if has_format else ""


TESTS = {
    "trn": LineTests(COMMENT, fits_trn, is_trn, "lines that end with an (id)"),
    "ctm": LineTests(";", fits_ctm, is_ctm, "lines of file, channel, start, duration and word"),
    "stm": LineTests(
        COMMENT, fits_stm, is_certain_stm, "lines of file, channel, speaker, start, end and words"
    ),
}
DAMAGED_SHARE = 0.5
"""If at least this share of lines fits a format, a file may be a damaged file of that format."""


def looks_like_trn(sample: Sample) -> str:
    """Return the evidence that a file is a trn, or an empty string."""
    is_trn_file = all(parse_trn(text) for text in sample.lines if not text.startswith(COMMENT))
    return TESTS["trn"].find_evidence(sample.lines, 0.0) if is_trn_file and not sample.record else ""


def looks_like_ctm(sample: Sample) -> str:
    """Return the evidence that a file is a ctm, or an empty string."""
    return "" if is_stm(sample.path.name) else TESTS["ctm"].find_evidence(sample.lines)


def looks_like(sample: Sample) -> str:
    """Return the evidence that a file is an stm, or an empty string."""
    evidence = TESTS["stm"].find_evidence(sample.lines)
    return evidence or ("a file name that ends with .stm" if is_stm(sample.path.name) else "")


def find_damaged(sample: Sample) -> dict[str, str]:
    """Return which of trn, ctm and stm a damaged file may be, with the evidence for each of them.

    This is for files that match no format as a whole. Half of the lines in the sample must fit, because the
    beginning of a file is no more likely to be damaged than the rest.
    """
    if sample.is_folder or sample.record:
        return {}
    found = {name: test.find_evidence(sample.lines, DAMAGED_SHARE) for name, test in TESTS.items()}
    return {name: f"{evidence}, though not all" for name, evidence in found.items() if evidence}


SEGMENT_FIELDS = ("file", "channel", "start_s", "end_s")
FIELDS = frozenset({*SEGMENT_FIELDS, "labels"})
"""Names of list fields that an stm can hold."""


def read_lists(source: Source) -> Lists:
    """Yield each scored segment of an stm as a list with one hypothesis, or an error if a line is invalid."""
    numbers: Counter[str] = Counter()
    for segment in read_segments(source):
        if isinstance(segment, DamagedSegment):
            yield segment
        elif not segment.is_ignored:
            list_id = format_segment_id(segment.speaker, numbers[segment.speaker])
            numbers[segment.speaker] += 1
            fields = {field: getattr(segment, field) for field in SEGMENT_FIELDS}
            fields |= {"labels": segment.labels} if segment.labels else {}
            hypotheses = (Hypothesis(" ".join(split_words(segment.text))),)
            yield NBestList(list_id, hypotheses, group=segment.speaker, fields=fields)


def format_segment_id(speaker: str, number: int) -> str:
    """Return the id that sclite gives a segment, such as ``A-000``.

    Args:
        number: the number of the segment among those of the speaker, from 0.
    """
    return f"{speaker}-{number:03d}"


def writer(target: str | Path) -> ListWriter:
    """Write the first hypothesis of each list as a segment of an stm. The list's group becomes the speaker.

    File and channel come from the list fields of these names, or else from the id, as for a ctm. The times
    come from the list fields ``start_s`` and ``end_s``, or else from the word times; a list without times is
    rejected.
    """
    return line_writer(target, lambda nbest: [_format_line(nbest)], once=False)


def _format_line(nbest: NBestList) -> str:
    def error(message: str, field: str) -> InvalidList:
        return InvalidList(message, list_id=nbest.id, field=field)

    file, channel = (nbest.fields.get(name) for name in ("file", "channel"))
    if file is None and channel is None:
        file, channel = parse_channel(nbest)
    for name, value in (("file", file), ("channel", channel), ("group", nbest.group)):
        if not isinstance(value, str) or split_words(value) != [value] or LINE_BREAK.search(value):
            what = "speaker" if name == "group" else name
            raise error(f"expected the {what}, without white space", name)
    if str(file).startswith(COMMENT):
        raise error(f"starts with {COMMENT}, which marks a comment", "file")
    start, end = _find_times(nbest)
    if not (is_finite_number(start) and is_finite_number(end) and 0 <= start <= end):
        message = f"expected times in seconds with 0 <= start <= end, got {start!r} and {end!r}"
        raise error(message, "end_s")
    labels, text = nbest.fields.get("labels", ""), format_texts(nbest)[0]
    if not isinstance(labels, str) or (labels and not LABELS.fullmatch(labels)):
        raise error("expected labels in the form <A,B,C>", "labels")
    if (LABELS.match(text) and not labels) or is_ignored(text):
        raise error("would be read as labels, or as a segment excluded from scoring", "text")
    return " ".join(filter(None, (file, channel, nbest.group, repr(start), repr(end), labels, text)))


def _find_times(nbest: NBestList) -> tuple[Any, Any]:
    """Return the start and end of a segment: from the fields of the list, or else from its word times."""
    times = nbest.fields.get("start_s"), nbest.fields.get("end_s")
    words = [] if times != (None, None) else get_word_times(nbest)
    if not words:
        return times
    return words[0]["start_s"], max(word["start_s"] + word["duration_s"] for word in words)


ID, REFERENCE, TEXT, SPEAKER = "id", "reference", "text", "speaker"
"""Fields of references and groups in JSON. A reference may be in the field ``text`` instead."""
Entry = tuple[int, str, str]
"""Line number, id and value."""
LineParser = Callable[[str], tuple[str, str] | None]
"""Parses a line into an id and a value; returns None if the line has another format."""


def read_references(source: Source, text_field: str = REFERENCE) -> dict[str, str]:
    """Read the reference text of each utterance, by id; a text may be empty.

    Args:
        text_field: name of the field that has the text, if the file is JSON.

    Raises:
        FormatError: a line cannot be read, or an id has two different texts; the error names file and
            line.
    """
    file = source_name(source)
    lines = _read_content_lines(source)
    if lines and _is_json(lines[0][1]):
        return _index_by_id(_parse_json(lines, file, text_field), file)
    return _index_by_id(_parse_lines(lines, *_choose_line_format(lines), file), file)


def read_groups(source: Source) -> dict[str, str]:
    """Read the group (speaker or conversation) of each utterance, by id, from JSON or lines ``id group``.

    Raises:
        FormatError: a record cannot be read, or an id has two different groups; the error names file and
            line.
    """
    file = source_name(source)
    lines = _read_content_lines(source)
    if lines and not _is_json(lines[0][1]):
        return _index_by_id(_parse_lines(lines, _parse_pair, "id speaker (utt2spk) or JSON", file), file)
    return _index_by_id(_parse_json(lines, file, SPEAKER), file)


def _read_content_lines(source: Source) -> list[tuple[int, str]]:
    """Return the lines that are neither blank nor comments, with their numbers."""
    lines = read_lines_strict(source)
    return [(line, text) for line, text in lines if text.strip() and not text.startswith(COMMENT)]


def _is_json(first: str) -> bool:
    """Whether a first line is JSON. A trn line may also begin with a brace: ``{ uh / @ } yes (u1)``."""
    return bool(re.match(r'\s*(\[|\{\s*("|$))', first)) and parse_trn(first) is None


def _choose_line_format(lines: list[tuple[int, str]]) -> tuple[LineParser, str]:
    """Choose the parser for lines by the first line. Return it, and a description of the lines it expects.

    A file counts as a trn only if half of its lines end like a trn, since words in Kaldi's ``text`` may be in
    parentheses.
    """
    if lines and "\t" in lines[0][1]:
        return _parse_tsv, "id<TAB>text"
    n_trn = sum(parse_trn(text) is not None for _, text in lines)
    if lines and parse_trn(lines[0][1]) and 2 * n_trn >= len(lines):
        return parse_trn, "words (id), as in the first line"
    return _parse_kaldi, "id words, words (id), id<TAB>text or JSON"


def _parse_lines(
    lines: list[tuple[int, str]], parse_line: LineParser, expected: str, file: str
) -> Iterator[Entry]:
    for line, text in lines:
        entry = parse_line(text)
        if entry is None:
            raise FormatError(f"expected {expected}", file=file, line=line)
        yield line, *entry


def _parse_tsv(text: str) -> tuple[str, str] | None:
    key, tab, rest = text.partition("\t")
    return (key.strip(), rest.split("\t")[0].strip()) if tab and key.strip() else None


def _parse_kaldi(text: str) -> tuple[str, str]:
    key, _, words = text.strip().partition(" ")
    return key, words.strip()


def _parse_pair(text: str) -> tuple[str, str] | None:
    fields = text.split()
    return (fields[0], fields[1]) if len(fields) == 2 else None


def _parse_json(lines: list[tuple[int, str]], file: str, value_field: str) -> Iterator[Entry]:
    records = list(_parse_records(lines, file))
    line, first = records[0] if records else (0, {})
    if ID not in first and json_documents.is_segment(first):
        yield from json_documents.read_entries(records, file, value_field)
        return
    are_texts = bool(first) and all(isinstance(text, str) for text in first.values())
    if len(records) == 1 and are_texts and not {ID, value_field} & first.keys():
        yield from ((line, key, text) for key, text in first.items())
        return
    for line, record in records:
        if type(record.get(ID)) is int:
            record[ID] = str(record[ID])
        if value_field == REFERENCE and value_field not in record and TEXT in record:
            record[value_field] = record[TEXT]
        for name in (ID, value_field):
            if not isinstance(record.get(name), str):
                kind = describe_type(record.get(name))
                raise FormatError(f"expected a string, got {kind}", file=file, line=line, field=name)
        yield line, record[ID], record[value_field]


def _parse_records(lines: list[tuple[int, str]], file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each JSON object with its line number or, if it is in an array, its position from 1."""
    if lines and lines[0][1].strip() == "{":  # one object on several lines
        yield lines[0][0], parse_object("\n".join(text for _, text in lines), file, lines[0][0])
        return
    if not lines or not lines[0][1].lstrip().startswith("["):
        for line, text in lines:
            yield line, parse_object(text, file, line)
        return
    try:
        records = json.loads("\n".join(text for _, text in lines))
    except json.JSONDecodeError as error:
        line = lines[error.lineno - 1][0]
        raise FormatError(f"not JSON: {error.msg} at column {error.colno}", file=file, line=line) from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"cannot parse JSON: {error}", file=file) from None
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise FormatError(f"element {number}: expected an object, got {describe_type(record)}", file=file)
        yield number, record


def _index_by_id(entries: Iterator[Entry], file: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for line, key, value in entries:
        if values.setdefault(key, value) != value:
            hint = "; does each line start with an id?" if key.isalpha() else ""
            raise FormatError(f"duplicate id {key!r} with a different value{hint}", file=file, line=line)
    return values

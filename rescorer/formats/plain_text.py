"""Read and write text without markup: sentences, ids and words (Kaldi's ``text``), lists with blank lines.

    lines: to be or not        kaldi-text: u1 to be or not        paragraphs: to be or not
           the sea                         u2 the sea                         two be or not

                                                                              the sea

Nothing in such a file says which of these it is, and a wrong choice gives an error rate that looks right: a
first word that is taken for an id is not counted, and an id that is taken for a word is. ``choose_reading``
decides only where one reading fits a file and its references, and names the ways to say it where two do.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from enum import Enum
from itertools import count, groupby
from pathlib import Path

from rescorer.errors import FormatError, InvalidList
from rescorer.formats.common import (
    DUPLICATE_ID,
    ListWriter,
    format_key,
    format_texts,
    line_writer,
    parse_number,
    split_words,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.text_io import Source, read_lines, read_lines_strict, source_name
from rescorer.types import Hypothesis, NBestList

LINES, KALDI_TEXT, PARAGRAPHS = "lines", "kaldi-text", "paragraphs"
"""Names of the formats."""
ID_TOKEN = re.compile(
    r"(?=\w)(?!\d+(?:st|nd|rd|th)\Z)(?:(?=\S*\d)(?=\S*(?:[^\W\d]|-))|[^\W_]+_)[^\s,;|]+", re.IGNORECASE
)
"""Tokens that are probably ids: digits along with letters or hyphens, or an underscore; no ordinals, and
nothing that delimits the columns of a table."""
NUMBER_WIDTH = 3
"""Number of digits from which numbers of one width are probably ids."""
WAYS = (
    f"give --format {LINES} if every line is a sentence, or --format {KALDI_TEXT} if it begins with an id "
    f"(--format {PARAGRAPHS} if blank lines separate n-best lists)"
)
"""The options that say what plain text is."""
SCORE_WAYS = (
    "separate its columns with tabs for --format table:id=1,score=2,text=3, or give --format "
    f"{KALDI_TEXT} if the numbers are words"
)
"""The options that say what numbers in plain text are."""
COLUMN_MARKS = ",;|"
"""Marks that may separate the columns of a table without a header."""
MIN_ID_LINES = 2
"""Number of lines from which the look of their first tokens says that these are ids."""


class Reading(Enum):
    """The beginnings of the lines of a text."""

    IDS = "ids"
    WORDS = "words"
    UNCLEAR = "ids or words"


def read_sentences(source: Source) -> Lists:
    """Yield every line, blank ones too, as a list with one hypothesis; its id is the number of the line."""
    for number, text in read_lines(source):
        yield text if isinstance(text, FormatError) else NBestList(str(number), (Hypothesis(text.strip()),))


def read_kaldi_text(source: Source) -> Lists:
    """Yield every line ``id words`` as a list with one hypothesis; the words may be missing."""
    file, seen = source_name(source), set[str]()
    for number, text in read_lines(source):
        if isinstance(text, FormatError):
            yield text
        elif words := split_words(text):
            if words[0] in seen:
                yield InvalidList(DUPLICATE_ID, list_id=words[0], file=file, line=number)
            else:
                yield NBestList(words[0], (Hypothesis(" ".join(words[1:])),))
            seen.add(words[0])


def read_paragraphs(source: Source) -> Lists:
    """Yield the lines between blank lines as a list, best hypothesis first; its id is its number."""
    position = count(1)
    blocks = groupby(read_lines(source), lambda line: isinstance(line[1], str) and not line[1].strip())
    for is_blank, block in blocks:
        if is_blank:
            continue
        list_id, lines = str(next(position)), [text for _, text in block]
        error = next((text for text in lines if isinstance(text, FormatError)), None)
        texts = (Hypothesis(text.strip()) for text in lines if isinstance(text, str))
        yield error if error is not None else NBestList(list_id, tuple(texts))


def looks_like_kaldi_text(sample: Sample) -> str:
    """Return the evidence that a file has lines of an id and words, or an empty string."""
    if sample.is_folder or "\t" in sample.text or classify(sample.lines) is not Reading.IDS:
        return ""
    rests = [" ".join(split_words(line)[1:]) for line in sample.lines]
    if all(isinstance(parse_number(rest), float) or "/" in rest for rest in rests if rest):
        return ""  # scores of an archive, or names of audio files
    if _have_scores(sample.lines):
        return ""
    return "lines that each begin with an id"


def classify(lines: Iterable[str]) -> Reading:
    """Judge whether lines of text begin with ids: tokens that differ, look like ids, and are not words.

    >>> classify(["u1 to be", "u2 the sea"]).name, classify(["the sea", "the c"]).name
    ('IDS', 'WORDS')
    """
    rows = [split_words(line) for line in lines]
    rows = rows[:-1] if rows and not rows[-1] else rows
    firsts = [row[0] for row in rows if row]
    others = [word for row in rows for word in row[1:]]
    if not firsts or len(firsts) < len(rows) or len({*firsts}) < len(firsts):
        return Reading.WORDS
    seconds = [row[1] for row in rows if len(row) > 1]
    for is_id in (_looks_like_id, str.isdecimal):
        are_words = 2 * sum(map(is_id, seconds)) <= len(seconds)
        if len(firsts) >= MIN_ID_LINES and are_words and all(map(is_id, firsts)) and _are_ids(firsts):
            return Reading.IDS
    return Reading.WORDS if {*firsts} & {*others} else Reading.UNCLEAR


def suggest_ways(lines: Sequence[str]) -> str:
    """Say which options read plain text, and what to do with columns that it seems to have."""
    delimiter = next((mark for mark in COLUMN_MARKS if all(mark in line for line in lines)), "")
    ways = f"if it is plain text, {WAYS}"
    if delimiter:
        return f"if {delimiter!r} separates columns, give --format table:id=1,text=2; {ways}"
    return f"if it is plain text with numbers like scores, {SCORE_WAYS}" if _have_scores(lines) else ways


def _have_scores(lines: Iterable[str]) -> bool:
    """Whether lines of ids and words all have a number such as -12.5 between the two, or at the end."""
    rows = [row[1:] for line in lines if len(row := split_words(line)) > 1]
    columns = ([row[0] for row in rows], [row[-1].strip("()[]") for row in rows])
    return any(bool(column) and all(map(_is_score, column)) for column in columns)


def _is_score(token: str) -> bool:
    return not token.isdecimal() and isinstance(parse_number(token), float)


def _looks_like_id(token: str) -> bool:
    return ID_TOKEN.fullmatch(token) is not None


def _are_ids(tokens: Sequence[str]) -> bool:
    """Whether numbers are ids: they count the lines, or have one width; other tokens are judged before."""
    if not all(map(str.isdecimal, tokens)):
        return True
    widths = {*map(len, tokens)}
    is_count = list(tokens) == [str(number) for number in range(1, len(tokens) + 1)]
    return is_count or (len(widths) == 1 and min(widths) >= NUMBER_WIDTH)


def begins_with_ids(lines: Iterable[str], ids: Collection[str]) -> bool:
    """Whether each line of text begins with another one of some known ids."""
    firsts = [words[0] for line in lines if (words := split_words(line))]
    return bool(firsts) and len({*firsts}) == len(firsts) and all(first in ids for first in firsts)


def choose_reading(file: str | Path, reference: str | Path) -> str:
    """Return which format a file of plain text has: ``lines``, ``kaldi-text`` or ``paragraphs``.

    Args:
        file: a file that no other format matches.
        reference: a file of references that is plain text as well.

    Raises:
        FormatError: both readings fit, or neither does; the error names the ways to say it.
    """
    references = [text for _, text in read_lines_strict(reference)]
    ids = {words[0] for line in references if (words := split_words(line))}
    lines = [text for _, text in read_lines_strict(file)]
    own, others = classify(lines), classify(references)
    if own is Reading.IDS or (others is Reading.IDS and begins_with_ids(lines, ids)):
        if _have_scores(lines) and not _have_scores(references):
            message = f"plain text with ids, words and numbers like scores: {SCORE_WAYS}"
            raise FormatError(message, file=str(file))
        return KALDI_TEXT
    if others is Reading.IDS:
        message = f"plain text whose lines do not each begin with an id of their own, as those of {reference}"
        advice = "do; give --format mikolov if several lines have one id"
        raise FormatError(f"{message} {advice}", file=str(file))
    if own is Reading.WORDS or others is Reading.WORDS or not begins_with_ids(lines, ids):
        return PARAGRAPHS if _has_a_paragraph_each(lines, references) else LINES
    message = f"plain text, and the first words of its lines begin lines of {reference} too: ids or words?"
    raise FormatError(f"{message} {WAYS}", file=str(file))


def _has_a_paragraph_each(lines: Sequence[str], references: Sequence[str]) -> bool:
    """Whether there are as many paragraphs as references, but not as many lines."""
    paragraphs = [is_text for is_text, _ in groupby(lines, lambda line: bool(line.strip())) if is_text]
    return len(paragraphs) == _count_lines(references) != _count_lines(lines)


def _count_lines(lines: Sequence[str]) -> int:
    """Count lines without blank ones at the end."""
    return max((number for number, line in enumerate(lines, start=1) if line.strip()), default=0)


def sentences_writer(target: str | Path) -> ListWriter:
    """Write the first hypothesis of each list as a line."""
    return line_writer(target, lambda nbest: format_texts(nbest)[:1], once=False)


def kaldi_text_writer(target: str | Path) -> ListWriter:
    """Write the id and the first hypothesis of each list; reject an id with white space or a second time."""
    return line_writer(target, lambda nbest: [f"{format_key(nbest)} {format_texts(nbest)[0]}".rstrip(" ")])


def paragraphs_writer(target: str | Path) -> ListWriter:
    """Write the texts of each list and a blank line; reject a list with an empty text."""

    def format_lines(nbest: NBestList) -> list[str]:
        texts = format_texts(nbest)
        if "" in texts:
            message = "is empty; a blank line would end the list"
            raise InvalidList(message, list_id=nbest.id, hypothesis=texts.index(""), field="text")
        return [*texts, ""]

    return line_writer(target, format_lines, once=False)

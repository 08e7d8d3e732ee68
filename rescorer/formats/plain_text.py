"""Read and write text without markup, and the text that decoders of end-to-end toolkits print.

Text without markup is sentences, ids and words (Kaldi's ``text``), or lists with blank lines:

    lines: to be or not        kaldi-text: u1 to be or not        paragraphs: to be or not
           the sea                         u2 the sea                         two be or not

                                                                              the sea

Nothing in such a file says which of these formats it has, and a wrong choice gives a wrong error rate that
looks right: a first word that is taken for an id is not counted, and an id that is taken for a word is.
``choose_reading`` decides only if exactly one format fits a file and its references. Otherwise its error
names the options for the formats.

End-to-end toolkits (icefall, fairseq, wenet, aps) and RNNLM toolkits print:

    icefall: u1-0:<TAB>ref=['TO', 'BE']        fairseq: T-7<TAB>to be
             u1-0:<TAB>hyp=['TWO', 'BE']                H-7<TAB>-0.4<TAB>two be

    aps: 2  (hypotheses per list)              wenet:   wav u1
         u1                                             candidate -3.1 two be
         -3.100<TAB>2<TAB>two be  (score, number of tokens, text)

These files come from ``store_transcripts`` and ``store_transcripts_and_timestamps`` in icefall/utils.py, from
fairseq_cli/generate.py, from wenet's runtime/core/bin/decoder_main.cc with ``--output_nbest``, and from
cmd/decode.py of funcwj/aps with ``--dump-nbest``. Texts in pieces of words stay as they are.

The n-best files of RNNLM toolkits (option ``-nbest``) have the list id in their first column:

    u1 -2301.5 -18.42 4 <s> yeah well my sue </s>       CUED-RNNLM: id, acoustic, LM, number of words, words
    u1 yeah well my sue                                  Mikolov's rnnlm: id, words

CUED-RNNLM files do not state the base of their scores, so it must be given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import count, groupby, islice
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList, quote
from rescorer.formats.common import (
    DUPLICATE_ID,
    NATURAL,
    STREAM,
    Base,
    FoundLists,
    ListSize,
    ListWriter,
    Row,
    Units,
    build_list,
    collect,
    count_words,
    format_key,
    format_texts,
    has_scores,
    line_writer,
    parse_number,
    parse_scored_words,
    reject_duplicates,
    split_words,
    stream_from_nats,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.text_io import Source, read_lines, read_lines_strict, source_name
from rescorer.types import Hypothesis, NBestList

LINES, KALDI_TEXT, PARAGRAPHS = "lines", "kaldi-text", "paragraphs"
"""Names of the three formats of text without markup."""
ID_TOKEN = re.compile(
    r"(?=\w)(?!\d+(?:st|nd|rd|th)\Z)(?:(?=\S*\d)(?=\S*(?:[^\W\d]|-))|[^\W_]+_)[^\s,;|]+", re.IGNORECASE
)
"""Matches tokens that are probably ids: ``u1`` and ``1-2``, with digits and letters or hyphens; or ``a_b``.

Ordinals, such as ``2nd``, do not match, and neither do tokens with a mark that may separate columns.
"""
NUMBER_WIDTH = 3
"""Numbers are probably ids if all of them have the same number of digits, and at least this many."""
WAYS = (
    f"give --format {LINES} if every line is a sentence, or --format {KALDI_TEXT} if it begins with an id "
    f"(--format {PARAGRAPHS} if blank lines separate n-best lists)"
)
"""Advice for plain text whose lines may begin with ids or with words."""
SCORE_WAYS = (
    "separate its columns with tabs for --format table:id=1,score=2,text=3, or give --format "
    f"{KALDI_TEXT} if the numbers are words"
)
"""Advice for plain text with numbers that may be scores or words."""
COLUMN_MARKS = ",;|"
"""Marks that may separate the columns of a table without a header."""
MIN_ID_LINES = 2
"""Minimum number of lines in a file for their first tokens to be recognised as ids."""


class Reading(Enum):
    """Whether the lines of a text begin with ids or with words."""

    IDS = "ids"
    WORDS = "words"
    UNCLEAR = "ids or words"


def read_sentences(source: Source) -> Lists:
    """Yield each line, even a blank one, as a list with one hypothesis. The id is the number of the line."""
    for number, text in read_lines(source):
        yield text if isinstance(text, FormatError) else NBestList(str(number), (Hypothesis(text.strip()),))


def read_kaldi_text(source: Source) -> Lists:
    """Yield each line ``id words`` as a list with one hypothesis; there may be no words."""

    def find() -> FoundLists:
        for number, text in read_lines(source):
            if isinstance(text, FormatError):
                yield "", number, text
            elif words := split_words(text):
                yield words[0], number, NBestList(words[0], (Hypothesis(" ".join(words[1:])),))

    return reject_duplicates(find(), source_name(source))


def read_paragraphs(source: Source) -> Lists:
    """Yield one list for the lines between two blank lines, the best hypothesis first. Ids are 1, 2, …."""
    position = count(1)
    blocks = groupby(read_lines(source), lambda line: isinstance(line[1], str) and not line[1].strip())
    for is_blank, block in blocks:
        if is_blank:
            continue
        list_id = str(next(position))
        numbered, problem = collect(block, lambda line: len(str(line[1])))
        lines = [text for _, text in numbered]
        error = next((text for text in lines if isinstance(text, FormatError)), None)
        if problem:
            error = FormatError(f"list {list_id} {problem}", file=source_name(source), line=numbered[0][0])
        texts = (Hypothesis(text.strip()) for text in lines if isinstance(text, str))
        yield error if error is not None else NBestList(list_id, tuple(texts))


def looks_like_kaldi_text(sample: Sample) -> str:
    """Return the evidence that a file has lines of an id and words, or an empty string."""
    if "\t" in sample.text or classify(sample.lines) is not Reading.IDS:
        return ""
    rests = [" ".join(split_words(line)[1:]) for line in sample.lines]
    if all(isinstance(parse_number(rest), float) or "/" in rest for rest in rests if rest):
        return ""  # scores of an archive, or names of audio files
    return "" if _have_scores(sample.lines) else "lines that each begin with an id"


def classify(lines: Iterable[str]) -> Reading:
    """Judge whether lines of text begin with ids: tokens that all differ, and look like ids, not like words.

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
    """Say which options read plain text and, if the text seems to have columns, which option reads these."""
    delimiter = next((mark for mark in COLUMN_MARKS if all(mark in line for line in lines)), "")
    ways = f"if it is plain text, {WAYS}"
    if delimiter:
        return f"if {delimiter!r} separates columns, give --format table:id=1,text=2; {ways}"
    return f"if it is plain text with numbers like scores, {SCORE_WAYS}" if _have_scores(lines) else ways


def _have_scores(lines: Iterable[str]) -> bool:
    """Whether all lines, which begin with ids, have a number such as -12.5 after the id or at the end."""
    rows = [row[1:] for line in lines if len(row := split_words(line)) > 1]
    columns = ([row[0] for row in rows], [row[-1].strip("()[]") for row in rows])
    return any(bool(column) and all(map(_is_score, column)) for column in columns)


def _is_score(token: str) -> bool:
    return not token.isdecimal() and isinstance(parse_number(token), float)


def _looks_like_id(token: str) -> bool:
    return ID_TOKEN.fullmatch(token) is not None


def _are_ids(tokens: Sequence[str]) -> bool:
    """Whether first tokens that are numbers are ids: they count the lines, or have equally many digits.

    Other tokens are taken for ids, because the caller has checked them.
    """
    if not all(map(str.isdecimal, tokens)):
        return True
    widths = {*map(len, tokens)}
    is_count = list(tokens) == [str(number) for number in range(1, len(tokens) + 1)]
    return is_count or (len(widths) == 1 and min(widths) >= NUMBER_WIDTH)


def begins_with_ids(lines: Iterable[str], ids: Collection[str]) -> bool:
    """Whether each line of text begins with one of the known ids, and each line with a different one."""
    firsts = [words[0] for line in lines if (words := split_words(line))]
    return bool(firsts) and len({*firsts}) == len(firsts) and all(first in ids for first in firsts)


def choose_reading(file: str | Path, reference: str | Path) -> str:
    """Return the format of a file of plain text: ``lines``, ``kaldi-text`` or ``paragraphs``.

    Args:
        file: a file that no other format matches.
        reference: a file of references that is plain text as well.

    Raises:
        FormatError: the lines may begin with ids as well as with words, or do not fit the references. The
            error names the options that decide this.
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


MAX_PEEKED_LINES = 200
MAX_PEEKED_CHARS = 1 << 20
MIN_ALIKE = 0.75
"""Least part of the lines of n-best lists that must be like the first line of their list."""


def looks_like_paragraphs(source: Source) -> str:
    """Return the evidence that blank lines separate n-best lists, or an empty string.

    Of the first lists, nearly all hypotheses share at least half of their words with the best one, as the
    lines of prose and verse do not.
    """
    texts, n_chars = [], 0
    for _, text in islice(read_lines(source), MAX_PEEKED_LINES):
        if isinstance(text, FormatError) or (n_chars := n_chars + len(text)) > MAX_PEEKED_CHARS:
            return ""
        texts.append(text)
    blocks = [list(block) for is_text, block in groupby(texts, lambda text: bool(text.strip())) if is_text]
    lists = [[{*words} for words in map(split_words, block)] for block in blocks if len(block) > 1]
    alike = [
        2 * len(best & words) >= max(len(best), len(words)) for best, *others in lists for words in others
    ]
    is_certain = len(lists) > 1 and 2 * len(lists) >= len(blocks) and sum(alike) >= MIN_ALIKE * len(alike)
    return "blank lines between groups of similar lines" if is_certain else ""


def _count_lines(lines: Sequence[str]) -> int:
    """Count lines, except blank ones at the end."""
    return max((number for number, line in enumerate(lines, start=1) if line.strip()), default=0)


def sentences_writer(target: str | Path) -> ListWriter:
    """Write the first hypothesis of each list as a line."""
    return line_writer(target, lambda nbest: format_texts(nbest)[:1], once=False)


def kaldi_text_writer(target: str | Path) -> ListWriter:
    """Write the id and the first hypothesis of each list. Reject ids that are repeated or contain spaces."""
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


TOTAL_STREAM, TOKENS_FIELD = "total", "n_tokens"
RECOG_LINE = re.compile(r"(.*?):\t(ref|hyp|timestamp_ref|timestamp_hyp)=(.*)")
WORD_IN_QUOTES = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))")
NAMED_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
FAIRSEQ_LINE = re.compile(r"([A-Z])-([^\t]{1,200})\t(.*)")
APS_LINE = re.compile(r"([^\t]*)\t(?:(\d{1,9})\t)?(.*)")
FAIRSEQ_BASES: Mapping[str, Base] = {"2": "2", "e": "e"}


@dataclass(slots=True)
class _Block:
    """The list that is being read from consecutive lines."""

    id: str
    line: int
    rows: list[Row] = field(default_factory=list)
    reference: str | None = None
    error: FormatError | None = None
    size: ListSize = field(default_factory=ListSize)


BlockParser = Callable[[int, str, "_Block | None"], "_Block | None"]
"""Parses a line, given its number, its text and the current block; returns the block to which it belongs.

Raises ValueError if the line cannot be read.
"""


def read_icefall(source: Source) -> Lists:
    """Yield the lists of a file ``recogs-*.txt``, with their references. Lines with times are skipped."""
    return _read_blocks(source, _parse_recog_line, {})


def read_fairseq(source: Source, *, base: str = "2") -> Lists:
    """Yield the lists in the output of ``fairseq-generate`` or ``fairseq-interactive``.

    The stream ``first_pass`` is the score in H and D lines, which fairseq has normalised by length as its
    option --lenpen says. The stream ``total`` is the sum of the scores in the P line. A D line replaces the H
    line before it: it has the same text without pieces of words. T lines are references. Other lines are
    skipped.

    Args:
        base: base of the scores, 2 or e. Newer versions of fairseq print base 2 in a line "NOTE: …".

    Raises:
        ConfigError: the base is another one.
        FormatError: the source cannot be opened.
    """
    units = _parse_fairseq_base(base)
    return _read_blocks(source, _parse_fairseq_line, {STREAM: units, TOTAL_STREAM: units})


def read_wenet(source: Source) -> Lists:
    """Yield the lists of a file of wenet's ``decoder_main --output_nbest``."""
    return _read_blocks(source, _parse_wenet_line, {})


def read_aps(source: Source) -> Lists:
    """Yield the lists that aps' ``decode.py --dump-nbest`` writes, with the hypothesis field ``n_tokens``."""
    return _read_blocks(source, partial(_parse_aps_line, sizes=set()), {})


def _read_blocks(source: Source, parse: BlockParser, units: Mapping[str, Units]) -> Lists:
    """Yield the list of each block of lines, or an error if a line of it is damaged or its id is repeated."""
    file, seen = source_name(source), set[str]()
    block: _Block | None = None

    def finish(block: _Block) -> NBestList | InputError:
        if block.error is not None:
            return FormatError(block.error.message, file=file, line=block.error.line)
        if block.id in seen:
            return InvalidList(DUPLICATE_ID, list_id=block.id, file=file, line=block.line)
        seen.add(block.id)
        return build_list(block.id, block.rows, units, file, reference=block.reference)

    for number, text in read_lines(source):
        error = text if isinstance(text, FormatError) else None
        if isinstance(text, str) and text.strip():
            try:
                following = parse(number, text, block)
            except ValueError as problem:
                error = FormatError(str(problem), file=file, line=number)
            else:
                if block is not None and following is not block and (block.id or block.error):
                    yield finish(block)
                block = following
                if block is not None:
                    error = _add_line(block, number, text)
        if error is not None:
            if block is None:
                yield error
            else:
                block.error = block.error or error
                block.rows.clear()
    if block is not None and (block.id or block.error):
        yield finish(block)


def _add_line(block: _Block, number: int, text: str) -> FormatError | None:
    """Add the size of a line to that of its list; return the error if the list has become too large."""
    try:
        block.size.add(len(text))
    except ValueError as problem:
        return FormatError(f"list {quote(block.id)} {problem}", line=number)
    return None


def _parse_recog_line(number: int, text: str, block: _Block | None) -> _Block | None:
    match = RECOG_LINE.fullmatch(text)
    if match is None:
        raise ValueError("expected ID:<TAB>ref=[…] or ID:<TAB>hyp=[…]")
    list_id, kind, value = match.groups()
    is_new = block is None or block.id != list_id or (kind == "ref" and block.reference is not None)
    current = _Block(list_id, number) if is_new or block is None else block
    try:
        if kind == "ref":
            current.reference = _parse_words(value)
        elif kind == "hyp":
            current.rows.append(Row(_parse_words(value), line=number))
    except ValueError as problem:
        current.error = FormatError(str(problem), line=number)
    return current


def _parse_words(value: str) -> str:
    """Join the words of a printed Python list of strings. A text that is not in brackets stays as it is.

    Raises:
        ValueError: the list has an element that is not a string, or does not end.
    """
    value = value.strip()
    if not value.startswith(("['", '["')) and value not in ("[", "[]"):
        return value
    if not value.endswith("]") or value == "[":
        raise ValueError(f"the list of words is cut off: it ends with {value[-30:]!r}")
    words, position, inside = [], 1, value[:-1]
    while position < len(inside):
        match = WORD_IN_QUOTES.match(inside, position)
        if match is None:
            raise ValueError(
                f"expected a list of words in quotation marks, got {inside[position : position + 30]!r}"
            )
        word = match[1] if match[1] is not None else match[2]
        words.append(_unescape(word) if "\\" in word else word)
        position = match.end()
        if inside.startswith(", ", position):
            position += 2
        elif position < len(inside):
            raise ValueError(f"expected a comma after {word[:30]!r}")
    return " ".join(words)


def _unescape(word: str) -> str:
    """Replace the escapes that Python prints in strings. An escape of no valid character becomes U+FFFD."""

    def decode(match: re.Match[str]) -> str:
        if match[4]:
            return NAMED_ESCAPES.get(match[4], match[4])
        code = int(match[1] or match[2] or match[3], 16)
        return chr(code) if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else "\ufffd"

    return ESCAPE.sub(decode, word)


def _parse_fairseq_base(base: str) -> Units:
    if base not in FAIRSEQ_BASES:
        raise ConfigError(f"fairseq: base={base!r}: expected 2, or e for versions of 2019 and before")
    return Units(FAIRSEQ_BASES[base])


def _parse_fairseq_line(number: int, text: str, block: _Block | None) -> _Block | None:
    match = FAIRSEQ_LINE.fullmatch(text)
    if match is None or match[1] not in "STHDP":
        return block
    kind, list_id, rest = match.groups()
    is_new = block is None or block.id != list_id or (kind in "ST" and bool(block.rows))
    current = _Block(list_id, number) if is_new or block is None else block
    if kind == "T":
        current.reference = rest
    elif kind == "P" and current.rows:
        current.rows[-1] = _with_total(current.rows[-1], rest)
    elif kind in "HD":
        score, tab, words = rest.partition("\t")
        row = Row(words, {STREAM: parse_number(score)}, {}, number)
        if not tab:
            current.error = FormatError(f"expected {kind}-{list_id}<TAB>score<TAB>text", line=number)
        elif kind == "D" and current.rows:
            current.rows[-1] = row
        else:
            current.rows.append(row)
    return current


def _with_total(row: Row, scores: str) -> Row:
    """Add the sum of its tokens' scores to a hypothesis, unless one of them is not a number.

    Args:
        scores: the scores, separated by spaces.
    """
    numbers = [parse_number(score) for score in split_words(scores)]
    known = [number for number in numbers if isinstance(number, float)]
    if not known or len(known) < len(numbers):
        return row
    return replace(row, scores={**row.scores, TOTAL_STREAM: sum(known)})


def _parse_wenet_line(number: int, text: str, block: _Block | None) -> _Block | None:
    kind, _, rest = text.strip().partition(" ")
    if kind == "wav" and rest.strip():
        return _Block(rest.strip(), number)
    score, _, words = rest.strip().partition(" ")
    if kind != "candidate" or not score:
        raise ValueError("expected `wav ID` or `candidate SCORE TEXT`")
    if block is None:
        raise ValueError("a candidate before the first line `wav ID`")
    block.rows.append(Row(words.strip(), {STREAM: parse_number(score)}, {}, number))
    return block


def _parse_aps_line(number: int, text: str, block: _Block | None, *, sizes: set[str]) -> _Block | None:
    """Parse a line of an n-best file of aps.

    Args:
        sizes: gets the first line, the number of hypotheses per list. If several files were joined, this line
            occurs again.
    """
    if "\t" not in text:
        name = text.strip()
        if not sizes:
            if not name.isdecimal():
                raise ValueError("expected the number of hypotheses per list in the first line")
            sizes.add(name)
            return _Block("", number)
        if block is not None and block.id in sizes and not block.rows:
            block.id = ""
        return _Block(name, number)
    if block is None or not block.id:
        raise ValueError("a hypothesis before the first id")
    match = APS_LINE.fullmatch(text)
    if match is None:
        raise ValueError("expected score<TAB>number of tokens<TAB>text")
    score, n_tokens, words = match.groups()
    fields = {TOKENS_FIELD: int(n_tokens)} if n_tokens else {}
    block.rows.append(Row(words.strip(), {STREAM: parse_number(score)}, fields, number))
    return block


def looks_like_icefall(sample: Sample) -> str:
    """Return the evidence that a file is one of icefall's recogs, or an empty string."""
    is_icefall = bool(sample.lines) and all(map(RECOG_LINE.fullmatch, sample.lines))
    return "lines ID:<TAB>ref= and ID:<TAB>hyp=" if is_icefall else ""


def looks_like_fairseq(sample: Sample) -> str:
    """Return the evidence that a file is output of fairseq, or an empty string."""
    found = [match for line in sample.lines if (match := FAIRSEQ_LINE.fullmatch(line))]
    scores = [parse_number(match[3].partition("\t")[0]) for match in found if match[1] == "H"]
    is_scored = bool(scores) and all(isinstance(score, float) for score in scores)
    return "lines S-N, T-N, H-N, D-N, P-N" if is_scored else ""


def looks_like_wenet(sample: Sample) -> str:
    """Return the evidence that a file is an n-best file of wenet, or an empty string."""
    first = split_words(sample.first)
    fits = len(sample.lines) > 1 and first[:1] == ["wav"] and len(first) == 2
    is_wenet = fits and all(line.startswith(("wav ", "candidate ")) for line in sample.lines)
    return "lines `wav ID` and `candidate SCORE TEXT`" if is_wenet else ""


def looks_like_aps(sample: Sample) -> str:
    """Return the evidence that a file is an n-best file of aps, or an empty string."""
    if len(sample.lines) < 3 or not sample.first.isdecimal() or "\t" in sample.lines[1]:
        return ""
    scores = [line.partition("\t")[0] for line in sample.lines[2:] if "\t" in line]
    is_aps = "\t" in sample.lines[2] and all(isinstance(parse_number(score), float) for score in scores)
    return "a number, and lists of an id and of lines score<TAB>text" if is_aps else ""


def _check_id(nbest: NBestList) -> None:
    """Raise InvalidList if the id is blank, or contains a tab or a line break, at which it would end."""
    if re.search(r"[\t\n\r\0]", nbest.id) or not nbest.id.strip():
        raise InvalidList("expected an id without tabs and line breaks", list_id=nbest.id, field="id")


def icefall_writer(target: str | Path) -> ListWriter:
    """Write the first hypothesis of each list, and its reference if it has one, as Python lists of words."""

    def format_lines(nbest: NBestList) -> Iterator[str]:
        _check_id(nbest)
        words = split_words(format_texts(nbest)[0])
        if nbest.reference is not None:
            yield f"{nbest.id}:\tref={split_words(nbest.reference.replace(chr(10), ' '))!r}"
        yield f"{nbest.id}:\thyp={words!r}"

    return line_writer(target, format_lines)


def fairseq_writer(target: str | Path, *, base: str = "2") -> ListWriter:
    """Write T lines with references, and H and D lines with hypotheses and the score ``first_pass``.

    Raises:
        ConfigError: the base is neither 2 nor e.
    """
    units = _parse_fairseq_base(base)

    def format_lines(nbest: NBestList) -> Iterator[str]:
        _check_id(nbest)
        if nbest.reference is not None:
            yield f"T-{nbest.id}\t{' '.join(nbest.reference.split())}"
        scores = stream_from_nats(nbest, STREAM, units)
        for text, score in zip(format_texts(nbest), scores, strict=True):
            yield f"H-{nbest.id}\t{score!r}\t{text}"
            yield f"D-{nbest.id}\t{score!r}\t{text}"

    return line_writer(target, format_lines)


def wenet_writer(target: str | Path) -> ListWriter:
    """Write the texts of each list with the score ``first_pass``."""

    def format_lines(nbest: NBestList) -> Iterator[str]:
        yield f"wav {format_key(nbest)}"
        scores = stream_from_nats(nbest, STREAM, NATURAL)
        for text, score in zip(format_texts(nbest), scores, strict=True):
            yield f"candidate {score!r} {text}"

    return line_writer(target, format_lines)


def aps_writer(target: str | Path) -> ListWriter:
    """Write the texts of each list with the score ``first_pass``, after a line with the size of the first
    list."""
    sizes: list[int] = []

    def format_lines(nbest: NBestList) -> Iterator[str]:
        key, texts = format_key(nbest), format_texts(nbest)
        scores = stream_from_nats(nbest, STREAM, NATURAL)
        if not sizes:
            yield str(len(texts))
        sizes.append(len(texts))
        yield key
        for hypothesis, text, score in zip(nbest.hypotheses, texts, scores, strict=True):
            yield f"{score!r}\t{count_words(hypothesis, TOKENS_FIELD)}\t{text}"

    return line_writer(target, format_lines)


BASES: dict[str, Base] = {"e": "e", "10": "10"}
STREAMS = ("acoustic", "lm")
SENTENCE_START, SENTENCE_END = "<s>", "</s>"
RowParser = Callable[[list[str], int], Row]
"""Parses the columns of a line, given the number of the line; raises ValueError if they cannot be read."""


def read_cued(source: Source, *, base: str = "") -> Lists:
    """Yield the lists of a CUED-RNNLM file, with the streams ``acoustic`` and ``lm``.

    Sentence marks at both ends of a text are removed. The number of words becomes the field ``nwords``. The
    lines of a list follow each other. An unreadable line, or a duplicate id, yields an error in place of the
    list.

    Args:
        base: base of both scores, ``e`` or ``10``.

    Raises:
        ConfigError: no valid base is given.
        FormatError: the source cannot be opened.
    """
    return _read_lists(source, _parse_cued_row, dict.fromkeys(STREAMS, _parse_base(base)))


def read_mikolov(source: Source) -> Lists:
    """Yield the lists of a file of Mikolov's rnnlm. They have no scores; all else is as in ``read_cued``."""
    return _read_lists(source, lambda columns, line: Row(" ".join(columns[1:]), line=line), {})


def _read_lists(source: Source, parse_row: RowParser, units: dict[str, Units]) -> Lists:
    file = source_name(source)

    def find() -> FoundLists:
        for list_id, lines in groupby(_parse_lines(source, parse_row, file), lambda line: line[0]):
            numbered, problem = collect(lines, lambda line: _count_characters(line[1]))
            results = [result for _, result in numbered]
            rows = [result for result in results if isinstance(result, Row)]
            error = next((result for result in results if isinstance(result, FormatError)), None)
            if problem:
                error = FormatError(f"list {quote(list_id)} {problem}", file=file)
            yield list_id, None, error or build_list(list_id, rows, units, file)

    return reject_duplicates(find(), file)


def _count_characters(result: Row | FormatError) -> int:
    return len(result.text) if isinstance(result, Row) else len(result.message)


def _parse_lines(source: Source, parse_row: RowParser, file: str) -> Iterator[tuple[str, Row | FormatError]]:
    """Yield the list id and the hypothesis of each line, or an error in place of the hypothesis.

    A line that is not valid text belongs to the list of the line before it.
    """
    list_id = ""
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield list_id, text
        elif columns := split_words(text):
            list_id = columns[0]
            try:
                yield list_id, parse_row(columns, line)
            except ValueError as error:
                yield list_id, FormatError(str(error), file=file, line=line)


def _parse_cued_row(columns: list[str], line: int) -> Row:
    row = parse_scored_words(columns[1:], line, "id, acoustic score, LM score, number of words, words")
    words = split_words(row.text)
    words = words[1:] if words[:1] == [SENTENCE_START] else words
    words = words[:-1] if words[-1:] == [SENTENCE_END] else words
    return replace(row, text=" ".join(words))


def _parse_base(base: str) -> Units:
    if base not in BASES:
        given = f"base={base}" if base else "nothing"
        raise ConfigError(
            f"CUED-RNNLM files do not state the base of their scores; expected base=e or base=10, got {given}"
        )
    return Units(BASES[base])


def cued_writer(target: str | Path, *, base: str = "", missing: float | None = None) -> ListWriter:
    """Write a CUED-RNNLM file, with scores from the streams ``acoustic`` and ``lm``.

    Args:
        base: base of both scores, ``e`` or ``10``.
        missing: score to write for lists that lack one of the streams; None if such lists are rejected.

    Raises:
        ConfigError: no valid base is given.
    """
    units = _parse_base(base)

    def format_lines(nbest: NBestList) -> Iterator[str]:
        key, texts = format_key(nbest), format_texts(nbest)
        scores = (stream_from_nats(nbest, name, units, missing) for name in STREAMS)
        for hypothesis, text, acoustic, lm in zip(nbest.hypotheses, texts, *scores, strict=True):
            columns = f"{key} {acoustic!r} {lm!r} {count_words(hypothesis)} {SENTENCE_START}"
            yield " ".join(filter(None, (columns, text, SENTENCE_END)))

    return line_writer(target, format_lines)


def mikolov_writer(target: str | Path) -> ListWriter:
    """Write a file of Mikolov's rnnlm: ids and words."""

    def format_lines(nbest: NBestList) -> list[str]:
        key = format_key(nbest)
        return [f"{key} {text}" for text in format_texts(nbest)]

    return line_writer(target, format_lines)


def looks_like_cued(sample: Sample) -> str:
    """Return the evidence that a file is in CUED-RNNLM format, or an empty string."""
    rows = [split_words(line) for line in sample.lines]
    is_cued = bool(rows) and all(has_scores(row[1:]) and row[4:5] == [SENTENCE_START] for row in rows)
    return "lines of an id, two scores, a count and <s>" if is_cued else ""

"""Read and write the text that end-to-end toolkits (icefall, fairseq, wenet, aps) and RNNLM toolkits print.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.common import (
    COUNT,
    DUPLICATE_ID,
    NATURAL,
    Base,
    ListWriter,
    Row,
    Units,
    build_list,
    count_words,
    format_key,
    format_texts,
    has_scores,
    line_writer,
    parse_number,
    split_words,
    stream_from_nats,
)
from rescorer.formats.io.folders import Lists, Sample
from rescorer.formats.io.text_io import Source, read_lines, source_name
from rescorer.types import NBestList

STREAM, TOTAL_STREAM = "first_pass", "total"
TOKENS_FIELD = "n_tokens"
RECOG_LINE = re.compile(r"(.*?):\t(ref|hyp|timestamp_ref|timestamp_hyp)=(.*)")
WORD_IN_QUOTES = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|(.))")
NAMED_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
FAIRSEQ_LINE = re.compile(r"([A-Z])-([^\t]{1,200})\t(.*)")
APS_LINE = re.compile(r"([^\t]*)\t(?:(\d{1,9})\t)?(.*)")
FAIRSEQ_BASES: Mapping[str, Base] = {"2": "2", "e": "e"}


@dataclass(slots=True)
class _Block:
    """The lines of one list."""

    id: str
    line: int
    rows: list[Row] = field(default_factory=list)
    reference: str | None = None
    error: FormatError | None = None


BlockParser = Callable[[int, str, "_Block | None"], "_Block | None"]
"""Adds a line to a block, or returns a new one; raises ValueError if the line cannot be read."""


def read_icefall(source: Source) -> Lists:
    """Yield the hypotheses and references of a file ``recogs-*.txt``; lines of times are skipped."""
    return _read_blocks(source, _parse_recog_line, {})


def read_fairseq(source: Source, *, base: str = "2") -> Lists:
    """Yield the lists of the output of ``fairseq-generate`` or ``fairseq-interactive``, among other lines.

    The stream ``first_pass`` is the score of H and D lines, which is divided by the length as --lenpen says;
    the stream ``total`` is the sum of the P line. A D line, the text of the H line before it without pieces
    of words, takes its place. T lines are references.

    Args:
        base: base of the scores: 2, which newer versions say in a line "NOTE: …", or e.

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
    """Yield the lists of blocks of lines; an unreadable line or a duplicate id yields an error instead."""
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
        if error is not None:
            if block is None:
                yield error
            else:
                block.error = block.error or error
    if block is not None and (block.id or block.error):
        yield finish(block)


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
    """Join the words of a printed Python list of strings; a text that is not in brackets stays as it is.

    Raises:
        ValueError: it is another list, or does not end.
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
    """Replace the escapes that Python prints in strings; what is no valid character becomes U+FFFD."""

    def replace(match: re.Match[str]) -> str:
        if match[4]:
            return NAMED_ESCAPES.get(match[4], match[4])
        code = int(match[1] or match[2] or match[3], 16)
        return chr(code) if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else "\ufffd"

    return ESCAPE.sub(replace, word)


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
    """Return a hypothesis with the sum of its tokens' scores; fairseq prints nan for tokens without one."""
    numbers = [parse_number(score) for score in split_words(scores)]
    if not numbers or any(isinstance(number, str) for number in numbers):
        return row
    total = sum(number for number in numbers if isinstance(number, float))
    return Row(row.text, {**row.scores, TOTAL_STREAM: total}, row.fields, row.line)


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
    """Parse a line; ``sizes`` keeps the first one, which comes again where files follow each other."""
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
    if sample.is_folder or not sample.lines or not all(map(RECOG_LINE.fullmatch, sample.lines)):
        return ""
    return "lines ID:<TAB>ref= and ID:<TAB>hyp="


def looks_like_fairseq(sample: Sample) -> str:
    """Return the evidence that a file is output of fairseq, or an empty string."""
    found = [match for line in sample.lines if (match := FAIRSEQ_LINE.fullmatch(line))]
    scores = [parse_number(match[3].partition("\t")[0]) for match in found if match[1] == "H"]
    is_scored = bool(scores) and all(isinstance(score, float) for score in scores)
    return "lines S-N, T-N, H-N, D-N, P-N" if not sample.is_folder and is_scored else ""


def looks_like_wenet(sample: Sample) -> str:
    """Return the evidence that a file is an n-best file of wenet, or an empty string."""
    first = split_words(sample.first)
    rest = all(line.startswith(("wav ", "candidate ")) for line in sample.lines)
    is_wenet = not sample.is_folder and first[:1] == ["wav"] and len(first) == 2 and rest
    return "lines `wav ID` and `candidate SCORE TEXT`" if is_wenet and len(sample.lines) > 1 else ""


def looks_like_aps(sample: Sample) -> str:
    """Return the evidence that a file is an n-best file of aps, or an empty string."""
    if sample.is_folder or len(sample.lines) < 3 or not sample.first.isdecimal() or "\t" in sample.lines[1]:
        return ""
    rows = [line.split("\t") for line in sample.lines[2:] if "\t" in line]
    are_scored = bool(rows) and all(isinstance(parse_number(row[0]), float) for row in rows)
    is_aps = are_scored and "\t" in sample.lines[2]
    return "a number, and lists of an id and of lines score<TAB>text" if is_aps else ""


def _check_id(nbest: NBestList) -> None:
    """Raise InvalidList if a tab would end the id too early, or a line break would."""
    if re.search(r"[\t\n\r\0]", nbest.id) or not nbest.id.strip():
        raise InvalidList("expected an id without tabs and line breaks", list_id=nbest.id, field="id")


def icefall_writer(target: str | Path) -> ListWriter:
    """Write the reference, if there is one, and the first hypothesis of each list as lists of words."""

    def format_lines(nbest: NBestList) -> Iterator[str]:
        _check_id(nbest)
        words = split_words(format_texts(nbest)[0])
        if nbest.reference is not None:
            yield f"{nbest.id}:\tref={split_words(nbest.reference.replace(chr(10), ' '))!r}"
        yield f"{nbest.id}:\thyp={words!r}"

    return line_writer(target, format_lines)


def fairseq_writer(target: str | Path, *, base: str = "2") -> ListWriter:
    """Write T lines of references, and H and D lines with the score ``first_pass``.

    Raises:
        ConfigError: the base is another one than for ``read_fairseq``.
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
    """Write the texts of each list with the score ``first_pass``; the first line is the first list's size."""
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
ParsedLine = tuple[str, Row | FormatError]
"""List id, and the hypothesis or the error if the line cannot be read."""


def read_cued(source: Source, *, base: str = "") -> Lists:
    """Yield the lists of a CUED-RNNLM file, with the streams ``acoustic`` and ``lm``.

    Sentence marks at both ends are removed; the number of words becomes the field ``nwords``. The lines of a
    list are consecutive. An unreadable line, or a duplicate id, yields an error in place of the list.

    Args:
        base: Base of both scores, ``e`` or ``10``.

    Raises:
        ConfigError: no valid base is given.
        FormatError: the source cannot be opened.
    """
    units = _parse_base(base)
    return _read_lists(source, _parse_cued_row, dict.fromkeys(STREAMS, units))


def read_mikolov(source: Source) -> Lists:
    """Yield the lists of a file of Mikolov's rnnlm, which have no scores; otherwise like ``read_cued``."""
    return _read_lists(source, lambda columns, line: Row(" ".join(columns[1:]), line=line), {})


def _read_lists(source: Source, parse_row: Callable[[list[str], int], Row], units: dict[str, Units]) -> Lists:
    file = source_name(source)
    seen: set[str] = set()
    for list_id, lines in groupby(_parse_lines(source, parse_row, file), lambda line: line[0]):
        results = [result for _, result in lines]
        error = next((result for result in results if isinstance(result, FormatError)), None)
        if error is not None:
            yield error
        elif list_id in seen:
            yield InvalidList(DUPLICATE_ID, list_id=list_id, file=file)
        else:
            yield build_list(list_id, [result for result in results if isinstance(result, Row)], units, file)
        seen.add(list_id)


def _parse_lines(
    source: Source, parse_row: Callable[[list[str], int], Row], file: str
) -> Iterator[ParsedLine]:
    """Parse every line; an error for a line that is not valid text is assigned to the preceding list."""
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
    if len(columns) < 4 or not COUNT.fullmatch(columns[3]):
        raise ValueError("expected id, acoustic score, LM score, number of words, words")
    _, acoustic, lm, nwords, *words = columns
    words = words[1:] if words[:1] == [SENTENCE_START] else words
    words = words[:-1] if words[-1:] == [SENTENCE_END] else words
    scores = {"acoustic": parse_number(acoustic), "lm": parse_number(lm)}
    return Row(" ".join(words), scores, {"nwords": int(nwords)}, line)


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
        base: Base of both scores, ``e`` or ``10``.
        missing: Score to write for lists that lack one of the streams; if None, such lists are rejected.

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
    is_cued = (
        not sample.is_folder
        and bool(rows)
        and all(has_scores(row[1:]) and row[4:5] == [SENTENCE_START] for row in rows)
    )
    return "lines of an id, two scores, a count and <s>" if is_cued else ""

r"""Find the model in an ARPA file, and read its header, within bounds.

Only a line that *is* ``\data\`` begins a model, and the line ``\end\`` ends it: whatever is before and after
them is ignored, as SRILM's ngram-format(5) has it. The CMU toolkit writes a page about the format before its
models, which mentions ``\data\``, ``\1-grams:`` and ``\end\``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from rescorer.errors import BundleError
from rescorer.lm.files.compressed_text import BLOCK_BYTES, max_text_bytes, text_blocks
from rescorer.lm.files.foreign_files import KENLM_MAGIC, explain_content
from rescorer.safe_input.files import open_regular

MAX_BEFORE_BYTES = 1 << 20
"""Largest text before a model."""
MAX_ORDER = 10
MAX_COUNT_DIGITS = 12

DATA_LINE = re.compile(rb"(?:\A|(?<=[\r\n]))(?:\xef\xbb\xbf)?[ \t]*\\data\\[ \t\v\f]*(?=[\r\n])")
HEADING = re.compile(rb"[\r\n][ \t]*\\([^\r\n]*)[\r\n]")
"""A line that starts with a backslash."""
SECTION = re.compile(rb"\\(\d{1,3})-grams?[ \t]*:?")
"""The heading of a section, ``\\N-grams:``, and what other toolkits write in its place."""
COUNT = re.compile(rb"^[ \t]*ngram[ \t]+(\d+)[ \t]*=[ \t]*(\d+)", re.MULTILINE)
RETURN_ENDS_LINES = re.compile(rb"[ \t\v\f]*\r(?![ \t\v\f\r]*\n)")
"""What follows ``\\data\\`` in a file whose lines end with a carriage return alone."""
LAST_LINE_END = (b"\n",)
"""What is read after a file, whose last line may have no end."""
OTHER_FORM = re.compile(rb"^[ \t]*(iARPA|qARPA)\b", re.MULTILINE)
"""How IRSTLM begins files that look like ARPA files but have other numbers."""


class ArpaHeader(NamedTuple):
    """The header of an ARPA file."""

    counts: list[int]
    """Number of n-grams per order."""
    n_lines: int
    r"""Number of lines up to ``\1-grams:``."""
    return_ends_lines: bool
    """Whether lines end with a carriage return alone, so that there are no line feeds."""


def is_arpa(path: Path) -> bool:
    """Whether a file, compressed or plain, contains the header of an ARPA file."""
    try:
        with open_regular(path) as stream:
            return has_arpa_header(stream)
    except BundleError:
        return False


def has_arpa_header(stream: BinaryIO) -> bool:
    r"""Whether an open file contains the line ``\data\`` of an ARPA file; the file is rewound."""
    text = b""
    try:
        for block in chain(text_blocks(stream), LAST_LINE_END):
            text += block
            if _find_data_line(text):
                return True
            if len(text) > MAX_BEFORE_BYTES or text.startswith(KENLM_MAGIC):
                return False
        return False
    except BundleError:
        return False
    finally:
        stream.seek(0)


def check_arpa(stream: BinaryIO) -> None:
    """Raise BundleError, saying what an open file is instead, if it is no ARPA file; rewind it."""
    try:
        read_header(stream, text_blocks(stream))
    finally:
        stream.seek(0)


def read_arpa_counts(stream: BinaryIO) -> list[int]:
    """Read the number of n-grams per order from the header of an ARPA file.

    Raises:
        BundleError: there is no such header, or it declares more n-grams than the file can have.
    """
    header, _ = read_header(stream, text_blocks(stream))
    return header.counts


def read_header(stream: BinaryIO, blocks: Iterator[bytes]) -> tuple[ArpaHeader, bytes]:
    r"""Read the header, and return it with the text after the line ``\1-grams:``."""
    text, place = b"", 0
    for block in chain(blocks, LAST_LINE_END):
        text += block
        while data := _find_data_line(text, place):
            heading = HEADING.search(text, data.end())
            if heading is None:
                if len(text) - data.end() > BLOCK_BYTES:
                    raise BundleError(
                        f"{stream.name}: no unigram section in its first {BLOCK_BYTES:,} bytes after \\data\\"
                    )
                break  # more is needed
            header = text[data.end() : heading.start()]
            return_ends_lines = RETURN_ENDS_LINES.match(text, data.end()) is not None
            if counts := COUNT.findall(translate_returns(header) if return_ends_lines else header):
                if OTHER_FORM.search(text[: data.start()]):
                    _refuse_other_form(stream)
                section = SECTION.fullmatch(b"\\" + heading[1].strip())
                if section is None or int(section[1]) != 1:
                    raise BundleError(f"{stream.name}: no unigram section after the counts of its header")
                before, rest = text[: heading.end()], text[heading.end() :]
                if return_ends_lines:
                    before, rest = translate_returns(before), translate_returns(rest)
                found = ArpaHeader(_check_counts(stream, counts), before.count(b"\n"), return_ends_lines)
                return found, rest
            place = heading.start()  # `\data\` stands in a text about the format
        else:
            if len(text) > MAX_BEFORE_BYTES:
                break
    _refuse(stream, text)


def translate_returns(text: bytes) -> bytes:
    """Let lines that end with a carriage return alone, or with both, end with a line feed."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _find_data_line(text: bytes, place: int = 0) -> re.Match[bytes] | None:
    return (
        DATA_LINE.search(text, place) if b"\\data\\" in text else None
    )  # which is far faster than the pattern


def _check_counts(stream: BinaryIO, fields: list[tuple[bytes, bytes]]) -> list[int]:
    """Return the counts of a header; raise BundleError unless they are possible for a file of this size."""
    orders = [b"%d" % order for order in range(1, MAX_ORDER + 1)]
    if [order for order, _ in fields] != orders[: len(fields)]:
        raise BundleError(
            f"{stream.name}: its header has {len(fields)} lines 'ngram ORDER=COUNT'; expected one for each "
            f"order from 1 to at most {MAX_ORDER}"
        )
    if max(len(count) for _, count in fields) > MAX_COUNT_DIGITS:
        raise BundleError(f"{stream.name}: its header has a count of more than {MAX_COUNT_DIGITS} digits")
    counts = [int(count) for _, count in fields]
    largest = max_text_bytes(stream)
    least = sum((2 * order + 2) * count for order, count in enumerate(counts, 1))
    if least > largest:
        raise BundleError(
            f"{stream.name}: its header says {sum(counts):,} n-grams, which need at least {least:,} bytes of "
            f"text; a file of this size has at most {largest:,}"
        )
    return counts


def _refuse_other_form(stream: BinaryIO) -> NoReturn:
    raise BundleError(
        f"{stream.name}: is a model in IRSTLM's own form (iARPA or qARPA), whose numbers are not those of "
        "an ARPA file; write one with: compile-lm FILE --text=yes NEW.arpa"
    )


def _refuse(stream: BinaryIO, text: bytes) -> NoReturn:
    r"""Raise BundleError with the reason for which a text, or its start, is not that of an ARPA file."""
    text = text[:-1] if text.endswith(b"\n") else text
    if reason := explain_content(text[:BLOCK_BYTES]):
        raise BundleError(f"{stream.name}: {reason}")
    if data := _find_data_line(text + b"\n"):
        is_counted = COUNT.search(translate_returns(text[data.end() :]))
        missing = "unigram section" if is_counted else "line 'ngram 1=COUNT'"
        raise BundleError(
            f"{stream.name}: no {missing} after its line \\data\\; expected the header of an ARPA file"
        )
    where = f" in its first {MAX_BEFORE_BYTES:,} bytes" if len(text) >= MAX_BEFORE_BYTES else ""
    lines = translate_returns(text).split(b"\n")
    number = next((i for i, line in enumerate(lines, 1) if b"\\data\\" in line), None)
    hint = f" (line {number:,} has other text next to it)" if number else ""
    if not number and re.search(rb"^[ \t]*(ngram[ \t]+1[ \t]*=|\\1-grams:)", b"\n".join(lines), re.MULTILINE):
        hint = "; the start of the model is missing"
    raise BundleError(f"{stream.name}: no line that is \\data\\{where}{hint}; expected an ARPA file")

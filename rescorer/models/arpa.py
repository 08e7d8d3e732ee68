r"""Read ARPA files into arrays, within bounds of memory and time.

As in SRILM's ngram-format(5), a model begins with the line ``\data\`` and ends with the line ``\end\``; all
text before and after is ignored. A line must consist of ``\data\`` alone: the CMU toolkit writes a page about
the format before its models, which mentions ``\data\``, ``\1-grams:`` and ``\end\`` within sentences.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

import numpy as np

from rescorer.errors import BundleError
from rescorer.models.compressed_text import (
    BLOCK_BYTES,
    KENLM_MAGIC,
    explain_content,
    max_text_bytes,
    text_blocks,
)
from rescorer.models.network_files import END, START, UNKNOWN
from rescorer.safe_input import open_regular

SPACE, TAB, NEWLINE = b" \t\n"
FIRST_BYTES = np.array([(1 << 8 * n) - 1 for n in range(9)], dtype=np.uint64)
"""(9,) masks. Mask n keeps the first n of 8 bytes, which are the lowest bytes of a uint64."""
LAST_BYTES = ~FIRST_BYTES[::-1]  # (9,) masks of the last n of 8 bytes
FACTORS = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F)
"""Odd multipliers whose bits look random. Each of them gives another hash function."""


class TokenBytes:
    """Reads tokens of a text many at a time. A token is given by the indices of its start and its end.

    Attributes:
        bytes: (N + 16,) uint8, the text between 8 zeros on either side; byte i of the text is at i + 8.
    """

    def __init__(self, text: bytes) -> None:
        self.bytes = np.frombuffer(b"".join((bytes(8), text, bytes(8))), np.uint8)
        self._eights = np.ndarray((len(text) + 9,), "V8", self.bytes, strides=(1,))  # they overlap

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the byte at each index of the text, (n,) uint8."""
        return self.bytes.take(places + 8)

    def eight_from(self, starts: np.ndarray) -> np.ndarray:
        """Return the 8 bytes from each index on as one integer, (n,) uint64. The first byte is the lowest."""
        return self.eight_before(starts + 8)

    def eight_before(self, ends: np.ndarray) -> np.ndarray:
        """Return the 8 bytes before each index as one integer, (n,) uint64. The first byte is the lowest."""
        return self._eights[ends].view("<u8")

    def tokens(self, starts: np.ndarray, ends: np.ndarray) -> list[bytes]:
        """Return the tokens as bytes, one by one."""
        text = self.bytes[8:-8].tobytes()
        return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def hash(self, starts: np.ndarray, ends: np.ndarray, factor: int = FACTORS[0]) -> np.ndarray:
        """Hash tokens, (n,) uint64. Different tokens of up to 7 bytes have different hashes."""
        lengths = ends - starts
        hashes = self.eight_from(starts)
        hashes &= FIRST_BYTES.take(np.minimum(lengths, 8))
        hashes ^= lengths.astype(np.uint64) << 56
        _mix(hashes, factor)
        longer, n_read = np.flatnonzero(lengths > 8), 8
        while len(longer):
            next_bytes = self.eight_from(starts.take(longer) + n_read)
            next_bytes &= FIRST_BYTES.take(np.minimum(lengths.take(longer) - n_read, 8))
            next_bytes ^= hashes.take(longer)
            hashes[longer] = _mix(next_bytes, factor)
            n_read += 8
            longer = longer[lengths.take(longer) > n_read]
        return hashes


def _mix(hashes: np.ndarray, factor: int) -> np.ndarray:
    """Spread every bit over all bits above and below it, in place. Distinct values remain distinct."""
    hashes ^= hashes >> 32
    hashes *= np.uint64(factor)
    hashes ^= hashes >> 29
    return hashes


MAX_DECIMALS = 8  # decimals of the numbers that are parsed all at once: as many as there are bytes in 64 bits
POWERS = 10.0 ** np.arange(MAX_DECIMALS + 1)
ZEROS, ABOVE_9, HIGH_BITS = (np.uint64(byte * 0x0101010101010101) for byte in (0x30, 0x76, 0x80))
PAIRS = np.uint64(0x000000FF000000FF)
HIGH_PAIRS, LOW_PAIRS = np.uint64((1_000_000 << 32) + 100), np.uint64((10_000 << 32) + 1)


def parse_decimals(text: TokenBytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Parse tokens as numbers, (n,) float64.

    A number like -12.345678, with up to two digits before the point, is read as an integer below 2^53 and
    divided by a power of ten. Both are exact, so that the one division rounds the result as ``float`` does
    (Clinger 1990). All other numbers, such as 1e-5 or -inf, are left to ``float``.

    Raises:
        ValueError: a token is not a number.
    """
    is_negative = text.at(starts) == ord("-")
    first = starts + is_negative
    second = text.at(first + 1)
    is_one_digit = (second == ord(".")) | (first + 1 == ends)
    points = first + 2 - is_one_digit
    tens, ones = text.at(first) - ord("0"), text.at(points - 1) - ord("0")
    n_decimals = np.maximum(ends - points - 1, 0)
    is_plain = (tens <= 9) & (ones <= 9) & (first < ends) & (n_decimals <= MAX_DECIMALS)
    is_plain &= (text.at(points) == ord(".")) | (points == ends)
    n_decimals[~is_plain] = 0
    fractions, are_digits = _parse_last_digits(text.eight_before(ends), n_decimals)
    is_plain &= are_digits
    powers = POWERS.take(n_decimals)
    values = (np.where(is_one_digit, ones, 10 * tens + ones) * powers + fractions) / powers
    np.negative(values, out=values, where=is_negative)
    if not is_plain.all():
        others = np.flatnonzero(~is_plain)
        values[others] = list(map(float, text.tokens(starts[others], ends[others])))
    return values


def _parse_last_digits(eights: np.ndarray, n_digits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parse the last n of 8 bytes as a number, (N,) uint64, and say whether all are digits, (N,) bool.

    Multiplications of whole 64-bit words join neighbouring digits to pairs, pairs to fours, and fours to
    eight (Lemire, "Quickly parsing eight digits", 2018).
    """
    digits = (eights ^ ZEROS) & LAST_BYTES.take(n_digits)
    are_digits = ((digits + ABOVE_9) | digits) & HIGH_BITS == 0
    digits = digits * np.uint64(10) + (digits >> 8)
    return ((digits & PAIRS) * HIGH_PAIRS + ((digits >> 16) & PAIRS) * LOW_PAIRS) >> 32, are_digits


NO_ID = -1
MAX_STEPS = 4  # steps from the first hash of a bucket before the search goes over to halving


class WordIds:
    """Gives words consecutive ids in the order in which they are added.

    Args:
        words: words that get the first ids. Each is a sequence of names, the word itself first and its
            aliases after it.
    """

    def __init__(self, words: Iterable[Sequence[bytes]] = ()) -> None:
        names = list(words)
        self.ids: dict[bytes, int] = {word: i for i, (word, *_) in enumerate(names)}
        self._aliases = {alias: i for i, (_, *aliases) in enumerate(names) for alias in aliases}
        self._index: _HashIndex | None = None

    def add(self, words: Iterable[bytes]) -> np.ndarray:
        """Return the id of each word, (n,) int32; a new word gets the next id."""
        ids, aliases, self._index = self.ids, self._aliases, None
        words = list(words)
        if aliases.keys().isdisjoint(words):
            return np.array([ids.setdefault(word, len(ids)) for word in words], dtype=np.int32)
        return np.array(
            [i if (i := aliases.get(word)) is not None else ids.setdefault(word, len(ids)) for word in words],
            dtype=np.int32,
        )

    def find(self, text: TokenBytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the id of each token, (n,) int32; ``NO_ID`` for an unknown one."""
        if self._index is None:
            self._index = _HashIndex({**self.ids, **self._aliases})
        return self._index.find(text, starts, ends)


class _HashIndex:
    """Finds the ids of words by the hashes of the words, which it stores in ascending order.

    Hashes with the same highest bits form a bucket. The index knows where each bucket starts, so that a few
    steps find a hash. As in KenLM, two words count as the same if all 64 bits of their hashes are equal. A
    misspelt word of a file is taken for another word with a probability of one in 10^14.
    """

    def __init__(self, ids: dict[bytes, int]) -> None:
        lengths = np.fromiter(map(len, ids), np.int64)
        text, ends = TokenBytes(b"\n".join(ids)), np.cumsum(lengths + 1) - 1
        for factor in FACTORS:
            hashes = text.hash(ends - lengths, ends, factor)
            by_hash = np.argsort(hashes)
            hashes = hashes[by_hash]
            if (hashes[1:] != hashes[:-1]).all():
                break
        else:
            raise ValueError("two words have the same hash with each of several hash functions")
        n_bits = len(hashes).bit_length() + 1
        self._factor, self._shift = factor, np.uint64(64 - n_bits)
        self._first = np.searchsorted(hashes >> self._shift, np.arange(1 << n_bits, dtype=np.uint64)).astype(
            np.int32
        )
        self._hashes = np.append(hashes, np.uint64((1 << 64) - 1))
        self._ids = np.append(np.fromiter(ids.values(), np.int32)[by_hash], np.int32(NO_ID))

    def find(self, text: TokenBytes, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        hashes = text.hash(starts, ends, self._factor)
        places = self._first.take((hashes >> self._shift).view(np.int64)).astype(np.int64)
        candidates = self._hashes.take(places)
        behind = np.flatnonzero(candidates < hashes)
        for _ in range(MAX_STEPS):
            places[behind] += 1
            behind = behind[self._hashes.take(places.take(behind)) < hashes.take(behind)]
        places[behind] = np.searchsorted(self._hashes, hashes.take(behind))
        found = self._ids.take(places)
        found[self._hashes.take(places) != hashes] = NO_ID
        return found


RARE_SPACES = (b"\r", b"\v", b"\f")


class ArpaOrder(NamedTuple):
    """The n-grams of one order, in the order of the file; unigrams in the order of their ids."""

    ids: np.ndarray
    """(N, n) int32 word ids."""
    values: np.ndarray
    """(N, 2), log10 probability and log10 back-off weight; the weight is 0 if the line has none."""


def parse_ngrams(text: bytes, order: int, words: WordIds) -> ArpaOrder:
    """Parse lines of one order, with float64 values. The words of unigrams are added to ``words``.

    Args:
        text: whole lines, at least one of which is not blank.

    Raises:
        ValueError: a line is wrong. It must have a number, as many known words as the order says, and perhaps
            a second number, the back-off weight. ``find_wrong_line`` finds the line.
    """
    tokens, starts, ends, last = split_lines(text)
    n_tokens = np.diff(last, prepend=-1)
    with_backoff = n_tokens == order + 2
    if not (with_backoff | (n_tokens == order + 1)).all():
        raise ValueError("another number of columns")
    first = last - n_tokens + 1
    numbers = np.concatenate([first, last[with_backoff]])
    parsed = parse_decimals(tokens, starts.take(numbers), ends.take(numbers))
    values = np.zeros((len(first), 2))
    values[:, 0] = parsed[: len(first)]
    values[with_backoff, 1] = parsed[len(first) :]
    places = (first[:, None] + np.arange(1, order + 1)).ravel()
    starts, ends = starts.take(places), ends.take(places)
    ids = words.add(tokens.tokens(starts, ends)) if order == 1 else words.find(tokens, starts, ends)
    if (ids < 0).any():
        raise ValueError("a word that is not a unigram")
    return ArpaOrder(ids.reshape(-1, order), values)


def split_sections(text: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield each line that starts with a backslash, stripped, with the text up to the next such line.

    The text before the first such line comes first, with ``b""`` in place of a line.
    """
    before, *sections = re.split(rb"^[ \t]*\\", text, flags=re.MULTILINE) if b"\\" in text else (text,)
    yield b"", before
    for section in sections:
        heading, _, lines = section.partition(b"\n")
        yield b"\\" + heading.strip(), lines


def split_lines(text: bytes) -> tuple[TokenBytes, np.ndarray, np.ndarray, np.ndarray]:
    """Split lines into tokens at white space, without blank lines.

    Returns:
        The text; where each of T tokens starts and ends, (T,) each; and the index of the last token of each
        of L lines, (L,).
    """
    text = _tidy(text) if any(space in text for space in RARE_SPACES) else text.strip() + b"\n"
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data <= SPACE)
    spaces = data.take(ends)
    if not (is_space := (spaces == SPACE) | (spaces == NEWLINE) | (spaces == TAB)).all():
        ends, spaces = ends[is_space], spaces[is_space]  # other control characters are parts of words
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (starts == ends).any():
        return split_lines(_tidy(text))
    return TokenBytes(text), starts, ends, np.flatnonzero(spaces == NEWLINE)


def _tidy(text: bytes) -> bytes:
    """Remove blank lines, and put one space between tokens."""
    return b"".join(b" ".join(tokens) + b"\n" for line in text.split(b"\n") if (tokens := line.split()))


def find_wrong_line(text: bytes, parse: Callable[[bytes], object]) -> int:
    """Return the 0-based number of the first wrong line of a text.

    Args:
        parse: function that raises ValueError if the text that it gets has a wrong line. ``text`` has one.
    """
    lines = [line + b"\n" for line in text.split(b"\n")]

    def is_wrong(n_lines: int) -> bool:
        some = b"".join(lines[:n_lines])
        try:
            _ = some.isspace() or parse(some)
        except ValueError:
            return True
        return False

    return bisect_left(range(1, len(lines)), True, key=is_wrong)


MAX_BEFORE_BYTES = 1 << 20  # largest text before a model
MAX_ORDER = 10
MAX_COUNT_DIGITS = 12

DATA_LINE = re.compile(rb"(?:\A|(?<=[\r\n]))(?:\xef\xbb\xbf)?[ \t]*\\data\\[ \t\v\f]*(?=[\r\n])")
HEADING = re.compile(rb"[\r\n][ \t]*\\([^\r\n]*)[\r\n]")  # a line that starts with a backslash
SECTION = re.compile(rb"\\(\d{1,3})-grams?[ \t]*:?")
"""The heading of a section, ``\\N-grams:``, with variants that some toolkits write."""
COUNT = re.compile(rb"^[ \t]*ngram[ \t]+(\d+)[ \t]*=[ \t]*(\d+)", re.MULTILINE)
RETURN_ENDS_LINES = re.compile(rb"[ \t\v\f]*\r(?![ \t\v\f\r]*\n)")
"""Matches after ``\\data\\`` if the lines of the file end with a carriage return alone."""
LAST_LINE_END = (b"\n",)  # read after a file, whose last line may have no end
OTHER_FORM = re.compile(rb"^[ \t]*(iARPA|qARPA)\b", re.MULTILINE)
"""First word of IRSTLM's files. They look like ARPA files, but their numbers mean something else."""


class ArpaHeader(NamedTuple):
    """The header of an ARPA file."""

    counts: list[int]
    """Number of n-grams per order."""
    n_lines: int
    r"""Number of lines up to and including ``\1-grams:``."""
    return_ends_lines: bool
    """Whether the lines of the file end with a carriage return alone."""


def is_arpa(path: Path) -> bool:
    """Whether a file, compressed or plain, has the header of an ARPA file."""
    try:
        with open_regular(path) as stream:
            return has_arpa_header(stream)
    except BundleError:
        return False


def has_arpa_header(stream: BinaryIO) -> bool:
    r"""Whether an open file has the line ``\data\`` of an ARPA file. Rewinds the file afterwards."""
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


def read_arpa_counts(stream: BinaryIO) -> list[int]:
    """Read the number of n-grams per order from the header of an ARPA file, and rewind the file.

    Raises:
        BundleError: the file is not an ARPA file, or its header declares more n-grams than a file of this
            size can have. If the file is of another known kind, the message says which.
    """
    try:
        return read_header(stream, text_blocks(stream))[0].counts
    finally:
        stream.seek(0)


def read_header(stream: BinaryIO, blocks: Iterator[bytes]) -> tuple[ArpaHeader, bytes]:
    r"""Read the header, up to the line ``\1-grams:``. Return it, and the rest of the blocks read so far."""
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
                    raise BundleError(
                        f"{stream.name}: is a model in IRSTLM's own form (iARPA or qARPA), whose numbers are "
                        "not those of an ARPA file; write one with: compile-lm FILE --text=yes NEW.arpa"
                    )
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
    """Replace every carriage return, together with a line feed that follows it, by one line feed."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _find_data_line(text: bytes, place: int = 0) -> re.Match[bytes] | None:
    # the test for the bytes is far faster than the pattern
    return DATA_LINE.search(text, place) if b"\\data\\" in text else None


def _check_counts(stream: BinaryIO, fields: list[tuple[bytes, bytes]]) -> list[int]:
    """Return the number of n-grams per order, from the fields of a header.

    Raise BundleError unless the orders are 1, 2, …, and the file is large enough for so many n-grams.
    """
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


def _refuse(stream: BinaryIO, text: bytes) -> NoReturn:
    r"""Raise BundleError, and say why this text, the beginning of a file, is not that of an ARPA file."""
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


FIRST_WORDS = (UNKNOWN, START, END)  # words with the first ids, whatever their places in the file
BLOCKS_PER_PART = 8  # blocks of text that are parsed at once
LOG10_ZERO = -99.0  # log10 of probability 0 in ARPA files, where ``-inf`` stands for the same
LOG_ZERO = (LOG10_ZERO + 1) * math.log(10)
"""A word with at most this ln P has the probability 0. Rounding and a back-off weight may add to -99."""
LOG10_MISSING_UNKNOWN = -100.0  # log10 P(``<unk>``) of a model that lacks it, as in KenLM


class ArpaModel(NamedTuple):
    """Everything in an ARPA file."""

    words: tuple[str, ...]  # the word of each id
    orders: list[ArpaOrder]


def read_arpa(stream: BinaryIO) -> ArpaModel:
    """Read an ARPA file for scoring, with float32 values.

    ``FIRST_WORDS`` get the first ids. ``<UNK>`` counts as ``<unk>``; if the file has neither, ``<unk>`` is
    added.

    Raises:
        BundleError: see ``read_arpa_ngrams``; or the file lacks ``<s>`` or ``</s>``.
    """
    names = [(UNKNOWN.encode(), b"<UNK>"), (START.encode(),), (END.encode(),)]
    words, orders = read_arpa_ngrams(stream, WordIds(names))
    return ArpaModel(words, [_complete_unigrams(stream, orders[0], len(words)), *orders[1:]])


def read_arpa_ngrams(
    stream: BinaryIO,
    words: WordIds,
    dtype: type[np.floating] = np.float32,
    on_lines: Callable[[int], None] = lambda _: None,
) -> ArpaModel:
    """Read the n-grams of an ARPA file, in their order. All readers of ARPA files use this function.

    Args:
        words: words that get the first ids; the words of the file are added to them.
        dtype: type of the values.
        on_lines: called with the number of lines that were read since the last call.

    Raises:
        BundleError: a line is too long (see ``_read_lines``), or is not an n-gram of the file's unigrams; a
            unigram occurs twice; a log-probability is positive; the end is missing; or the header declares
            other numbers of n-grams than there are, or more than fit into memory.
    """
    blocks = text_blocks(stream)
    header, rest = read_header(stream, blocks)
    if header.return_ends_lines:
        blocks = map(translate_returns, blocks)
    counts = header.counts
    try:
        orders = [_empty(count, order, dtype) for order, count in enumerate(counts, 1)]
    except MemoryError:
        raise BundleError(
            f"{stream.name}: its header says {sum(counts):,} n-grams, more than fit into memory"
        ) from None
    sizes = [0] * len(counts)
    sections = _read_sections(stream, header, _read_lines(stream, blocks, rest), on_lines)
    for section in sections:
        place = section.order - 1
        start = sizes[place]
        if place == 1 and start == 0 and sizes[0] == counts[0]:
            _check_unigrams(stream, orders[0])
        part = _parse_or_explain(stream, section, words, start)
        sizes[place] += len(part.ids)
        if sizes[place] > counts[place]:
            of_same_order = takewhile(lambda other: other.order == section.order, sections)  # noqa: B023
            sizes[place] += sum(other.count_ngrams() for other in of_same_order)
            break
        for array, of_part in zip(orders[place], part, strict=True):
            array[start : sizes[place]] = of_part
    for order, (found, declared) in enumerate(zip(sizes, counts, strict=True), 1):
        if found != declared:
            raise BundleError(
                f"{stream.name}: has {found:,} {order}-grams; its header says {declared:,}: write "
                f"'ngram {order}={found}' there if none are missing"
            )
    _check_unigrams(stream, orders[0])
    return ArpaModel(_decode_words(stream, words.ids), orders)


def _read_lines(stream: BinaryIO, blocks: Iterator[bytes], rest: bytes) -> Iterator[bytes]:
    """Yield a text in parts of whole lines. It begins with ``rest``, and ``blocks`` continue it.

    A part ends at the last line end of ``BLOCKS_PER_PART`` blocks. A line that continues into the next part
    is refused if more than ``BLOCK_BYTES`` of it have been read; a longer line within one part is accepted.
    So no line has more than (``BLOCKS_PER_PART`` + 1) · ``BLOCK_BYTES`` bytes, that is, 576 KiB.
    """
    while some := b"".join(islice(blocks, BLOCKS_PER_PART)):
        text, newline, rest = (rest + some).rpartition(b"\n")
        yield text + newline
        if len(rest) > BLOCK_BYTES:
            raise BundleError(f"{stream.name}: has a line of more than {BLOCK_BYTES:,} bytes")
    yield rest


class _Section(NamedTuple):
    """Consecutive lines of n-grams of one order."""

    order: int
    n_before: int  # number of lines of the file before this section
    text: bytes

    def count_ngrams(self) -> int:
        return sum(not line.isspace() for line in self.text.split(b"\n") if line)


def _read_sections(
    stream: BinaryIO, header: ArpaHeader, parts: Iterator[bytes], on_lines: Callable[[int], None]
) -> Iterator[_Section]:
    r"""Yield the lines of n-grams by section, up to the line ``\end\``. A section may come in pieces."""
    order, n_before = 1, header.n_lines
    for part in parts:
        n_before_part = n_before
        for heading, ngrams in split_sections(part):
            if heading == b"\\end\\":
                return
            if heading:
                order += 1
                n_before += 1
                named = SECTION.fullmatch(heading)
                if order > len(header.counts) or named is None or int(named[1]) != order:
                    raise BundleError(
                        f"{stream.name}:{n_before}: expected \\{order}-grams: or \\end\\ after the "
                        f"{order - 1}-grams, got another line that starts with a backslash"
                    )
            if ngrams.strip():
                yield _Section(order, n_before, ngrams)
            n_before += ngrams.count(b"\n")
        on_lines(n_before - n_before_part)
    raise BundleError(f"{stream.name}: ends without the line \\end\\; expected a complete ARPA file")


def _parse_or_explain(stream: BinaryIO, section: _Section, words: WordIds, n_ngrams: int) -> ArpaOrder:
    """Parse lines; raise BundleError for the first wrong one, without quoting it.

    Args:
        n_ngrams: number of n-grams of this order in earlier lines.
    """
    order, text = section.order, section.text
    try:
        return _parse(text, order, words)
    except ValueError:
        line = find_wrong_line(text, lambda lines: _parse(lines, order, words))
    number = n_ngrams + 1 + sum(not before.isspace() for before in text.split(b"\n")[:line] if before)
    raise BundleError(
        f"{stream.name}:{section.n_before + line + 1}: {order}-gram {number:,}: "
        "expected a log-probability of at most 0, "
        f"{'a word' if order == 1 else f'{order} words that are unigrams'}, and possibly a back-off weight"
    )


def _parse(text: bytes, order: int, words: WordIds) -> ArpaOrder:
    """Parse lines like ``parse_ngrams``, but also raise ValueError for values that no model has."""
    ids, values = parse_ngrams(text, order, words)
    if values.min() == -math.inf:
        values[np.isneginf(values)] = LOG10_ZERO
    largest = np.finfo(np.float32).max
    if not (values.min() > -largest and values.max() < largest) or values[:, 0].max() > 0:
        raise ValueError("not the logarithm of a probability")
    return ArpaOrder(ids, values)


def _empty(size: int, order: int, dtype: type[np.floating]) -> ArpaOrder:
    """Allocate arrays for so many n-grams. Their pages take no memory until something is written there."""
    return ArpaOrder(np.empty((size, order), np.int32), np.empty((size, 2), dtype))


def _check_unigrams(stream: BinaryIO, unigrams: ArpaOrder) -> None:
    if np.bincount(unigrams.ids[:, 0], minlength=1).max() > 1:
        raise BundleError(f"{stream.name}: one of its unigrams occurs twice")


def _complete_unigrams(stream: BinaryIO, unigrams: ArpaOrder, n_words: int) -> ArpaOrder:
    """Sort unigrams by their ids, and add ``<unk>`` if it is missing."""
    values = np.full((n_words, 2), np.nan, dtype=np.float32)
    values[unigrams.ids[:, 0]] = unigrams.values
    if np.isnan(values[0, 0]):
        values[0] = LOG10_MISSING_UNKNOWN, 0.0
    for word, value in zip(FIRST_WORDS, values, strict=False):
        if np.isnan(value[0]):
            raise BundleError(f"{stream.name}: has no unigram {word}; expected a model of sentences")
    return ArpaOrder(np.arange(n_words, dtype=np.int32)[:, None], values)


def _decode_words(stream: BinaryIO, ids: dict[bytes, int]) -> tuple[str, ...]:
    try:
        return tuple(b"\n".join(ids).decode("utf-8").split("\n"))
    except UnicodeDecodeError:
        pass
    for number, word in enumerate(ids, 1):
        try:
            word.decode("utf-8")
        except UnicodeDecodeError:
            raise BundleError(
                f"{stream.name}: word {number:,} of its unigrams is not in UTF-8; write the file in UTF-8, "
                "such as with: iconv -f LATIN1 -t UTF-8 FILE > NEW"
            ) from None
    raise AssertionError("words that are in UTF-8 one by one are in UTF-8 together")

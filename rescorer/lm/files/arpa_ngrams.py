"""Read all n-grams of an ARPA file into arrays, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import BinaryIO, NamedTuple

import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.files.arpa import SECTION, ArpaHeader, read_header, translate_returns
from rescorer.lm.files.arpa_lines import ArpaOrder, find_wrong_line, parse_ngrams, split_sections
from rescorer.lm.files.compressed_text import BLOCK_BYTES, text_blocks
from rescorer.lm.files.word_ids import WordIds
from rescorer.vocabulary import END, START, UNKNOWN

FIRST_WORDS = (UNKNOWN, START, END)
"""Words with the first ids, whatever their places in the file."""
BLOCKS_PER_PART = 8
"""Blocks of text that are parsed at once."""
LOG10_ZERO = -99.0
"""log10 of probability 0 in ARPA files, where ``-inf`` stands for the same."""
LOG10_MISSING_UNKNOWN = -100.0
"""log10 P(``<unk>``) of a model that lacks it, as in KenLM."""


class ArpaModel(NamedTuple):
    """Everything in an ARPA file."""

    words: tuple[str, ...]
    """The word of each id."""
    orders: list[ArpaOrder]


def read_arpa(stream: BinaryIO) -> ArpaModel:
    """Read an ARPA file for scoring, with float32 values.

    ``FIRST_WORDS`` have the first ids; ``<UNK>`` is another name of ``<unk>``, which is added if missing.

    Raises:
        BundleError: as from ``read_arpa_ngrams``, or the file lacks ``<s>`` or ``</s>``.
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
    """Read the n-grams of an ARPA file in their order; every reader of such files goes through this.

    Args:
        words: words with the first ids; the words of the file are added to them.
        dtype: of the values.
        on_lines: called with the number of lines that were read since its last call.

    Raises:
        BundleError: a line is too long or is not an n-gram of words of the file, a unigram occurs twice, a
            log-probability is positive, the end is missing, or the header declares other numbers of n-grams,
            or more than fit into memory.
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
    """Yield a text in parts of whole lines."""
    while some := b"".join(islice(blocks, BLOCKS_PER_PART)):
        text, newline, rest = (rest + some).rpartition(b"\n")
        yield text + newline
        if len(rest) > BLOCK_BYTES:
            raise BundleError(f"{stream.name}: has a line of more than {BLOCK_BYTES:,} bytes")
    yield rest


class _Section(NamedTuple):
    """Lines of n-grams of one order."""

    order: int
    n_before: int
    """Number of lines of the file before these."""
    text: bytes

    def count_ngrams(self) -> int:
        return sum(not line.isspace() for line in self.text.split(b"\n") if line)


def _read_sections(
    stream: BinaryIO, header: ArpaHeader, parts: Iterator[bytes], on_lines: Callable[[int], None]
) -> Iterator[_Section]:
    r"""Yield lines of n-grams, up to the line ``\end\``."""
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
    """Parse lines; raise BundleError for the first one that is wrong, without quoting it.

    Args:
        n_ngrams: number of n-grams of this order before these.
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
    """Parse lines; raises ValueError also for values that no model has."""
    ids, values = parse_ngrams(text, order, words)
    values[np.isneginf(values)] = LOG10_ZERO
    if not (np.abs(values) < np.finfo(np.float32).max).all() or (values[:, 0] > 0).any():
        raise ValueError("not the logarithm of a probability")
    return ArpaOrder(ids, values)


def _empty(size: int, order: int, dtype: type[np.floating]) -> ArpaOrder:
    """Allocate arrays, whose pages take no memory before they are written."""
    return ArpaOrder(np.empty((size, order), np.int32), np.empty((size, 2), dtype))


def _check_unigrams(stream: BinaryIO, unigrams: ArpaOrder) -> None:
    if len(unigrams.ids) != len(np.unique(unigrams.ids)):
        raise BundleError(f"{stream.name}: one of its unigrams occurs twice")


def _complete_unigrams(stream: BinaryIO, unigrams: ArpaOrder, n_words: int) -> ArpaOrder:
    """Sort unigrams by id, and add ``<unk>`` if it is missing."""
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

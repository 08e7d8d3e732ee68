"""Read all n-grams of an ARPA file into arrays, within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import BinaryIO, NamedTuple

import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.files.arpa import BLOCK_BYTES, read_header, text_blocks
from rescorer.lm.files.arpa_lines import ArpaOrder, find_wrong_line, parse_ngrams, split_sections
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
    """The word of each id, ``FIRST_WORDS`` first."""
    orders: list[ArpaOrder]


def read_arpa(stream: BinaryIO) -> ArpaModel:
    """Read an ARPA file; ``<UNK>`` is another name of ``<unk>``.

    Raises:
        BundleError: a line is too long or is not an n-gram of words of the file, a unigram occurs twice, a
            log-probability is positive, the file lacks ``<s>`` or ``</s>`` or its end, or its header declares
            other numbers of n-grams, or more than fit into memory.
    """
    blocks = text_blocks(stream)
    counts, rest = read_header(stream, blocks)
    words = WordIds([(UNKNOWN.encode(), b"<UNK>"), (START.encode(),), (END.encode(),)])
    try:
        orders = [_empty(count, order) for order, count in enumerate(counts, 1)]
    except MemoryError:
        raise BundleError(
            f"{stream.name}: its header says {sum(counts):,} n-grams, more than fit into memory"
        ) from None
    sizes = [0] * len(counts)
    for order, text in _read_sections(stream, len(counts), _read_lines(stream, blocks, rest)):
        start = sizes[order - 1]
        part = _parse_or_explain(stream, text, order, words, start)
        sizes[order - 1] += len(part.ids)
        if sizes[order - 1] > counts[order - 1]:
            break
        for array, of_part in zip(orders[order - 1], part, strict=True):
            array[start : sizes[order - 1]] = of_part
    for order, (found, declared) in enumerate(zip(sizes, counts, strict=True), 1):
        if found != declared:
            at_least = "at least " if found > declared else ""
            raise BundleError(
                f"{stream.name}: has {at_least}{found:,} {order}-grams; its header says {declared:,}"
            )
    return ArpaModel(
        _decode_words(stream, words.ids),
        [_complete_unigrams(stream, orders[0], len(words.ids)), *orders[1:]],
    )


def _read_lines(stream: BinaryIO, blocks: Iterator[bytes], rest: bytes) -> Iterator[bytes]:
    """Yield a text in parts of whole lines."""
    while some := b"".join(islice(blocks, BLOCKS_PER_PART)):
        text, newline, rest = (rest + some).rpartition(b"\n")
        if len(rest) > BLOCK_BYTES:
            raise BundleError(f"{stream.name}: has a line of more than {BLOCK_BYTES:,} bytes")
        yield text + newline
    yield rest


def _read_sections(stream: BinaryIO, n_orders: int, parts: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield lines of n-grams with their order, up to the line ``\\end\\``."""
    order = 1
    for part in parts:
        for heading, ngrams in split_sections(part):
            if heading == b"\\end\\":
                return
            order += bool(heading)
            if heading and (order > n_orders or heading != b"\\%d-grams:" % order):
                raise BundleError(
                    f"{stream.name}: expected \\{order}-grams: or \\end\\ after the {order - 1}-grams, got "
                    "another line that starts with a backslash"
                )
            if ngrams.strip():
                yield order, ngrams
    raise BundleError(f"{stream.name}: ends without the line \\end\\; expected a complete ARPA file")


def _parse_or_explain(stream: BinaryIO, text: bytes, order: int, words: WordIds, n_before: int) -> ArpaOrder:
    """Parse lines; raise BundleError for the first one that is wrong, without quoting it."""
    try:
        return _parse(text, order, words)
    except ValueError:
        line = find_wrong_line(text, lambda lines: _parse(lines, order, words))
    number = n_before + 1 + sum(not line.isspace() for line in text.split(b"\n")[:line] if line)
    raise BundleError(
        f"{stream.name}: {order}-gram {number:,}: expected a log-probability of at most 0, "
        f"{'a word' if order == 1 else f'{order} words that are unigrams'}, and possibly a back-off weight"
    )


def _parse(text: bytes, order: int, words: WordIds) -> ArpaOrder:
    """Parse lines; raises ValueError also for values that no model has."""
    ids, values = parse_ngrams(text, order, words)
    values[np.isneginf(values)] = LOG10_ZERO
    if not (np.abs(values) < np.finfo(np.float32).max).all() or (values[:, 0] > 0).any():
        raise ValueError("not the logarithm of a probability")
    return ArpaOrder(ids, values)


def _empty(size: int, order: int) -> ArpaOrder:
    """Allocate arrays, whose pages take no memory before they are written."""
    return ArpaOrder(np.empty((size, order), np.int32), np.empty((size, 2), np.float32))


def _complete_unigrams(stream: BinaryIO, unigrams: ArpaOrder, n_words: int) -> ArpaOrder:
    """Sort unigrams by id, and add ``<unk>`` if it is missing."""
    values = np.full((n_words, 2), np.nan, dtype=np.float32)
    values[unigrams.ids[:, 0]] = unigrams.values
    if np.isnan(values[0, 0]):
        values[0] = LOG10_MISSING_UNKNOWN, 0.0
    for word, value in zip(FIRST_WORDS, values, strict=False):
        if np.isnan(value[0]):
            raise BundleError(f"{stream.name}: has no unigram {word}; expected a model of sentences")
    if len(unigrams.ids) != len(np.unique(unigrams.ids)):
        raise BundleError(f"{stream.name}: one of its unigrams occurs twice")
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
            raise BundleError(f"{stream.name}: word {number:,} of its unigrams is not in UTF-8") from None
    raise AssertionError("words that are in UTF-8 one by one are in UTF-8 together")

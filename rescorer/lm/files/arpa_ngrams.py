"""Read all n-grams of an ARPA file into arrays, within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple

import numpy as np

from rescorer.errors import BundleError
from rescorer.lm.files.arpa import BLOCK_BYTES, read_header, text_blocks
from rescorer.vocabulary import END, START, UNKNOWN

FIRST_WORDS = (UNKNOWN, START, END)
"""Words with the first ids, whatever their places in the file."""
LOG10_ZERO = -99.0
"""log10 of probability 0 in ARPA files, where ``-inf`` stands for the same."""
LOG10_MISSING_UNKNOWN = -100.0
"""log10 P(``<unk>``) of a model that lacks it, as in KenLM."""


class ArpaOrder(NamedTuple):
    """The n-grams of one order, in the order of the file; unigrams in the order of their ids."""

    ids: np.ndarray
    """(N, n) int32 word ids."""
    values: np.ndarray
    """(N, 2) float32, log10 probability and log10 back-off weight; 0 for a line without that weight."""


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
            other numbers of n-grams.
    """
    blocks = text_blocks(stream)
    counts, rest = read_header(stream, blocks)
    ids: dict[bytes, int] = {word.encode(): i for i, word in enumerate(FIRST_WORDS)}
    parts: list[list[ArpaOrder]] = [[] for _ in counts]
    sizes = [0] * len(counts)
    for order, text in _read_sections(stream, len(counts), _read_lines(stream, blocks, rest)):
        part = _parse_or_explain(stream, text, order, ids, sizes[order - 1])
        parts[order - 1].append(part)
        sizes[order - 1] += len(part.ids)
        if sizes[order - 1] > counts[order - 1]:
            break
    for order, (found, declared) in enumerate(zip(sizes, counts, strict=True), 1):
        if found != declared:
            at_least = "at least " if found > declared else ""
            raise BundleError(
                f"{stream.name}: has {at_least}{found:,} {order}-grams; its header says {declared:,}"
            )
    orders = [_join(of_order, order) for order, of_order in enumerate(parts, 1)]
    return ArpaModel(
        _decode_words(stream, ids), [_complete_unigrams(stream, orders[0], len(ids)), *orders[1:]]
    )


def _read_lines(stream: BinaryIO, blocks: Iterator[bytes], rest: bytes) -> Iterator[bytes]:
    """Yield a text in parts of whole lines."""
    for block in blocks:
        text, newline, rest = (rest + block).rpartition(b"\n")
        if len(rest) > BLOCK_BYTES:
            raise BundleError(f"{stream.name}: has a line of more than {BLOCK_BYTES:,} bytes")
        yield text + newline
    yield rest


def _read_sections(stream: BinaryIO, n_orders: int, parts: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield lines of n-grams with their order, up to the line ``\\end\\``."""
    order = 1
    for part in parts:
        ngrams, *sections = re.split(rb"^\\", part, flags=re.MULTILINE) if b"\\" in part else (part,)
        if ngrams.strip():
            yield order, ngrams
        for section in sections:
            heading, _, ngrams = section.partition(b"\n")
            if heading.strip() == b"end\\":
                return
            order += 1
            if order > n_orders or heading.strip() != b"%d-grams:" % order:
                raise BundleError(
                    f"{stream.name}: expected \\{order}-grams: or \\end\\ after the {order - 1}-grams, got "
                    "another line that starts with a backslash"
                )
            if ngrams.strip():
                yield order, ngrams
    raise BundleError(f"{stream.name}: ends without the line \\end\\; expected a complete ARPA file")


def _parse_or_explain(
    stream: BinaryIO, text: bytes, order: int, ids: dict[bytes, int], n_before: int
) -> ArpaOrder:
    """Parse lines; raise BundleError for the first one that is wrong, without quoting it."""
    tokens, n_lines = text.split(), text.strip().count(b"\n") + 1
    for with_backoff in (True, False):
        with suppress(ValueError, KeyError):
            return _parse(tokens, n_lines, order, ids, with_backoff)
    parts = []  # lines with and without back-off weights, or with an error
    for number, line in enumerate(filter(None, map(bytes.split, text.splitlines())), n_before + 1):
        try:
            parts.append(_parse(line, 1, order, ids, with_backoff=len(line) == order + 2))
        except (ValueError, KeyError):
            raise BundleError(
                f"{stream.name}: {order}-gram {number:,}: expected a log-probability of at most 0, "
                f"{'a word' if order == 1 else f'{order} words that are unigrams'}, and possibly a back-off "
                "weight"
            ) from None
    return _join(parts, order)


def _parse(
    tokens: Sequence[bytes], n_ngrams: int, order: int, ids: dict[bytes, int], with_backoff: bool
) -> ArpaOrder:
    """Parse n-grams of one order; the words of unigrams are added to ``ids``.

    Raises:
        ValueError, KeyError: these are not as many n-grams, or one of their words is not a unigram.
    """
    step = order + 1 + with_backoff
    if len(tokens) != n_ngrams * step:
        raise ValueError("another number of columns")
    values = np.zeros((n_ngrams, 2))
    values[:, 0] = list(map(float, tokens[::step]))
    if with_backoff:
        values[:, 1] = list(map(float, tokens[step - 1 :: step]))
    values[np.isneginf(values)] = LOG10_ZERO
    if not (np.abs(values) < np.finfo(np.float32).max).all() or (values[:, 0] > 0).any():
        raise ValueError("not the logarithm of a probability")
    if order == 1:
        for word in _named(tokens[1::step]):
            ids.setdefault(word, len(ids))
    words = [
        np.fromiter(map(ids.__getitem__, _named(tokens[i::step])), np.int32) for i in range(1, order + 1)
    ]
    return ArpaOrder(np.stack(words, axis=1), values.astype(np.float32))


def _named(words: Sequence[bytes]) -> Sequence[bytes]:
    """Replace ``<UNK>`` by ``<unk>``."""
    return [UNKNOWN.encode() if word == b"<UNK>" else word for word in words] if b"<UNK>" in words else words


def _join(parts: list[ArpaOrder], order: int) -> ArpaOrder:
    empty = ArpaOrder(np.empty((0, order), np.int32), np.empty((0, 2), np.float32))
    ids, values = zip(*(parts or [empty]), strict=True)
    return ArpaOrder(np.concatenate(ids), np.concatenate(values))


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

"""Parse lines of n-grams into arrays, all lines of a text at once."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from rescorer.lm.files.decimals import parse_decimals
from rescorer.lm.files.token_bytes import NEWLINE, SPACE, TAB, TokenBytes
from rescorer.lm.files.word_ids import WordIds

RARE_SPACES = (b"\r", b"\v", b"\f")


class ArpaOrder(NamedTuple):
    """The n-grams of one order, in the order of the file; unigrams in the order of their ids."""

    ids: np.ndarray
    """(N, n) int32 word ids."""
    values: np.ndarray
    """(N, 2), log10 probability and log10 back-off weight; 0 for a line without that weight."""


class TokenLines(NamedTuple):
    """Lines of tokens."""

    text: TokenBytes
    starts: np.ndarray
    """(T,) where each token starts."""
    ends: np.ndarray
    """(T,) where each token ends."""
    last: np.ndarray
    """(L,) the last token of each line."""


def parse_ngrams(text: bytes, order: int, words: WordIds) -> ArpaOrder:
    """Parse lines of one order, with float64 values; the words of unigrams are added to ``words``.

    Args:
        text: whole lines, of which at least one is not blank.

    Raises:
        ValueError: a line is not a number, as many words as the order that are unigrams, and possibly another
            number; see ``find_wrong_line``.
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
    """Yield each line that starts with a backslash, without spaces around it, with the lines after it.

    What precedes the first of them comes after ``b""``.
    """
    before, *sections = re.split(rb"^[ \t]*\\", text, flags=re.MULTILINE) if b"\\" in text else (text,)
    yield b"", before
    for section in sections:
        heading, _, lines = section.partition(b"\n")
        yield b"\\" + heading.strip(), lines


def split_lines(text: bytes) -> TokenLines:
    """Split lines into tokens at white space; blank lines do not count."""
    text = _tidy(text) if any(space in text for space in RARE_SPACES) else text.strip() + b"\n"
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero((data == SPACE) | (data == TAB) | (data == NEWLINE))
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (starts == ends).any():
        return split_lines(_tidy(text))
    return TokenLines(TokenBytes(text), starts, ends, np.flatnonzero(data.take(ends) == NEWLINE))


def _tidy(text: bytes) -> bytes:
    """Drop blank lines, and separate tokens by one space."""
    return b"".join(b" ".join(tokens) + b"\n" for line in text.split(b"\n") if (tokens := line.split()))


def find_wrong_line(text: bytes, parse: Callable[[bytes], object]) -> int:
    """Return the 0-based number of the first line that ``parse`` refuses.

    Args:
        text: lines, as for ``parse_ngrams``.
        parse: raises ValueError for lines of which one is wrong, as it does for ``text``.
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

"""Owns references that leave a choice: ``{ -uh / @ } i see``, as NIST's transcripts write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias, Union

from rescorer.errors import InvalidList

OPEN, OR, CLOSE, NOTHING = "{", "/", "}", "@"
MAX_ALTERNATIVES = 256
MAX_DEPTH = 50

TOKEN = re.compile(r"\{|\S+")
TOKEN_IN_BRACES = re.compile(r"[{}/]|[^\s{}/]+")

Words = tuple[str, ...]
Part: TypeAlias = Union[str, tuple[tuple["Part", ...], ...]]  # noqa: UP007 (names itself)
"""A word as it is written, or a choice between alternatives, each a sequence of parts."""


def parse_alternations(reference: str, list_id: str = "") -> tuple[Part, ...]:
    """Takes braces apart, as sclite does.

    >>> parse_alternations("{ uh / { a / @ } } i see")
    ((('uh',), ((('a',), ('@',)),)), 'i', 'see')

    A brace opens where a word begins; inside, braces and slashes need no spaces around them, and an
    alternative in which nothing is written, not even ``@``, is none.

    Raises:
        InvalidList: braces do not match, or are more than ``MAX_DEPTH`` deep.
    """

    if OPEN not in reference and CLOSE not in reference:
        return tuple(reference.split())

    def fault(message: str) -> InvalidList:
        return InvalidList(message, list_id=list_id, field="reference")

    done: list[tuple[Part, ...]] = []  # alternatives of the innermost open brace that are complete
    current: list[Part] = []  # the alternative being read
    around: list[tuple[list[tuple[Part, ...]], list[Part]]] = []  # the same two of every brace around it
    place = 0
    while match := (TOKEN_IN_BRACES if around else TOKEN).search(reference, place):
        token, place = match[0], match.end()
        if token == OPEN:
            if len(around) == MAX_DEPTH:
                raise fault(f"braces are more than {MAX_DEPTH} deep")
            around.append((done, current))
            done, current = [], []
        elif around and token in (OR, CLOSE):
            done += [tuple(current)] if current else []
            current = []
            if token == CLOSE:
                choice = tuple(done)
                done, current = around.pop()
                current += [choice] if choice else []
        elif token == CLOSE:
            raise fault('"}" without a "{" before it')
        else:
            current.append(token)
    if around:
        raise fault('"{" without a "}" after it')
    return tuple(current)


def expand_alternations(reference: str, list_id: str = "") -> tuple[Words, ...]:
    """Every way to read ``reference``, distinct, in the order written; ``@`` in braces is nothing.

    >>> expand_alternations("{ { -uh / @ } / a } i see")
    (('-uh', 'i', 'see'), ('i', 'see'), ('a', 'i', 'see'))

    Outside braces a slash or ``@`` is a word like any other.

    Raises:
        InvalidList: braces do not match, or there are more than ``MAX_ALTERNATIVES`` readings.
    """

    def readings(parts: Sequence[Part], nothing: str = "") -> list[Words]:
        found: list[list[str]] = [[]]
        for part in parts:
            ways = ways_of(part, nothing, MAX_ALTERNATIVES // len(found))
            if len(ways) > 1:
                found = [[*left, *right] for left in found for right in ways]
                continue
            for words in found:  # in place, for most parts are words
                words.extend(ways[0])
        return [tuple(words) for words in found]

    def ways_of(part: Part, nothing: str, most: int) -> list[Words]:
        if isinstance(part, str):
            return [() if part == nothing else (part,)]
        ways: dict[Words, None] = {}
        for each in part:
            ways |= dict.fromkeys(readings(each, NOTHING))
            if len(ways) > most:
                message = f"alternations give more than {MAX_ALTERNATIVES} readings"
                raise InvalidList(message, list_id=list_id, field="reference")
        return list(ways)

    return tuple(dict.fromkeys(readings(parse_alternations(reference, list_id))))

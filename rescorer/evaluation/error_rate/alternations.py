"""Parse references with alternatives, written as in NIST's transcripts: ``{ -uh / @ } i see``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias, Union

from rescorer.errors import InvalidList

OPEN, OR, CLOSE, EMPTY = "{", "/", "}", "@"
MAX_READINGS = 256
MAX_DEPTH = 50

TOKEN = re.compile(r"\{|\S+")
TOKEN_IN_BRACES = re.compile(r"[{}/]|[^\s{}/]+")

Words = tuple[str, ...]
Part: TypeAlias = Union[str, tuple[tuple["Part", ...], ...]]  # noqa: UP007 (names itself)
"""A word as written, or a choice between alternatives, each of them a sequence of parts."""


def parse_alternations(reference: str, list_id: str = "") -> tuple[Part, ...]:
    """Parse braces as sclite does.

    >>> parse_alternations("{ uh / { a / @ } } i see")
    ((('uh',), ((('a',), ('@',)),)), 'i', 'see')

    An opening brace must start a word; inside braces, braces and slashes need no spaces around them. An
    alternative that is entirely empty, without even ``@``, is ignored.

    Raises:
        InvalidList: braces do not match, or are nested more than ``MAX_DEPTH`` deep.
    """

    if OPEN not in reference and CLOSE not in reference:
        return tuple(reference.split())

    def error(message: str) -> InvalidList:
        return InvalidList(message, list_id=list_id, field="reference")

    complete: list[tuple[Part, ...]] = []  # complete alternatives of the innermost open brace
    current: list[Part] = []  # the alternative being read
    enclosing: list[tuple[list[tuple[Part, ...]], list[Part]]] = []  # the same two for every enclosing brace
    position = 0
    while match := (TOKEN_IN_BRACES if enclosing else TOKEN).search(reference, position):
        token, position = match[0], match.end()
        if token == OPEN:
            if len(enclosing) == MAX_DEPTH:
                raise error(f"braces are nested more than {MAX_DEPTH} deep")
            enclosing.append((complete, current))
            complete, current = [], []
        elif enclosing and token in (OR, CLOSE):
            complete += [tuple(current)] if current else []
            current = []
            if token == CLOSE:
                choice = tuple(complete)
                complete, current = enclosing.pop()
                current += [choice] if choice else []
        elif token == CLOSE:
            raise error('"}" without a "{" before it')
        else:
            current.append(token)
    if enclosing:
        raise error('"{" without a "}" after it')
    return tuple(current)


def expand_alternations(reference: str, list_id: str = "") -> tuple[Words, ...]:
    """All distinct readings of ``reference``, in the order written; ``@`` inside braces stands for no words.

    >>> expand_alternations("{ { -uh / @ } / a } i see")
    (('-uh', 'i', 'see'), ('i', 'see'), ('a', 'i', 'see'))

    Outside braces, a slash or ``@`` is an ordinary word.

    Raises:
        InvalidList: braces do not match, or there are more than ``MAX_READINGS`` readings.
    """

    def expand_sequence(parts: Sequence[Part], empty: str = "") -> list[Words]:
        readings: list[list[str]] = [[]]
        for part in parts:
            expansions = expand_part(part, empty, MAX_READINGS // len(readings))
            if len(expansions) > 1:
                readings = [[*left, *right] for left in readings for right in expansions]
                continue
            for words in readings:  # extended in place, since most parts are single words
                words.extend(expansions[0])
        return [tuple(words) for words in readings]

    def expand_part(part: Part, empty: str, limit: int) -> list[Words]:
        if isinstance(part, str):
            return [() if part == empty else (part,)]
        expansions: dict[Words, None] = {}
        for alternative in part:
            expansions |= dict.fromkeys(expand_sequence(alternative, EMPTY))
            if len(expansions) > limit:
                message = f"alternations give more than {MAX_READINGS} readings"
                raise InvalidList(message, list_id=list_id, field="reference")
        return list(expansions)

    return tuple(dict.fromkeys(expand_sequence(parse_alternations(reference, list_id))))

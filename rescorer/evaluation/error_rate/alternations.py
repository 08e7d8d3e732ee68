"""Parse alternatives in references and hypotheses, written as in NIST's files: ``{ -uh / @ } i see``.

A choice is ``{ a / b }``. Its opening brace must start a word; inside braces, nothing needs spaces around it.
Braces without a slash are a choice only if they stand alone, as in ``{ a }``. Otherwise they are characters
of words, as in Buckwalter's transliteration: ``{lkbyr qA}l``. Braces that do not match are an error, so that
no character is lost silently; where braces are ordinary characters, alternatives can be switched off.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias, Union

from rescorer.errors import InvalidList, quote

OPEN, OR, CLOSE, EMPTY = "{", "/", "}", "@"
MAX_READINGS = 256
MAX_DEPTH = 50
QUOTED = 60
"""Characters of a malformed choice that errors quote."""
HINT = "; where braces are ordinary characters, count with --alternations off"

_MARK = re.compile(r"[{}/]")

Words = tuple[str, ...]
Part: TypeAlias = Union[str, tuple[tuple["Part", ...], ...]]  # noqa: UP007 (names itself)
"""A word as written, or a choice between alternatives, each of them a sequence of parts."""


def has_marks(text: str) -> bool:
    """Whether a text may have alternatives or, outside braces, the null word ``@``."""
    return OPEN in text or CLOSE in text or EMPTY in text


def has_choices(text: str) -> bool:
    """Whether a text has alternatives; braces that do not match are characters."""
    try:
        return any(not isinstance(part, str) for part in parse_alternations(text))
    except InvalidList:
        return False


def parse_alternations(text: str, list_id: str = "", field: str = "reference") -> tuple[Part, ...]:
    """Parse braces as sclite does.

    >>> parse_alternations("{ uh / { a / @ } } i see")
    ((('uh',), ((('a',), ('@',)),)), 'i', 'see')

    An alternative that is entirely empty, without even ``@``, is ignored.

    Raises:
        InvalidList: braces do not match, or are nested more than ``MAX_DEPTH`` deep; the error names them.
    """
    if OPEN not in text and CLOSE not in text:
        return tuple(text.split())
    complete: list[tuple[Part, ...]] = []  # complete alternatives of the innermost open brace
    current: list[Part] = []  # the alternative being read
    enclosing: list[tuple[list[tuple[Part, ...]], list[Part]]] = []  # the same two for every enclosing brace
    start = 0
    for position in _find_marks(text, list_id, field):
        current += text[start:position].split()
        start = position + 1
        if text[position] == OPEN:
            enclosing.append((complete, current))
            complete, current = [], []
            continue
        complete += [tuple(current)] if current else []
        current = []
        if text[position] == CLOSE:
            choice = tuple(complete)
            complete, current = enclosing.pop()
            current += [choice] if choice else []
    return (*current, *text[start:].split())


def _find_marks(text: str, list_id: str, field: str) -> list[int]:
    """Positions of the braces and slashes of choices, in order."""

    def error(message: str) -> InvalidList:
        return InvalidList(message + HINT, list_id=list_id, field=field)

    def starts_word(position: int) -> bool:
        return not position or text[position - 1].isspace() or position - 1 in marks

    marks: set[int] = set()
    groups: list[list[int]] = []  # of every open brace: its position and those of its slashes
    for match in _MARK.finditer(text):
        position, mark = match.start(), match[0]
        if mark == OPEN:
            if groups or starts_word(position):
                groups.append([position])
            if len(groups) > MAX_DEPTH:
                raise error(f"braces are nested more than {MAX_DEPTH} deep")
        elif groups:
            groups[-1].append(position)
            if mark == CLOSE:
                group = groups.pop()
                if len(group) > 2 or _stand_alone(text, *group):
                    marks.update(group)
        elif mark == CLOSE and starts_word(position) and not text[position + 1 : position + 2].strip():
            raise error(f'"}}" without a "{{" before it: {quote(text[: position + 1][-QUOTED:])}')
    if groups:
        raise error(f'"{{" without a "}}" after it: {quote(text[groups[0][0] :], QUOTED)}')
    return sorted(marks)


def _stand_alone(text: str, opened: int, closed: int) -> bool:
    """Whether there is white space on the inner sides of two braces and after the second."""
    after = text[closed + 1 : closed + 2]
    return text[opened + 1].isspace() and text[closed - 1].isspace() and (not after.strip() or after in "{/}")


def expand_alternations(text: str, list_id: str = "", field: str = "reference") -> tuple[Words, ...]:
    """All distinct readings of a text, in the order written; ``@`` inside braces stands for no words.

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
                raise InvalidList(message, list_id=list_id, field=field)
        return list(expansions)

    return tuple(dict.fromkeys(expand_sequence(parse_alternations(text, list_id, field))))

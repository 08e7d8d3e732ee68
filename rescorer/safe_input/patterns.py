"""Compile regular expressions of a bundle so that matching takes bounded time, whatever the token.

Python's engine tries all ways to match, and no other thread runs meanwhile. ``(a+)+$`` on forty letters takes
hours. Only patterns that cannot do this are accepted, and only tokens of ordinary length are matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from re import _constants as opcodes  # type: ignore[attr-defined]  # not in the stubs
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from rescorer.errors import ConfigError, quote

MAX_MATCHED_CHARACTERS = 100
"""Longest token that a pattern can match. Two repeats take at most its square, a tenth of a millisecond."""
MAX_PATTERNS = 200
MAX_REPEATS = 2
"""Largest number of repeats, such as ``+``, in one pattern."""
REPEATS = (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT)


def compile_patterns(patterns: Sequence[str]) -> re.Pattern[str]:
    """Compile patterns into one that matches what any of them matches, regardless of case; see ``matches``.

    Raises:
        ConfigError: a pattern is invalid, or could take too long.
    """
    check_patterns(patterns)
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)", re.IGNORECASE)


def matches(pattern: re.Pattern[str], token: str) -> bool:
    """Whether a pattern matches a whole token."""
    return len(token) <= MAX_MATCHED_CHARACTERS and pattern.fullmatch(token) is not None


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise ConfigError if there are too many patterns, or one is invalid or could take too long."""
    if len(patterns) > MAX_PATTERNS:
        raise ConfigError(f"{len(patterns):,} regular expressions; expected at most {MAX_PATTERNS}")
    for pattern in patterns:
        check_pattern(pattern)


def check_pattern(pattern: str) -> None:
    """Raise ConfigError if a pattern is not a regular expression, or could take too long to match."""
    try:
        re.compile(pattern)
        parsed = parser.parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"{quote(pattern)} is not a valid regular expression: {error}") from None
    repeats = list(find_repeats(parsed))
    if len(repeats) > MAX_REPEATS:
        raise ConfigError(f"{quote(pattern)} has {len(repeats)} repeats; expected at most {MAX_REPEATS}")
    for body in repeats:
        shortest, longest = body.getwidth()
        if shortest != longest or shortest == 0 or any(op is opcodes.BRANCH for op, _ in iterate_nodes(body)):
            raise ConfigError(
                f"{quote(pattern)} repeats something that can match in several ways, which may take for "
                "ever; expected repeats of a single character or of a fixed text"
            )


def find_repeats(parsed: Any) -> Iterator[Any]:
    """Yield what is repeated more than once by each repeat of a parsed pattern, nested ones included."""
    for op, argument in iterate_nodes(parsed):
        if op in REPEATS and argument[1] > 1:
            yield argument[2]


def iterate_nodes(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the nodes of a parsed pattern with their arguments, at all levels."""
    for op, argument in parsed:
        yield op, argument
        for part in _parts(argument):
            yield from iterate_nodes(part)


def _parts(argument: Any) -> Iterator[Any]:
    """Yield the parsed patterns inside the argument of a node."""
    if isinstance(argument, parser.SubPattern):
        yield argument
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _parts(part)

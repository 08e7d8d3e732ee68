"""Owns the way through a JSON document piece by piece: no more of it is in memory than one value needs.

The values are those of Python's ``json``: NaN and numbers of any length, as the tools that write n-best lists
write them, which streaming parsers of strict JSON refuse.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

from rescorer.errors import FormatError, InputError
from rescorer.formats.io.json_records import SURROGATE_ESCAPE
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE, max_line_bytes
from rescorer.types import NBestList

PIECE_CHARACTERS = 1 << 16
"""Read at once, or more where a value is longer."""
LONGEST_TOKEN = 16
"""Characters of an escaped pair of surrogates, the longest that is a fault where it is cut; ``-Infinity``
has 9. A text that goes on without its end has a message of its own."""
BLANKS = re.compile(r"[ \t\n\r]*")
KINDS = {
    '"': "a string",
    "[": "an array",
    "{": "an object",
    "t": "a boolean",
    "f": "a boolean",
    "n": "nothing",
}


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two values of one key would lose one of them in silence."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice!r} is there twice in one object")
    return value


DECODER = json.JSONDecoder(object_pairs_hook=build_object)


class JsonStream:
    """A place in a document. Every method but ``next`` goes on from it, and raises FormatError with the line
    where the text is no JSON, has a key twice in one object or half a surrogate pair, or cannot be read."""

    def __init__(self, pieces: Iterator[str], file: str) -> None:
        self._pieces = pieces
        self._file = file
        self._limit = max_line_bytes()
        self._text, self._at = "", 0
        self._line, self._column = 1, 0  # of the text's first character
        self._ended = False
        self._damage: FormatError | None = None

    def peek(self) -> str:
        """The character that comes next, blanks left out; empty at the end."""
        while True:
            match = BLANKS.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def describe_next(self) -> str:
        """What to call the value that comes next in an error."""
        return KINDS.get(self.peek(), "a number")

    def read_value(self) -> Any:
        """The value that comes next."""
        self.peek()
        while True:
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as fault:
                cut = fault.msg.startswith("Unterminated") or fault.pos >= len(self._text) - LONGEST_TOKEN
                if not (cut and self._more()):
                    self._refuse(fault.msg, fault.pos)
            except (ValueError, RecursionError) as fault:  # thousands of digits or of brackets, a key twice
                message = f"not readable JSON: {fault}"
                raise FormatError(message, file=self._file, line=self._place(self._at)[0]) from None
            else:
                if end < len(self._text) - len("e-") or not self._more():  # a number may go on
                    break
        self._check_surrogates(value, end)
        self._at = end
        return value

    def read_members(self, allow_duplicates: bool = False) -> Iterator[str]:
        """The keys of the object that comes next; the caller takes the value of each.

        Args:
            allow_duplicates: a key may come again.
        """
        seen: set[str] = set()
        self._take("{", "Expecting an object")
        closed = self._took("}")
        while not closed:
            if self.peek() != '"':
                self._refuse("Expecting property name enclosed in double quotes", self._at)
            key = self.read_value()
            if key in seen and not allow_duplicates:
                message = f"not readable JSON: the key {key!r} is there twice in one object"
                raise FormatError(message, file=self._file, line=self._place(self._at)[0])
            seen.add(key)
            self._take(":", "Expecting ':' delimiter")
            yield key
            closed = self._took("}")
            if not closed:
                self._take(",", "Expecting ',' delimiter")

    def read_elements(self) -> Iterator[int]:
        """The places in the array that comes next, from 0; the caller takes the value of each."""
        self._take("[", "Expecting an array")
        closed = self._took("]")
        place = 0
        while not closed:
            yield place
            place += 1
            closed = self._took("]")
            if not closed:
                self._take(",", "Expecting ',' delimiter")

    def expect_end(self) -> None:
        """Nothing comes any more."""
        if self.peek():
            self._refuse("Extra data", self._at)
        if self._damage is not None:
            raise self._damage

    def _took(self, character: str) -> bool:
        found = self.peek() == character
        self._at += found
        return found

    def _take(self, character: str, otherwise: str) -> None:
        if not self._took(character):
            self._refuse(otherwise, self._at)

    def _more(self) -> bool:
        """Reads on, at least as much as is there; False where there is nothing more."""
        if self._ended:
            return False
        rest = self._text[self._at :]
        if len(rest) > self._limit:
            message = f"a value longer than {self._limit} characters; {MAX_LINE_VARIABLE} sets the limit"
            raise FormatError(message, file=self._file, line=self._place(self._at)[0])
        new: list[str] = []
        size = 0
        try:
            while size < max(PIECE_CHARACTERS, min(len(rest), self._limit + 1 - len(rest))):
                new.append(next(self._pieces))
                size += len(new[-1])
        except StopIteration:
            self._ended = True
        except FormatError as fault:  # what came before it is read first
            self._ended, self._damage = True, fault
        if size:
            self._line, self._column = self._place(self._at)
            self._text, self._at = rest + "".join(new), 0
        return size > 0

    def _place(self, at: int) -> tuple[int, int]:
        """Line and 0-based column of a place in the text."""
        breaks = self._text.count("\n", 0, at)
        column = at - self._text.rfind("\n", 0, at) - 1 if breaks else self._column + at
        return self._line + breaks, column

    def _refuse(self, message: str, at: int) -> NoReturn:
        if self._damage is not None:
            raise self._damage
        line, column = self._place(at)
        raise FormatError(f"not JSON: {message} at column {column + 1}", file=self._file, line=line)

    def _check_surrogates(self, value: Any, end: int) -> None:
        if SURROGATE_ESCAPE.search(self._text, self._at, end):
            try:
                json.dumps(value, ensure_ascii=False).encode("utf-8")
            except UnicodeEncodeError:
                line = self._place(self._at)[0]
                message = "half a surrogate pair; expected Unicode text"
                raise FormatError(message, file=self._file, line=line) from None


def yield_late_errors(outcomes: Iterator[NBestList | InputError]) -> Iterator[NBestList | InputError]:
    """The outcomes of a document; a fault after the first of them is the last, for what was read is good."""
    begun = False
    try:
        for each in outcomes:
            begun = True
            yield each
    except FormatError as fault:
        if not begun:
            raise
        yield fault

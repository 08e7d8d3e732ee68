"""Parse JSON lines and JSON documents, and describe JSON values in error messages.

Documents are parsed incrementally: only one value of a document is in memory at a time. Python's ``json``
decodes the values, so NaN and numbers of any length are accepted. These occur in n-best lists, but strict
streaming parsers reject them. Lines without any of these are decoded by orjson, in a third of the time.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import wraps
from itertools import chain, islice
from typing import Any, NoReturn, ParamSpec, TypeGuard

from rescorer.errors import FormatError, InputError
from rescorer.formats.io.text_io import MAX_LINE_VARIABLE, max_line_bytes, max_values
from rescorer.types import NBestList

SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
P = ParamSpec("P")


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a JSON number; a boolean is not one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def without(record: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return the members of an object except those with some keys."""
    return {key: value for key, value in record.items() if key not in keys}


def parse_object(text: str, file: str, line: int) -> dict[str, Any]:
    """Parse a line that holds one JSON object.

    Raises:
        FormatError: the line is not a JSON object, or contains an unpaired surrogate, which cannot be
            encoded in UTF-8.
    """
    record = parse_value(text, file, line)
    if isinstance(record, dict):
        return record
    is_array = isinstance(record, list) and record
    advice = "; `jq -c '.[]'` writes the objects of an array on a line each" if is_array else ""
    message = f"expected a JSON object, got {describe_type(record)}{advice}"
    raise FormatError(message, file=file, line=line)


def parse_value(
    text: str, file: str, line: int, build: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse a line that holds one JSON value.

    Args:
        build: a function that builds an object from its members; it may raise ValueError.

    Raises:
        FormatError: the line is not JSON, or contains an unpaired surrogate.
    """
    if build is None and (value := parse_usual(text)) is not None:
        return value
    try:
        value = json.loads(text, object_pairs_hook=build)
        if SURROGATE_ESCAPE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error.msg} at column {error.colno}", file=file, line=line) from None
    except UnicodeEncodeError:
        raise FormatError("unpaired surrogate; expected Unicode text", file=file, line=line) from None
    except (ValueError, RecursionError) as error:  # thousands of digits or of nested brackets
        raise FormatError(f"cannot parse JSON: {error}", file=file, line=line) from None
    return value


DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
LONG_NUMBER = b"0" * 19
"""Digits of the shortest integer that orjson may read as a float, after all digits have become zeros."""
FEW_BRACKETS = 200
"""Number of brackets that cannot be nested too deeply for any part of this program."""
USUAL_DEPTH = 8


def parse_usual(text: str) -> Any:
    """Parse a line by orjson if the result is certain to be that of ``json``; otherwise return None.

    orjson rejects NaN, unpaired surrogates and numbers beyond float64, and ``json`` deep nesting. In integers
    of many digits, orjson keeps only the first ones.
    """
    import orjson  # not with the module: clients import it, and parse nothing

    try:
        data = text.encode()
        value = orjson.loads(data)
    except ValueError:
        return None
    if LONG_NUMBER in data.translate(DIGITS_TO_ZERO):
        return None
    is_shallow = data.count(b"{") + data.count(b"[") <= FEW_BRACKETS or _is_shallow(value)
    return value if is_shallow else None


def _is_shallow(value: Any) -> bool:
    """Whether arrays and objects are nested at most ``USUAL_DEPTH`` deep."""
    nested = [value]
    for _ in range(USUAL_DEPTH):
        inner = [part.values() if type(part) is dict else part for part in nested]
        if not {dict, list} & set(map(type, chain.from_iterable(inner))):
            return True
        nested = [part for part in chain.from_iterable(inner) if type(part) in (dict, list)]
    return False


def describe_type(value: Any) -> str:
    """Return the type of a JSON value for error messages, with its article, such as "an empty array"."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "a boolean"
    for kind, name in ((str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return f"a{'n' if name[0] in 'ao' else ''} {name}" if value else f"an empty {name}"
    return "a number"


CHUNK_CHARACTERS = 1 << 16
"""Number of characters to read at a time; more are read if a value is longer."""
MAX_TOKEN_CHARACTERS = 16
"""Length of the longest token whose parse fails if the text ends within it.

This token is an escaped surrogate pair; ``-Infinity`` has 9 characters. Strings do not count, because their
error message says that the end is missing.
"""
BLANKS = re.compile(r"[ \t\n\r]*")
INDENTED_START = re.compile(r"[\[{][ \t\r]*\n[ \t]+[^ \t\r\n]")
"""Matches the start of an indented document: only its first line and its last line begin with a bracket."""
FLAT_START = re.compile(r"[\[{][ \t\r]*\n[^ \t\r\n\[{]")
"""Matches the start of a document that takes several lines without indentation."""
VALUE_START = re.compile(r"[,\[{]")
"""Matches what stands before a value; strings may have it, too."""
NEXT_START = re.compile(r"(?:(?<=\n)|\A)[\[{]")
"""Matches an opening bracket at the start of a line."""
TYPE_NAMES = {
    **{'"': "a string", "[": "an array", "{": "an object"},
    **{"t": "a boolean", "f": "a boolean", "n": "nothing"},
}
"""Description of a value, by the first character of the value. With any other character, it is a number."""


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from the members of a JSON object.

    Raises:
        ValueError: a key occurs twice, so that a dict would lose one of the values.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        key = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"duplicate key {key!r} in an object")
    return value


DECODER = json.JSONDecoder(object_pairs_hook=build_object)


class JsonValue:
    """A cursor in a value that is already parsed. It has the same reading methods as ``JsonStream``."""

    def __init__(self, value: Any) -> None:
        self._next: Any = value

    def peek(self) -> str:
        return "{" if isinstance(self._next, dict) else "[" if isinstance(self._next, list) else "0"

    def describe_next(self) -> str:
        return describe_type(self._next)

    def read_value(self) -> Any:
        return self._next

    def read_members(self, allow_duplicates: bool = False) -> Iterator[str]:
        for key, value in self._next.items():
            self._next = value
            yield key

    def read_elements(self) -> Iterator[int]:
        for index, value in enumerate(self._next):
            self._next = value
            yield index


class JsonStream:
    """A cursor in a text that consists of one or several JSON documents.

    Every method except ``peek`` and ``describe_next`` moves the cursor. All methods raise FormatError with
    the line if the text cannot be read, is not JSON, or contains an unpaired surrogate or an object with a
    duplicate key.
    """

    def __init__(
        self, chunks: Iterator[str], file: str, line: int = 1, min_characters: int = CHUNK_CHARACTERS
    ) -> None:
        """Start before the first value.

        Args:
            chunks: the text, in pieces of any length.
            line: number of the first line.
            min_characters: number of characters to read at once, unless a value needs more.
        """
        self._chunks, self._min_characters = chunks, min_characters
        self._file = file
        self._limit, self._max_values = max_line_bytes(), max_values()
        self._text, self._at = "", 0
        self._cut, self._cut_from = "", 0  # see _cut_text
        self._line, self._column = line, 0  # of the first character of the text
        self._ended = False
        self._read_error: FormatError | None = None
        self._is_indented = self._is_flat = self._is_broken = False
        self._start = line, 0

    @property
    def place(self) -> tuple[int, int]:
        """Line and 0-based column of the cursor."""
        return self._locate(self._at)

    def start_document(self) -> bool:
        """Move to the next document; return False if no document is left."""
        if not self.peek():
            if self._read_error is not None:
                raise self._read_error
            return False
        is_indented = self._starts_indented()
        self._is_indented = self._is_indented or is_indented
        self._is_flat = bool(FLAT_START.match(self._text, self._at))
        self._is_broken, self._start = False, self.place
        return True

    def skip_broken(self) -> bool:
        """Move from a syntax error to the start of the next document; return False if that is not certain.

        The start is certain if documents are indented, because a line that starts with an opening bracket
        then starts a document. They count as indented if a document up to the error is, or the next one.
        """
        if not self._is_broken or self._is_flat:
            return False
        self._at += self.place == self._start
        while True:
            if self._at == 0 and self._column:  # what is at the start of the text is not that of a line
                self._at = 1
            if found := NEXT_START.search(self._text, self._at):
                self._at = found.start()
                return self._is_indented or self._starts_indented()
            self._at = max(self._at, len(self._text) - 1)  # keeps a line break
            if not self._read_more():
                return False

    def peek(self) -> str:
        """Skip white space. Return the next character without moving past it; "" at the end of the text."""
        while True:
            match = BLANKS.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text) or not self._read_more():
                return self._text[self._at : self._at + 1]

    def describe_next(self) -> str:
        """Return the type of the next value with its article, for error messages."""
        return TYPE_NAMES.get(self.peek(), "a number")

    def _starts_indented(self) -> bool:
        if len(self._text) - self._at < CHUNK_CHARACTERS:
            self._read_more()
        return bool(INDENTED_START.match(self._text, self._at))

    def read_value(self) -> Any:
        """Read the next value."""
        self.peek()
        while True:
            text = self._cut
            try:
                value, end = DECODER.raw_decode(text, self._at)
            except json.JSONDecodeError as error:
                near_end = error.pos >= len(text) - MAX_TOKEN_CHARACTERS
                cut_short = error.msg.startswith("Unterminated") or near_end
                if cut_short and len(text) < len(self._text):
                    if self._cut_from < self._at:
                        self._cut_text()
                        continue
                    message = f"a value has more than {self._max_values:,} values in it"
                    self._fail_unparsable(f"{message}; set {MAX_LINE_VARIABLE} to allow more")
                if not (cut_short and self._read_more()):
                    self._fail(error.msg, error.pos)
            except (ValueError, RecursionError) as error:  # too many digits or brackets, or a duplicate key
                self._fail_unparsable(error)
            else:
                # A number that touches the end of the text may continue in the next chunk.
                if end < len(self._text) - len("e-") or not self._read_more():
                    break
        self._check_surrogates(value, end)
        self._at = end
        return value

    def _cut_text(self) -> None:
        """Cut the text where a value that begins at the cursor would have too many values.

        No later value that ends before the cut has too many either. The text is therefore cut again only
        after it has been read, and where a later value reaches the cut, so that the total time stays linear.
        """
        self._cut, self._cut_from = self._text, self._at
        if len(self._text) - self._at <= self._max_values:
            return
        if sum(self._text.count(mark, self._at) for mark in ",[{") > self._max_values:
            starts = VALUE_START.finditer(self._text, self._at)
            self._cut = self._text[: next(islice(starts, self._max_values, None)).start()]

    def read_members(self, allow_duplicates: bool = False) -> Iterator[str]:
        """Yield each key of the next object; the caller must read the value after each key.

        Args:
            allow_duplicates: whether a key may occur more than once.
        """
        seen: set[str] = set()
        self._expect("{", "Expecting an object")
        closed = self._skip("}")
        while not closed:
            if self.peek() != '"':
                self._fail("Expecting property name enclosed in double quotes", self._at)
            key = self.read_value()
            if key in seen and not allow_duplicates:
                self._fail_unparsable(f"duplicate key {key!r} in an object")
            seen.add(key)
            self._expect(":", "Expecting ':' delimiter")
            yield key
            closed = self._skip("}")
            if not closed:
                self._expect(",", "Expecting ',' delimiter")

    def read_elements(self) -> Iterator[int]:
        """Yield each index in the next array, from 0; the caller must read the element at each index."""
        self._expect("[", "Expecting an array")
        closed = self._skip("]")
        index = 0
        while not closed:
            yield index
            index += 1
            closed = self._skip("]")
            if not closed:
                self._expect(",", "Expecting ',' delimiter")

    def expect_end(self) -> None:
        """Check that nothing but white space follows."""
        if self.peek():
            self._fail("Extra data", self._at)
        if self._read_error is not None:
            raise self._read_error

    def _skip(self, character: str) -> bool:
        """Skip the next character if it is ``character``; return whether it was."""
        found = self.peek() == character
        self._at += found
        return found

    def _expect(self, character: str, message: str) -> None:
        if not self._skip(character):
            self._fail(message, self._at)

    def _read_more(self) -> bool:
        """Read at least as much text as is still unparsed; return False at the end of the text.

        A value whose end has not been read is parsed again after each read. Because the text doubles each
        time, the total time stays linear in the length of the value.
        """
        if self._ended:
            return False
        rest = self._text[self._at :]
        if len(rest) > self._limit:
            message = (
                f"a value is longer than {self._limit} characters; set {MAX_LINE_VARIABLE} to allow more"
            )
            raise FormatError(message, file=self._file, line=self._locate(self._at)[0])
        new: list[str] = []
        size = 0
        try:
            while size < max(self._min_characters, min(len(rest), self._limit + 1 - len(rest))):
                new.append(next(self._chunks))
                size += len(new[-1])
        except StopIteration:
            self._ended = True
        except FormatError as error:  # raised later, after the text before it has been parsed
            self._ended, self._read_error = True, error
        if size:
            self._line, self._column = self._locate(self._at)
            self._text, self._at = rest + "".join(new), 0
            self._cut_text()
        return size > 0

    def _locate(self, at: int) -> tuple[int, int]:
        """Return the line and the 0-based column of a position in the text."""
        breaks = self._text.count("\n", 0, at)
        column = at - self._text.rfind("\n", 0, at) - 1 if breaks else self._column + at
        return self._line + breaks, column

    def _fail(self, message: str, at: int) -> NoReturn:
        if self._read_error is not None:
            raise self._read_error
        line, column = self._locate(at)
        self._is_broken, self._at = True, at
        raise FormatError(f"not JSON: {message} at column {column + 1}", file=self._file, line=line)

    def _fail_unparsable(self, reason: Exception | str) -> NoReturn:
        self._is_broken = True
        message = f"cannot parse JSON: {reason}"
        raise FormatError(message, file=self._file, line=self._locate(self._at)[0]) from None

    def _check_surrogates(self, value: Any, end: int) -> None:
        if SURROGATE_ESCAPE.search(self._text, self._at, end):
            try:
                json.dumps(value, ensure_ascii=False).encode("utf-8")
            except UnicodeEncodeError:
                line = self._locate(self._at)[0]
                message = "unpaired surrogate; expected Unicode text"
                raise FormatError(message, file=self._file, line=line) from None


JsonCursor = JsonStream | JsonValue
"""A place before a value in JSON. ``peek`` returns the first character that the value has or would have."""


def yield_late_errors(
    read: Callable[P, Iterator[NBestList | InputError]],
) -> Callable[P, Iterator[NBestList | InputError]]:
    """Decorate a reader so that a FormatError is yielded as its last item, if it has yielded lists before.

    The lists before the damage are valid, so the caller should keep them. If nothing has been yielded yet,
    the error is raised.
    """

    @wraps(read)
    def read_to_error(*args: P.args, **options: P.kwargs) -> Iterator[NBestList | InputError]:
        started = False
        try:
            for outcome in read(*args, **options):
                started = True
                yield outcome
        except FormatError as error:
            if not started:
                raise
            yield error

    return read_to_error

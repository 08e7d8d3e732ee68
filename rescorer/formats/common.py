"""Code that all formats share: units of scores, rows that become lists, checks of values, and writers.

A *stream* is one named score of every hypothesis, such as ``acoustic``. All file formats and the service
check the values of streams here, and convert them from their log base and sign to nats.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, TextIO, TypeVar, get_args

from rescorer.errors import ConfigError, FormatError, InputError, InvalidList
from rescorer.formats.io.folders import Lists, create_files
from rescorer.formats.io.json_io import describe_type, is_number
from rescorer.formats.io.text_io import (
    MAX_LINE_VARIABLE,
    Source,
    make_folder,
    max_line_bytes,
    open_output,
    read_lines,
)
from rescorer.types import Hypothesis, NBestList

if TYPE_CHECKING:
    import numpy as np

STREAM = "first_pass"
"""Name of the stream for the scores of formats that do not name their scores."""
LogBase = Literal["e", "2", "10", "1.0001", "bytelog"]
Base = Literal[LogBase, "prob"]
"""Base of a logarithm, or ``prob`` for probabilities and confidences, which are not logarithms."""
Sign = Literal["log_prob", "cost"]

NATS_PER_UNIT = MappingProxyType(
    {
        "e": 1.0,
        "2": math.log(2.0),
        "10": math.log(10.0),
        "1.0001": math.log(1.0001),  # integer scores of Sphinx
        "bytelog": 1024.0 / 10000.5,  # Decipher's scores; Prob.h of SRILM
    }
)
"""Value in nats of one unit in each log base."""
MAX_SHOWN_CHARACTERS = 40
"""Maximum length of a value that an error message shows in full."""
TYPE_NAMES: Mapping[type, str] = MappingProxyType({dict: "an object", list: "an array", str: "a string"})
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Units:
    """Log base and sign of the numbers in a stream.

    With the base ``prob``, a number is a probability above 0 and at most 1, such as a confidence. Its natural
    logarithm is the score.

    Raises:
        ValueError: the base or the sign is unknown, or probabilities are declared as costs. The caller should
            add to the message where the units were declared.
    """

    base: Base = "e"
    sign: Sign = "log_prob"
    """``cost`` for negative log-probabilities, where lower is better."""

    def __post_init__(self) -> None:
        for name, allowed in (("base", get_args(Base)), ("sign", get_args(Sign))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")
        if self.base == "prob" and self.sign == "cost":
            raise ValueError("base prob has the sign cost; a probability is higher where a text is better")

    @property
    def nats_per_unit(self) -> float:
        """Log-probability in nats that a score of 1 stands for; not defined for the base ``prob``."""
        return NATS_PER_UNIT[self.base] * (1.0 if self.sign == "log_prob" else -1.0)

    def to_nats(self, value: float) -> float:
        """Convert a score to nats.

        Raises:
            ValueError: the base is ``prob``, and the value is not above 0 and at most 1.
        """
        if self.base != "prob":
            return value * self.nats_per_unit
        if not 0.0 < value <= 1.0:
            hint = "; services that write 0 mean that they have no confidence" if value == 0.0 else ""
            raise ValueError(f"{value!r} is not a probability above 0 and at most 1 (base prob){hint}")
        return math.log(value)

    def from_nats(self, nats: float) -> float:
        """Convert nats to a score.

        Raises:
            ValueError: the base is ``prob``, and the nats are positive or their exponential is 0 in float64.
        """
        if self.base != "prob":
            return nats / self.nats_per_unit
        if nats > 0.0 or not math.exp(nats):
            raise ValueError(f"{nats!r} nats are not a probability above 0 and at most 1 (base prob)")
        return math.exp(nats)


NATURAL = Units()


def parse_units(base: str, sign: str, place: str = "") -> Units:
    """Parse a base and a sign.

    Args:
        place: text with which the message of an error begins, such as the option that has the base.

    Raises:
        ConfigError: the base or the sign is unknown.
    """
    try:
        return Units(base, sign)  # type: ignore[arg-type]  # checked by Units
    except ValueError as error:
        raise ConfigError(f"{place}{error}") from None


def stream_to_nats(
    name: str, values: Sequence[Any], units: Units = NATURAL, *, list_id: str = "", field: str = ""
) -> tuple[float, ...] | None:
    """Check one stream of a list and convert its values to nats; return None if all values are None.

    Args:
        values: one value per hypothesis as read from the input. Logarithms may be positive, as
            log-likelihoods of densities sometimes are.
        field: path of the values for error messages; by default ``streams["name"]``.

    Raises:
        InvalidList: a value is missing, not a number, NaN or infinite; or it is a probability that is not
            above 0 and at most 1. Zero is rejected because it has no logarithm; services write it where they
            have no confidence at all. The error names the hypothesis and the field.
    """
    if all(value is None for value in values):
        return None
    if units.base != "prob" and set(map(type, values)) <= {float}:  # fast; the loop below finds the error
        scale = units.nats_per_unit
        all_nats = tuple(values if scale == 1.0 else [value * scale for value in values])
        if math.isfinite(sum(all_nats)) or all(map(math.isfinite, all_nats)):
            return all_nats
    converted = []
    for hypothesis, value in enumerate(values):
        problem = _find_problem(value)
        if not problem:
            try:
                nats = units.to_nats(float(value))
            except ValueError as error:
                problem = str(error)
            else:
                if math.isfinite(nats):
                    converted.append(nats)
                    continue
                problem = f"{value!r} is too large for a float64 in nats"
        raise InvalidList(
            f"{problem}; expected a finite number in every hypothesis",
            list_id=list_id,
            hypothesis=hypothesis,
            field=field or f'streams["{name}"]',
        )
    return tuple(converted)


def _find_problem(value: Any) -> str:
    """Return the reason why a value is not a valid score, or an empty string if the value is valid."""
    if value is None:
        return "no score, though other hypotheses of the list have one"
    if not is_number(value):
        text = repr(value)
        shown = text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 3] + "..."
        return f"{shown} is not a number"
    try:
        return "" if math.isfinite(value) else f"the score is {value!r}"
    except OverflowError:  # an integer of hundreds of digits
        return "the score is too large for a float64"


MAX_SCALED = 2.0**42
"""Scaled values below this limit are rounded by numpy: they have at least ten bits after the binary point."""
MARGIN = 2.0**-8
"""Smallest distance of a scaled value from a half, such as 2.5, at which numpy's rounding can be trusted.

The margin is many times the rounding error of the scaled value.
"""


def round_scaled(values: np.ndarray, decimals: int) -> tuple[np.ndarray, np.ndarray]:
    """Multiply values by a power of ten and round them to integers; tell where that may be wrong.

    Returns:
        The integers, float64, and bool for each: whether it lies so close to a half that the multiplication
        may have changed its rounding, is too large, or is NaN.
    """
    import numpy as np  # only writers need it; clients do not

    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values * 10.0**decimals
        nearest = np.rint(scaled)
        unsure = ~((0.5 - np.abs(scaled - nearest) > MARGIN) & (np.abs(scaled) < MAX_SCALED))  # or NaN
    return nearest, unsure


def round_all(values: np.ndarray, decimals: int) -> np.ndarray:
    """Round each value exactly as Python's ``round(value, decimals)`` does: correctly, with halves to even.

    Each value is multiplied by a power of ten and rounded to an integer; the integer, divided by the power,
    is the float nearest to the decimal. Values that lie so close to a half that the multiplication may have
    changed their rounding are left to Python's ``round``.

    Args:
        values: float64 of any shape; infinite values and NaN stay as they are.
        decimals: at most 22, because larger powers of ten are not exact in float64.
    """
    nearest, unsure = round_scaled(values, decimals)
    rounded = nearest / 10.0**decimals
    rounded[unsure] = [round(value, decimals) for value in values[unsure].tolist()]
    return rounded


LINE_COST = 128
"""Bytes by which a line counts in the size of a list, in addition to its characters: what objects need."""
MIN_LIST_BYTES = 1 << 23
"""Size that every list may have, even if the limit on lines is low."""


class ListSize:
    """Adds up the lines of one list while it is read, so that it needs no more memory than a long line."""

    def __init__(self) -> None:
        self._limit = max(MIN_LIST_BYTES, max_line_bytes())
        self._n_bytes = 0

    def add(self, n_characters: int) -> None:
        """Add a line; raise ValueError if the list has become too large."""
        self._n_bytes += n_characters + LINE_COST
        if self._n_bytes > self._limit:
            raise ValueError(
                f"takes more than {self._limit:,} bytes, with {LINE_COST} for each line; set "
                f"{MAX_LINE_VARIABLE} to allow more"
            )


def collect(lines: Iterable[T], measure: Callable[[T], int]) -> tuple[list[T], str]:
    """Collect the lines of one list. If it is too large, read on, and return the first line and the reason.

    Args:
        measure: returns the number of characters of a line.
    """
    size, taken, problem = ListSize(), list[T](), ""
    for line in lines:
        try:
            if not problem:
                size.add(measure(line))
                taken.append(line)
        except ValueError as error:
            problem = str(error)
            del taken[1:]
    return taken, problem


WORD_SEPARATOR = re.compile(r"[ \t\r\f\v]+")
"""Matches ASCII white space. Other white space is part of a word, as in the tools that write these files."""
LINE_BREAK = re.compile(r"[\n\r\0]")
"""Matches characters that a line cannot contain. NUL is one of them because ``read_lines`` rejects it."""
DUPLICATE_ID = "duplicate id; only the first list with this id is read"
"""Message of the error that is yielded in place of a list if an earlier list has the same id."""


@dataclass(frozen=True, slots=True)
class Row:
    """One hypothesis as it was read. Its scores are not checked, and are still in the units of the file."""

    text: str
    scores: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    line: int | None = None


def split_words(text: str) -> list[str]:
    """Split a text at ASCII white space."""
    return [word for word in WORD_SEPARATOR.split(text) if word]


def parse_number(text: str) -> float | str:
    """Parse a column as a number; return other text unchanged, so that ``build_list`` rejects it.

    Underscores between digits, which Python allows, are not accepted.
    """
    try:
        return text if "_" in text else float(text)
    except ValueError:
        return text


def parse_finite(text: str) -> float:
    """Parse a finite number.

    Raises:
        ValueError: the text is not a finite number.
    """
    value = parse_number(text)
    if isinstance(value, str) or not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


class KeyedLine(NamedTuple):
    """A line ``key value`` of an archive. If it cannot be read, it has an error, and its key and value are
    empty."""

    line: int
    key: str
    value: str
    error: FormatError | None = None


def read_keyed_lines(source: Source) -> Iterator[KeyedLine]:
    """Yield the lines of an archive, except blank ones, with single spaces between words."""
    for line, text in read_lines(source):
        if isinstance(text, FormatError):
            yield KeyedLine(line, "", "", text)
        elif text.strip():
            key, *words = split_words(text)
            yield KeyedLine(line, key, " ".join(words))


COUNT = re.compile("[0-9]{1,9}")


def has_scores(columns: Sequence[str]) -> bool:
    """Whether columns begin with two numbers and a count, as in files of SRILM and of RNNLM tools."""
    numbers = [isinstance(parse_number(column), float) for column in columns[:2]]
    return len(columns) > 2 and all(numbers) and COUNT.fullmatch(columns[2]) is not None


def parse_scored_words(columns: Sequence[str], line: int, expected: str) -> Row:
    """Parse a line with the columns acoustic score, LM score, number of words, words.

    Args:
        expected: description of the columns for the error.

    Raises:
        ValueError: the third column is not a number of words.
    """
    if len(columns) < 3 or not COUNT.fullmatch(columns[2]):
        raise ValueError(f"expected {expected}")
    acoustic, lm, nwords, *words = columns
    scores = {"acoustic": parse_number(acoustic), "lm": parse_number(lm)}
    return Row(" ".join(words), scores, {"nwords": int(nwords)}, line)


def build_list(
    list_id: str,
    rows: Sequence[Row],
    units: Mapping[str, Units],
    file: str,
    *,
    reference: str | None = None,
    group: str = "",
    fields: Mapping[str, Any] | None = None,
) -> NBestList | InvalidList:
    """Build a list from its rows, or return the error if the list is invalid.

    Args:
        units: units of the streams; a stream without units is in nats.
        file: name of the file, for the error.
    """
    if not list_id:
        return InvalidList("is empty; expected an id", field="id", file=file)
    if not rows:
        return InvalidList("no hypotheses; expected at least one", list_id=list_id, file=file)
    streams = {}
    try:
        for name in stream_names(row.scores for row in rows):
            values = [row.scores.get(name) for row in rows]
            nats = stream_to_nats(name, values, units.get(name, NATURAL), list_id=list_id, field=name)
            if nats is not None:
                streams[name] = nats
    except InvalidList as error:
        return add_location(error, file, None if error.hypothesis is None else rows[error.hypothesis].line)
    hypotheses = tuple(Hypothesis(row.text, row.fields) for row in rows)
    return NBestList(list_id, hypotheses, streams, reference=reference, group=group, fields=fields or {})


def stream_names(rows: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Return the names of the streams of which at least one hypothesis has a score, in input order.

    Args:
        rows: the scores of each hypothesis, by stream name.
    """
    return dict.fromkeys(name for scores in rows for name, value in scores.items() if value is not None)


def add_location(error: InvalidList, file: str, line: int | None) -> InvalidList:
    """Return a copy of an error with its file and line."""
    return InvalidList(
        error.message,
        list_id=error.list_id,
        hypothesis=error.hypothesis,
        field=error.field,
        file=file,
        line=line,
    )


def parse_at(
    file: str,
    line: int | None,
    parse: Callable[P, NBestList | InvalidList],
    *args: P.args,
    **options: P.kwargs,
) -> NBestList | InvalidList:
    """Call a parser. Return its list or, if it raises InvalidList, the error with file and line added."""
    try:
        return parse(*args, **options)
    except InvalidList as error:
        return add_location(error, file, line)


FoundLists = Iterator[tuple[str, int | None, NBestList | InputError]]
"""Items of a reader: the id of a list, its line if it is known, and the list or an error in its place."""


def reject_duplicates(found: FoundLists, file: str) -> Lists:
    """Yield the lists of a file. Put an error in place of a list if an earlier list has the same id.

    A FormatError is yielded unchanged. A later list with its id is rejected, too, because it may be the rest
    of the damaged list.
    """
    seen: set[str] = set()
    for list_id, line, item in found:
        if list_id in seen and not isinstance(item, FormatError):
            item = InvalidList(DUPLICATE_ID, list_id=list_id, file=file, line=line)
        seen.add(list_id)
        yield item


def check_type(value: Any, kind: type[T], list_id: str, field: str = "", hypothesis: int | None = None) -> T:
    """Return a JSON value after checking its type.

    Args:
        kind: the expected type: dict, list or str.

    Raises:
        InvalidList: the value has another type.
    """
    if isinstance(value, kind):
        return value
    message = f"expected {TYPE_NAMES[kind]}, got {describe_type(value)}"
    raise InvalidList(message, list_id=list_id, hypothesis=hypothesis, field=field)


def check_text(value: Any, list_id: str, field: str) -> str | None:
    """Return a JSON value that is a string, or None if it is missing; for other types, raise InvalidList."""
    return None if value is None else check_type(value, str, list_id, field)


def format_texts(nbest: NBestList) -> list[str]:
    """Return the text of each hypothesis with single spaces between words.

    Raises:
        InvalidList: a text contains a line break or NUL.
    """
    for index, hypothesis in enumerate(nbest.hypotheses):
        if LINE_BREAK.search(hypothesis.text):
            raise InvalidList(
                "contains a line break or NUL; expected a text that fits on one line",
                list_id=nbest.id,
                hypothesis=index,
                field="text",
            )
    return [" ".join(split_words(hypothesis.text)) for hypothesis in nbest.hypotheses]


def format_key(nbest: NBestList) -> str:
    """Return the id of a list, for formats that have the id in the first column of a line.

    Raises:
        InvalidList: the id is empty or contains white space.
    """
    if split_words(nbest.id) != [nbest.id] or LINE_BREAK.search(nbest.id):
        message = "expected a non-empty id without white space, which the format needs"
        raise InvalidList(message, list_id=nbest.id, field="id")
    return nbest.id


def count_words(hypothesis: Hypothesis, field: str = "nwords") -> int:
    """Return the number of words that a hypothesis states in a field, or else count the words of its text."""
    nwords = hypothesis.fields.get(field)
    if isinstance(nwords, int) and not isinstance(nwords, bool) and 0 <= nwords < 10**9:
        return nwords
    return len(split_words(hypothesis.text))


def stream_from_nats(nbest: NBestList, name: str, units: Units, missing: float | None = None) -> list[float]:
    """Return the values of a stream, converted from nats to the units of a file.

    Args:
        missing: the value to write, in the file's units, if the list does not have the stream; None if every
            list must have the stream.

    Raises:
        InvalidList: the list does not have the stream although it must, or a score cannot be expressed in the
            units of the file.
    """
    if name in nbest.streams:
        try:
            return [units.from_nats(value) for value in nbest.streams[name]]
        except ValueError as error:
            raise InvalidList(str(error), list_id=nbest.id, field=name) from None
    if missing is None:
        present = ", ".join(nbest.streams) or "none"
        message = f"the format needs this stream, but the list does not have it; its streams: {present}"
        raise InvalidList(message, list_id=nbest.id, field=name)
    return [missing] * len(nbest.hypotheses)


def check_reserved(
    nbest: NBestList,
    fields: Iterable[str],
    reserved: Collection[str],
    shown: str = "",
    hypothesis: int | None = None,
) -> None:
    """Raise InvalidList if a field of a list or hypothesis has a name that the format uses otherwise.

    Args:
        fields: the names of the fields.
        reserved: the names that the format uses.
        shown: the text by which the error message lists the reserved names; by default the names that clash.
    """
    if clashing := sorted(set(fields) & set(reserved)):
        shown = shown or ", ".join(clashing)
        message = f"the names {shown} are reserved by the format; rename these fields"
        raise InvalidList(message, list_id=nbest.id, hypothesis=hypothesis, field="fields")


Write = Callable[[NBestList], None]
"""Writes one list. If the format cannot hold the list, it raises InvalidList and writes nothing."""
ListWriter = AbstractContextManager[Write]
"""An output for lists as a context manager, which closes the output at the end of the ``with`` block."""
FormatLines = Callable[[NBestList], Iterable[str]]
"""Formats a list as lines without line ends; raises InvalidList if the format cannot hold the list."""


def _end_lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def line_writer(target: str | Path, format_lines: FormatLines, *, once: bool = True) -> ListWriter:
    """Write each list as lines.

    Args:
        once: whether to reject a list if its id has been written before.
    """
    return _open_writer(target, lambda nbest: _end_lines(format_lines(nbest)), ("", "", ""), once)


def json_writer(
    target: str | Path,
    format_value: Callable[[NBestList], Any],
    before: str = "[",
    after: str = "]",
    *,
    once: bool = False,
    named: bool = False,
) -> ListWriter:
    """Write a JSON document with one list per line between ``before`` and ``after``.

    Args:
        format_value: returns the JSON value of a list, or JSON that is already encoded, as a string.
        once: whether to reject a list if its id has been written before.
        named: whether lists are members of an object, with their ids as keys.
    """

    def format_list(nbest: NBestList) -> str:
        value = format_value(nbest)
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return f"\n{json.dumps(nbest.id, ensure_ascii=False)}: {text}" if named else f"\n{text}"

    return _open_writer(target, format_list, (before, ",", f"\n{after}\n"), once)


@contextmanager
def _open_writer(
    target: str | Path, format_list: Callable[[NBestList], str], marks: tuple[str, str, str], once: bool
) -> Iterator[Write]:
    """Write the texts of lists.

    Args:
        marks: texts to write before the first list, between two lists, and after the last list.
        once: whether to reject a list if its id has been written before.
    """
    before, between, after = marks
    written: set[str] = set()
    mark = ""
    with open_output(target) as stream:
        stream.write(before)

        def write(nbest: NBestList) -> None:
            nonlocal mark
            text = format_list(nbest)
            if once and nbest.id in written:
                raise InvalidList("already written; expected each id once", list_id=nbest.id, field="id")
            written.add(nbest.id)
            stream.write(mark + text)
            mark = between

        yield write
        stream.write(after)


@contextmanager
def folder_writer(
    target: str | Path,
    format_lines: FormatLines,
    suffix: str = "",
    further: Mapping[Path, FormatLines] = MappingProxyType({}),
) -> Iterator[Write]:
    """Write each list as a file in a folder. The name of the file is the list's id with a suffix.

    Args:
        further: other folders in which a file of the same name is written, by the function for its lines.
    """
    formats = {make_folder(folder): lines for folder, lines in ((target, format_lines), *further.items())}

    def write(nbest: NBestList) -> None:
        texts = [_end_lines(lines(nbest)) for lines in formats.values()]
        with create_files(list(formats), nbest.id, suffix) as streams:
            for stream, text in zip(streams, texts, strict=True):
                stream.write(text)

    yield write


@contextmanager
def archive_writer(
    target: str | Path, format_archives: Callable[[NBestList], Mapping[str, Iterable[str]]]
) -> Iterator[Write]:
    """Write the lines of each list to several files of a folder. A file is opened for its first line.

    Args:
        format_archives: formats a list as lines without line ends, by the name of the file for them.
    """
    folder = make_folder(target)
    files: dict[str, TextIO] = {}
    with ExitStack() as stack:

        def write(nbest: NBestList) -> None:
            for name, lines in format_archives(nbest).items():
                if name not in files:
                    make_folder((folder / name).parent)
                    files[name] = stack.enter_context(open_output(folder / name))
                files[name].write(_end_lines(lines))

        yield write

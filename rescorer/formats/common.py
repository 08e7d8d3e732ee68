"""Shared by all formats: scores in nats, rows that become lists, texts that fit on a line, and writers.

All file formats and the service convert scores to nats here: the log base and sign of a stream, and the check
of its values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from rescorer.errors import ConfigError, FormatError, InvalidList
from rescorer.formats.io.folders import create_file
from rescorer.formats.io.text_io import Source, make_folder, open_output, read_lines
from rescorer.types import Hypothesis, NBestList

if TYPE_CHECKING:
    import numpy as np

LogBase = Literal["e", "2", "10", "1.0001", "bytelog"]
Base = Literal[LogBase, "prob"]
"""Base of a logarithm, or ``prob`` for probabilities and confidences that are no logarithms."""
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


@dataclass(frozen=True, slots=True)
class Units:
    """Log base and sign of the numbers in a stream.

    The base ``prob`` is for numbers above 0 and at most 1, such as confidences, whose logarithm is the score.

    Raises:
        ValueError: the base or the sign is unknown, or probabilities are declared as costs; the caller
            should add where they were declared.
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
        """Log-probability in nats of a score of 1; there is none for the base ``prob``."""
        return NATS_PER_UNIT[self.base] * (1.0 if self.sign == "log_prob" else -1.0)

    def to_nats(self, value: float) -> float:
        """Convert a score to nats.

        Raises:
            ValueError: it should be a probability, and is not above 0 and at most 1.
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
            ValueError: it should be a probability, and no float64 above 0 and at most 1 is one.
        """
        if self.base != "prob":
            return nats / self.nats_per_unit
        if nats > 0.0 or not math.exp(nats):
            raise ValueError(f"{nats!r} nats are not a probability above 0 and at most 1 (base prob)")
        return math.exp(nats)


NATURAL = Units()


def parse_units(base: str, sign: str, place: str = "") -> Units:
    """Parse a base and a sign; raise ConfigError, which begins with ``place``, if one of them is unknown."""
    try:
        return Units(base, sign)  # type: ignore[arg-type]  # checked by Units
    except ValueError as error:
        raise ConfigError(f"{place}{error}") from None


def stream_to_nats(
    name: str, values: Sequence[Any], units: Units = NATURAL, *, list_id: str = "", field: str = ""
) -> tuple[float, ...] | None:
    """Check one stream of a list and convert it to nats; return None if all values are None.

    Args:
        values: One value per hypothesis as read from the input; log-likelihoods of densities may be positive.
        field: Path of the values for error messages; by default ``streams["name"]``.

    Raises:
        InvalidList: a value is missing, not a number, NaN or infinite; the error names the hypothesis and
            the field. For probabilities, also if a value is not above 0 and at most 1: zero has no logarithm,
            and services write it where they have no confidence at all.
    """
    if all(value is None for value in values):
        return None
    if units.base != "prob" and set(map(type, values)) <= {float}:  # fast; the loop below finds the error
        scale = units.nats_per_unit
        all_nats = tuple(value * scale for value in values)
        if all(map(math.isfinite, all_nats)):
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
    """Return the reason why a value is not a valid score, or an empty string."""
    if value is None:
        return "no score, though other hypotheses of the list have one"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        text = repr(value)
        shown = text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 3] + "..."
        return f"{shown} is not a number"
    try:
        return "" if math.isfinite(value) else f"the score is {value!r}"
    except OverflowError:  # an integer of hundreds of digits
        return "the score is too large for a float64"


MAX_SCALED = 2.0**42
"""Scaled values below this one have at least ten bits after the point."""
MARGIN = 2.0**-8
"""Distance from the middle of two decimals, in units of the last one, within which a scaled value does not
say which is nearer: many times its rounding error."""


def round_all(values: np.ndarray, decimals: int) -> np.ndarray:
    """Round each value, as ``round(value, decimals)`` does: correctly, halves to even.

    The quotient of an integer and a power of ten is the float nearest to that decimal. Python rounds only the
    values for which the integer is in doubt after the multiplication.

    Args:
        values: float64 of any shape; infinite values and NaN stay as they are.
        decimals: at most 22, up to which powers of ten are exact.
    """
    import numpy as np  # only writers need it; clients do not

    scale = 10.0**decimals
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = values * scale
        nearest = np.rint(scaled)
        unsure = ~((0.5 - np.abs(scaled - nearest) > MARGIN) & (np.abs(scaled) < MAX_SCALED))  # or NaN
    rounded = nearest / scale
    rounded[unsure] = [round(value, decimals) for value in values[unsure].tolist()]
    return rounded


WORD_SEPARATOR = re.compile(r"[ \t\r\f\v]+")
"""ASCII white space. Other Unicode white space is part of a word, as in the tools that write these files."""
LINE_BREAK = re.compile(r"[\n\r\0]")
"""Characters that cannot occur in a line; NUL is among them because ``read_lines`` rejects it."""
DUPLICATE_ID = "duplicate id; only the first list with this id is read"
"""Error message of readers for a list whose id has occurred before."""


@dataclass(frozen=True, slots=True)
class Row:
    """One hypothesis of a file; its scores are in the file's units and not yet checked."""

    text: str
    scores: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    line: int | None = None


def split_words(text: str) -> list[str]:
    """Split a text at ASCII white space."""
    return [word for word in WORD_SEPARATOR.split(text) if word]


def parse_number(text: str) -> float | str:
    """Parse a column as a number; return text that is not a number unchanged, for ``build_list`` to reject.

    Underscores, which Python allows between digits, are not accepted.
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
    """A line ``key value`` of an archive, or the error if it cannot be read."""

    line: int
    key: str
    value: str
    error: FormatError | None = None


def read_keyed_lines(source: Source) -> Iterator[KeyedLine]:
    """Yield the lines of an archive that are not blank, with single spaces between words."""
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
    """Build a list from its rows, or return the error; streams not in ``units`` are in nats."""
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
    """Return the names of the streams for which at least one hypothesis has a value, in input order."""
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
    file: str, line: int | None, parse: Callable[[], NBestList | InvalidList]
) -> NBestList | InvalidList:
    """Return the list that a function parses, or its error with file and line."""
    try:
        return parse()
    except InvalidList as error:
        return add_location(error, file, line)


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
    """Return the id of a list, for formats in which it is the first column of a line.

    Raises:
        InvalidList: the id is empty or contains white space.
    """
    if split_words(nbest.id) != [nbest.id] or LINE_BREAK.search(nbest.id):
        message = "expected a non-empty id without white space, which the format needs"
        raise InvalidList(message, list_id=nbest.id, field="id")
    return nbest.id


def count_words(hypothesis: Hypothesis, field: str = "nwords") -> int:
    """Return the number in a field of a hypothesis if it is valid, else the number of words in the text."""
    nwords = hypothesis.fields.get(field)
    if isinstance(nwords, int) and not isinstance(nwords, bool) and 0 <= nwords < 10**9:
        return nwords
    return len(split_words(hypothesis.text))


def stream_from_nats(nbest: NBestList, name: str, units: Units, missing: float | None = None) -> list[float]:
    """Return the values of a stream, converted from nats to the units of a file.

    Args:
        missing: Value to write, in the file's units, for lists without the stream; None if the stream is
            required.

    Raises:
        InvalidList: the list does not have the stream, and ``missing`` is None, or a score does not exist
            in the units of the file.
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
    shown: str,
    hypothesis: int | None = None,
) -> None:
    """Raise InvalidList if a field has a name that the format uses itself; ``shown`` says which these are."""
    if not set(fields).isdisjoint(reserved):
        message = f"the names {shown} are reserved by the format; rename these fields"
        raise InvalidList(message, list_id=nbest.id, hypothesis=hypothesis, field="fields")


Write = Callable[[NBestList], None]
"""Writes one list; raises InvalidList, and writes nothing, if the format cannot hold the list."""
ListWriter = AbstractContextManager[Write]
"""An output for lists, which closes at the end of the ``with`` block."""


def check_new(list_id: str, written: Collection[str]) -> None:
    """Raise InvalidList if a list with this id has been written before."""
    if list_id in written:
        raise InvalidList("already written; expected each id once", list_id=list_id, field="id")


def line_writer(
    target: str | Path, format_lines: Callable[[NBestList], Iterable[str]], *, once: bool = True
) -> ListWriter:
    """Write each list as lines, given without their line ends; with ``once``, reject an id that returns."""
    return _open_writer(
        target, lambda nbest: "".join(f"{line}\n" for line in format_lines(nbest)), ("", "", ""), once
    )


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
        format_value: returns the value of a list; text is JSON already.
        once: whether to reject an id that returns.
        named: whether lists are members of an object, under their ids.
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
    """Write texts of lists with marks before, between and after them."""
    before, between, after = marks
    written: set[str] = set()
    mark = ""
    with open_output(target) as stream:
        stream.write(before)

        def write(nbest: NBestList) -> None:
            nonlocal mark
            text = format_list(nbest)
            if once:
                check_new(nbest.id, written)
                written.add(nbest.id)
            stream.write(mark + text)
            mark = between

        yield write
        stream.write(after)


@contextmanager
def folder_writer(
    target: str | Path, format_lines: Callable[[NBestList], Iterable[str]], suffix: str = ""
) -> Iterator[Write]:
    """Write each list as the lines of a file that is named after it, with a suffix, in a folder."""
    folder = make_folder(target)

    def write(nbest: NBestList) -> None:
        lines = list(format_lines(nbest))
        with create_file(folder, nbest.id, suffix) as stream:
            stream.writelines(f"{line}\n" for line in lines)

    yield write

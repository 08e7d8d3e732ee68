"""Find numbers of hypotheses that may be scores, but that were not read as a score stream.

A reader keeps fields that it does not know, so that they come back with the answer. A score under an unknown
name is such a field: nothing ranks by it until an option says that it is one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rescorer.types import NBestList

MAX_NAMED = 4
"""Number of fields that a message names."""
MAX_NAME_CHARS = 40
"""Longest name of a field that is considered: a message has to show it, and somebody has to type it."""
MIN_LISTS_TO_TRUST = 5
"""Number of lists in the same order from which the order says more about the sign than the name."""
SCORE_NAME = re.compile(
    r"(?:^|[^a-z])(?:am|[a-z]{0,3}lm|ac|tot|total|ll|lp|logits?|loss)(?:[^a-z]|$)"
    r"|score|prob|acoustic|cost|nll|conf|log_?p|likelihood|posterior",
    re.IGNORECASE,
)
"""Matches the names of fields that probably hold scores."""
OTHER_NAME = re.compile(r"no_?speech|lang(?:uage)?_?prob|temperature|compression", re.IGNORECASE)
"""Matches the names of numbers about the audio or the decoder, which do not tell hypotheses apart."""
OTHER_WORDS = re.compile(
    r"begin|start|end|stop|from|to|times?|duration|offset|seek|frames?|secs?|seconds?|ms|rank|index|idx|id|"
    r"pos|position|n|num|count|len|length|size|n?toks?|tokens?|n?words?|chars?|speaker|channel|speed|rate|version",
    re.IGNORECASE,
)
"""Words in the names of numbers that are no scores, such as ``startTime`` and ``n_tokens``."""
COST_NAME = re.compile(
    r"cost|nll|nlog|penalt|perplex|distance|negative|(?:^|[^a-z])(?:neg|loss|ppl)(?:[^a-z]|$)", re.IGNORECASE
)
PROBABILITY_NAME = re.compile(r"prob|conf|log_?p|likelihood|posterior", re.IGNORECASE)
BASE_IN_NAME = re.compile(r"log_?(10|2)(?![0-9])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UnreadField:
    """A field that holds a number in every hypothesis of a list, and that no stream was read from."""

    name: str
    parent: str
    """The field of the hypothesis whose object has it; empty if it is a field of the hypothesis itself."""
    is_likely: bool
    """Whether it is probably a score, rather than a time, a count or a rank."""
    is_named: bool
    """Whether it is called like a score."""
    units: str
    """Base and sign as ``--stream NAME=FIELD`` takes them: empty, ``:2``, ``:prob`` or ``:e:cost``."""

    @property
    def label(self) -> str:
        """The name to show, with that of the object it is in."""
        return f"{self.parent}.{self.name}" if self.parent else self.name


def find_unread_fields(lists: Sequence[NBestList]) -> list[UnreadField]:
    """Find the numbers that every hypothesis of a list has in a field: likely scores first, then by list."""
    values: dict[tuple[str, str], list[list[float]]] = {}
    for nbest in lists:
        for key in _numbers_of(nbest.hypotheses[0].fields) if nbest.hypotheses else ():
            column = [_read_number(hypothesis.fields, *key) for hypothesis in nbest.hypotheses]
            if all(value is not None for value in column):
                values.setdefault(key, []).append([value for value in column if value is not None])
    found = [_describe(name, parent, columns) for (parent, name), columns in values.items()]
    order = {field.label: len(values[field.parent, field.name]) for field in found}
    return sorted(found, key=lambda field: (not field.is_likely, not field.is_named, -order[field.label]))


def find_partial_scores(lists: Sequence[NBestList]) -> dict[str, int]:
    """Find fields that are called like a score, and that only some hypotheses of a list have.

    Services may write the confidence of the best text only. No option can read a stream from such a field.

    Returns:
        The number of lists by the name of the field.
    """
    found: Counter[str] = Counter()
    for nbest in lists:
        keys = {key for hypothesis in nbest.hypotheses for key in _numbers_of(hypothesis.fields)}
        for parent, name in keys:
            values = [_read_number(hypothesis.fields, parent, name) for hypothesis in nbest.hypotheses]
            is_partial = 0 < sum(value is not None for value in values) < len(values)
            label = f"{parent}.{name}" if parent else name
            if is_partial and SCORE_NAME.search(label) and not OTHER_NAME.search(label):
                found[label] += 1
    return dict(found.most_common())


def name_fields(fields: Sequence[UnreadField]) -> str:
    """The names of the first fields, for a message."""
    return ", ".join(shorten_names([field.label for field in fields]))


def shorten_names(names: Sequence[str]) -> list[str]:
    """The first names, and an ellipsis if there are more."""
    return [*names[:MAX_NAMED], "…"] if len(names) > MAX_NAMED else list(names)


def _numbers_of(fields: Any) -> Iterator[tuple[str, str]]:
    """Yield the places of numbers in the fields of a hypothesis: the field with the object, and the name."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from ((name, key) for key in value if _is_usable(name) and _is_usable(key))
        elif _is_usable(name):
            yield "", name


def _is_usable(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def _read_number(fields: Any, parent: str, name: str) -> float | None:
    """The finite number in a field; None if there is none."""
    holder = fields.get(parent) if parent else fields
    value = holder.get(name) if hasattr(holder, "get") else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _describe(name: str, parent: str, columns: Sequence[Sequence[float]]) -> UnreadField:
    label = f"{parent}.{name}"
    is_named = bool(SCORE_NAME.search(label)) and not OTHER_NAME.search(label)
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
    is_other = bool(OTHER_NAME.search(label)) or any(map(OTHER_WORDS.fullmatch, words))
    is_measured = any(value < 0 or not value.is_integer() for column in columns for value in column)
    base = match[1] if (match := BASE_IN_NAME.search(name)) else "e"
    is_logarithm = "log" in name.lower()
    if PROBABILITY_NAME.search(label) and not is_logarithm and _are_probabilities(columns):
        base = "prob"
    sign = ":cost" if base != "prob" and _is_cost(label, columns) else ""
    units = f":{base}{sign}" if sign or base != "e" else ""
    return UnreadField(name, parent, is_named or (is_measured and not is_other), is_named, units)


def _are_probabilities(columns: Sequence[Sequence[float]]) -> bool:
    return all(0.0 < value <= 1.0 for column in columns for value in column)


def _is_cost(name: str, columns: Sequence[Sequence[float]]) -> bool:
    """Whether lower is better: so the name says, unless the order of enough lists says otherwise.

    Recognisers order their lists from best to worst.
    """
    differing = [list(column) for column in columns if len(set(column)) > 1]
    rising = bool(differing) and all(column == sorted(column) for column in differing)
    falling = bool(differing) and all(column == sorted(column, reverse=True) for column in differing)
    is_certain = len(differing) >= MIN_LISTS_TO_TRUST
    if COST_NAME.search(name):
        return not (falling and is_certain)
    lowest, highest = min(map(min, columns)), max(map(max, columns))
    if PROBABILITY_NAME.search(name):
        return rising and is_certain and lowest >= 0.0 and highest > 1.0
    return rising and (is_certain or lowest >= 0.0)

"""Convert scores to nats: log base and sign of a stream, and the check of its values.

All file formats and the service use this one conversion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from rescorer.errors import InvalidList

Base = Literal["e", "2", "10", "1.0001", "bytelog"]
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

    Raises:
        ValueError: If the base or the sign is unknown; the caller should add where they were declared.
    """

    base: Base = "e"
    sign: Sign = "log_prob"
    """``cost`` for negative log-probabilities, where lower is better."""

    def __post_init__(self) -> None:
        for name, allowed in (("base", get_args(Base)), ("sign", get_args(Sign))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")

    @property
    def nats_per_unit(self) -> float:
        """Log-probability in nats of a score of 1."""
        return NATS_PER_UNIT[self.base] * (1.0 if self.sign == "log_prob" else -1.0)


NATURAL = Units()


def stream_to_nats(
    name: str, values: Sequence[Any], units: Units = NATURAL, *, list_id: str = "", field: str = ""
) -> tuple[float, ...] | None:
    """Check one stream of a list and convert it to nats; return None if all values are None.

    Args:
        values: One value per hypothesis as read from the input; log-likelihoods of densities may be positive.
        field: Path of the values for error messages; by default ``streams["name"]``.

    Raises:
        InvalidList: If a value is missing, not a number, NaN or infinite; the error names the hypothesis and
            the field.
    """
    if all(value is None for value in values):
        return None
    scale = units.nats_per_unit
    if set(map(type, values)) <= {float}:  # fast path for the usual case; the loop below finds the error
        all_nats = tuple(value * scale for value in values)
        if all(map(math.isfinite, all_nats)):
            return all_nats
    converted = []
    for hypothesis, value in enumerate(values):
        problem = _find_problem(value)
        if not problem:
            nats = float(value) * scale
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
        return f"{_abbreviate(value)} is not a number"
    try:
        return "" if math.isfinite(value) else f"the score is {value!r}"
    except OverflowError:  # an integer of hundreds of digits
        return "the score is too large for a float64"


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 3] + "..."

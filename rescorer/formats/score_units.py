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
        ValueError: If the base or the sign is unknown, or probabilities are declared as costs; the caller
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
            ValueError: If it should be a probability, and is not above 0 and at most 1.
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
            ValueError: If it should be a probability, and no float64 above 0 and at most 1 is one.
        """
        if self.base != "prob":
            return nats / self.nats_per_unit
        if nats > 0.0 or not math.exp(nats):
            raise ValueError(f"{nats!r} nats are not a probability above 0 and at most 1 (base prob)")
        return math.exp(nats)


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
        return f"{_abbreviate(value)} is not a number"
    try:
        return "" if math.isfinite(value) else f"the score is {value!r}"
    except OverflowError:  # an integer of hundreds of digits
        return "the score is too large for a float64"


def _abbreviate(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[: MAX_SHOWN_CHARACTERS - 3] + "..."

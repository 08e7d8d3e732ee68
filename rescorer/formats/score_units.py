"""Owns the one border where scores become nats: log base and sign of a stream, and the check of its values.

Every file format and the service bring their numbers through here.
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
        "1.0001": math.log(1.0001),  # Sphinx's integer scores
        "bytelog": 1024.0 / 10000.5,  # SRILM's Prob.h, from Decipher
    }
)
"""How many nats one unit of each log base is worth."""


@dataclass(frozen=True, slots=True)
class Units:
    """What the numbers of a stream mean where they come from."""

    base: Base = "e"
    sign: Sign = "log_prob"
    """``cost``: lower is better; the value is a negative log-probability."""

    def __post_init__(self) -> None:
        """Raises ValueError, for the caller to name the place where the declaration stands."""
        for name, allowed in (("base", get_args(Base)), ("sign", get_args(Sign))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(allowed)}")

    @property
    def nats_per_unit(self) -> float:
        """Nats of log-probability that one unit of the stream is worth."""
        return NATS_PER_UNIT[self.base] * (1.0 if self.sign == "log_prob" else -1.0)


NATURAL = Units()


def stream_to_nats(
    name: str, values: Sequence[Any], units: Units = NATURAL, *, list_id: str = "", field: str = ""
) -> tuple[float, ...] | None:
    """Checks and converts one stream of a list; None where every value is None: the stream is absent.

    Args:
        values: one a hypothesis, as they came; positive log-likelihoods (densities) are legal.
        field: where the caller finds the values; default ``streams["name"]``.

    Raises:
        InvalidList: a value is missing, no number, NaN or infinite; names the hypothesis and the field.
    """
    if all(value is None for value in values):
        return None
    scale = units.nats_per_unit
    if set(map(type, values)) <= {float}:  # as nearly always; what is wrong is looked for below
        all_nats = tuple(value * scale for value in values)
        if all(map(math.isfinite, all_nats)):
            return all_nats
    out = []
    for hypothesis, value in enumerate(values):
        fault = _fault(value)
        if not fault:
            nats = float(value) * scale
            if math.isfinite(nats):
                out.append(nats)
                continue
            fault = f"{value!r} is too large for a float64 in nats"
        raise InvalidList(
            f"{fault}; expected a finite number in every hypothesis",
            list_id=list_id,
            hypothesis=hypothesis,
            field=field or f'streams["{name}"]',
        )
    return tuple(out)


def _fault(value: Any) -> str:
    """What keeps ``value`` from being a score; empty where nothing does."""
    if value is None:
        return "no score, though other hypotheses of the list have one"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{_shown(value)} is not a number"
    try:
        return "" if math.isfinite(value) else f"the score is {value!r}"
    except OverflowError:  # an integer of hundreds of digits
        return "the score is too large for a float64"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."

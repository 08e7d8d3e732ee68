"""Owns the names that a JSON-lines file gives to the parts of a list, and the options that tell them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from rescorer.errors import ConfigError, did_you_mean
from rescorer.formats.score_units import NATURAL, Units


@dataclass(frozen=True, slots=True)
class StreamField:
    """Where a hypothesis keeps one score, and what its numbers mean."""

    field: str
    units: Units = NATURAL


@dataclass(frozen=True, slots=True)
class FieldMap:
    """The field names of a file; as it stands, those of the project's own lists."""

    id: str = "id"
    """Empty: a list is called by the number of its line."""
    hypotheses: str = "hypotheses"
    """An array of objects, or of plain strings where there is nothing but text."""
    text: str = "text"
    scores: str = "scores"
    """The object of named scores inside a hypothesis; empty: there is none."""
    reference: str = "reference"
    context: str = "context"
    group: str = "group"
    streams: Mapping[str, StreamField] = field(default_factory=dict)
    """Streams kept in fields of their own, by stream name; a field is looked for in the hypothesis, then
    in its object of scores."""

    def __post_init__(self) -> None:
        for name in ("hypotheses", "text"):
            if not getattr(self, name):
                raise ConfigError(f"--map {name}=: expected the name of a field")
        of_list = (self.id, self.hypotheses, self.reference, self.context, self.group)
        twice = {name for name in of_list if name and of_list.count(name) > 1}
        if twice:
            raise ConfigError(f"--map: {', '.join(sorted(twice))} cannot stand for two things")


FIELD_NAMES = tuple(each.name for each in fields(FieldMap) if each.name != "streams")


def parse_field_map(maps: Iterable[str] = (), streams: Iterable[str] = ()) -> FieldMap:
    """The field map that command-line options describe.

    >>> parse_field_map(["hypotheses=hyps,text=text_norm"], ["acoustic=am_log2:2"]).text
    'text_norm'

    Args:
        maps: comma-separated ``NAME=FIELD``; NAME is one of ``FieldMap``'s.
        streams: ``NAME=FIELD[:BASE[:SIGN]]``; base e and sign log_prob unless told.

    Raises:
        ConfigError: an option is malformed, or names something twice or something unknown.
    """
    names: dict[str, str] = {}
    for part in (part for option in maps for part in option.split(",") if part.strip()):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in FIELD_NAMES:
            expected = f"expected NAME=FIELD, NAME one of {', '.join(FIELD_NAMES)}"
            raise ConfigError(f"--map {part!r}: {expected}{did_you_mean(name, FIELD_NAMES)}")
        if name in names:
            raise ConfigError(f"--map: {name} is given twice")
        names[name] = value
    by_stream: dict[str, StreamField] = {}
    for option in streams:
        name, stream = _parse_stream(option)
        if name in by_stream:
            raise ConfigError(f"--stream: {name} is given twice")
        by_stream[name] = stream
    return FieldMap(**names, streams=by_stream)


def _parse_stream(option: str) -> tuple[str, StreamField]:
    name, _, rest = option.partition("=")
    source, *units = rest.split(":")
    if not name or not source or len(units) > 2:
        raise ConfigError(f"--stream {option!r}: expected NAME=FIELD[:BASE[:SIGN]]")
    try:
        return name, StreamField(source, Units(*units))  # type: ignore[arg-type]  # checked by Units
    except ValueError as fault:
        raise ConfigError(f"--stream {option!r}: {fault}") from None

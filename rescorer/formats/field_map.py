"""Map the field names of a JSON-lines file to the parts of a list, as command-line options describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from rescorer.errors import ConfigError, did_you_mean
from rescorer.formats.score_units import NATURAL, Units


@dataclass(frozen=True, slots=True)
class StreamField:
    """Field of a hypothesis that holds one score, and the units of its numbers."""

    field: str
    units: Units = NATURAL


@dataclass(frozen=True, slots=True)
class FieldMap:
    """Field names of a file; the defaults are those of this project's own format.

    Raises:
        ConfigError: If a required name is empty, or one name is used for two fields.
    """

    id: str = "id"
    """Field with the id of a list; if empty, the line number is the id."""
    hypotheses: str = "hypotheses"
    """Field with the array of hypotheses: objects, or strings for hypotheses that consist of a text only."""
    text: str = "text"
    scores: str = "scores"
    """Field of a hypothesis that holds an object of scores by stream name; if empty, there is no such
    field."""
    reference: str = "reference"
    context: str = "context"
    previous: str = "previous"
    """Field with an array of the utterances before that of the list, oldest first."""
    phrases: str = "phrases"
    """Field with an array of names and phrases that are more likely than usual."""
    group: str = "group"
    streams: Mapping[str, StreamField] = field(default_factory=dict)
    """Fields that each hold the scores of one stream, by stream name.

    A field is looked up in the hypothesis first, then in its object of scores.
    """

    def __post_init__(self) -> None:
        for name in ("hypotheses", "text"):
            if not getattr(self, name):
                raise ConfigError(f"--map {name}=: expected the name of a field")
        list_fields = [getattr(self, name) for name in LIST_FIELDS]
        duplicates = {name for name in list_fields if name and list_fields.count(name) > 1}
        if duplicates:
            raise ConfigError(f"--map: {', '.join(sorted(duplicates))} is mapped to two fields")


LIST_FIELDS = ("id", "hypotheses", "reference", "context", "previous", "phrases", "group")
"""Names of the fields of lists; the others are those of hypotheses."""
FIELD_NAMES = tuple(item.name for item in fields(FieldMap) if item.name != "streams")
"""Names that ``--map`` accepts."""


def parse_field_map(maps: Iterable[str] = (), streams: Iterable[str] = ()) -> FieldMap:
    """Parse the command-line options that describe a field map.

    >>> parse_field_map(["hypotheses=hyps,text=text_norm"], ["acoustic=am_log2:2"]).text
    'text_norm'

    Args:
        maps: Values of ``--map``: ``NAME=FIELD`` pairs, separated by commas; NAME is a field of ``FieldMap``.
        streams: Values of ``--stream``: ``NAME=FIELD[:BASE[:SIGN]]``; base e and sign log_prob by default.

    Raises:
        ConfigError: If an option is malformed, or a name is unknown or given twice.
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
    except ValueError as error:
        raise ConfigError(f"--stream {option!r}: {error}") from None

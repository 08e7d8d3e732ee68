"""Count the elements of a request in its bytes, before it is decoded.

An element that takes two bytes of a message, such as an empty hypothesis, takes up to a hundred bytes once it
is decoded, and many elements are dropped then: all but the last value of a key, and all but the last of a
field that is not repeated. So elements are counted where they stand, and counting ends at the first that is
too many. The plan of what is counted follows from the descriptors of the messages, so that no field is
forgotten. Values in the clients' fields are many and small. They are not visited one by one: each begins with
a certain byte, and the number of these bytes in a list is an upper bound.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from rescorer.errors import LimitExceeded
from rescorer.phrases import MAX_SETS
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.settings import BYTES_PER_TOKEN, ServiceSettings

MIN_BYTES = 65_536
"""Size of the smallest message that is counted. A smaller one takes at most a few megabytes when decoded."""
ELEMENT_BYTES, VALUE_BYTES, STRUCT_BYTES = 112, 72, 256
"""Largest memory of a decoded element without its texts, that of a value or key in the clients' fields, and
what a value that is an object takes in addition, for its table. A value that is dropped, because its key
stands twice, takes as much."""
MAX_FINGERPRINTS, MAX_WEIGHT_NAMES = 131_072, 1000
"""Largest number of fingerprints of lists on which the weights of a request were tuned, and largest number of
names in each other field of these weights but its streams. No bundle has so many models."""
MAX_SINGLE, MAX_SURPLUS = 32, 4096
"""Number of fields of a message that are not repeated, of which no message has so many, and largest number of
more in all messages of a request: all but the last of a field would be dropped."""
STRUCT = "google.protobuf.Struct"
VALUE_TAGS = (b"\x0a", b"\x8a")
"""First byte of each value and key in a ``Struct``, in the usual and in a longer encoding."""
STRUCT_TAGS = (b"\x2a", b"\xaa")
"""First byte of each value in a ``Struct`` that is an object itself."""


MARKS = b',;:!?./()[]"-_'
"""Marks that may separate words without a space."""


def count_reading(data: bytes) -> int:
    """Return the cost of reading a message in tokens: of its bytes, and of words that marks may separate."""
    return len(data) // BYTES_PER_TOKEN + len(data) - len(data.translate(None, MARKS))


VARINT, LENGTH_PREFIXED = 0, 2
FIXED_SIZES = {1: 8, 3: 0, 4: 0, 5: 4}
"""Bytes of a value by the type of its field. What stands in groups, which no message has, is counted too."""


class Limit(NamedTuple):
    """Largest number of some elements of a message."""

    most: int
    name: str
    """Name of the elements in messages."""
    expected: str = ""
    """What is expected, after the number."""
    field: str = ""

    def check(self, count: int) -> None:
        """Raise LimitExceeded if there are more elements, of which at least ``count`` were found."""
        if count > self.most:
            expected = f"expected at most {self.most} {self.expected}".rstrip()
            raise LimitExceeded(f"more than {self.most} {self.name}; {expected}", field=self.field)


class Step(NamedTuple):
    """What to do with a field of a message."""

    kind: str
    """Kind of its elements, a key of the limits; empty if they are not counted."""
    inside: Plan
    """Plan for the message in it; empty if nothing inside is counted."""
    has_values: bool
    """Whether the clients' values in it are counted, wherever they are."""


Plan = dict[int, Step]
"""What to do with each field of a message, by its tag: eight times its number, plus its type."""
OTHER = Step("", {}, has_values=False)
"""What to do with fields that are neither counted nor contain anything that is."""

KINDS = {
    "rescorer.v1.Phrase.spellings": "phrases",
    "rescorer.v1.NBestList.phrases": "phrases",
    "rescorer.v1.ScoreTextRequest.texts": "texts",
}
"""Kinds of elements whose fields have another name, or stand in several messages."""
NAMES_OF_WEIGHTS = tuple(one.name for one in pb.Weights.DESCRIPTOR.fields if one.is_repeated)
"""Fields of weights that contain names, as keys or as values."""
KINDS |= {f"{pb.Weights.DESCRIPTOR.full_name}.{name}": f"weights.{name}" for name in NAMES_OF_WEIGHTS}


def make_plan(message: Descriptor, *, is_request: bool = False) -> Plan:
    """Return the plan for counting the elements of all repeated fields in a message, except numbers."""
    plan: Plan = {}
    for one in message.fields:
        inner: Descriptor | None = one.message_type
        is_inside = inner is not None and not inner.GetOptions().map_entry and inner.full_name != STRUCT
        inside = make_plan(inner) if inner is not None and is_inside else {}
        is_counted = one.is_repeated and one.cpp_type in (
            FieldDescriptor.CPPTYPE_STRING,
            FieldDescriptor.CPPTYPE_MESSAGE,
        )
        kind = KINDS.get(one.full_name, one.name)
        has_values = is_request and inner is not None and _has_values(inner)
        if is_counted or inside:
            plan[one.number << 3 | LENGTH_PREFIXED] = Step(kind if is_counted else "", inside, has_values)
    return plan


def _has_values(message: Descriptor) -> bool:
    return any(
        part.message_type is not None
        and (part.message_type.full_name == STRUCT or _has_values(part.message_type))
        for part in message.fields
    )


SERVICE = pb.DESCRIPTOR.services_by_name["RescorerService"]
PLANS: Mapping[str, Plan] = {
    f"/{SERVICE.full_name}/{method.name}": make_plan(method.input_type, is_request=True)
    for method in SERVICE.methods
}
"""What to count in the requests of each method, by its path."""


def limits_of(settings: ServiceSettings) -> dict[str, Limit]:
    """Return the limits of a message by the kind of element."""
    n_lists = settings.max_lists
    in_lists = {"hypotheses": "max_hypotheses", "streams": "max_score_streams"}
    in_message = {
        "lists": "max_lists",
        "texts": "max_hypotheses",
        "phrases": "max_phrases",
    }
    most_names = dict.fromkeys(NAMES_OF_WEIGHTS, (MAX_WEIGHT_NAMES, ""))
    most_names["tuned_on"] = MAX_FINGERPRINTS, ""
    most_names["streams"] = settings.max_score_streams, "(max_score_streams)"  # each list looks at all
    limits = {
        **{
            (path := f"weights.{name}"): Limit(most, "names", expected, path)
            for name, (most, expected) in most_names.items()
        },
        "phrase_lists": Limit(MAX_SETS, "names", field="phrase_lists"),
        "surplus": Limit(MAX_SURPLUS, "fields that are unknown or stand twice"),
        "single": Limit(sys.maxsize, "fields"),
    }
    for kind, setting in in_message.items():
        limits[kind] = Limit(getattr(settings, setting), kind, f"({setting})", kind)
    most, advice = settings.max_previous, "(max_previous); send the newest of each list"
    limits["previous"] = Limit(most, "utterances", advice, "previous")
    for kind, setting in in_lists.items():
        most = n_lists * getattr(settings, setting)
        limits[kind] = Limit(most, kind, f"in {n_lists} lists ({setting}, max_lists)", kind)
    return limits


@dataclass(slots=True)
class Census:
    """Numbers of elements of a message."""

    limits: Mapping[str, Limit]
    counts: Counter[str] = field(default_factory=Counter)
    """Number of elements by kind."""
    n_values: int = 0
    """Upper bound of the number of values and keys in the clients' fields."""
    n_structs: int = 0
    """Upper bound of the number of these values that are objects."""

    @property
    def decoded_bytes(self) -> int:
        """Upper bound of the memory of the decoded message, in addition to that of its bytes."""
        n_structs = min(self.n_structs, self.n_values)
        return ELEMENT_BYTES * self.counts.total() + VALUE_BYTES * self.n_values + STRUCT_BYTES * n_structs

    def add(self, data: bytes, begin: int, end: int, plan: Plan) -> None:
        """Count the elements of a message that stands in ``data`` from ``begin`` to ``end``.

        Where the bytes are not a message, counting ends: they will not be decoded either.

        Raises:
            LimitExceeded: there are too many elements of a kind.
        """
        place, n_single, counts = begin, 0, self.counts
        try:
            while place < end:
                tag, size = data[place], data[place + 1]
                place += 2
                if tag >= 0x80 or size >= 0x80 or tag & 7 != LENGTH_PREFIXED:  # not the usual two bytes
                    tag, size, place = _read_head(data, place - 2)
                step = plan.get(tag, OTHER)
                if not step.kind:
                    n_single += 1
                kind = step.kind or ("surplus" if n_single > MAX_SINGLE else "single")
                counts[kind] = count = counts[kind] + 1
                if count > self.limits[kind].most:  # no call for each element
                    self.limits[kind].check(count)
                if size and (step.inside or step.has_values):
                    self._look_inside(step, data, place, min(place + size, end))
                place += size
        except (IndexError, KeyError):  # the bytes end too early, or a type of field does not exist
            return

    def _look_inside(self, step: Step, data: bytes, begin: int, end: int) -> None:
        if step.has_values:
            self.n_values += sum(data.count(tag, begin, end) for tag in VALUE_TAGS)
            self.n_structs += sum(data.count(tag, begin, end) for tag in STRUCT_TAGS)
        if step.inside:
            self.add(data, begin, end, step.inside)


def _read_head(data: bytes, place: int) -> tuple[int, int, int]:
    """Read what precedes the value of a field: return its tag, the size of its value, and where that begins.

    Raises:
        IndexError, KeyError: the bytes end too early, or there is no such type of field.
    """
    tag, place = _read_number(data, place)
    if tag & 7 == LENGTH_PREFIXED:
        return tag, *_read_number(data, place)
    return tag, (_read_number(data, place)[1] - place if tag & 7 == VARINT else FIXED_SIZES[tag & 7]), place


def _read_number(data: bytes, place: int) -> tuple[int, int]:
    """Read a varint of at most 10 bytes; return it and the place after it. IndexError: it does not end."""
    value = data[place]
    if value < 0x80:
        return value, place + 1
    value &= 0x7F
    for shift in range(7, 70, 7):
        place += 1
        value |= (data[place] & 0x7F) << shift
        if data[place] < 0x80:
            return value, place + 1
    raise IndexError


def count_decoded_bytes(path: str, data: bytes, settings: ServiceSettings) -> int:
    """Return an upper bound of the memory of a request, its bytes included, once it is decoded.

    Args:
        path: ``/service/method``.

    Raises:
        LimitExceeded: the message is too large, or has too many elements of a kind.
    """
    if len(data) > settings.max_message_bytes:
        expected = f"expected at most {settings.max_message_bytes} (max_message_bytes)"
        raise LimitExceeded(f"message of {len(data)} bytes; {expected}")
    if len(data) < MIN_BYTES or path not in PLANS:
        return len(data)
    census = Census(limits_of(settings))
    census.add(data, 0, len(data), PLANS[path])
    # twice as many values as are allowed stand for all larger numbers: such a message is refused at once
    census.n_values = min(census.n_values, 2 * settings.max_field_values)
    return len(data) + census.decoded_bytes

"""Mutate protobuf messages field by field, and serialised messages byte by byte."""

from __future__ import annotations

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

CHANGE_COUNTS = (1, 1, 1, 2, 4, 8)
NUMBERS = (
    math.nan, math.inf, -math.inf, 1.7e308, -1.7e308, 5e-324, -0.0, 0.0, 1.0, -1e9, 1e-9, 1.0001, 2.0**53,
)  # fmt: skip
INTEGERS = (0, 1, 2, 5, 6, 127, -1, -(2**31), 2**31 - 1)
TEXTS = (
    *("", " ", "\0", "\n", "\ufeff", "\u2028", "\u202ereversed", "\u200b", "a\u0301\u0323" * 40),
    *("ﬃ", "İ", "ß ſ", "👩‍👩‍👧‍👦", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "中文", "क्षि", "\U0010ffff", "\ud7ff\ue000"),
    *("%s%n{0}", '"]', "<unk>", "<s>", "</s>", "{COUGH}"),
    *("default", "mixture", "words", "oov", "ngram", "neural", "acoustic", "lm", "unnamed"),
    *("../../etc/passwd", "/", "starter", "starter/1", "starter/99", "tiny/1", "starter/../starter/1"),
    *("-" * 300, "_" * 300, "'" * 300, "w" * 20_000, "w " * 999, "w " * 1001, "the cat " * 4000),
)  # fmt: skip
"""Unusual texts: empty, control characters, right-to-left, combining characters, characters outside the basic
plane, reserved names, paths, long words, many words."""
MAX_NESTING = 400
"""Largest depth of nested messages; protobuf itself allows 100."""
MAX_COPIES = 300
"""Maximum number of copies of a repeated element."""


def mutate_message(message: Message, rng: random.Random) -> None:
    """Change random fields of a message, or of messages inside it, in place."""
    for _ in range(rng.choice(CHANGE_COUNTS)):
        change_field(message, rng)


def change_field(message: Any, rng: random.Random) -> None:
    """Change one field of this message or of a message inside it."""
    field = rng.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if is_map(field):
        value_field = field.message_type.fields_by_name["value"]
        key = rng.choice([*value, rng.choice(TEXTS)])
        if value_field.message_type is None:
            value[key] = random_value(value_field, rng)
        else:
            change_field(value[key], rng)
    elif field.is_repeated:
        change_elements(field, value, rng)
    elif field.message_type is None:
        setattr(message, field.name, random_value(field, rng))
    elif rng.random() < 0.1:
        message.ClearField(field.name)
    else:
        value.SetInParent()
        change_field(value, rng)


def change_elements(field: FieldDescriptor, elements: Any, rng: random.Random) -> None:
    """Remove, add, copy or change one element of a repeated field."""
    what = rng.random()
    if elements and what < 0.1:
        del elements[rng.randrange(len(elements))]
    elif elements and what < 0.12:
        del elements[:]
    elif elements and what < 0.3:  # copies keep their ids
        copies = MAX_COPIES if what < 0.13 else rng.randint(1, 3)
        elements.extend([rng.choice(elements)] * copies)
    elif elements and field.message_type is not None and what < 0.95:
        change_field(rng.choice(elements), rng)
    elif field.message_type is not None:
        elements.add()
    elif elements and what < 0.7:
        elements[rng.randrange(len(elements))] = random_value(field, rng)
    else:
        elements.append(random_value(field, rng))


def random_value(field: FieldDescriptor, rng: random.Random) -> Any:
    """Choose an unusual value of the field's type."""
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice(NUMBERS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(TEXTS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    return rng.choice(INTEGERS)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Truncate, repeat, change or replace the bytes of a serialised message."""
    what = rng.randrange(7)
    place = rng.randrange(len(data) + 1)
    if what == 0:
        return rng.randbytes(rng.choice((0, 1, 5, 100, 10_000)))
    if what == 1:
        return data[:place]
    if what == 2:
        return data[:place] + rng.randbytes(rng.randint(1, 8)) + data[place:]
    if what == 3:
        return data + random_unknown_field(rng)
    if what == 4:
        return data + data
    if what == 5:
        return nested_messages(rng.randint(1, 5), rng.randint(1, MAX_NESTING))
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def random_unknown_field(rng: random.Random) -> bytes:
    """Encode a field that no message has, of any wire type, including obsolete and undefined types."""
    wire_type = rng.randrange(8)
    tag = varint(rng.choice((0, 99, 1000, 2**29 - 1)) << 3 | wire_type)
    body = {0: varint(rng.getrandbits(64)), 1: rng.randbytes(8), 2: varint(5) + b"hello", 5: rng.randbytes(4)}
    return tag + body.get(wire_type, b"")


def nested_messages(number: int, levels: int) -> bytes:
    """Encode messages nested in field ``number`` of each other."""
    data = b""
    for _ in range(levels):
        data = varint(number << 3 | 2) + varint(len(data)) + data
    return data


def varint(value: int) -> bytes:
    """Encode a non-negative integer as a protobuf varint.

    >>> varint(300).hex()
    'ac02'
    """
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)

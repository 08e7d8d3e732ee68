"""Owns nonsense for the service: messages changed field by field as their descriptors allow, and bytes."""

from __future__ import annotations

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

CHANGES = (1, 1, 1, 2, 4, 8)
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
"""Odd ones of every kind: empty, controls, right-to-left, combining, outside the basic plane, names with a
meaning, paths, long words, many words."""
DEEPEST = 400
"""Levels of a message in a message; protobuf itself allows 100."""
LONGEST_REPEAT = 300
"""Copies of an element."""


def mutated(message: Message, rng: random.Random) -> None:
    """Changes a valid message in place: some of its fields, or fields of messages inside it."""
    for _ in range(rng.choice(CHANGES)):
        change(message, rng)


def change(message: Any, rng: random.Random) -> None:
    """One field, of this message or of one inside it."""
    field = rng.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if is_map(field):
        of_value = field.message_type.fields_by_name["value"]
        key = rng.choice([*value, rng.choice(TEXTS)])
        if of_value.message_type is None:
            value[key] = odd(of_value, rng)
        else:
            change(value[key], rng)
    elif field.is_repeated:
        change_elements(field, value, rng)
    elif field.message_type is None:
        setattr(message, field.name, odd(field, rng))
    elif rng.random() < 0.1:
        message.ClearField(field.name)
    else:
        value.SetInParent()
        change(value, rng)


def change_elements(field: FieldDescriptor, elements: Any, rng: random.Random) -> None:
    """One element taken out, put in, doubled or changed."""
    what = rng.random()
    if elements and what < 0.1:
        del elements[rng.randrange(len(elements))]
    elif elements and what < 0.12:
        del elements[:]
    elif elements and what < 0.3:  # with its id
        times = LONGEST_REPEAT if what < 0.13 else rng.randint(1, 3)
        elements.extend([rng.choice(elements)] * times)
    elif elements and field.message_type is not None and what < 0.95:
        change(rng.choice(elements), rng)
    elif field.message_type is not None:
        elements.add()
    elif elements and what < 0.7:
        elements[rng.randrange(len(elements))] = odd(field, rng)
    else:
        elements.append(odd(field, rng))


def odd(field: FieldDescriptor, rng: random.Random) -> Any:
    """A value that a field may have and nobody expects."""
    if field.cpp_type in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice(NUMBERS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return rng.choice(TEXTS)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    return rng.choice(INTEGERS)


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def broken(data: bytes, rng: random.Random) -> bytes:
    """A message's bytes made into others: cut, doubled, changed, or nothing of them left."""
    what = rng.randrange(7)
    place = rng.randrange(len(data) + 1)
    if what == 0:
        return rng.randbytes(rng.choice((0, 1, 5, 100, 10_000)))
    if what == 1:
        return data[:place]
    if what == 2:
        return data[:place] + rng.randbytes(rng.randint(1, 8)) + data[place:]
    if what == 3:
        return data + unknown_field(rng)
    if what == 4:
        return data + data
    if what == 5:
        return nested(rng.randint(1, 5), rng.randint(1, DEEPEST))
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def unknown_field(rng: random.Random) -> bytes:
    """One that no message has, of any wire type, those included that are no longer in use or never were."""
    wire_type = rng.randrange(8)
    tag = varint(rng.choice((0, 99, 1000, 2**29 - 1)) << 3 | wire_type)
    body = {0: varint(rng.getrandbits(64)), 1: rng.randbytes(8), 2: varint(5) + b"hello", 5: rng.randbytes(4)}
    return tag + body.get(wire_type, b"")


def nested(number: int, levels: int) -> bytes:
    """A message in field ``number`` of a message in field ``number`` of …"""
    data = b""
    for _ in range(levels):
        data = varint(number << 3 | 2) + varint(len(data)) + data
    return data


def varint(value: int) -> bytes:
    """Protobuf's own form of a number that is not negative.

    >>> varint(300).hex()
    'ac02'
    """
    whole = bytearray()
    while value > 0x7F:
        whole.append(value & 0x7F | 0x80)
        value >>= 7
    whole.append(value)
    return bytes(whole)

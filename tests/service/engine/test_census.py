"""Elements of messages are counted in their bytes, and nothing that is dropped is free."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from rescorer.errors import InputError, LimitExceeded
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.api.calls import release_frames
from rescorer.service.engine.census import (
    KINDS,
    MAX_SURPLUS,
    MIN_BYTES,
    PLANS,
    Census,
    count_decoded_bytes,
    count_reading,
    limits_of,
)
from rescorer.service.settings import load_settings
from tools.fuzz.mutations import mutate_bytes, mutate_message, varint

RESCORE, SCORE_TEXT = (f"/rescorer.v1.RescorerService/{name}" for name in ("Rescore", "ScoreText"))
SETTINGS = load_settings(
    bundle="b", max_lists=2, max_hypotheses=3, max_score_streams=2, max_previous=5, max_phrases=6
)
SMALL = MIN_BYTES // 2
LIST_FIELDS = pb.NBestList.DESCRIPTOR.fields_by_name["fields"].number


def field(number: int, *parts: bytes) -> bytes:
    """Encode a field that contains a message or text."""
    data = b"".join(parts)
    return varint(number << 3 | 2) + varint(len(data)) + data


EMPTY = {
    "lists": field(1) * SMALL,
    "hypotheses": field(1, field(2) * SMALL),
    "streams": field(1, field(3) * SMALL),
    "previous": field(1, field(6) * SMALL),
    "phrases": field(9) * SMALL,
    "spellings": field(9, field(3) * SMALL),
    "phrase_lists": field(10) * SMALL,
    "weights.tuned_on": field(2, field(7) * 131_073),
    "weights.lm": field(2, *[field(3, field(1, b"%05d" % number)) for number in range(SMALL // 4)]),
    "a key many times": field(2, field(2) * SMALL),
    "weights many times": field(2) * SMALL,
    "a name many times": field(4) * SMALL,
    "unknown fields": (varint(99 << 3) + b"\0") * SMALL,
    "huge numbers": (varint(99 << 3) + b"\xff" * 9 + b"\1") * SMALL,
    "unknown fields of lists": field(1, (varint(99 << 3) + b"\0") * SMALL),
    "groups": (b"\x9b\x06\x9c\x06") * SMALL,
    "hypotheses after a group": field(1, b"\x9b\x06\x9c\x06" + field(2) * SMALL),
    "long tags": field(1, b"\x92\x80\x00\x80\x00" * SMALL),
}


@pytest.mark.parametrize("data", EMPTY.values(), ids=EMPTY)
def test_messages_of_nothing_are_refused_before_they_are_decoded(data):
    census = Census(limits_of(SETTINGS))
    with pytest.raises(LimitExceeded, match="more than"):
        census.add(data, 0, len(data), PLANS[RESCORE])
    most = max(limit.most for limit in census.limits.values() if limit.name != "fields")
    assert census.counts.total() <= most + 64  # it ends at the first one that is too many
    with pytest.raises(LimitExceeded, match="more than"):
        count_decoded_bytes(RESCORE, data, SETTINGS)


def test_texts_are_counted():
    with pytest.raises(
        LimitExceeded, match=r"texts: more than 3 texts; expected at most 3 \(max_hypotheses\)"
    ):
        count_decoded_bytes(SCORE_TEXT, field(1) * SMALL, SETTINGS)


def test_memory_follows_from_elements():
    values = {f"key{number}": None for number in range(9_000)}
    message = pb.RescoreRequest(lists=[pb.NBestList(fields=values, hypotheses=[pb.Hypothesis(text="a")])])
    data = message.SerializeToString()
    counted = count_decoded_bytes(RESCORE, data, SETTINGS) - len(data)
    assert 9_000 * 138 <= counted < 9_000 * 138 * 2  # what they were measured to take
    assert count_decoded_bytes(RESCORE, b"\xff" * MIN_BYTES, SETTINGS) == MIN_BYTES  # no message
    assert count_decoded_bytes("/another/Method", data, SETTINGS) == len(data)


@pytest.mark.parametrize(
    ("value", "measured_bytes"),
    [
        (b"", 48),
        (field(5, field(1)), 312),
        (field(5, *[field(1, field(1, bytes([97 + i]))) for i in range(9)]), 1092),
    ],
)
def test_values_whose_keys_stand_twice_take_memory_too(value, measured_bytes):
    """4 MB of them took a front end 1,059 MB."""
    one = field(1, field(1, b"key"), field(2, value))
    n = 4 * MIN_BYTES // len(one)
    data = field(1, field(LIST_FIELDS, one * n))
    assert count_decoded_bytes(RESCORE, data, load_settings(bundle="b")) >= n * measured_bytes


def test_words_that_marks_separate_take_time_to_read():
    """They took up to four times as long as the size of their message suggests."""
    assert count_reading(b"a b " * 100) == 50
    assert count_reading("a,a/é(1)".encode() * 100) == 112 + 400


def elements(message: Message) -> Iterator[str]:
    """Yield the kind of each element of a decoded message that is counted in its bytes."""
    for one, value in message.ListFields():
        kind = KINDS.get(one.full_name, one.name)
        if one.is_repeated and (one.message_type or one.cpp_type == one.CPPTYPE_STRING):
            yield from [kind] * len(value)
        is_map = one.message_type is not None and one.message_type.GetOptions().map_entry
        if one.message_type and not is_map and one.message_type.full_name != "google.protobuf.Struct":
            for part in value if one.is_repeated else [value]:
                yield from elements(part)


def make_request() -> pb.RescoreRequest:
    nbest = pb.NBestList(
        id="x",
        hypotheses=[pb.Hypothesis(text="a b", fields={"words": [{"word": "a"}]}), pb.Hypothesis(text="c")],
        streams=[pb.ScoreStream(name="acoustic", base=1, sign=1, values=[-1.0, 2.5])],
        previous=[pb.Utterance(text="so")],
        phrases=[pb.Phrase(text="ada", spellings=["aida", "eda"])],
    )
    weights = pb.Weights(streams={"acoustic": 1.0}, lm={"mixture": 1.0}, tuned_on=["f", "g"])
    return pb.RescoreRequest(
        lists=[nbest] * 3, weights=weights, phrases=nbest.phrases, phrase_lists=["names"]
    )


@given(st.randoms(use_true_random=False))
def test_no_message_has_more_elements_than_were_counted(rng: random.Random):
    message = make_request()
    mutate_message(message, rng)
    data = message.SerializeToString()
    data = mutate_bytes(data, rng) if rng.random() < 0.5 else data
    try:
        decoded = pb.RescoreRequest.FromString(data)
    except DecodeError:
        return
    limits = {kind: limit._replace(most=MAX_SURPLUS) for kind, limit in limits_of(SETTINGS).items()}
    census = Census(limits)
    census.add(data, 0, len(data), PLANS[RESCORE])
    found = list(elements(decoded))
    assert all(census.counts[kind] >= found.count(kind) for kind in set(found))
    assert census.counts["surplus"] <= MAX_SURPLUS


def test_an_error_that_waits_does_not_keep_what_it_was_about():
    class Request:
        pass

    def refuse(request: Request) -> None:
        kept.append(weakref.ref(request))
        try:
            raise ValueError("no number")
        except ValueError:
            raise InputError("refused")  # noqa: B904 (its context has frames, too)

    kept: list[weakref.ref[Request]] = []
    try:
        refuse(Request())
    except InputError as error:
        assert kept[0]() is not None
        release_frames(error)
        assert kept[0]() is None

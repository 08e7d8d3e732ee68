"""Times of canonical words from the client's field ``words``."""

from __future__ import annotations

import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Struct

from rescorer.consensus import find_spans
from rescorer.text import Normaliser

NORMALISE = Normaliser().normalise


def entry(word: object, start_s: object, duration_s: object) -> dict[str, object]:
    return {"word": word, "start_s": start_s, "duration_s": duration_s, "confidence": 0.5}


FIELDS = {"words": [entry("<sil>", 0.0, 0.5), entry("We_did", 0.5, 1.0), entry("it!", 1.5, 0)]}
SPANS = ((0.5, 1.0), (1.0, 1.5), (1.5, 1.5))


@pytest.mark.parametrize("fields", [FIELDS, ParseDict(FIELDS, Struct())])
def test_follows_the_normaliser(fields):
    assert find_spans(fields, ("we", "did", "it"), NORMALISE) == SPANS


@pytest.mark.parametrize(
    "entries",
    [
        "we did it",
        None,
        [entry("we", 0, 1), "did"],
        [{"word": "we"}],
        [entry("we", -1, 1)],
        [entry("we", float("nan"), 1)],
        [entry("we", True, 1)],
        [entry("we", "0", 1)],
        [entry(7, 0, 1)],
        [entry("we", 1.7e308, 1.7e308)],
        [entry("you", 0, 1)],
        [],
    ],
)
def test_fields_that_do_not_fit_the_words_are_no_times(entries):
    fields = {"words": entries}
    assert find_spans(fields, ("we",), NORMALISE) is None
    if entries is not None and "nan" not in str(entries):
        assert find_spans(ParseDict(fields, Struct()), ("we",), NORMALISE) is None
    assert find_spans({}, ("we",), NORMALISE) is None
    assert find_spans(Struct(), ("we",), NORMALISE) is None


@pytest.mark.parametrize("times", [(10**400, 1), (1, 10**400)])
def test_integers_of_hundreds_of_digits_are_no_times(times):
    assert find_spans({"words": [entry("we", *times)]}, ("we",), NORMALISE) is None

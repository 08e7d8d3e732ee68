"""Limits of requests: the table in docs/reference/limits.md, and errors that name the setting."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from rescorer.errors import LimitExceeded
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.engine.admission import SETTINGS, Quota
from rescorer.service.engine.census import MAX_FINGERPRINTS, MAX_WEIGHT_NAMES
from rescorer.service.engine.request_bounds import check_list, check_request, check_texts, count_values
from rescorer.service.settings import ServiceSettings, load_settings
from tests.conftest import REPOSITORY

TABLE = re.compile(r"\| limit \|.*?\n\n", re.DOTALL)
NOT_REQUEST_LIMITS = {"max_model_bytes", "max_batch_tokens"}


def test_documentation_lists_every_limit_and_its_default():
    table, *_ = TABLE.findall((REPOSITORY / "docs/reference/limits.md").read_text(encoding="utf-8"))
    documented = {name: float(value) for name, value in re.findall(r"`(\w+) = ([\d.]+)`", table)}
    fields = ServiceSettings.model_fields
    assert documented == {
        name: field.default
        for name, field in fields.items()
        if name.startswith("max_") and name not in NOT_REQUEST_LIMITS
    }


def nbest(*texts: str, context: str = "") -> pb.NBestList:
    return pb.NBestList(hypotheses=[pb.Hypothesis(text=text) for text in texts], context=context)


def nbest_with_fields(fields: dict) -> pb.NBestList:
    return pb.NBestList(hypotheses=[pb.Hypothesis(text="a", fields=fields)])


FIELDS = {"a": None, "b": [1, {"c": "d"}, []], "e": {"f": True}}
"""Eight values, of which three are in a list and two in objects."""


def test_values_are_counted_wherever_they_are():
    message = pb.RescoreRequest(lists=[pb.NBestList(fields=FIELDS), nbest("a"), nbest_with_fields(FIELDS)])
    assert count_values(message, 100) == 16
    assert 2 < count_values(message, 2) <= 8
    deep = {}
    for _ in range(15):
        deep = {"x": [deep]}
    assert count_values(pb.RescoreRequest(lists=[pb.NBestList(fields=deep)]), 100) == 30


@pytest.mark.parametrize(
    ("check", "message", "expected"),
    [
        (
            check_request,
            pb.RescoreRequest(lists=[nbest()] * 3),
            r"more than 2 lists; expected at most 2 \(max_lists\)",
        ),
        (
            check_request,
            pb.RescoreRequest(
                lists=[pb.NBestList(phrases=[pb.Phrase(text="a", spellings="bc")]) for _ in range(2)]
            ),
            r"phrases: more than 5 phrases; expected at most 5 \(max_phrases\)",
        ),
        (
            check_request,
            pb.RescoreRequest(lists=[pb.NBestList(previous=[pb.Utterance()] * 3)] * 2),
            r"more than 5 utterances; expected at most 5 \(max_previous\); send the newest of each list",
        ),
        (
            check_request,
            pb.RescoreRequest(lists=[nbest(*"abcd"), nbest(*"abc")]),
            r"more than 6 hypotheses; expected at most 6 in 2 lists \(max_hypotheses, max_lists\)",
        ),
        (
            check_request,
            pb.RescoreRequest(lists=[pb.NBestList(fields=FIELDS), nbest_with_fields(FIELDS)]),
            r"fields: at least 1\d values in lists and hypotheses; expected at most 13 \(max_field_values\)",
        ),
        (
            check_request,
            pb.RescoreRequest(phrase_lists=["a"] * 17),
            r"phrase_lists: more than 16 names; expected at most 16",
        ),
        (
            check_request,
            pb.RescoreRequest(weights=pb.Weights(tuned_on=["a"] * (MAX_FINGERPRINTS + 1))),
            r"weights.tuned_on: more than 131072 names; expected at most 131072",
        ),
        *(
            (
                check_request,
                pb.RescoreRequest(weights=pb.Weights(**{name: dict.fromkeys(map(str, range(1001)), 0.0)})),
                rf"weights.{name}: more than {MAX_WEIGHT_NAMES} names; expected at most {MAX_WEIGHT_NAMES}",
            )
            for name in ("lm", "mixture", "rerankers", "components")
        ),
        (
            check_texts,
            pb.ScoreTextRequest(weights=pb.Weights(streams={"a": 1, "b": 1, "c": 1})),
            r"weights.streams: more than 2 names; expected at most 2 \(max_score_streams\)",
        ),
        (
            check_list,
            pb.NBestList(streams=[pb.ScoreStream(name="a")] * 3),
            r"streams: 3 streams; expected at most 2 \(max_score_streams\)",
        ),
        (check_list, nbest("a", "b", "c", "d"), r"4 hypotheses; expected at most 3 \(max_hypotheses\)"),
        (check_list, nbest("a b c d e"), r"text: 5 words; expected at most 4 \(max_words\)"),
        (check_list, nbest(context="a_b_c_d_e"), r"context: 5 words; expected at most 4 \(max_words\)"),
        (check_texts, pb.ScoreTextRequest(texts="abcd"), r"4 texts; expected at most 3 \(max_hypotheses\)"),
    ],
)
def test_error_names_the_exceeded_limit(check, message, expected):
    settings = load_settings(
        bundle="b",
        max_lists=2,
        max_hypotheses=3,
        max_words=4,
        max_phrases=5,
        max_previous=5,
        max_score_streams=2,
        max_field_values=13,
        max_in_flight_lists=9,
        max_batch_tokens=99,
    )
    with pytest.raises(LimitExceeded, match=expected):
        check(message, settings)


MANY = 200_000


def check_all(request: pb.RescoreRequest, settings: ServiceSettings) -> None:
    check_request(request, settings)
    for message in request.lists:
        check_list(message, settings)


@pytest.mark.parametrize(
    ("request_message", "field"),
    [
        (pb.RescoreRequest(lists=[pb.NBestList()] * MANY), "lists"),
        (pb.RescoreRequest(phrases=[pb.Phrase()] * MANY), "phrases"),
        (pb.RescoreRequest(phrase_lists=[""] * MANY), "phrase_lists"),
        (pb.RescoreRequest(weights=pb.Weights(tuned_on=[""] * MANY)), "weights.tuned_on"),
        (pb.RescoreRequest(lists=[pb.NBestList(previous=[pb.Utterance()] * MANY)]), "previous"),
        (pb.RescoreRequest(lists=[pb.NBestList(phrases=[pb.Phrase()] * MANY)]), "phrases"),
        (
            pb.RescoreRequest(lists=[pb.NBestList(phrases=[pb.Phrase(spellings=[""] * MANY)])]),
            "phrases",
        ),
        (pb.RescoreRequest(lists=[nbest_with_fields({"x": [None] * 3 * MANY})]), "fields"),
        (pb.RescoreRequest(lists=[pb.NBestList(hypotheses=[pb.Hypothesis()] * MANY)]), "hypotheses"),
        (pb.RescoreRequest(lists=[pb.NBestList(streams=[pb.ScoreStream()] * MANY)]), "streams"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_empty_elements_are_refused_before_anything_is_made_of_them(request_message, field):
    """4 MB of empty utterances took 370 MB and 10 s."""
    settings = load_settings(bundle="b")
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded) as error:
            check_all(request_message, settings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.value.field == field
    assert peak < 200_000  # a byte for each


@pytest.mark.parametrize(("name", "settings"), SETTINGS.items())
def test_refusal_names_the_setting_of_the_exceeded_quota(name, settings):
    quota = Quota(name, 10, per_client=4)
    quota.add("a", 3)
    capacity_setting, client_setting = settings
    assert quota.reason_to_refuse("a", 2, shared=False) == (
        f"this client has 3 {name} in flight and requested 2 more; expected at most 4 ({client_setting})"
    )
    assert quota.reason_to_refuse("b", 8, shared=False) == (
        f"3 {name} are in flight and 8 more were requested; expected at most 10 ({capacity_setting})"
    )
    assert set(settings) <= set(ServiceSettings.model_fields)

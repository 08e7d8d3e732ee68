"""Limits of requests: the table in docs/reference/limits.md, and errors that name the setting."""

from __future__ import annotations

import re

import pytest

from rescorer.errors import LimitExceeded
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.service.engine.quota import SETTINGS, Quota
from rescorer.service.limits.request_size import check_list, check_request, check_texts
from rescorer.service.preflight import load_settings
from rescorer.service.settings import ServiceSettings
from tests.conftest import REPOSITORY

TABLE = re.compile(r"\| limit \|.*?\n\n", re.DOTALL)
NOT_REQUEST_LIMITS = {"max_model_bytes", "max_batch_tokens"}


def test_documentation_lists_every_limit_and_its_default():
    (table,) = TABLE.findall((REPOSITORY / "docs/reference/limits.md").read_text(encoding="utf-8"))
    documented = {name: float(value) for name, value in re.findall(r"`(\w+) = ([\d.]+)`", table)}
    fields = ServiceSettings.model_fields
    assert documented == {
        name: field.default
        for name, field in fields.items()
        if name.startswith("max_") and name not in NOT_REQUEST_LIMITS
    }


def nbest(*texts: str, context: str = "") -> pb.NBestList:
    return pb.NBestList(hypotheses=[pb.Hypothesis(text=text) for text in texts], context=context)


@pytest.mark.parametrize(
    ("check", "message", "expected"),
    [
        (check_request, pb.RescoreRequest(lists=[nbest()] * 3), r"3 lists; expected at most 2 \(max_lists\)"),
        (
            check_request,
            pb.RescoreRequest(
                lists=[pb.NBestList(phrases=[pb.Phrase(text="a", spellings="bc")]) for _ in range(2)]
            ),
            r"phrases: 6 phrases; expected at most 5 \(max_phrases\)",
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
        max_in_flight_lists=9,
        max_batch_tokens=99,
    )
    with pytest.raises(LimitExceeded, match=expected):
        check(message, settings)


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

from __future__ import annotations

import pytest

from rescorer.service.engine.admission import MIN_TOKENS, SAFETY_FACTOR, ResponseTime


def test_predicts_nothing_before_the_first_response() -> None:
    assert ResponseTime().seconds_for(10_000) == 0


def test_predicts_in_proportion_to_the_tokens() -> None:
    times = ResponseTime()
    times.record(4000, 0.2)
    assert times.seconds_for(8000) == pytest.approx(SAFETY_FACTOR * 0.4)


def test_follows_recent_responses() -> None:
    times = ResponseTime()
    times.record(4000, 4.0)
    for _ in range(100):
        times.record(4000, 0.2)
    assert times.seconds_for(4000) == pytest.approx(SAFETY_FACTOR * 0.2, rel=0.01)


def test_small_responses_do_not_predict_large_ones() -> None:
    times = ResponseTime()
    times.record(MIN_TOKENS - 1, 1.0)
    assert times.seconds_for(10_000) == 0

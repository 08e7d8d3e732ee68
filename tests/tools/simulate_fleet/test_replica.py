"""Simulated servers: against queueing theory, and against a server simulated event by event."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.plain_queue import simulate_plainly
from tests.support.queueing_theory import wait_mg1, wait_mmc
from tools.simulate_fleet.replica import (
    Pattern,
    Replica,
    TimeModel,
    constant,
    draw_arrivals,
    exponential,
    lognormal,
)

pytestmark = pytest.mark.slow

MEAN_S = 0.01
MODELS = {0.0: constant(MEAN_S), 0.5: lognormal(MEAN_S, 0.5), 1.0: exponential(MEAN_S)}


def mean_wait_s(times: TimeModel, arrival_rate: float, workers: int, n_lists: int = 300_000) -> float:
    generator = np.random.default_rng(7)
    arrivals = draw_arrivals(arrival_rate, n_lists / arrival_rate, Pattern(), generator)
    return float(Replica(times, workers, 1, generator).advance(arrivals, math.inf).queue_s.mean())


@pytest.mark.parametrize("load", [0.3, 0.8])
@pytest.mark.parametrize("variation", MODELS)
def test_waits_with_one_worker_are_those_of_pollaczek_and_khinchine(load, variation):
    rate = load / MEAN_S
    expected_s = wait_mg1(rate, MEAN_S, variation)
    assert mean_wait_s(MODELS[variation], rate, 1) == pytest.approx(expected_s, rel=0.06)


@settings(max_examples=5, deadline=None)
@given(workers=st.integers(1, 12), load=st.floats(0.3, 0.75))
def test_waits_with_several_workers_are_those_of_erlang(workers, load):
    rate = load * workers / MEAN_S
    measured_s, expected_s = mean_wait_s(MODELS[1.0], rate, workers), wait_mmc(rate, MEAN_S, workers)
    assert measured_s == pytest.approx(expected_s, rel=0.1, abs=0.02 * MEAN_S)


@settings(max_examples=100, deadline=None)
@given(
    gaps=st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=40),
    workers=st.integers(1, 3),
    max_lists=st.integers(1, 5),
    front_s=st.sampled_from([0.0, 0.25, 1.5]),
    cuts=st.lists(st.floats(0, 60), max_size=3),
)
def test_equals_a_server_that_is_simulated_event_by_event(gaps, workers, max_lists, front_s, cuts):
    times = TimeModel(lambda count, _: np.full(count, 1.0), 1.0, front_s, {1: 1.0, 2: 0.75, 5: 0.5})
    arrivals = np.cumsum(gaps)
    replica = Replica(times, workers, max_lists, np.random.default_rng(0))
    starts, responses, begin = [], [], 0.0
    for end in [*sorted(cuts), math.inf]:
        own = arrivals[(arrivals >= begin) & (arrivals < end)]
        served = replica.advance(own, end)
        starts += served.start_s.tolist()
        responses += served.response_s.tolist()
        begin = end
    durations = [n * efficiency for n, efficiency in enumerate(times.batch_efficiency(max_lists))]
    expected = simulate_plainly(arrivals.tolist(), front_s, workers, max_lists, durations)
    assert starts == pytest.approx([start for start, _ in expected])
    assert responses == pytest.approx(
        [end - arrived for arrived, (_, end) in zip(arrivals, expected, strict=True)]
    )


def test_a_batch_of_measured_efficiency_takes_less_than_its_lists():
    times = TimeModel(lambda count, _: np.full(count, 1.0), 1.0, 0.0, {1: 1.0, 4: 0.5})
    assert times.batch_efficiency(8) == pytest.approx([1, 1, 0.75, 0.6038, 0.5, 0.5, 0.5, 0.5, 0.5], abs=1e-3)
    assert times.capacity_per_s(workers=2, max_lists=8) == pytest.approx(4)
    served = Replica(times, 1, 8, np.random.default_rng(0)).advance(np.array([0.0, 0.1, 0.2]), math.inf)
    assert served.queue_s == pytest.approx([0, 0.9, 0.8])
    assert served.response_s == pytest.approx([1, 2.4, 2.3])

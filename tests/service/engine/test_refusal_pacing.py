"""Refusals are immediate for polite clients, and spaced out for those that send call after call."""

from __future__ import annotations

import pytest

from rescorer.service.engine.client_limits import (
    BURST,
    BYTES_PER_REFUSAL,
    MAX_DELAY_S,
    MAX_PER_S,
    RefusalPacer,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_a_burst_is_refused_at_once_and_what_exceeds_it_is_spaced_out(clock):
    pacer = RefusalPacer(clock)
    delays = [pacer.delay_s("a") for _ in range(BURST + 3)]
    assert delays[: BURST - 1] == [0.0] * (BURST - 1)
    assert delays[-3:] == pytest.approx([i / MAX_PER_S for i in (1, 2, 3)])


def test_a_steady_client_below_the_rate_never_waits(clock):
    pacer = RefusalPacer(clock)
    for _ in range(1000):
        assert pacer.delay_s("a") == 0
        clock.now += 1.01 / MAX_PER_S


def test_refusals_of_large_requests_count_more(clock):
    pacer = RefusalPacer(clock)
    delays = [pacer.delay_s("a", 9 * BYTES_PER_REFUSAL) for _ in range(BURST)]
    assert delays.count(0.0) <= BURST // 10
    assert delays[-1] - delays[-2] == pytest.approx(10 / MAX_PER_S)


@pytest.mark.parametrize("n_clients", [2, 10, 100])
def test_clients_share_the_refusals_equally(clock, n_clients):
    pacer = RefusalPacer(clock)
    refused = dict.fromkeys(range(n_clients), 0)
    due_at = dict.fromkeys(range(n_clients), clock.now)
    end = clock.now + 60
    while (client := min(due_at, key=due_at.__getitem__)) is not None and due_at[client] < end:
        clock.now = due_at[client]  # each client repeats a call as soon as it is refused
        due_at[client] += pacer.delay_s(client) or 1e-4
        refused[client] += 1
    expected = 60 * MAX_PER_S
    assert 0.95 * expected < sum(refused.values()) < 1.05 * expected + n_clients * BURST
    assert max(refused.values()) < 1.2 * min(refused.values()) + 5


def test_delays_are_bounded_and_the_past_is_forgotten(clock):
    pacer = RefusalPacer(clock)
    assert max(pacer.delay_s("a") for _ in range(10_000)) == MAX_DELAY_S
    clock.now += 60
    assert pacer.delay_s("b") == 0
    assert pacer.delay_s("a") == 0

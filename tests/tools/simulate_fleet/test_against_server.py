"""The simulation against a real server, with the same arrivals.

The server's scorer sleeps for a known time, so that the comparison is about queue and batches, and does not
depend on how busy this machine is.
"""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from rescorer.client import AsyncClient
from tests.support.clients import make_list
from tests.support.servers import ControlledScorer, run_server
from tools.simulate_fleet.replica import Pattern, Replica, constant, draw_arrivals, with_server

ALONE_S, BATCHED_S, MAX_LISTS = 0.4, 0.2, 4
WORDS_PER_LIST = 3
"""Two words and a sentence end."""
CAPACITY_PER_S = 1 / BATCHED_S
N_LISTS = 60
LOADS = 0.5, 0.8


class SleepingScorer(ControlledScorer):
    """A scorer that takes a known time for a batch, by its number of hypotheses."""

    def score(self, trie, only=(), encoders=None, *, surface=False, words=()):
        step_s = (MAX_LISTS * BATCHED_S - ALONE_S) / (MAX_LISTS - 1)
        time.sleep(ALONE_S + (len(trie.hypothesis_node) - 1) * step_s)
        return super().score(trie, only, encoders, surface=surface, words=words)


async def send(target: str, arrivals_s: np.ndarray) -> np.ndarray:
    """Send a list at each of these times; return the response times in seconds."""

    async def send_one(number: int, due: float) -> float:
        await asyncio.sleep(due - time.monotonic())
        await client.rescore([make_list(f"u{number}", "the cat")], timeout_s=60)
        return time.monotonic() - due

    async with AsyncClient(target) as client:
        await client.wait_ready()
        start = time.monotonic() + 0.1
        return np.array(
            await asyncio.gather(*(send_one(n, start + at) for n, at in enumerate(arrivals_s.tolist())))
        )


def compare(bundle: Path, load: float, n_lists: int = N_LISTS) -> tuple[np.ndarray, np.ndarray]:
    """Return the measured and the simulated response times of the same lists, in seconds."""
    generator = np.random.default_rng(5)
    rate_per_s = load * CAPACITY_PER_S
    arrivals_s = draw_arrivals(rate_per_s, n_lists / rate_per_s, Pattern(), generator)
    times = with_server(constant(ALONE_S), MAX_LISTS, None, 1e3 * BATCHED_S)
    simulated = Replica(times, 1, MAX_LISTS, generator).advance(arrivals_s, math.inf).response_s
    tokens = MAX_LISTS * WORDS_PER_LIST
    with run_server(bundle, load_scorer=SleepingScorer.load, max_batch_tokens=tokens, max_words=5) as server:
        return asyncio.run(send(server.target, arrivals_s)), simulated


@pytest.fixture(scope="module")
def comparisons(ngram_bundle) -> dict[float, tuple[np.ndarray, np.ndarray]]:
    """What was measured and simulated, by the load; at the same time, because the servers sleep."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(LOADS, pool.map(lambda load: compare(ngram_bundle, load), LOADS), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("load", LOADS)
def test_response_times_are_those_of_a_server_with_known_service_times(comparisons, load):
    measured, simulated = comparisons[load]
    print(
        f"load {load}: "
        + ", ".join(
            f"p{p} {np.percentile(measured, p) * 1e3:.0f} and {np.percentile(simulated, p) * 1e3:.0f} ms"
            for p in (50, 90, 99)
        )
    )
    assert measured.mean() == pytest.approx(simulated.mean(), rel=0.25)
    assert np.median(np.abs(measured - simulated)) < 0.5 * ALONE_S

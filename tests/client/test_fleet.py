"""Eight servers behind the balancing of the Python clients and behind Envoy, restarted one by one under load.

The load is half of what this machine does at the time, so the test is as hard on a busy machine as on an idle
one. Callers wait for their answers: where the machine slows down, the load does so, too.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from typing import Any

import pytest

from rescorer import RescoredList
from rescorer.client import NO_RETRY, AsyncClient, Retry
from tests.support.clients import make_list
from tests.support.envoy import ENVOY as ENVOY_BINARY
from tests.support.envoy import connection_manager, load_envoy_config, point_at, run_envoy
from tests.support.fleet import FleetServer, run_fleet

pytestmark = pytest.mark.slow

FLEET_SIZE = 8
CALLERS_PER_ROUTE = 4
PEAK_S = 2.0
SETTLE_S = 0.5
"""Load after each restart, so that the new server takes part before the next one stops."""
LOAD = 0.5
CLIENT, CLIENT_ONCE = "client", "client without retries"
ENVOY, ENVOY_ONCE = "Envoy", "Envoy without retries"
RESTARTS = (signal.SIGTERM, signal.SIGKILL)

Outcomes = dict[str, Counter[str]]
"""Number of calls by outcome, for each route: ``answered``, or the type of an error."""


def remove_retries(config: Mapping[str, Any]) -> dict[str, Any]:
    plain = deepcopy(dict(config))
    for host in connection_manager(plain)["route_config"]["virtual_hosts"]:
        for route in host["routes"]:
            route["route"].pop("retry_policy", None)  # routes share one
    return plain


@contextmanager
def run_balancers(servers: list[FleetServer], folder) -> Iterator[dict[str, tuple[str, Retry]]]:
    """Run Envoys in front of the servers; yield the target and the client's retries of each route."""
    direct = ",".join(server.target for server in servers)
    routes = {CLIENT: (direct, Retry()), CLIENT_ONCE: (direct, NO_RETRY)}
    with ExitStack() as stack:
        if ENVOY_BINARY is not None:
            config = load_envoy_config()
            point_at(config, [(server.host, server.port) for server in servers])
            for route, envoy_config in ((ENVOY, config), (ENVOY_ONCE, remove_retries(config))):
                routes[route] = stack.enter_context(run_envoy(envoy_config, folder / route)), NO_RETRY
        yield routes


async def call_repeatedly(client: AsyncClient, outcomes: Counter[str], interval_s: float) -> None:
    """Call once per interval, or whenever an answer has come if that takes longer, until cancelled."""
    nbest = make_list("u1", "the cat sat on the mat", "the mat", "the cat")
    due = time.monotonic()
    while True:
        try:
            (answer,) = await client.rescore_each([nbest], timeout_s=60)
            outcomes["answered" if isinstance(answer, RescoredList) else type(answer).__name__] += 1
        except Exception as error:
            outcomes[type(error).__name__] += 1
        due = max(due + interval_s, time.monotonic() - interval_s)
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def call_during(event, clients: Mapping[str, AsyncClient], interval_s: float = 0.0) -> Outcomes:
    """Let callers of all routes call while the coroutine ``event`` runs."""
    outcomes: Outcomes = {route: Counter() for route in clients}
    callers = [
        asyncio.create_task(call_repeatedly(client, outcomes[route], interval_s))
        for route, client in clients.items()
        for _ in range(CALLERS_PER_ROUTE)
    ]
    try:
        await event
    finally:
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    return outcomes


async def restart_in_turn(servers: list[FleetServer], signal_number: int) -> None:
    for server in servers:
        code = await asyncio.to_thread(server.stop, signal_number)
        assert code == (0 if signal_number == signal.SIGTERM else -signal_number)
        server.start()
        await asyncio.to_thread(server.wait_ready)
        await asyncio.sleep(SETTLE_S)


async def measure(
    servers: list[FleetServer], routes: Mapping[str, tuple[str, Retry]]
) -> tuple[float, list[Outcomes]]:
    """Return the calls per second during the restarts, and the outcomes for each kind of restart."""
    clients = {route: AsyncClient(target, retry=retry) for route, (target, retry) in routes.items()}
    try:
        for client in clients.values():
            await client.rescore([make_list()], timeout_s=60)
        await call_during(asyncio.sleep(SETTLE_S), clients)
        peak = await call_during(asyncio.sleep(PEAK_S), clients)
        peak_per_s = sum(counts.total() for counts in peak.values()) / PEAK_S
        interval_s = CALLERS_PER_ROUTE * len(clients) / (LOAD * peak_per_s)
        outcomes = [
            await call_during(restart_in_turn(servers, number), clients, interval_s) for number in RESTARTS
        ]
    finally:
        for client in clients.values():
            await client.close()
    assert all(set(counts) == {"answered"} for counts in peak.values()), peak
    return LOAD * peak_per_s, outcomes


def test_rolling_restarts_at_half_load_fail_no_call_that_is_retried(ngram_bundle, tmp_path):
    with run_fleet(ngram_bundle, tmp_path, FLEET_SIZE) as servers:
        first = [server.process for server in servers]
        with run_balancers(servers, tmp_path) as routes:
            load_per_s, outcomes = asyncio.run(measure(servers, routes))
        assert all(server.process not in first for server in servers)
    for number, by_route in zip(RESTARTS, outcomes, strict=True):
        counted = {route: dict(counts) for route, counts in by_route.items()}
        print(f"{number.name}, {load_per_s:.0f} calls/s: {counted}")
        for route, counts in by_route.items():
            allowed = {"answered"} if route in (CLIENT, ENVOY) else {"answered", "Unavailable"}
            assert {"answered"} <= set(counts) <= allowed, route

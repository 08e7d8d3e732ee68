"""Send mutated messages, arbitrary bytes, malformed HTTP/2 and hostile calls to a server, and check how it
reacts."""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer.bench.load import run_server
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import models_pb2
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList
from tools.fuzz.http2 import CONNECTIONS, REQUESTS, malformed_connection
from tools.fuzz.mutations import mutate_bytes, mutate_message
from tools.observation import GrowthMonitor, GrowthReport, explain_errors, find_workers, read_logged_errors

RESCORER_SERVICE, MODEL_SERVICE = "/rescorer.v1.RescorerService/", "/rescorer.v1.ModelService/"
METHODS = {
    "Rescore": RESCORER_SERVICE + "Rescore",
    "ScoreText": RESCORER_SERVICE + "ScoreText",
    "RescoreStream": RESCORER_SERVICE + "RescoreStream",
    "GetModel": MODEL_SERVICE + "GetModel",
    "no method": RESCORER_SERVICE + "Nothing",
}
METHOD_SHARES = (0.6, 0.2, 0.12, 0.05, 0.03)
KIND_SHARES = {"message": 0.64, "bytes": 0.25, "conversation": 0.1, "attack": 0.01}
"""Shares of mutated messages, mutated bytes, malformed HTTP/2 connections and hostile clients."""
ALLOWED_CODES = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"}
"""Allowed status codes of calls."""
ALLOWED_LIST_CODES = {"OK", "INVALID_ARGUMENT"}
DEADLINE_S = 60.0
READ_TIMEOUT_S = 0.2
"""Time for which the server's reaction to a malformed connection is read."""
MAX_HOLD_S = 5.0
"""Longest time for which a hostile client keeps its connection open without reading."""
HEALTH_INTERVAL_S = 0.5
HEALTH_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class FuzzPlan:
    """Size of a fuzz run."""

    requests: int = 200_000
    concurrency: int = 16
    """Number of requests to keep in flight at once."""
    seconds: float = math.inf
    """Time after which no more requests are sent."""
    limit_s: float = 3600.0
    """Time after which the run fails."""
    seed: int = 1
    server_options: tuple[str, ...] = ()
    log: Path | None = None
    """File for the server's log; None uses a temporary file."""


@dataclass(frozen=True, slots=True)
class FuzzReport:
    """Outcome of a fuzz run."""

    seconds: float
    requests: int
    kinds: dict[str, int]
    """Number of requests by kind."""
    codes: dict[str, int]
    """Number of calls by status code."""
    list_codes: dict[str, int]
    """Number of lists in answers by status code."""
    longest_s: float
    """Duration of the longest call."""
    health_max_ms: float
    rss_mb_a_1000_requests: float
    """Growth of memory after the warm-up.

    Floods of reset calls make gRPC itself grow: the process keeps the memory of the calls that were open at
    the same time, and leaks 0.1 KB per call."""
    grown: GrowthReport
    faults: list[str] = field(default_factory=list)
    """Errors found; empty if the run passes."""


def run_fuzz(bundle: Path, lists: Sequence[NBestList], weights: str, plan: FuzzPlan) -> FuzzReport:
    """Start a server and send it malformed requests.

    Raises:
        DeadlineExceeded: the run takes longer than ``plan.limit_s``.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = plan.log or Path(folder) / "log"
        options = ("--bundle", str(bundle), "--threads", "1", *plan.server_options)
        with run_server(options, log) as (target, pid):
            workers = find_workers(pid)
            run = FuzzRun(target, [list_to_proto(nbest) for nbest in lists], weights, plan)
            start = time.monotonic()
            with (
                explain_errors(log, plan.limit_s),
                GrowthMonitor(pid) as growth_monitor,
                HealthMonitor(target, run.errors) as health_monitor,
            ):
                asyncio.run(asyncio.wait_for(run.run(), plan.limit_s))
            elapsed_s = time.monotonic() - start
            if find_workers(pid) != workers:
                run.errors.append("workers have died")
        growth, requests = growth_monitor.report(), run.kinds.total()
        return FuzzReport(
            elapsed_s,
            requests,
            dict(run.kinds),
            dict(run.codes),
            dict(run.list_codes),
            run.longest_s,
            health_monitor.max_ms,
            growth.rss_mb_an_hour / 3600 * elapsed_s / requests * 1000,
            growth,
            [*run.errors, *read_logged_errors(log)],
        )


class FuzzRun:
    """Concurrent clients that send malformed requests and check the answers."""

    def __init__(self, target: str, lists: Sequence[pb.NBestList], weights: str, plan: FuzzPlan) -> None:
        self._target, self._lists, self._weights, self._plan = target, lists, weights, plan
        self._rng = random.Random(plan.seed)
        self._remaining_requests = plan.requests
        self._end = time.monotonic() + plan.seconds
        self.kinds: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.list_codes: Counter[str] = Counter()
        self.errors: list[str] = []
        self.longest_s = 0.0

    async def run(self) -> None:
        options = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(self._target, options) as channel:
            await asyncio.gather(*(self._send_requests(channel) for _ in range(self._plan.concurrency)))

    async def _send_requests(self, channel: grpc.aio.Channel) -> None:
        send_by_kind: dict[str, Callable[[], Awaitable[None]]] = {
            "message": lambda: self._call_at_random(channel, with_broken_bytes=False),
            "bytes": lambda: self._call_at_random(channel, with_broken_bytes=True),
            "conversation": self._open_malformed_connection,
            "attack": lambda: self._attack(channel),
        }
        while self._remaining_requests > 0 and time.monotonic() < self._end:
            self._remaining_requests -= 1
            (kind,) = self._rng.choices(list(KIND_SHARES), list(KIND_SHARES.values()))
            self.kinds[kind] += 1
            await send_by_kind[kind]()

    async def _call_at_random(self, channel: grpc.aio.Channel, *, with_broken_bytes: bool) -> None:
        (method,) = self._rng.choices(list(METHODS), METHOD_SHARES)
        request = self._make_request(method)
        await self._call(channel, method, mutate_bytes(request, self._rng) if with_broken_bytes else request)

    async def _call(self, channel: grpc.aio.Channel, method: str, request: bytes) -> None:
        start = time.monotonic()
        try:
            response = await self._send(channel, method, request)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if code not in ALLOWED_CODES:
                self.errors.append(f"{method}: {code} {error.details()}: {request[:200]!r}")
        except TimeoutError:
            code = "hung"
            self.errors.append(f"{method} hung: {request[:200]!r}")
        else:
            code = "OK"
            if method in ("Rescore", "RescoreStream"):
                self._check_response(request, response)
        self.codes[code] += 1
        self.longest_s = max(self.longest_s, time.monotonic() - start)

    async def _send(self, channel: grpc.aio.Channel, method: str, request: bytes) -> bytes:
        if method != "RescoreStream":
            unary: Any = channel.unary_unary(METHODS[method])
            return await asyncio.wait_for(unary(request, timeout=DEADLINE_S), 2 * DEADLINE_S)
        stream: Any = channel.stream_stream(METHODS[method])
        call = stream(iter([request]), timeout=DEADLINE_S)

        async def read_responses() -> list[bytes]:
            return [response async for response in call]

        (response,) = await asyncio.wait_for(read_responses(), 2 * DEADLINE_S)
        return response

    def _make_request(self, method: str) -> bytes:
        """Make a request for a method and mutate some of its fields."""
        rng = self._rng
        lists = [rng.choice(self._lists) for _ in range(rng.randint(1, 3))]
        if method == "ScoreText":
            texts = [hypothesis.text for hypothesis in lists[0].hypotheses]
            message: Any = pb.ScoreTextRequest(texts=texts, weights_name=self._weights)
        elif method == "GetModel":
            message = models_pb2.GetModelRequest()
        else:  # RescoreStreamRequest has the same fields
            message = pb.RescoreRequest(lists=lists, weights_name=self._weights)
        mutate_message(message, rng)
        return message.SerializeToString()

    def _check_response(self, request_bytes: bytes, response_bytes: bytes) -> None:
        """Check that every list has an answer with an allowed status and finite totals."""
        request = pb.RescoreRequest.FromString(request_bytes)
        response = pb.RescoreResponse.FromString(response_bytes)
        quoted = repr(request_bytes[:200])
        if [nbest.id for nbest in request.lists] != [answer.id for answer in response.lists]:
            self.errors.append(f"the answers do not match the lists of the request: {quoted}")
        for answer in response.lists:
            code = next(code.name for code in grpc.StatusCode if code.value[0] == answer.status.code)
            self.list_codes[code] += 1
            if code not in ALLOWED_LIST_CODES:
                self.errors.append(f"list {answer.id!r}: {code} {answer.status.message}: {quoted}")
            if not all(math.isfinite(hypothesis.total) for hypothesis in answer.hypotheses):
                self.errors.append(f"list {answer.id!r}: a total is not finite: {quoted}")

    async def _open_malformed_connection(self) -> None:
        """Send malformed HTTP/2 over a separate connection, and close the connection abruptly."""
        path, rng = METHODS["Rescore"].encode(), self._rng
        request = pb.RescoreRequest(lists=[rng.choice(self._lists)]).SerializeToString()
        host, _, port = self._target.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with suppress(OSError, TimeoutError):  # the server may close the connection first
            writer.write(malformed_connection(path, request, rng))
            if rng.random() < 0.5:
                await asyncio.wait_for(reader.read(), READ_TIMEOUT_S)
        writer.transport.abort()

    async def _attack(self, channel: grpc.aio.Channel) -> None:
        """Ask for too much, or open a connection and leave it open for a while without reading."""
        rng = self._rng
        attack = rng.choice((*CONNECTIONS, *REQUESTS))
        data = attack(rng.choice(self._lists), rng)
        if attack in REQUESTS:
            return await self._call(channel, "Rescore", data)
        host, _, port = self._target.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        await asyncio.sleep(rng.uniform(0, MAX_HOLD_S))
        writer.transport.abort()


class HealthMonitor:
    """Context manager that checks a server's health from a thread, and once more at the end.

    Args:
        errors: list to which errors are added.
    """

    def __init__(self, target: str, errors: list[str]) -> None:
        self._target, self._errors = target, errors
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._check_repeatedly, daemon=True)
        self.max_ms = 0.0

    def __enter__(self) -> HealthMonitor:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _check_repeatedly(self) -> None:
        with grpc.insecure_channel(self._target, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            stub: Any = HealthStub(channel)
            while not self._stop.wait(HEALTH_INTERVAL_S):
                self._check(stub)
            self._check(stub)

    def _check(self, stub: Any) -> None:
        start = time.monotonic()
        try:
            response = stub.Check(HealthCheckRequest(), timeout=HEALTH_TIMEOUT_S)
        except grpc.RpcError as error:
            self._errors.append(f"health check failed: {error}")
        else:
            if response.status != HealthCheckResponse.SERVING:
                self._errors.append("the health service no longer reports SERVING")
        self.max_ms = max(self.max_ms, (time.monotonic() - start) * 1e3)

"""Owns a fuzz run: messages, bytes and conversations that make no sense, and what the server says to them."""

from __future__ import annotations

import asyncio
import math
import random
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from rescorer.load.server import judged, logged_faults, scorers, serving
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import models_pb2
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList
from tools.fuzz.http2 import broken_conversation
from tools.fuzz.mutations import broken, mutated
from tools.support.growth import Grown, Growth

RESCORER, MODELS = "/rescorer.v1.RescorerService/", "/rescorer.v1.ModelService/"
METHODS = {
    "Rescore": RESCORER + "Rescore",
    "ScoreText": RESCORER + "ScoreText",
    "RescoreStream": RESCORER + "RescoreStream",
    "GetModel": MODELS + "GetModel",
    "no method": RESCORER + "Nothing",
}
SHARES = {"message": 0.65, "bytes": 0.25, "conversation": 0.1}
"""Of requests, by kind."""
METHOD_SHARES = (0.6, 0.2, 0.12, 0.05, 0.03)
EXPECTED_CODES = {
    *("OK", "INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED"),
}
"""Of calls; of lists, OK and INVALID_ARGUMENT alone."""
DEADLINE_S = 60.0
READ_S = 0.2
"""How long the other side of a broken conversation is listened to, where it is at all."""
HEALTH_EVERY_S, HEALTH_LIMIT_S = 0.5, 20.0
SERVING = HealthCheckResponse.SERVING


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent."""

    requests: int = 200_000
    at_once: int = 16
    seconds: float = math.inf
    """At most; what was sent by then is told."""
    limit_s: float = 3600.0
    seed: int = 1
    server_options: tuple[str, ...] = ()
    log: Path | None = None
    """Where the server's is kept."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    seconds: float
    requests: int
    kinds: dict[str, int]
    codes: dict[str, int]
    """Of calls."""
    list_codes: dict[str, int]
    """Of lists in answers."""
    longest_s: float
    """Of calls."""
    health_max_ms: float
    rss_mb_a_1000_requests: float
    """Slope after the warm-up. Floods of calls that are reset make gRPC itself grow, with no code of ours: by
    what those open at a time need, which the process keeps, and by 0.1 KB a call, which it loses."""
    grown: Grown
    faults: list[str] = field(default_factory=list)
    """What should not have been; empty: all is well."""


def fuzz(bundle: Path, lists: Sequence[NBestList], weights: str, plan: Plan) -> Report:
    """Runs it on a server of its own. Raises DeadlineExceeded where it takes longer than the plan says."""
    with tempfile.TemporaryDirectory() as name:
        log = plan.log or Path(name) / "log"
        with serving(("--bundle", str(bundle), "--threads", "1", *plan.server_options), log) as (target, pid):
            scoring = scorers(pid)
            run = Run(target, [list_to_proto(each) for each in lists], weights, plan)
            began = time.monotonic()
            with judged(log, plan.limit_s), Growth(pid) as growth, HealthWatch(target, run.faults) as health:
                asyncio.run(asyncio.wait_for(run.all(), plan.limit_s))
            seconds = time.monotonic() - began
            if scorers(pid) != scoring:
                run.faults.append("scorers have died")
        grown, requests = growth.grown(), sum(run.kinds.values())
        return Report(
            seconds,
            requests,
            run.kinds,
            run.codes,
            run.list_codes,
            run.longest_s,
            health.max_ms,
            grown.rss_mb_an_hour / 3600 * seconds / requests * 1000,
            grown,
            [*run.faults, *logged_faults(log)],
        )


class Run:
    """The run itself."""

    def __init__(self, target: str, lists: Sequence[pb.NBestList], weights: str, plan: Plan) -> None:
        self._target, self._lists, self._weights, self._plan = target, lists, weights, plan
        self._rng = random.Random(plan.seed)
        self._left = plan.requests
        self._until = time.monotonic() + plan.seconds
        self.kinds: dict[str, int] = {}
        self.codes: dict[str, int] = {}
        self.list_codes: dict[str, int] = {}
        self.faults: list[str] = []
        self.longest_s = 0.0

    async def all(self) -> None:
        options = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.insecure_channel(self._target, options) as channel:
            await asyncio.gather(*(self._worker(channel) for _ in range(self._plan.at_once)))

    async def _worker(self, channel: grpc.aio.Channel) -> None:
        talks: dict[str, Callable[[grpc.aio.Channel], Awaitable[None]]] = {
            "message": lambda each: self._call(each, broken_too=False),
            "bytes": lambda each: self._call(each, broken_too=True),
            "conversation": self._converse,
        }
        while self._left > 0 and time.monotonic() < self._until:
            self._left -= 1
            (kind,) = self._rng.choices(list(SHARES), list(SHARES.values()))
            count(self.kinds, kind)
            await talks[kind](channel)

    async def _call(self, channel: grpc.aio.Channel, *, broken_too: bool) -> None:
        (method,) = self._rng.choices(list(METHODS), METHOD_SHARES)
        data = self._request(method)
        if broken_too:
            data = broken(data, self._rng)
        began = time.monotonic()
        try:
            answer = await self._sent(channel, method, data)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if code not in EXPECTED_CODES:
                self.faults.append(f"{method}: {code} {error.details()}: {data[:200]!r}")
        except TimeoutError:
            code = "hung"
            self.faults.append(f"{method} hung: {data[:200]!r}")
        else:
            code = "OK"
            if method in ("Rescore", "RescoreStream"):
                self._check(data, answer)
        count(self.codes, code)
        self.longest_s = max(self.longest_s, time.monotonic() - began)

    async def _sent(self, channel: grpc.aio.Channel, method: str, data: bytes) -> bytes:
        if method != "RescoreStream":
            unary: Any = channel.unary_unary(METHODS[method])
            return await asyncio.wait_for(unary(data, timeout=DEADLINE_S), 2 * DEADLINE_S)
        stream: Any = channel.stream_stream(METHODS[method])
        call = stream(iter([data]), timeout=DEADLINE_S)

        async def answers() -> list[bytes]:
            return [each async for each in call]

        (answer,) = await asyncio.wait_for(answers(), 2 * DEADLINE_S)
        return answer

    def _request(self, method: str) -> bytes:
        """A message that the method could be sent, with something odd in it."""
        rng = self._rng
        some = [rng.choice(self._lists) for _ in range(rng.randint(1, 3))]
        if method == "ScoreText":
            texts = [each.text for each in some[0].hypotheses]
            message: Any = pb.ScoreTextRequest(texts=texts, weights_name=self._weights)
        elif method == "GetModel":
            message = models_pb2.GetModelRequest()
        else:
            message = pb.RescoreRequest(lists=some, weights_name=self._weights)  # as RescoreStreamRequest
        mutated(message, rng)
        return message.SerializeToString()

    def _check(self, data: bytes, answer: bytes) -> None:
        """That lists are answered one by one, with finite numbers."""
        request, response = pb.RescoreRequest.FromString(data), pb.RescoreResponse.FromString(answer)
        if [each.id for each in request.lists] != [each.id for each in response.lists]:
            self.faults.append(f"lists are not answered one by one: {data[:200]!r}")
        for each in response.lists:
            code = next(name for name in grpc.StatusCode if name.value[0] == each.status.code).name
            count(self.list_codes, code)
            if code not in ("OK", "INVALID_ARGUMENT"):
                self.faults.append(f"list {each.id!r}: {code} {each.status.message}: {data[:200]!r}")
            if not all(math.isfinite(one.total) for one in each.hypotheses):
                self.faults.append(f"list {each.id!r}: a total is not finite: {data[:200]!r}")

    async def _converse(self, channel: grpc.aio.Channel) -> None:
        """Says what is broken on a connection of its own, and leaves."""
        path, rng = METHODS["Rescore"].encode(), self._rng
        data = pb.RescoreRequest(lists=[rng.choice(self._lists)]).SerializeToString()
        host, _, port = self._target.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        with suppress(OSError, TimeoutError):  # the other side may leave first
            writer.write(broken_conversation(path, data, rng))
            if rng.random() < 0.5:
                await asyncio.wait_for(reader.read(), READ_S)
        writer.transport.abort()


class HealthWatch:
    """Asks for a server's health, in a thread of its own, between entering and leaving, and once more then.

    Args:
        faults: where those are put that it finds.
    """

    def __init__(self, target: str, faults: list[str]) -> None:
        self._target, self._faults = target, faults
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watched, daemon=True)
        self.max_ms = 0.0

    def __enter__(self) -> HealthWatch:
        self._watch.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._watch.join()

    def _watched(self) -> None:
        with grpc.insecure_channel(self._target, (("grpc.use_local_subchannel_pool", 1),)) as channel:
            stub: Any = HealthStub(channel)
            while not self._over.wait(HEALTH_EVERY_S):
                self._ask(stub)
            self._ask(stub)

    def _ask(self, stub: Any) -> None:
        began = time.monotonic()
        try:
            answer = stub.Check(HealthCheckRequest(), timeout=HEALTH_LIMIT_S)
        except grpc.RpcError as error:
            self._faults.append(f"health: {error}")
        else:
            if answer.status != SERVING:
                self._faults.append("health no longer says SERVING")
        self.max_ms = max(self.max_ms, (time.monotonic() - began) * 1e3)


def count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1

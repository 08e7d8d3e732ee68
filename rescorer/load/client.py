"""Owns one client process of a load test: it sends on schedule, whether or not answers come, and counts.

    python -m rescorer.load.client

It reads its spec, a line of JSON; writes a line when it is connected; begins when it reads another; and
writes what it saw, a line of JSON.

Latency is counted from when a call was due, so that a slow server cannot hide by slowing its callers. How
late calls were begun is told, too: that much of it is the client's own, for want of a processor.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc

METHOD = "/rescorer.v1.RescorerService/Rescore"
REFUSED = "RESOURCE_EXHAUSTED"
HEALTH, HEALTH_EVERY_S = "/grpc.health.v1.Health/Check", 0.1


@dataclass(frozen=True, slots=True)
class Spec:
    """What a client does."""

    target: str
    messages: list[str]
    """Requests, serialised, in base64."""
    rate: float
    """Calls a second, at random times (a Poisson process); 0: always ``at_once`` calls, closed-loop."""
    seconds: float
    deadline_s: float
    at_once: int = 16
    """Calls open at a time where ``rate`` is 0; 0: none."""
    seed: int = 0
    calls: int = 0
    """Begin no more than so many where ``rate`` is 0; 0: as many as there is time for."""
    health: bool = False
    """Ask for the server's health meanwhile, ten times a second."""


@dataclass(slots=True)
class Seen:
    """What a client saw."""

    codes: dict[str, int] = field(default_factory=dict)
    ok_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    """Of calls that the server had no room or no time for, and said so; not of those that ran out of time."""
    late_ms: list[float] = field(default_factory=list)
    """After it was due, each call was begun."""
    health_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """Until the last answer."""
    cpu_s: float = 0.0


async def run(spec: Spec, connected: Callable[[], object] = lambda: None) -> Seen:
    """Sends calls for the given time, and waits for their ends.

    Args:
        connected: called before the first; what it takes is not counted.
    """
    seen = Seen()
    messages = [base64.b64decode(each) for each in spec.messages]
    rng = random.Random(spec.seed)
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
    async with grpc.aio.insecure_channel(spec.target, options=options) as channel:
        await channel.channel_ready()
        connected()
        call: Any = channel.unary_unary(METHOD)
        began, begun, cpu_began = time.perf_counter(), 0, time.process_time()
        jobs = [asyncio.create_task(watch_health(channel, spec, seen))] if spec.health else []

        async def one(due: float) -> None:
            seen.late_ms.append((time.perf_counter() - due) * 1e3)
            code = await outcome(call(rng.choice(messages), timeout=spec.deadline_s))
            ms = (time.perf_counter() - due) * 1e3
            seen.codes[code] = seen.codes.get(code, 0) + 1
            if code in ("OK", REFUSED):
                (seen.ok_ms if code == "OK" else seen.refused_ms).append(ms)

        async def one_after_the_other() -> None:
            nonlocal begun
            while (due := time.perf_counter()) < began + spec.seconds and not 0 < spec.calls <= begun:
                begun += 1
                await one(due)

        if spec.rate:
            due = began
            while (due := due + rng.expovariate(spec.rate)) < began + spec.seconds:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                jobs.append(asyncio.create_task(one(due)))
        else:
            jobs += [asyncio.create_task(one_after_the_other()) for _ in range(spec.at_once)]
        await asyncio.gather(*jobs)
        seen.seconds = time.perf_counter() - began
        seen.cpu_s = time.process_time() - cpu_began
    return seen


async def watch_health(channel: grpc.aio.Channel, spec: Spec, seen: Seen) -> None:
    check: Any = channel.unary_unary(HEALTH)
    until = time.perf_counter() + spec.seconds
    while (began := time.perf_counter()) < until:
        await outcome(check(b"", timeout=spec.deadline_s))
        seen.health_ms.append((time.perf_counter() - began) * 1e3)
        await asyncio.sleep(HEALTH_EVERY_S)


async def outcome(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def told_to_begin() -> None:
    print("connected", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(run(Spec(**json.loads(sys.stdin.readline())), told_to_begin)))))

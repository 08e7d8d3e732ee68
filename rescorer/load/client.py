"""Owns one client process of a load test: it sends on schedule, whether or not answers come, and counts.

    python -m rescorer.load.client < spec.json > result.json

Latency is counted from when a call was due, so that a slow server cannot hide by slowing its callers.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc

METHOD = "/rescorer.v1.RescorerService/Rescore"
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
    """Calls open at a time where ``rate`` is 0."""
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
    health_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    """Until the last answer."""
    cpu_s: float = 0.0


async def run(spec: Spec) -> Seen:
    """Sends calls for the given time, and waits for their ends."""
    seen = Seen()
    messages = [base64.b64decode(each) for each in spec.messages]
    rng = random.Random(spec.seed)
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
    async with grpc.aio.insecure_channel(spec.target, options=options) as channel:
        await channel.channel_ready()
        call: Any = channel.unary_unary(METHOD)
        began, begun = time.perf_counter(), 0
        jobs = [asyncio.create_task(watch_health(channel, spec, seen))] if spec.health else []

        async def one(due: float) -> None:
            code = await outcome(call(rng.choice(messages), timeout=spec.deadline_s))
            ms = (time.perf_counter() - due) * 1e3
            seen.codes[code] = seen.codes.get(code, 0) + 1
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
    seen.cpu_s = time.process_time()
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


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(run(Spec(**json.load(sys.stdin))))), sys.stdout)

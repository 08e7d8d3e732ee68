"""Client process of a load test: send calls on schedule, without waiting for answers, and measure them.

    python -m rescorer.load.client

The process reads its configuration from stdin as one line of JSON and writes a line once it is connected. It
starts sending calls when it reads another line, and finally writes its measurements as one line of JSON.

Latency is measured from the scheduled time of a call, so that a slow server cannot improve its figures by
slowing down its callers. The delay between the scheduled time and the actual start of a call is reported
separately, because the client causes it: its process had to wait for a processor.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import grpc

RESCORE_METHOD = "/rescorer.v1.RescorerService/Rescore"
HEALTH_METHOD = "/grpc.health.v1.Health/Check"
REFUSED_CODE = "RESOURCE_EXHAUSTED"
HEALTH_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Load that one client generates."""

    target: str
    messages: list[str]
    """Serialised ``RescoreRequest`` messages in base64; each call sends one of them at random."""
    calls_per_s: float
    """Mean rate of a Poisson process; 0 sends calls in a closed loop instead."""
    duration_s: float
    deadline_s: float
    concurrency: int = 16
    """Number of calls to keep in flight in a closed loop; 0 sends no calls."""
    seed: int = 0
    max_calls: int = 0
    """Maximum total number of calls in a closed loop; 0 means no limit."""
    niceness: int = 0
    """Niceness of the process; higher values let the server go first."""
    check_health: bool = False
    """Whether to call the health service as well, once per ``HEALTH_INTERVAL_S``."""


@dataclass(slots=True)
class ClientResult:
    """Measurements of one client; all times are in milliseconds unless named otherwise."""

    codes: dict[str, int] = field(default_factory=dict)
    """Number of calls by status code."""
    ok_ms: list[float] = field(default_factory=list)
    """Latency of each answered call."""
    refused_ms: list[float] = field(default_factory=list)
    """Latency of each call that the server refused as overloaded; excludes calls that ran out of time."""
    late_ms: list[float] = field(default_factory=list)
    """Delay between the scheduled time of each call and its actual start."""
    health_ms: list[float] = field(default_factory=list)
    """Latency of each health check."""
    elapsed_s: float = 0.0
    """Time from the start until the last call ended."""
    cpu_s: float = 0.0


async def run_client(config: ClientConfig, on_connected: Callable[[], object] = lambda: None) -> ClientResult:
    """Send calls for the configured time and wait until all of them have ended.

    Args:
        on_connected: Called before the first call; the time it takes is not measured.
    """
    result = ClientResult()
    messages = [base64.b64decode(message) for message in config.messages]
    rng = random.Random(config.seed)
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
    async with grpc.aio.insecure_channel(config.target, options=options) as channel:
        await channel.channel_ready()
        on_connected()
        rescore: Any = channel.unary_unary(RESCORE_METHOD)
        start, started_calls, start_cpu = time.perf_counter(), 0, time.process_time()
        tasks = [asyncio.create_task(measure_health(channel, config, result))] if config.check_health else []

        async def send_call(due: float) -> None:
            result.late_ms.append((time.perf_counter() - due) * 1e3)
            code = await wait_for_code(rescore(rng.choice(messages), timeout=config.deadline_s))
            latency_ms = (time.perf_counter() - due) * 1e3
            result.codes[code] = result.codes.get(code, 0) + 1
            if code == "OK":
                result.ok_ms.append(latency_ms)
            elif code == REFUSED_CODE:
                result.refused_ms.append(latency_ms)

        async def send_calls_in_closed_loop() -> None:
            nonlocal started_calls
            while (due := time.perf_counter()) < start + config.duration_s:
                if config.max_calls and started_calls >= config.max_calls:
                    return
                started_calls += 1
                await send_call(due)

        if config.calls_per_s:
            due = start
            while (due := due + rng.expovariate(config.calls_per_s)) < start + config.duration_s:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.append(asyncio.create_task(send_call(due)))
        else:
            tasks += [asyncio.create_task(send_calls_in_closed_loop()) for _ in range(config.concurrency)]
        await asyncio.gather(*tasks)
        result.elapsed_s = time.perf_counter() - start
        result.cpu_s = time.process_time() - start_cpu
    return result


async def measure_health(channel: grpc.aio.Channel, config: ClientConfig, result: ClientResult) -> None:
    check: Any = channel.unary_unary(HEALTH_METHOD)
    end = time.perf_counter() + config.duration_s
    while (start := time.perf_counter()) < end:
        await wait_for_code(check(b"", timeout=config.deadline_s))
        result.health_ms.append((time.perf_counter() - start) * 1e3)
        await asyncio.sleep(HEALTH_INTERVAL_S)


async def wait_for_code(call: Any) -> str:
    """Wait for the end of a call; return the name of its status code."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


def wait_for_start() -> None:
    print("connected", flush=True)
    sys.stdin.readline()


def main() -> None:
    config = ClientConfig(**json.loads(sys.stdin.readline()))
    os.nice(config.niceness)
    print(json.dumps(asdict(asyncio.run(run_client(config, wait_for_start)))))


if __name__ == "__main__":
    main()

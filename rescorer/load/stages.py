"""Stages of a load test: the library in this process, then a server at peak, half and excess load."""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rescorer.lm.threads import use_threads
from rescorer.load.client import REFUSED_CODE, ClientConfig
from rescorer.load.client_processes import run_clients
from rescorer.load.resources import ResourceMonitor
from rescorer.load.server import run_server
from rescorer.load.service_times import encode_calls, measure_service_times, write_service_times
from rescorer.pipeline import Rescorer
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Strength and duration of a load test."""

    stage_s: float = 10.0
    """Duration of each stage."""
    clients: int = 2
    """Number of client processes."""
    calls_per_client: int = 16
    """Number of calls that each client keeps in flight while the peak load is measured."""
    lists_per_call: int = 1
    deadline_s: float = 5.0
    overload_factor: float = 3.0
    """Load of the last stage relative to the peak."""
    server_options: tuple[str, ...] = ()
    dtype: str = "float32"
    """Precision of matrix products in the library and in the server."""
    overload_s: float = 0.0
    """Duration of the last stage; 0 means ``stage_s``."""
    client_niceness: int = 0
    """Niceness of the client processes, except the one that checks health."""
    service_times: Path | None = None
    """File for the times that the server takes for lists alone and in batches; None: not measured."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """Measurements of one stage; None if not measured, such as refusal latency if no call was refused."""

    name: str
    calls: int
    codes: dict[str, int] = field(default_factory=dict)
    """Number of calls by status code."""
    lists_per_s: float = 0.0
    """Answered lists per second."""
    lists_per_cpu_s: float = 0.0
    """Answered lists per second of the server's CPU time."""
    p50_ms: float | None = None
    """Median latency of answered calls."""
    p99_ms: float | None = None
    refused_p99_ms: float | None = None
    """99th percentile of the latency of refused calls."""
    late_p99_ms: float | None = None
    """99th percentile of the delay between a call's scheduled time and its actual start in the client."""
    health_p99_ms: float | None = None
    """99th percentile of the latency of health checks."""
    client_cpu_s: float | None = None
    max_rss_bytes: int | None = None
    """Peak memory of the server's processes together."""
    offered_lists_per_s: float | None = None
    """Lists per second that the clients try to send; None in a closed loop."""

    @property
    def refused(self) -> int:
        """Number of calls that the server refused immediately as overloaded."""
        return self.codes.get(REFUSED_CODE, 0)

    @property
    def failed(self) -> int:
        """Number of other calls without an answer, such as those that missed their deadline."""
        return sum(self.codes.values()) - self.codes.get("OK", 0) - self.refused


def run_stages(
    bundle: Path,
    lists: Sequence[NBestList],
    weights: str,
    plan: LoadPlan,
    on_stage: Callable[[str, float], object] = lambda name, duration_s: None,
) -> Iterator[StageResult]:
    """Run all stages, one after the other; those with a server use the same server process.

    Args:
        on_stage: Called at the start of each stage, the warm-up included, with its name and duration in
            seconds.
    """
    library = Rescorer.load(bundle, dtype=plan.dtype)
    for name, threads in (("library", 0), ("library, one thread", 1)):
        use_threads(threads)
        on_stage(name, plan.stage_s)
        yield measure_library(name, library, lists, weights, plan)
    del library
    messages = encode_requests(lists, weights, plan.lists_per_call)
    options = ("--bundle", str(bundle), "--dtype", plan.dtype, *plan.server_options)
    with run_server(options) as (target, pid):

        def measure(name: str, lists_per_s: float | None = None, plan: LoadPlan = plan) -> StageResult:
            on_stage(name, plan.stage_s)
            return measure_server(name, target, pid, messages, lists_per_s, plan)

        measure("warm-up")
        if plan.service_times is not None:
            on_stage("service times", plan.stage_s)
            times = measure_service_times(target, encode_calls(lists, weights), plan.stage_s)
            write_service_times(times, plan.service_times)
        peak = measure("peak")
        yield peak
        yield measure("half of the peak", 0.5 * peak.lists_per_s)
        overload_plan = replace(plan, stage_s=plan.overload_s or plan.stage_s)
        name = f"{plan.overload_factor:g} × the peak"
        yield measure(name, plan.overload_factor * peak.lists_per_s, overload_plan)


def encode_requests(lists: Sequence[NBestList], weights: str, lists_per_call: int) -> list[str]:
    """Serialise lists as ``RescoreRequest`` messages in base64, ``lists_per_call`` lists per message."""
    requests = (
        pb.RescoreRequest(
            lists=[list_to_proto(nbest) for nbest in lists[start : start + lists_per_call]],
            weights_name=weights,
        )
        for start in range(0, len(lists), lists_per_call)
    )
    return [base64.b64encode(request.SerializeToString()).decode() for request in requests]


def measure_library(
    name: str, rescorer: Rescorer, lists: Sequence[NBestList], weights_name: str, plan: LoadPlan
) -> StageResult:
    """Measure latency list by list, then throughput with all lists in one call; each takes half of the
    time."""
    weights = rescorer.bundle.weights[weights_name]
    rescorer.rescore(lists[:8], weights)
    latencies_ms, end = [], time.monotonic() + plan.stage_s / 2
    while time.monotonic() < end:
        for nbest in lists:
            start = time.perf_counter()
            rescorer.rescore([nbest], weights)
            latencies_ms.append((time.perf_counter() - start) * 1e3)
    start, start_cpu, rescored_lists = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < start + plan.stage_s / 2:
        rescorer.rescore(lists, weights)
        rescored_lists += len(lists)
    return StageResult(
        name,
        len(latencies_ms),
        lists_per_s=rescored_lists / (time.perf_counter() - start),
        lists_per_cpu_s=rescored_lists / (time.process_time() - start_cpu),
        p50_ms=percentile(latencies_ms, 50),
        p99_ms=percentile(latencies_ms, 99),
    )


def measure_server(
    name: str, target: str, pid: int, messages: list[str], lists_per_s: float | None, plan: LoadPlan
) -> StageResult:
    """Measure a server under load from several client processes.

    Args:
        lists_per_s: Load to offer; None sends calls in a closed loop.
    """
    calls_per_s = lists_per_s / plan.lists_per_call / plan.clients if lists_per_s else 0.0
    configs = [
        ClientConfig(
            target,
            messages,
            calls_per_s,
            plan.stage_s,
            plan.deadline_s,
            plan.calls_per_client,
            seed=number,
            niceness=plan.client_niceness,
        )
        for number in range(plan.clients)
    ]
    # A separate process, like a real probe, so that checks do not wait for a busy client.
    health = ClientConfig(target, [], 0.0, plan.stage_s, plan.deadline_s, concurrency=0, check_health=True)
    monitor = ResourceMonitor(pid)
    results = run_clients([*configs, health], monitor)
    codes: Counter[str] = Counter()
    for result in results:
        codes.update(result.codes)
    answered_lists = codes["OK"] * plan.lists_per_call
    return StageResult(
        name,
        codes.total(),
        dict(codes),
        lists_per_s=answered_lists / max(result.elapsed_s for result in results),
        lists_per_cpu_s=answered_lists / monitor.cpu_s if monitor.cpu_s else 0.0,
        p50_ms=percentile([ms for result in results for ms in result.ok_ms], 50),
        p99_ms=percentile([ms for result in results for ms in result.ok_ms], 99),
        refused_p99_ms=percentile([ms for result in results for ms in result.refused_ms], 99),
        late_p99_ms=percentile([ms for result in results for ms in result.late_ms], 99),
        health_p99_ms=percentile([ms for result in results for ms in result.health_ms], 99),
        client_cpu_s=sum(result.cpu_s for result in results),
        max_rss_bytes=monitor.max_rss_bytes,
        offered_lists_per_s=lists_per_s or None,
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None

"""Owns the stages of a load test and what is told of each: library, peak, half of it, overload."""

from __future__ import annotations

import base64
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from rescorer.lm.device import use_threads
from rescorer.load.client import REFUSED, Spec
from rescorer.load.crowd import crowd
from rescorer.load.server import Usage, serving
from rescorer.pipeline import Rescorer
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard to press the server, and for how long."""

    seconds: float = 10.0
    """Of each stage."""
    clients: int = 2
    """Processes."""
    at_once: int = 16
    """Calls that each client has open while the peak is looked for."""
    lists_a_call: int = 1
    deadline_s: float = 5.0
    overload: float = 3.0
    """Times the peak."""
    server_options: tuple[str, ...] = ()
    dtype: str = "float32"
    """Of the networks' products, in the library and in the server."""
    overload_seconds: float = 0.0
    """Of the last stage; 0: as long as the others."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One row of the report; None: not measured, such as a refusal's time where none was refused."""

    name: str
    calls: int
    codes: dict[str, int] = field(default_factory=dict)
    lists_per_s: float = 0.0
    """Answered."""
    lists_per_cpu_s: float = 0.0
    """Answered, for a second of the server's CPU time."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    refused_p99_ms: float | None = None
    late_p99_ms: float | None = None
    """As of ``Seen``."""
    health_p99_ms: float | None = None
    client_cpu_s: float | None = None
    max_rss_bytes: int | None = None
    offered_lists_per_s: float | None = None
    """What the clients set out to send; None: one whenever another was answered."""

    @property
    def refused(self) -> int:
        """Calls that were told at once that there is no room or no time for them."""
        return self.codes.get(REFUSED, 0)

    @property
    def failed(self) -> int:
        """Calls that ended otherwise without an answer, such as at their deadline."""
        return sum(self.codes.values()) - self.codes.get("OK", 0) - self.refused


def stages(
    bundle: Path,
    lists: Sequence[NBestList],
    weights: str,
    plan: Plan,
    begins: Callable[[str, float], object] = lambda name, seconds: None,
) -> Iterator[Stage]:
    """Runs one stage after the other on a server of its own.

    Args:
        begins: called with the name of each stage, the one for warming up included, and its seconds.
    """
    library = Rescorer.load(bundle, dtype=plan.dtype)
    for name, threads in (("library", 0), ("library, one thread", 1)):
        use_threads(threads)
        begins(name, plan.seconds)
        yield in_library(name, library, lists, weights, plan)
    del library
    requests = [
        pb.RescoreRequest(
            lists=[list_to_proto(each) for each in lists[begin : begin + plan.lists_a_call]],
            weights_name=weights,
        )
        for begin in range(0, len(lists), plan.lists_a_call)
    ]
    messages = [base64.b64encode(each.SerializeToString()).decode() for each in requests]
    options = ("--bundle", str(bundle), "--dtype", plan.dtype, *plan.server_options)
    with serving(options) as (target, pid):

        def run(name: str, peaks: float = 0.0, plan: Plan = plan) -> Stage:
            begins(name, plan.seconds)
            rate = peaks * peak.lists_per_s / plan.lists_a_call if peaks else 0.0
            return in_service(name, target, pid, messages, rate, plan)

        run("warm-up")
        yield (peak := run("peak"))
        yield run("half of the peak", 0.5)
        longer = replace(plan, seconds=plan.overload_seconds or plan.seconds)
        yield run(f"{plan.overload:g} × the peak", plan.overload, longer)


def in_library(
    name: str, rescorer: Rescorer, lists: Sequence[NBestList], weights_name: str, plan: Plan
) -> Stage:
    """The same lists one after the other, for how long one takes, and all at once."""
    weights = rescorer.bundle.weights[weights_name]
    rescorer.rescore(lists[:8], weights)
    times_ms, until = [], time.monotonic() + plan.seconds / 2
    while time.monotonic() < until:
        for each in lists:
            began = time.perf_counter()
            rescorer.rescore([each], weights)
            times_ms.append((time.perf_counter() - began) * 1e3)
    began, cpu_began, done = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < began + plan.seconds / 2:
        rescorer.rescore(lists, weights)
        done += len(lists)
    return Stage(
        name,
        len(times_ms),
        lists_per_s=done / (time.perf_counter() - began),
        lists_per_cpu_s=done / (time.process_time() - cpu_began),
        p50_ms=percentile(times_ms, 50),
        p99_ms=percentile(times_ms, 99),
    )


def in_service(name: str, target: str, pid: int, messages: list[str], rate: float, plan: Plan) -> Stage:
    """Several client processes at once."""
    each_rate = rate / plan.clients
    specs = [
        Spec(target, messages, each_rate, plan.seconds, plan.deadline_s, plan.at_once, seed=number)
        for number in range(plan.clients)
    ]
    # In a process of its own, as probes are, not to wait for a busy client.
    health = Spec(target, [], 0.0, plan.seconds, plan.deadline_s, at_once=0, health=True)
    usage = Usage(pid)
    seen = crowd([*specs, health], around=usage)
    codes: Counter[str] = Counter()
    for each in seen:
        codes.update(each.codes)
    answered = codes["OK"] * plan.lists_a_call
    return Stage(
        name,
        codes.total(),
        dict(codes),
        lists_per_s=answered / max(each.seconds for each in seen),
        lists_per_cpu_s=answered / usage.cpu_s if usage.cpu_s else 0.0,
        p50_ms=percentile([ms for each in seen for ms in each.ok_ms], 50),
        p99_ms=percentile([ms for each in seen for ms in each.ok_ms], 99),
        refused_p99_ms=percentile([ms for each in seen for ms in each.refused_ms], 99),
        late_p99_ms=percentile([ms for each in seen for ms in each.late_ms], 99),
        health_p99_ms=percentile([ms for each in seen for ms in each.health_ms], 99),
        client_cpu_s=sum(each.cpu_s for each in seen),
        max_rss_bytes=usage.max_rss_bytes,
        offered_lists_per_s=rate * plan.lists_a_call or None,
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None

"""Owns a soak: the same load for long, and what the server's processes hold by the end."""

from __future__ import annotations

import base64
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rescorer.load.client import Spec
from rescorer.load.crowd import client
from rescorer.load.server import judged, logged_faults, serving
from rescorer.load.stages import percentile
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.types import NBestList
from tools.support.growth import Grown, Growth

DESCRIPTORS, THREADS = 8, 4
"""More than so many more are a leak; connections come and go."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much, and for how long: whichever is reached first."""

    seconds: float = 3600.0
    lists: int = 2_000_000
    at_once: int = 8
    """Calls open at a time."""
    lists_a_call: int = 4
    deadline_s: float = 60.0
    limit_s: float = 4500.0
    server_options: tuple[str, ...] = ()
    log: Path | None = None
    """Where the server's is kept."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    seconds: float
    lists: int
    """Answered."""
    codes: dict[str, int]
    """Of calls."""
    p50_ms: float | None
    p99_ms: float | None
    longest_ms: float | None
    grown: Grown
    more_descriptors: int
    more_threads: int
    faults: list[str] = field(default_factory=list)
    """What should not have been; empty: all is well."""


def soak(bundle: Path, lists: Sequence[NBestList], weights: str, plan: Plan) -> Report:
    """Runs it on a server of its own. Raises DeadlineExceeded where it takes longer than the plan says."""
    calls = [lists[begin : begin + plan.lists_a_call] for begin in range(0, len(lists), plan.lists_a_call)]
    requests = [pb.RescoreRequest(lists=map(list_to_proto, each), weights_name=weights) for each in calls]
    messages = [base64.b64encode(each.SerializeToString()).decode() for each in requests]
    with tempfile.TemporaryDirectory() as name:
        log = plan.log or Path(name) / "log"
        with serving(("--bundle", str(bundle), "--threads", "1", *plan.server_options), log) as (target, pid):
            calls_at_most = -(-plan.lists // plan.lists_a_call)
            spec = Spec(
                target, messages, 0.0, plan.seconds, plan.deadline_s, plan.at_once, calls=calls_at_most
            )
            began = time.monotonic()
            with judged(log, plan.limit_s), Growth(pid) as growth:
                seen = client(spec, plan.limit_s)
            seconds = time.monotonic() - began
        faults = [f"{count} calls ended with {code}" for code, count in seen.codes.items() if code != "OK"]
        grown = growth.grown()
        if grown.descriptors > DESCRIPTORS or grown.threads > THREADS:
            faults.append(f"{grown.descriptors} more descriptors, {grown.threads} more threads")
        return Report(
            seconds,
            seen.codes.get("OK", 0) * plan.lists_a_call,
            seen.codes,
            percentile(seen.ok_ms, 50),
            percentile(seen.ok_ms, 99),
            max(seen.ok_ms, default=None),
            grown,
            grown.descriptors,
            grown.threads,
            faults + logged_faults(log),
        )

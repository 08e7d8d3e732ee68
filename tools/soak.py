"""Load a server for a long time and report latencies and the growth of its resources."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from rescorer.bench.load import ClientConfig, encode_requests, percentile, run_client, run_server
from rescorer.types import NBestList
from tools.chaos.versions import VersionRepository
from tools.observation import GrowthMonitor, GrowthReport, explain_errors, read_logged_errors

MAX_NEW_DESCRIPTORS, MAX_NEW_THREADS = 8, 4
"""Limits above which growth counts as a leak. Open connections need a few descriptors and threads."""
POLL_S = 1.0
"""Time between two looks of the server at its repository."""
KEPT_VERSIONS = 2
"""Number of versions in the repository after a reload."""
LOADED_EVENT = '"event": "model loaded"'
"""Part of the line that a server logs for each version that it has loaded."""


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """Size of a soak test, which ends at ``seconds`` or ``lists``, whichever is reached first."""

    seconds: float = 3600.0
    lists: int = 2_000_000
    concurrency: int = 8
    """Number of calls to keep in flight at once."""
    lists_per_call: int = 4
    deadline_s: float = 60.0
    limit_s: float = 4500.0
    """Time after which the run fails."""
    reloads: int = 0
    """Number of versions that are published during the run, evenly spread over ``seconds``."""
    server_options: tuple[str, ...] = ()
    log: Path | None = None
    """File for the server's log; None uses a temporary file."""


@dataclass(frozen=True, slots=True)
class SoakReport:
    """Outcome of a soak test."""

    seconds: float
    lists: int
    """Number of answered lists."""
    codes: dict[str, int]
    """Number of calls by status code."""
    p50_ms: float | None
    p99_ms: float | None
    longest_ms: float | None
    grown: GrowthReport
    more_descriptors: int
    more_threads: int
    loaded: int
    """Number of versions that the server has loaded, with the first one."""
    faults: list[str] = field(default_factory=list)
    """Errors found; empty if the run passes."""


def run_soak(bundle: Path, lists: Sequence[NBestList], weights: str, plan: SoakPlan) -> SoakReport:
    """Start a server, and load it for a long time.

    Raises:
        DeadlineExceeded: the run takes longer than ``plan.limit_s``.
    """
    messages = encode_requests(lists, weights, plan.lists_per_call)
    with tempfile.TemporaryDirectory() as folder:
        log = plan.log or Path(folder) / "log"
        versions = VersionRepository(Path(folder), bundle, lists, weights)
        versions.publish_next()
        repository = ("--repository", str(versions.repository), "--poll-s", str(POLL_S))
        options = (*repository, "--threads", "1", *plan.server_options)
        with run_server(options, log) as (target, pid):
            config = ClientConfig(
                target,
                messages,
                calls_per_s=0.0,
                duration_s=plan.seconds,
                deadline_s=plan.deadline_s,
                concurrency=plan.concurrency,
                max_calls=-(-plan.lists // plan.lists_per_call),
            )
            start = time.monotonic()
            reloading = publishing(versions, plan.seconds / (plan.reloads + 1), plan.reloads)
            with explain_errors(log, plan.limit_s), GrowthMonitor(pid) as monitor, reloading:
                result = asyncio.run(asyncio.wait_for(run_client(config), plan.limit_s))
            elapsed_s = time.monotonic() - start
        growth = monitor.report()
        loaded = log.read_text(encoding="utf-8").count(LOADED_EVENT)
        errors = [f"{count} calls ended with {code}" for code, count in result.codes.items() if code != "OK"]
        if growth.descriptors > MAX_NEW_DESCRIPTORS or growth.threads > MAX_NEW_THREADS:
            errors.append(f"{growth.descriptors} more descriptors, {growth.threads} more threads")
        if loaded < plan.reloads:  # the last one may still be loading
            errors.append(f"the server has loaded {loaded} versions; expected {1 + plan.reloads}")
        return SoakReport(
            elapsed_s,
            result.codes.get("OK", 0) * plan.lists_per_call,
            result.codes,
            percentile(result.ok_ms, 50),
            percentile(result.ok_ms, 99),
            max(result.ok_ms, default=None),
            growth,
            growth.descriptors,
            growth.threads,
            loaded,
            errors + read_logged_errors(log),
        )


@contextmanager
def publishing(versions: VersionRepository, interval_s: float, count: int) -> Iterator[None]:
    """Publish ``count`` versions, one each ``interval_s``, while the ``with`` block runs."""
    ended = Event()

    def publish() -> None:
        for _ in range(count):
            if ended.wait(interval_s):
                return
            versions.publish_next()
            versions.remove_all_but_newest(KEPT_VERSIONS)

    thread = Thread(target=publish, name="publisher")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

"""Run callers that check every answer while models are reloaded and workers are killed."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc

from rescorer.bench.load import run_server
from rescorer.client.connection import auth_metadata
from rescorer.errors import ServiceError
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import admin_pb2
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceStub
from rescorer.service.access import hash_token, new_token
from rescorer.types import NBestList
from tools.chaos.caller import CallerConfig, CallerReport, merge_reports
from tools.chaos.versions import VersionRepository
from tools.observation import (
    GrowthMonitor,
    GrowthReport,
    explain_errors,
    find_workers,
    read_logged_errors,
    read_metrics,
    read_metrics_port,
)

KEPT_VERSIONS = 2
"""Number of versions on disk after a reload."""
ROLLBACK_INTERVAL = 5
"""Every fifth reload removes the newest version instead of adding one."""
RELOAD_TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.02
RESTART_TIMEOUT_S = 30.0
"""Time in which the workers that were killed last must have been replaced."""
MAX_LINE_BYTES = 2**26
"""Longest line that a caller process may write."""

Event = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """Size of a chaos run."""

    calls: int = 100_000
    callers: int = 50
    processes: int = 4
    """Number of processes among which callers are divided."""
    reloads: int = 20
    kills: int = 5
    """Number of workers to kill."""
    workers: int = 2
    max_lists_per_call: int = 4
    late_share: float = 0.05
    """Share of calls with a deadline that is too short."""
    cancelled_share: float = 0.05
    stream_share: float = 0.1
    seconds: float = 1e9
    """Time after which callers stop. The remaining reloads and kills then happen immediately."""
    limit_s: float = 3600.0
    """Time after which the run fails."""
    seed: int = 1
    server_options: tuple[str, ...] = ()
    log: Path | None = None
    """File for the server's log; None uses a temporary file."""


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """Outcome of a chaos run."""

    seconds: float
    reloads: int
    kills: int
    restarts: int
    """Number of worker restarts that the server counted."""
    seen: CallerReport
    grown: GrowthReport
    in_flight_lists: int
    """Number of lists in flight after all calls have ended."""
    faults: list[str] = field(default_factory=list)
    """Errors found; empty if the run passes."""


def run_chaos(bundle: Path, lists: Sequence[NBestList], weights: str, plan: ChaosPlan) -> ChaosReport:
    """Start a server and run the plan against it.

    Raises:
        DeadlineExceeded: the run takes longer than ``plan.limit_s``.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        versions = VersionRepository(folder, bundle, lists, weights)
        versions.publish_next()
        admin_token, tokens = new_token(), [new_token() for _ in range(plan.callers)]
        access, log = folder / "access.toml", plan.log or folder / "log"
        write_access_file(access, admin_token, tokens)
        options = (
            *("--repository", str(versions.repository), "--access", str(access), "--admin"),
            *("--workers", str(plan.workers), "--threads", "1", "--metrics-port", "0"),
            *plan.server_options,
        )
        with run_server(options, log) as (target, pid):
            run = ChaosRun(plan, versions, target, pid, admin_token)
            start = time.monotonic()
            with explain_errors(log, plan.limit_s), GrowthMonitor(pid) as monitor:
                report = asyncio.run(asyncio.wait_for(run.run(tokens, lists, weights), plan.limit_s))
            elapsed_s = time.monotonic() - start
            metrics = wait_for_workers(read_metrics_port(log), plan.workers)
            workers = int(metrics["workers_alive"])
            run.check(workers == plan.workers, f"expected {plan.workers} workers at the end, got {workers}")
        in_flight_lists = int(metrics["in_flight_lists"])
        run.check(not in_flight_lists, f"{in_flight_lists} lists are in flight after all calls have ended")
        errors = [*run.errors, *report.complaints, *report.failures, *read_logged_errors(log)]
        if report.hung:
            errors.append(f"{report.hung} calls hung")
        return ChaosReport(
            elapsed_s,
            plan.reloads,
            plan.kills,
            int(metrics["worker_restarts_total"]),
            report,
            monitor.report(),
            in_flight_lists,
            errors,
        )


def wait_for_workers(port: int, count: int) -> Mapping[str, float]:
    """Read the metrics when so many workers are alive, or after ``RESTART_TIMEOUT_S``."""
    end_s = time.monotonic() + RESTART_TIMEOUT_S
    while (metrics := read_metrics(port))["workers_alive"] != count and time.monotonic() < end_s:
        time.sleep(POLL_INTERVAL_S)
    return metrics


class ChaosRun:
    """Callers, reloads and kills against a running server.

    Args:
        admin_token: Bearer token for reloads.
    """

    def __init__(
        self, plan: ChaosPlan, versions: VersionRepository, target: str, pid: int, admin_token: str
    ) -> None:
        self._plan, self._versions = plan, versions
        self._target, self._pid, self._admin_token = target, pid, admin_token
        self._rng = random.Random(plan.seed)
        self._reloads = 0
        self._ended_calls: list[int] = []
        """Number of ended calls per process."""
        self.errors: list[str] = []

    def check(self, condition: bool, message: str) -> None:
        if not condition:
            self.errors.append(message)

    async def run(self, tokens: Sequence[str], lists: Sequence[NBestList], weights: str) -> CallerReport:
        """Run callers until all planned calls, reloads and kills are done."""
        messages = [base64.b64encode(list_to_proto(nbest).SerializeToString()).decode() for nbest in lists]
        async with AsyncExitStack() as stack:
            processes = [
                await stack.enter_async_context(
                    start_caller_process(self._make_config(number, tokens, messages, weights))
                )
                for number in range(self._plan.processes)
            ]
            self._ended_calls = [0] * len(processes)
            readers = [
                asyncio.create_task(self._read_output(number, process))
                for number, process in enumerate(processes)
            ]
            await self._run_events(readers)
            for process in processes:
                stdin_of(process).close()
            return merge_reports(await asyncio.gather(*readers))

    def _make_config(
        self, number: int, tokens: Sequence[str], messages: list[str], weights: str
    ) -> CallerConfig:
        plan = self._plan
        return CallerConfig(
            self._target,
            list(tokens[number :: plan.processes]),
            messages,
            weights,
            str(self._versions.expected),
            -(-plan.calls // plan.processes),
            plan.seconds,
            plan.max_lists_per_call,
            plan.stream_share,
            plan.late_share,
            plan.cancelled_share,
            plan.seed * 1000 + number,
        )

    async def _run_events(self, readers: Sequence[asyncio.Task[CallerReport]]) -> None:
        """Carry out the reloads and kills, evenly spread over the calls."""
        plan = self._plan
        events = spread_evenly(plan.reloads, self._reload) + spread_evenly(plan.kills, self._kill_worker)
        events.sort(key=lambda event: event[0])
        start = time.monotonic()
        for share, run_event in events:
            while (
                sum(self._ended_calls) < share * plan.calls
                and time.monotonic() < start + share * plan.seconds
                and not any(reader.done() for reader in readers)
            ):
                await asyncio.sleep(POLL_INTERVAL_S)
            await run_event()

    async def _read_output(self, number: int, process: asyncio.subprocess.Process) -> CallerReport:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.startswith(b"{"):
                return CallerReport(**json.loads(line))
            self._ended_calls[number] = int(line)
        raise ServiceError(f"a caller process failed with exit code {await process.wait()}")

    async def _reload(self) -> None:
        """Publish or remove a version, then ask the server to reload."""
        self._reloads += 1
        rollback = self._reloads % ROLLBACK_INTERVAL == 0 and len(self._versions.versions) > 1
        if rollback:
            label = self._versions.remove_newest()
        else:
            label = await asyncio.to_thread(self._versions.publish_next)
        async with grpc.aio.insecure_channel(self._target) as channel:
            stub = AdminServiceStub(channel)  # type: ignore[no-untyped-call]
            response = await stub.Reload(
                admin_pb2.ReloadRequest(),
                timeout=RELOAD_TIMEOUT_S,
                metadata=auth_metadata(self._admin_token),
            )
        self.check(not response.refused, f"the reload refused {label}: {dict(response.refused)}")
        self.check(
            label in response.loaded,
            f"expected the reload to load {label} ({rollback=}), got {list(response.loaded)}",
        )
        self._versions.remove_all_but_newest(KEPT_VERSIONS)

    async def _kill_worker(self) -> None:
        """Kill a worker, even if a worker killed before has not been replaced yet."""
        while not (workers := find_workers(self._pid)):
            await asyncio.sleep(POLL_INTERVAL_S)
        os.kill(self._rng.choice(workers), signal.SIGKILL)


def spread_evenly(count: int, event: Event) -> list[tuple[float, Event]]:
    """Schedule ``count`` events; return, for each, the share of the calls after which it happens."""
    return [((number + 0.5) / count, event) for number in range(count)]


@asynccontextmanager
async def start_caller_process(config: CallerConfig) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a caller process with a configuration; at the end of the context, kill it if it still runs."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tools.chaos.caller")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=MAX_LINE_BYTES)
    try:
        stdin = stdin_of(process)
        stdin.write(json.dumps(asdict(config)).encode() + b"\n")
        await stdin.drain()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def stdin_of(process: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    assert process.stdin is not None
    return process.stdin


def write_access_file(path: Path, admin_token: str, tokens: Sequence[str]) -> None:
    """Write a clients file in which the administrator may reload, and every caller may score."""
    entries = [format_client("admin", ["admin"], admin_token)]
    entries += [format_client(f"caller-{number}", ["score"], token) for number, token in enumerate(tokens)]
    path.write_text("".join(entries))
    path.chmod(0o600)  # a server refuses a file that others may write


def format_client(name: str, roles: Sequence[str], token: str) -> str:
    """Format an entry of a clients file."""
    role_names = ", ".join(f'"{role}"' for role in roles)
    return f'[[client]]\nname = "{name}"\nroles = [{role_names}]\ntoken_sha256 = ["{hash_token(token)}"]\n'

"""Owns a chaos run: callers that check every answer, while models are exchanged and scorers are killed."""

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
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc

from rescorer.cli.top.scrape import read
from rescorer.client.identity import metadata
from rescorer.errors import ServiceError
from rescorer.load.server import judged, logged_faults, metrics_port, scorers, serving
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import admin_pb2
from rescorer.protocol.v1.admin_pb2_grpc import AdminServiceStub
from rescorer.service.net.clients_file import hash_of, new_token
from rescorer.types import NBestList
from tools.chaos.caller import Seen, Spec, merged
from tools.chaos.versions import Versions
from tools.support.growth import Grown, Growth

KEPT = 2
"""Versions on disk at a time."""
BACK_EVERY = 5
"""Reloads, one of which takes the newest version away instead of adding one."""
RELOAD_LIMIT_S = 120.0
LOOK_EVERY_S = 0.02
LINE_BYTES = 2**26
"""Of the longest line that a client process writes."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens."""

    calls: int = 100_000
    callers: int = 50
    processes: int = 4
    reloads: int = 20
    kills: int = 5
    scorers: int = 2
    lists_a_call: int = 4
    late: float = 0.05
    """Share of the calls with deadlines that are too short."""
    cancelled: float = 0.05
    streamed: float = 0.1
    seconds: float = 1e9
    """At most, if faults do not take longer; what has happened by then is told."""
    limit_s: float = 3600.0
    """The whole run is given up then."""
    seed: int = 1
    server_options: tuple[str, ...] = ()
    log: Path | None = None
    """Where the server's is kept."""


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    seconds: float
    reloads: int
    kills: int
    restarts: int
    """Of scorers, as the server counts them."""
    seen: Seen
    grown: Grown
    in_flight_lists: int
    """At the end."""
    faults: list[str] = field(default_factory=list)
    """What should not have been; empty: all is well."""


def chaos(bundle: Path, lists: Sequence[NBestList], weights: str, plan: Plan) -> Report:
    """Runs it on a server of its own. Raises DeadlineExceeded where it takes longer than the plan says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        versions = Versions(folder, bundle, lists, weights)
        versions.add()
        admin, tokens = new_token(), [new_token() for _ in range(plan.callers)]
        access, log = folder / "access.toml", plan.log or folder / "log"
        access.write_text(entry("admin", "admin", admin) + "".join(
            entry(f"caller-{number}", "score", token) for number, token in enumerate(tokens)
        ))  # fmt: skip
        options = (
            *("--repository", str(versions.repository), "--access", str(access), "--admin"),
            *("--scorers", str(plan.scorers), "--threads", "1", "--metrics-port", "0"),
            *plan.server_options,
        )
        with serving(options, log) as (target, pid):
            run = Run(plan, versions, target, pid, admin)
            began = time.monotonic()
            with judged(log, plan.limit_s), Growth(pid) as growth:
                seen = asyncio.run(asyncio.wait_for(run.all(tokens, lists, weights), plan.limit_s))
            seconds = time.monotonic() - began
            metrics = read(f"127.0.0.1:{metrics_port(log)}")
            run.check(len(scorers(pid)) == plan.scorers, f"{len(scorers(pid))} scorers are left")
        in_flight = int(metrics.sum("in_flight_lists"))
        run.check(not in_flight, f"{in_flight} lists are in flight after all calls have ended")
        faults = [*run.faults, *seen.complaints, *seen.failures, *logged_faults(log)]
        if seen.hung:
            faults.append(f"{seen.hung} calls hung")
        restarts = int(metrics.sum("scorer_restarts_total"))
        return Report(seconds, plan.reloads, plan.kills, restarts, seen, growth.grown(), in_flight, faults)


class Run:
    """The run itself.

    Args:
        admin: token of who reloads.
    """

    def __init__(self, plan: Plan, versions: Versions, target: str, pid: int, admin: str) -> None:
        self._plan, self._versions = plan, versions
        self._target, self._pid, self._admin = target, pid, admin
        self._rng = random.Random(plan.seed)
        self._reloads = 0
        self._ended: list[int] = []
        """Calls, by process."""
        self.faults: list[str] = []

    def check(self, right: bool, otherwise: str) -> None:
        if not right:
            self.faults.append(otherwise)

    async def all(self, tokens: Sequence[str], lists: Sequence[NBestList], weights: str) -> Seen:
        """Callers call until everything has happened that was planned, evenly over their calls."""
        plan = self._plan
        messages = [base64.b64encode(list_to_proto(each).SerializeToString()).decode() for each in lists]
        happenings = happening(plan.reloads, self._reload) + happening(plan.kills, self._kill)
        happenings.sort(key=lambda each: each[0])
        async with AsyncExitStack() as stack:
            processes = []
            for number in range(plan.processes):
                spec = Spec(
                    self._target,
                    list(tokens[number :: plan.processes]),
                    messages,
                    weights,
                    str(self._versions.expected),
                    -(-plan.calls // plan.processes),
                    plan.seconds,
                    plan.lists_a_call,
                    plan.streamed,
                    plan.late,
                    plan.cancelled,
                    plan.seed * 1000 + number,
                )
                processes.append(await stack.enter_async_context(client_process(spec)))
            self._ended = [0] * len(processes)
            reading = [asyncio.create_task(self._read(*each)) for each in enumerate(processes)]
            began = time.monotonic()
            for part, happens in happenings:
                while (
                    sum(self._ended) < part * plan.calls
                    and time.monotonic() < began + part * plan.seconds
                    and not any(each.done() for each in reading)
                ):
                    await asyncio.sleep(LOOK_EVERY_S)
                await happens()
            for process in processes:
                writer_of(process).close()
            return merged(await asyncio.gather(*reading))

    async def _read(self, number: int, process: asyncio.subprocess.Process) -> Seen:
        reader = process.stdout
        assert reader is not None
        async for line in reader:
            if line.startswith(b"{"):
                return Seen(**json.loads(line))
            self._ended[number] = int(line)
        raise ServiceError(f"a client of the run failed with exit code {await process.wait()}")

    async def _reload(self) -> None:
        """Exchanges versions on disk, and tells the server."""
        self._reloads += 1
        if back := self._reloads % BACK_EVERY == 0 and len(self._versions.present) > 1:
            label = self._versions.take_back()
        else:
            label = await asyncio.to_thread(self._versions.add)
        async with grpc.aio.insecure_channel(self._target) as channel:
            stub = AdminServiceStub(channel)  # type: ignore[no-untyped-call]
            request, login = admin_pb2.ReloadRequest(), metadata(self._admin)
            done = await stub.Reload(request, timeout=RELOAD_LIMIT_S, metadata=login)
        self.check(not done.refused, f"{label} was refused: {dict(done.refused)}")
        self.check(label in done.loaded, f"the reload loaded {list(done.loaded)}; expected {label}, {back=}")
        self._versions.keep(KEPT)

    async def _kill(self) -> None:
        """Kills a scorer, without waiting for the one that was killed before to be back."""
        while not (alive := scorers(self._pid)):
            await asyncio.sleep(LOOK_EVERY_S)
        os.kill(self._rng.choice(alive), signal.SIGKILL)


def happening(
    count: int, happens: Callable[[], Awaitable[None]]
) -> list[tuple[float, Callable[[], Awaitable[None]]]]:
    """So often, evenly over the calls: after which part of them."""
    return [((number + 0.5) / count, happens) for number in range(count)]


@asynccontextmanager
async def client_process(spec: Spec) -> AsyncIterator[asyncio.subprocess.Process]:
    """Started, with its spec; killed at the end if it has not ended."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tools.chaos.caller")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LINE_BYTES)
    try:
        writer = writer_of(process)
        writer.write(json.dumps(asdict(spec)).encode() + b"\n")
        await writer.drain()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def writer_of(process: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    assert process.stdin is not None
    return process.stdin


def entry(name: str, role: str, token: str) -> str:
    """Of an access file."""
    return f'[[client]]\nname = "{name}"\nroles = ["{role}"]\ntoken_sha256 = ["{hash_of(token)}"]\n'

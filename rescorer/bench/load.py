"""Measure a server: under load from client processes, and its times for single lists and for batches.

    python -m rescorer.bench.load

starts a client process. It reads its configuration from stdin as one line of JSON, and writes a line when it
is connected. It starts to send calls when it reads another line. At the end it writes its measurements as one
line of JSON.

In an open loop, a client sends calls on a schedule, whether or not earlier calls have been answered. In a
closed loop, it sends the next call when one has ended. The latency of a call is measured from its scheduled
time, so that a slow server cannot improve its figures by slowing down its clients. A client that has to wait
for a processor starts calls late. This delay is not the server's fault, and is reported separately.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import grpc
import numpy as np

from rescorer.client import Client
from rescorer.errors import ConfigError, FormatError, InvalidList, ServiceError, Unavailable, shorten
from rescorer.formats.io.text_io import write_text
from rescorer.pipeline import Rescorer
from rescorer.protocol.messages import list_to_proto
from rescorer.protocol.v1 import rescorer_pb2 as pb
from rescorer.runtime import use_threads
from rescorer.types import NBestList

RESCORE_METHOD = "/rescorer.v1.RescorerService/Rescore"
HEALTH_METHOD = "/grpc.health.v1.Health/Check"
REFUSED_CODE = "RESOURCE_EXHAUSTED"
HEALTH_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The load that one client generates."""

    target: str
    messages: list[str]
    """Serialised ``RescoreRequest`` messages in base64; each call sends one of them at random."""
    calls_per_s: float
    """Mean rate of calls in an open loop, as a Poisson process; 0: calls are sent in a closed loop."""
    duration_s: float
    deadline_s: float
    concurrency: int = 16
    """Number of calls to keep in flight in a closed loop; 0 sends no calls."""
    seed: int = 0
    max_calls: int = 0
    """Maximum total number of calls in a closed loop; 0 means no limit."""
    niceness: int = 0
    """Niceness of the client process; higher values leave the processors to the server."""
    check_health: bool = False
    """Whether to call the health service too, once per ``HEALTH_INTERVAL_S``."""
    delay_s: float = 0.0
    """Time before the first call, which is not part of the duration."""
    connections: int = 1
    """Number of connections, which calls use in turn. To a server without logins, each is a client."""


@dataclass(slots=True)
class ClientResult:
    """Measurements of one client."""

    codes: dict[str, int] = field(default_factory=dict)
    """Number of calls by status code."""
    ok_ms: list[float] = field(default_factory=list)
    """Latency of each answered call."""
    refused_ms: list[float] = field(default_factory=list)
    """Latency of each call that the server refused because it was overloaded."""
    late_ms: list[float] = field(default_factory=list)
    """Delay between the scheduled time of each call and its actual start."""
    health_ms: list[float] = field(default_factory=list)
    """Latency of each health check."""
    elapsed_s: float = 0.0
    """Time from the start of the measurement until the last call ended."""
    cpu_s: float = 0.0


async def run_client(config: ClientConfig, on_connected: Callable[[], object] = lambda: None) -> ClientResult:
    """Send calls for the configured time and wait until all of them have ended.

    Args:
        on_connected: Called before the measurement and the first call.
    """
    result = ClientResult()
    messages = [base64.b64decode(message) for message in config.messages]
    rng = random.Random(config.seed)
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(config.target, options=options))
            for _ in range(config.connections)
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        on_connected()
        await asyncio.sleep(config.delay_s)
        methods: Any = cycle([channel.unary_unary(RESCORE_METHOD) for channel in channels])
        start, started_calls, start_cpu = time.perf_counter(), 0, time.process_time()
        tasks = []
        if config.check_health:
            tasks.append(asyncio.create_task(measure_health(channels[0], config, result)))

        async def send_call(due: float) -> None:
            result.late_ms.append((time.perf_counter() - due) * 1e3)
            code = await wait_for_code(next(methods)(rng.choice(messages), timeout=config.deadline_s))
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


SAMPLING_INTERVAL_S = 0.2


class ResourceMonitor:
    """A context manager that measures the CPU time and the peak memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_memory, daemon=True)
        self.cpu_s = 0.0
        self.max_rss_bytes = 0

    def __enter__(self) -> ResourceMonitor:
        self._start_cpu_s = self._total_cpu_s()
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()
        self.cpu_s = self._total_cpu_s() - self._start_cpu_s

    def _total_cpu_s(self) -> float:
        return sum(cpu_time_s(pid) for pid in process_tree(self._pid))

    def _sample_memory(self) -> None:
        while True:
            total_bytes = sum(rss_bytes(pid) for pid in process_tree(self._pid))
            self.max_rss_bytes = max(self.max_rss_bytes, total_bytes)
            if self._stop.wait(SAMPLING_INTERVAL_S):
                return


def process_tree(pid: int) -> list[int]:
    """List a process and its descendants, each after its parent."""
    children_files = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        children = [int(child) for file in children_files for child in file.read_text().split()]
    except OSError:
        return [pid]
    return [pid, *(descendant for child in children for descendant in process_tree(child))]


def cpu_time_s(pid: int) -> float:
    """Read the user and system time of a process, in seconds; 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Read the resident memory of a process; 0 if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


START_TIMEOUT_S = 120.0


@contextmanager
def run_server(options: Sequence[str], log: Path | None = None) -> Iterator[tuple[str, int]]:
    """Run ``rescorer serve`` with these options; yield its address and process id.

    Args:
        log: file for the server's log; None: it is not kept.

    Raises:
        Unavailable: the server does not start; the message ends with the last line of its log.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = log or Path(folder) / "log"
        port_file = Path(folder) / "port"
        command = [sys.executable, "-m", "rescorer.cli", "serve", "--port", "0", "--log-format", "json"]
        with log.open("wb") as stream:
            process = subprocess.Popen([*command, "--port-file", str(port_file), *options], stderr=stream)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not port_file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    lines = log.read_text(errors="replace").strip().splitlines() or [""]
                    called = " ".join([*command, *options])
                    raise Unavailable(f"the server did not start: {called}: {shorten(lines[-1], 500)}")
                time.sleep(0.05)
            target = f"127.0.0.1:{port_file.read_text().strip()}"
            with Client(target) as client:
                client.wait_ready(START_TIMEOUT_S)
            yield target, process.pid
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def run_clients(
    configs: Sequence[ClientConfig], monitor: AbstractContextManager[object] | None = None
) -> list[ClientResult]:
    """Run one client process per configuration, all at the same time.

    Args:
        monitor: Context that is entered when all clients are connected, and before they send calls.

    Raises:
        ServiceError: a client process fails.
    """
    with ExitStack() as stack:
        clients = [stack.enter_context(start_client(config)) for config in configs]
        for client in clients:
            client.read_line()
        with monitor or nullcontext():
            for client in clients:
                client.write_line("start")
            return [ClientResult(**json.loads(client.read_line())) for client in clients]


class ClientProcess(NamedTuple):
    """A client process, and a file for its error output: a pipe that is not read could block it."""

    process: subprocess.Popen[str]
    stderr: IO[str]

    def write_line(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # if the process has ended, read_line says why
            print(line, file=self.process.stdin, flush=True)

    def read_line(self) -> str:
        """Read the next line of output; raise ServiceError if the process ended without writing one."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        self.process.wait()
        self.stderr.seek(0)
        raise ServiceError(f"a client process of the load test failed: {self.stderr.read()[-500:]}")


@contextmanager
def start_client(config: ClientConfig) -> Iterator[ClientProcess]:
    """Start a client process, which connects and then waits; kill the process at the end of the block."""
    command, pipe = [sys.executable, "-m", "rescorer.bench.load"], subprocess.PIPE
    with (
        TemporaryFile("w+") as stderr,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, text=True) as process,
    ):
        try:
            client = ClientProcess(process, stderr)
            client.write_line(json.dumps(asdict(config)))
            yield client
        finally:
            process.kill()


LISTS_PER_CALL = (1, 2, 4, 8)
MAX_FILE_BYTES = 64 << 20
CALL_TIMEOUT_S = 60.0
MIN_CALLS = 3
"""Smallest number of calls of each size (lists per call), even if they take longer than the stage should."""


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """Measured times in seconds, by the number of lists per call. Calls did not share batches."""

    worker_s: Mapping[int, Sequence[float]]
    """Seconds of each call in a worker process, which scores, by the number of lists per call."""
    front_s: Mapping[int, Sequence[float]]
    """Seconds of each call outside the workers: in the server's front end and in transit."""


def encode_calls(lists: Sequence[NBestList], weights: str) -> dict[int, list[str]]:
    """Serialise all lists as requests in base64, once for each size in ``LISTS_PER_CALL``."""
    calls: dict[int, list[str]] = {}
    for size in LISTS_PER_CALL:
        n_calls = -(-len(lists) // size)
        endless = cycle(lists)
        calls[size] = [encode_request(islice(endless, size), weights) for _ in range(n_calls)]
    return calls


def encode_request(lists: Iterable[NBestList], weights: str) -> str:
    """Serialise a request for these lists in base64."""
    request = pb.RescoreRequest(lists=map(list_to_proto, lists), weights_name=weights)
    return base64.b64encode(request.SerializeToString()).decode()


def encode_requests(lists: Sequence[NBestList], weights: str, lists_per_call: int) -> list[str]:
    """Serialise lists as requests in base64, ``lists_per_call`` lists per request."""
    starts = range(0, len(lists), lists_per_call)
    return [encode_request(lists[start : start + lists_per_call], weights) for start in starts]


def measure_service_times(target: str, calls: Mapping[int, Sequence[str]], seconds: float) -> ServiceTimes:
    """Send calls one after the other, for the same total time with each number of lists per call.

    Args:
        calls: requests in base64, by their number of lists.

    Raises:
        InvalidList: a list cannot be scored, which would make the times too short.
    """
    worker_s: dict[int, list[float]] = {size: [] for size in calls}
    front_s: dict[int, list[float]] = {size: [] for size in calls}
    options = (("grpc.max_receive_message_length", -1),)
    with grpc.insecure_channel(target, options=options) as channel:
        rescore: Any = channel.unary_unary(RESCORE_METHOD)
        for size, messages in calls.items():
            end = time.perf_counter() + seconds / len(calls)
            for message in cycle(map(base64.b64decode, messages)):
                start = time.perf_counter()
                if start >= end and len(worker_s[size]) >= MIN_CALLS:
                    break
                answer = rescore(message, timeout=CALL_TIMEOUT_S)
                elapsed_s = time.perf_counter() - start
                response = pb.RescoreResponse.FromString(answer)
                for answered in response.lists:
                    if answered.status.code:
                        raise InvalidList(answered.status.message, list_id=answered.id)
                worker_s[size].append(response.timing.compute_ms / 1e3)
                front_s[size].append(max(0.0, elapsed_s - worker_s[size][-1]))
    return ServiceTimes(worker_s, front_s)


def write_service_times(times: ServiceTimes, path: Path) -> None:
    """Write times as one JSON object; raise FormatError if the file cannot be written."""
    write_text(path, json.dumps(asdict(times)) + "\n")


def read_service_times(path: Path) -> ServiceTimes:
    """Read a file that ``write_service_times`` wrote.

    Raises:
        ConfigError: the file cannot be read.
        FormatError: the file does not have such content.
    """
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        if len(data) > MAX_FILE_BYTES:
            raise ValueError(f"it is larger than {MAX_FILE_BYTES:,} bytes")
        values = json.loads(data)
        tables = [
            {int(size): [float(value) for value in times] for size, times in values[name].items()}
            for name in ("worker_s", "front_s")
        ]
        times = [value for table in tables for row in table.values() for value in row]
        if not all(0 <= value < float("inf") for value in times):
            raise ValueError("times must be numbers of seconds, not negative")
        if not sum(tables[0].get(1, [])) > 0:
            raise ValueError("lists that come alone (1) must take a worker some time")
        if not all(tables[0].values()) or tables[0].keys() != tables[1].keys():
            raise ValueError("expected times of both parts for each size")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        message = f"not a file of `rescorer load --service-times`: {error}"
        raise FormatError(message, file=str(path)) from None
    return ServiceTimes(*tables)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The load and the duration of a load test."""

    stage_s: float = 10.0
    """Duration of each stage."""
    clients: int = 2
    """Number of client processes."""
    calls_per_client: int = 16
    """Number of calls that each client keeps in flight while the peak load is measured."""
    lists_per_call: int = 1
    deadline_s: float = 5.0
    overload_factor: float = 3.0
    """Load of the last stage, as a multiple of the peak load that was measured."""
    server_options: tuple[str, ...] = ()
    dtype: str = "float32"
    """Precision of matrix products in the library and in the server."""
    overload_s: float = 0.0
    """Duration of the last stage; 0 means ``stage_s``."""
    client_niceness: int = 0
    """Niceness of the client processes, except the one that checks health."""
    service_times: Path | None = None
    """File to write ``ServiceTimes`` to; None: these times are not measured."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """Measurements of one stage. What was not measured is None, such as the latency of refusals if there were
    none."""

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
        """Number of calls that the server refused because it was overloaded."""
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
    """Run all stages, one after the other. All stages with a server use the same server process.

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


def measure_library(
    name: str, rescorer: Rescorer, lists: Sequence[NBestList], weights_name: str, plan: LoadPlan
) -> StageResult:
    """Measure the library: for half of the time the latency of single lists, then the throughput with all
    lists in one call."""
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
        lists_per_s: Number of lists that clients send per second; None sends calls in a closed loop.
    """
    calls_per_s = lists_per_s / plan.lists_per_call / plan.clients if lists_per_s else 0.0
    config = ClientConfig(target, messages, calls_per_s, plan.stage_s, plan.deadline_s, plan.calls_per_client)
    configs = [replace(config, seed=number, niceness=plan.client_niceness) for number in range(plan.clients)]
    # Health is checked by a separate process, like a real probe, which does not wait for a busy client.
    health = replace(config, messages=[], calls_per_s=0.0, concurrency=0, check_health=True)
    monitor = ResourceMonitor(pid)
    results = run_clients([*configs, health], monitor)
    codes: Counter[str] = Counter()
    for result in results:
        codes.update(result.codes)

    def percentile_of(field: str, percent: float) -> float | None:
        return percentile([ms for result in results for ms in getattr(result, field)], percent)

    answered_lists = codes["OK"] * plan.lists_per_call
    return StageResult(
        name,
        codes.total(),
        dict(codes),
        lists_per_s=answered_lists / max(result.elapsed_s for result in results),
        lists_per_cpu_s=answered_lists / monitor.cpu_s if monitor.cpu_s else 0.0,
        p50_ms=percentile_of("ok_ms", 50),
        p99_ms=percentile_of("ok_ms", 99),
        refused_p99_ms=percentile_of("refused_ms", 99),
        late_p99_ms=percentile_of("late_ms", 99),
        health_p99_ms=percentile_of("health_ms", 99),
        client_cpu_s=sum(result.cpu_s for result in results),
        max_rss_bytes=monitor.max_rss_bytes,
        offered_lists_per_s=lists_per_s or None,
    )


def percentile(values: Sequence[float], percent: float) -> float | None:
    return float(np.percentile(values, percent)) if values else None


def main() -> None:
    """Run as a client process; see the docstring of the module."""

    def wait_for_start() -> None:
        print("connected", flush=True)
        sys.stdin.readline()

    config = ClientConfig(**json.loads(sys.stdin.readline()))
    os.nice(config.niceness)
    print(json.dumps(asdict(asyncio.run(run_client(config, wait_for_start)))))


if __name__ == "__main__":
    main()

"""Owns the server of a load test: a process of its own, its port and log, and what its family takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from rescorer.client import Client
from rescorer.errors import DeadlineExceeded, ServiceError, Unavailable

START_LIMIT_S = 120.0
LOOK_EVERY_S = 0.2
LOGGED_CHARACTERS = 500
"""Of a line of the log."""
LAST_FAULTS = 5
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(options: Sequence[str], log: Path = Path(os.devnull)) -> Iterator[tuple[str, int]]:
    """Runs ``rescorer serve``; its address and process id. Raises Unavailable where it does not start."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        command = [sys.executable, "-m", "rescorer.cli", "serve", "--port", "0", "--log-format", "json"]
        with log.open("wb") as stream:
            process = subprocess.Popen([*command, "--port-file", str(port_file), *options], stderr=stream)
        try:
            until = time.monotonic() + START_LIMIT_S
            while not port_file.exists():
                if process.poll() is not None or time.monotonic() > until:
                    raise Unavailable(f"the server did not start: {' '.join(command)} {' '.join(options)}")
                time.sleep(0.05)
            target = f"127.0.0.1:{port_file.read_text().strip()}"
            with Client(target) as client:
                client.wait_ready(START_LIMIT_S)
            yield target, process.pid
        finally:
            process.terminate()
            process.wait(START_LIMIT_S)


@contextmanager
def judged(log: Path, limit_s: float) -> Iterator[None]:
    """Around a run: tells why it could not go on, with the last faults that the server has logged.

    Raises:
        DeadlineExceeded: it took too long.
        ServiceError: whatever else ended it.
    """
    try:
        yield
    except TimeoutError:
        raise DeadlineExceeded(f"the run takes longer than {limit_s:g} s") from None
    except (OSError, grpc.RpcError, ServiceError) as fault:
        logged = " | ".join(logged_faults(log)[-LAST_FAULTS:])
        raise ServiceError(f"the run could not go on: {fault!r}; the server has logged: {logged}") from None


def logged_faults(log: Path) -> list[str]:
    """Lines of a server's log that tell of faults of its own, and tracebacks."""
    found = []
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                level = json.loads(line).get("level")
            except (ValueError, AttributeError):  # not ours, such as what gRPC's core says
                level = "error" if line.startswith("Traceback") else ""
            if level in ("error", "critical"):
                found.append(line.strip()[:LOGGED_CHARACTERS])
    return found


def metrics_port(log: Path) -> int:
    """Where the server that writes this log shows its metrics."""
    with log.open(encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines if '"metrics"' in line]
    return int(next(each["port"] for each in events if each["event"] == "metrics"))


class Usage:
    """CPU time and memory of a process and its children, between entering and leaving.

    Linux only: both are read from ``/proc``.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._watched, daemon=True)
        self.cpu_s = 0.0
        self.max_rss_bytes = 0

    def __enter__(self) -> Usage:
        self._cpu_before = sum(cpu_s(pid) for pid in family(self._pid))
        self._watch.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._over.set()
        self._watch.join()
        self.cpu_s = sum(cpu_s(pid) for pid in family(self._pid)) - self._cpu_before

    def _watched(self) -> None:
        while True:
            rss = sum(rss_bytes(pid) for pid in family(self._pid))
            self.max_rss_bytes = max(self.max_rss_bytes, rss)
            if self._over.wait(LOOK_EVERY_S):
                return


def family(pid: int) -> list[int]:
    """A process and its children."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    try:
        return [pid, *(int(child) for each in children for child in each.read_text().split())]
    except OSError:
        return [pid]


def scorers(pid: int) -> list[int]:
    """The scoring processes of a server."""
    return [child for child in family(pid)[1:] if b"rescorer.service.workers" in command_line(child)]


def command_line(pid: int) -> bytes:
    """Empty where the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def cpu_s(pid: int) -> float:
    """User and system time so far; 0 where the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_bytes(pid: int) -> int:
    """Memory in use; 0 where the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0

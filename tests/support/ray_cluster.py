"""A Ray of its own for tests, whose processes end with it."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

N_CPUS = 4
START = f"""
import sys, tempfile
import ray
with tempfile.TemporaryDirectory(prefix="ray-test-", dir="/tmp", ignore_cleanup_errors=True) as folder:
    ray.init("local", num_cpus={N_CPUS}, num_gpus=1, include_dashboard=False, log_to_driver=False,
             object_store_memory=80 << 20, _temp_dir=folder)
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
    ray.shutdown()
"""
ATTEMPTS = 3
"""Number of times that Ray is started: its processes must answer within 15 s, which is fixed in Ray."""
BUSY = 4.0
"""Load per core above which it is no failure that Ray does not start."""
END_S = 30
MARK = "RESCORER_RAY_TEST"
"""Environment variable by which processes of a test are found; it is inherited."""


def mark() -> dict[str, str]:
    """A value of ``MARK`` that no other process has."""
    return {MARK: secrets.token_hex(8)}


def find_processes(marked: dict[str, str]) -> list[int]:
    """Processes that have inherited a mark."""
    wanted = f"{MARK}={marked[MARK]}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:  # it has ended
            continue
    return found


def wait_until_gone(marked: dict[str, str]) -> None:
    """Wait until no process has a mark; raises AssertionError if some remain."""
    end = time.monotonic() + END_S
    while found := find_processes(marked):
        assert time.monotonic() < end, found
        time.sleep(0.1)


def start_command(marked: dict[str, str]) -> subprocess.Popen[str]:
    """Start Ray in another process, which ends when its standard input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | marked,
    )


def skip_if_busy() -> None:
    """Skip a test that could not start Ray on a machine that is too busy for it."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if load > BUSY:
        pytest.skip(f"Ray did not start within its 15 s: {load:.1f} processes per core want to run")


@contextmanager
def run_ray() -> Iterator[str]:
    """Start Ray; yield its address."""
    for _ in range(ATTEMPTS):
        marked = mark()
        with start_command(marked) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            if address := process.stdout.readline().strip():
                try:
                    yield address
                finally:
                    process.stdin.close()
                    process.wait(END_S)
                    wait_until_gone(marked)
                return
        wait_until_gone(marked)
    skip_if_busy()
    raise AssertionError("Ray did not start")

"""Workers are nicer than the process that starts them, whatever niceness its operator gave it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

START_WORKER = """
import asyncio, os, sys
from rescorer.service.workers.peers import MachineSettings, spawn_worker

async def start_worker():
    child = await spawn_worker(MachineSettings("cpu", 1, "auto", 0), int(sys.argv[2]))
    print(*(os.getpriority(os.PRIO_PROCESS, process) for process in (0, child.pid)))
    await child.kill()

os.nice(int(sys.argv[1]))
asyncio.run(start_worker())
"""


@pytest.mark.parametrize(("servers", "workers"), [(0, 5), (3, 0), (3, 5), (10, 5), (17, 15)])
def test_niceness_of_a_worker_is_added_to_that_of_its_parent(servers, workers):
    base = os.getpriority(os.PRIO_PROCESS, 0)
    command = [sys.executable, "-c", START_WORKER, str(servers), str(workers)]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    parent = min(base + servers, 19)
    assert tuple(map(int, output.split())) == (parent, min(parent + workers, 19))

"""Run the server under test as a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rescorer.client import Client
from rescorer.errors import Unavailable

START_TIMEOUT_S = 120.0


@contextmanager
def run_server(options: Sequence[str], log: Path = Path(os.devnull)) -> Iterator[tuple[str, int]]:
    """Run ``rescorer serve`` with these options; yield its address and process id.

    Raises:
        Unavailable: If the server does not start.
    """
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder) / "port"
        command = [sys.executable, "-m", "rescorer.cli", "serve", "--port", "0", "--log-format", "json"]
        with log.open("wb") as stream:
            process = subprocess.Popen([*command, "--port-file", str(port_file), *options], stderr=stream)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not port_file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise Unavailable(f"the server did not start: {' '.join(command)} {' '.join(options)}")
                time.sleep(0.05)
            target = f"127.0.0.1:{port_file.read_text().strip()}"
            with Client(target) as client:
                client.wait_ready(START_TIMEOUT_S)
            yield target, process.pid
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)

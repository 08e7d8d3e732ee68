"""Run ``rescorer serve`` as a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rescorer.client import Client
from tests.support.servers import wait_until

SERVE_COMMAND = (sys.executable, "-m", "rescorer.cli", "serve", "--threads", "1")


@contextmanager
def run_serve_command(
    bundle: Path | None, folder: Path, *options: object
) -> Iterator[tuple[subprocess.Popen, Client]]:
    """Start a server, wait until it serves, and kill it at the end.

    Args:
        folder: Folder for the files ``port`` and ``log``.
    """
    port_file = folder / "port"
    bundle_options = ("--bundle", bundle) if bundle else ()
    command = (*SERVE_COMMAND, *bundle_options, "--port", "0", "--port-file", port_file, *options)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        wait_until(port_file.exists, 60)
        with Client(f"127.0.0.1:{port_file.read_text().strip()}") as client:
            client.wait_ready(60)
            yield process, client
    finally:
        process.kill()
        process.wait()

"""A fleet of light servers, each a process of its own, that can be restarted one by one.

The processes are forked from one that has imported the server, so that starting one costs a tenth of a second
of processor time instead of more than one.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from rescorer.client import Client
from tests.support.servers import wait_until

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["rescorer.service.server", "rescorer.service.settings"])
START_TIMEOUT_S = 60


def serve(bundle: Path, host: str, port: int, folder: Path) -> None:
    """Serve until SIGTERM, in this process; the log and the port go to files of ``folder``."""
    from rescorer.service.server import serve
    from rescorer.service.settings import load_settings

    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stderr.fileno())
    serve(
        load_settings(
            bundle=bundle, host=host, port=port, port_file=folder / "port", workers=0, threads=1, grace_s=20
        )
    )


@dataclass
class FleetServer:
    """A server with an address of its own, which it keeps when it is restarted.

    Args:
        host: An address of loopback that nobody else uses, so that its port stays free meanwhile.
    """

    bundle: Path
    host: str
    folder: Path
    port: int = 0
    process: BaseProcess | None = field(default=None, repr=False)

    @property
    def target(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        self.process = CONTEXT.Process(target=serve, args=(self.bundle, self.host, self.port, self.folder))
        self.process.start()

    def wait_ready(self) -> None:
        port_file = self.folder / "port"
        wait_until(port_file.exists, START_TIMEOUT_S)
        self.port = int(port_file.read_text())
        with Client(self.target) as client:
            client.wait_ready(START_TIMEOUT_S)

    def stop(self, signal_number: int = signal.SIGTERM) -> int | None:
        """Send a signal and wait for the end; return the exit code."""
        assert self.process is not None
        assert self.process.pid is not None
        os.kill(self.process.pid, signal_number)
        self.process.join(START_TIMEOUT_S)
        (self.folder / "port").unlink(missing_ok=True)
        return self.process.exitcode


@contextmanager
def run_fleet(bundle: Path, folder: Path, size: int) -> Iterator[list[FleetServer]]:
    """Run servers on addresses 127.x.y.1 and following, and kill them at the end."""
    network = f"127.{1 + os.getpid() // 250 % 250}.{os.getpid() % 250}"
    servers = [FleetServer(bundle, f"{network}.{1 + i}", folder / f"server-{i}") for i in range(size)]
    try:
        for server in servers:
            server.folder.mkdir()
            server.start()
        for server in servers:
            server.wait_ready()
        yield servers
    finally:
        for server in servers:
            if server.process is not None:
                server.process.kill()
                server.process.join()

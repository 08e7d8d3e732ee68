"""Run the client processes of a load test: start them together when all are connected."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from rescorer.errors import ServiceError
from rescorer.load.client import ClientConfig, ClientResult


def run_clients(
    configs: Sequence[ClientConfig], monitor: AbstractContextManager[object] | None = None
) -> list[ClientResult]:
    """Run one client process per configuration, all at the same time.

    Args:
        monitor: Context to enter when all clients are connected and none has sent a call.

    Raises:
        ServiceError: If a client process fails.
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
    """A client process and the file with its error output (writing to a pipe that nobody reads would block
    it)."""

    process: subprocess.Popen[str]
    stderr: IO[str]

    def write_line(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended: read_line reports why
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
    """Start a client process, which connects and then waits; kill it at the end."""
    command, pipe = [sys.executable, "-m", "rescorer.load.client"], subprocess.PIPE
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

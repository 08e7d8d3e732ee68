"""Owns the client processes of a load test: begun together once all are connected, and ended in time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from rescorer.errors import ServiceError
from rescorer.load.client import Seen, Spec


def crowd(
    specs: Sequence[Spec],
    limit_s: float | None = None,
    around: AbstractContextManager[object] | None = None,
) -> list[Seen]:
    """Runs client processes at the same time; what each saw.

    Args:
        around: entered when all are connected and none has sent anything.

    Raises:
        ServiceError: one failed.
        TimeoutError: it takes too long.
    """
    with ExitStack() as stack:
        clients = [stack.enter_context(client_process(spec, limit_s)) for spec in specs]
        for each in clients:
            each.said()
        with around or nullcontext():
            for each in clients:
                each.told("begin")
            return [Seen(**json.loads(each.said())) for each in clients]


def client(spec: Spec, limit_s: float | None = None) -> Seen:
    """As ``crowd``, of one."""
    return crowd([spec], limit_s)[0]


class Client(NamedTuple):
    """A client process, and where it complains: a file, for a pipe that nobody reads would hold it up."""

    process: subprocess.Popen[str]
    stderr: IO[str]

    def told(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone, which shows when it has nothing to say
            print(line, file=self.process.stdin, flush=True)

    def said(self) -> str:
        """Its next line; raises ServiceError where it has ended without."""
        assert self.process.stdout is not None
        if line := self.process.stdout.readline():
            return line
        self.process.wait()
        self.stderr.seek(0)
        raise ServiceError(f"a client of the load test failed: {self.stderr.read()[-500:]}")


@contextmanager
def client_process(spec: Spec, limit_s: float | None) -> Iterator[Client]:
    """Connects; it begins when it is told to, and is ended at the end."""
    command, pipe = [sys.executable, "-m", "rescorer.load.client"], subprocess.PIPE
    over = threading.Event()
    with (
        TemporaryFile("w+") as stderr,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr, text=True) as process,
    ):

        def end() -> None:
            over.set()
            process.kill()

        timer = threading.Timer(limit_s, end) if limit_s is not None else None
        try:
            if timer:
                timer.start()
            begun = Client(process, stderr)
            begun.told(json.dumps(asdict(spec)))
            yield begun
        except ServiceError:
            if over.is_set():
                raise TimeoutError(f"a client of the load test takes longer than {limit_s:g} s") from None
            raise
        finally:
            if timer:
                timer.cancel()
            process.kill()

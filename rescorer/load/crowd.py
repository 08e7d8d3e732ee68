"""Owns the client processes of a load test: begun together once all are connected, and ended in time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict

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
        for process in clients:
            said_by(process)
        with around or nullcontext():
            for process in clients:
                tell(process, "begin")
            return [Seen(**json.loads(said_by(process))) for process in clients]


def client(spec: Spec, limit_s: float | None = None) -> Seen:
    """As ``crowd``, of one."""
    return crowd([spec], limit_s)[0]


@contextmanager
def client_process(spec: Spec, limit_s: float | None) -> Iterator[subprocess.Popen[str]]:
    """Connects; it begins when it is told to, and is ended at the end."""
    command, pipe = [sys.executable, "-m", "rescorer.load.client"], subprocess.PIPE
    over = threading.Event()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:

        def end() -> None:
            over.set()
            process.kill()

        timer = threading.Timer(limit_s, end) if limit_s is not None else None
        try:
            if timer:
                timer.start()
            tell(process, json.dumps(asdict(spec)))
            yield process
        except ServiceError:
            if over.is_set():
                raise TimeoutError(f"a client of the load test takes longer than {limit_s:g} s") from None
            raise
        finally:
            if timer:
                timer.cancel()
            process.kill()


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it is gone, which shows when it has nothing to say
        print(line, file=process.stdin, flush=True)


def said_by(process: subprocess.Popen[str]) -> str:
    """The next line of a client; raises ServiceError where it has ended without."""
    assert process.stdout is not None
    assert process.stderr is not None
    if line := process.stdout.readline():
        return line
    raise ServiceError(f"a client of the load test failed: {process.stderr.read()[-500:]}")

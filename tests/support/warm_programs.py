"""Programs that start warm: as forks of one process that has imported what takes seconds to import.

``run_warm_programs`` starts this file as a program, which imports ``PRELOADED``, serves a socket and writes
``python``, ``rescorer`` and ``rescorer-train``. Each of these is this file again, run by an isolated Python
that starts in 20 ms: it sends its arguments, environment, folder and standard streams, passes signals on, and
ends as the fork ends. Forks differ from new processes only in what is imported already: tests of what a
program imports, or of how it starts, need new processes.
"""

from __future__ import annotations

import array
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

SOCKET, BIN, READY = "socket", "bin", "ready"
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
READ_AT_START = ("PYTHONH", "OMP_", "MKL_", "LD_", "CUDA_")
"""How variables begin whose values must be those of the warm process, because it has read them already."""
PRELOADED = "torch", "numpy", "grpc.aio", "google.protobuf.message", "typer", "rich.console", "pydantic"
"""Packages of others, so that a fork imports the repository's as a new process does."""


@contextmanager
def run_warm_programs(folder: Path) -> Iterator[Path]:
    """Make warm programs in a new folder; where the system lacks what they need, those of this Python."""
    if not hasattr(os, "pidfd_open"):
        yield Path(sys.executable).parent
        return
    command = [sys.executable, __file__, str(folder), *PRELOADED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield folder / BIN
        finally:
            process.kill()


def main() -> None:
    program = Path(sys.argv[0])
    if program.parent.name == BIN:
        call(program.parent.parent, program.name, sys.argv[1:])
    folder, *modules = sys.argv[1:]
    sys.path[0] = ""  # the repository's folder, not that of this file
    request = serve(Path(folder), modules)
    if request is not None:  # this is a fork
        become(request)


def read_at_start() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(READ_AT_START)}


# What starts a program.


def call(folder: Path, name: str, arguments: list[str]) -> NoReturn:
    """Run a program as a fork of the warm process; a new process if the environment does not allow it."""
    real = str(Path(sys.executable).with_name(name))
    warm = json.loads((folder / READY).read_text())
    first = next((argument for argument in arguments if argument != "-u"), "-i")
    is_understood = name != "python" or first in ("-", "-m") or first[0] != "-"
    if read_at_start() != warm or not is_understood:
        os.execv(real, [real, *arguments])
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(folder / SOCKET))
    ignored = [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
    request = {
        "program": real,
        "arguments": arguments,
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "ignored": ignored,
    }
    message = json.dumps(request).encode()
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    connection.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", (0, 1, 2)))])
    connection.sendall(len(message).to_bytes(4, "big") + message)

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(process, number)

    with connection.makefile("r") as answers:
        process = int(answers.readline())
        for number in PASSED_ON:
            if number not in ignored:
                signal.signal(number, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        code = os.waitstatus_to_exitcode(int(answers.readline() or signal.SIGKILL))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


# The warm process.


def serve(folder: Path, modules: list[str]) -> dict | None:
    """Import ``modules`` and fork a process for each call, until standard input ends.

    Returns what to run, in a fork; None at the end.
    """
    import gc
    import importlib

    for module in modules:
        importlib.import_module(module)
    import rescorer
    import rescorer.cli

    assert rescorer.Rescorer, "is imported with what it needs when it is asked for"
    assert rescorer.cli.app, "is imported with what it needs when it is asked for"
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has one thread only"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / SOCKET))
    listener.listen(64)
    (folder / BIN).mkdir()
    for name in ("python", "rescorer", "rescorer-train"):
        program = folder / BIN / name
        program.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text()}")
        program.chmod(0o755)
    (folder / READY).write_text(json.dumps(read_at_start()))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait for the forks are not waited for
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    print("ready", flush=True)
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        if listener not in readable:
            return None
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return answer(connection)
        connection.close()


def answer(connection: socket.socket) -> dict:
    """Fork again, return what to run there, and tell the caller how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as received:
        request = json.loads(received.read(int.from_bytes(received.read(4), "big")))
    process = os.fork()
    if process == 0:
        connection.close()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        return request
    for stream in streams:
        os.close(stream)
    connection.sendall(f"{process}\n".encode())
    ended = os.pidfd_open(process)
    readable, _, _ = select.select([ended, connection], [], [])
    if connection in readable:  # the caller was killed
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    try:
        connection.sendall(f"{status}\n".encode())
    finally:
        os._exit(0)


def become(request: dict) -> None:
    """Run the program of ``request`` as the main module of this process."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    program, arguments = request["program"], request["arguments"]
    sys.path[1:1] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if Path(program).name != "python":
        run_script(program, arguments)
        return
    if arguments[0] == "-u":
        arguments = arguments[1:]
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)
    if arguments[0] == "-m":
        import runpy

        sys.path[0] = os.getcwd()
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-":
        run_source(sys.stdin.read(), arguments)
    else:
        run_script(arguments[0], arguments[1:])


def run_script(path: str, arguments: list[str]) -> None:
    import runpy

    sys.path[0] = str(Path(path).resolve().parent)
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


def run_source(source: str, arguments: list[str]) -> None:
    import types

    sys.path[0] = ""
    sys.argv = arguments
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    exec(compile(source, "<stdin>", "exec"), main.__dict__)


if __name__ == "__main__":
    main()

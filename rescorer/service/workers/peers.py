"""Processes of a server that exchange frames: requests, their answers, and child processes.

A request says in its header what to ``do``, and has an ``id``, which the reply repeats. A request to
``cancel`` names the id of another one, whose result nobody needs any more, and has no reply of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rescorer.errors import BundleError, LoaderDied, Unavailable
from rescorer.frames import (
    PREFIX,
    SCORE,
    Arrays,
    Frame,
    error_from_header,
    error_header,
    pack,
    parse_prefix,
    unpack,
)
from rescorer.signals import shield_children

HOST_MODULE = "rescorer.service.workers.host"
"""Module that worker processes run."""
CANCEL = "cancel"
"""Operation of a request that ends another one, which must be one to score."""
HAS_WORKED = 0
"""Id of the frame by which a process reports that it has done some work; this frame answers no request."""


class MachineSettings(NamedTuple):
    """Device, threads, precision and cache size for the models of a worker."""

    device: str
    threads: int
    dtype: str
    """Precision of matrix products."""
    context_cache_bytes: int
    load_timeout_s: float = 600.0
    """Longest time that loading a bundle may take while the process serves several clients."""

    def pack(self) -> str:
        """Return the settings as JSON, for an argument of a command line."""
        return json.dumps(self._asdict())


class WorkerLost(Unavailable):
    """A process has exited or was terminated; the request may be sent to another process."""


def abandoned_error() -> Unavailable:
    return Unavailable("nobody waits for these scores any more")


def load_timeout_error(label: str, timeout_s: float) -> BundleError:
    return BundleError(f"{label}: was not loaded within the {timeout_s:g} s of load_timeout_s")


def loader_died_error(folder: Path) -> LoaderDied:
    return LoaderDied(f"{folder}: the process that loaded it died; it may need too much memory")


class Peer:
    """The process at the other end of a connection, while the connection lasts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._last_id = HAS_WORKED
        self.alive = True
        self.has_worked = False
        """Whether the process has reported that it has done some work."""
        self._reading = asyncio.create_task(self._read(reader))

    async def ask(self, header: dict[str, Any], arrays: Arrays | None = None) -> Frame:
        """Send a request and return the reply.

        If this is cancelled, the process is asked to abandon a request to score, and is waited for: it ends
        its step first, and another request would have to wait as well.

        Raises:
            WorkerLost: the process exited before it replied.
            RescorerError: the process replied with this error.
        """
        if not self.alive:
            raise WorkerLost("a process has died")
        self._last_id += 1
        request_id = self._last_id  # other requests may be sent before this one is answered
        reply = self._pending[request_id] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(pack({**header, "id": request_id}, arrays))
            await self._writer.drain()
            frame = await asyncio.shield(reply)
        except ConnectionError:
            raise WorkerLost("a process has died") from None
        except asyncio.CancelledError:
            if header["do"] == SCORE and self.alive:
                self._writer.write(pack({"do": CANCEL, "id": request_id}))
                await asyncio.wait((reply,))
            raise
        finally:
            self._pending.pop(request_id, None)
        if error := error_from_header(frame.header):
            raise error
        return frame

    async def wait_closed(self) -> None:
        """Wait until the process or its connection is gone."""
        await asyncio.wait((self._reading,))

    def close(self) -> None:
        """Close the connection; pending requests raise WorkerLost."""
        self._reading.cancel()
        self._writer.close()
        self._mark_dead()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                self.has_worked |= frame.header["id"] == HAS_WORKED
                reply = self._pending.get(frame.header["id"])
                if reply is not None and not reply.done():
                    reply.set_result(frame)
        except (asyncio.IncompleteReadError, OSError, ValueError, KeyError):
            pass  # the connection was closed, or sent an invalid frame
        finally:
            self._mark_dead()

    def _mark_dead(self) -> None:
        self.alive = False
        for reply in self._pending.values():
            if not reply.done():
                reply.set_exception(WorkerLost("a process has died"))
                reply.exception()  # asyncio logs those that are not retrieved, and the caller may be gone


class Child(Peer):
    """A child process, spawned and never forked; it exits when the socket that it has inherited is closed."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        super().__init__(reader, writer)
        self._process = process
        self.pid = process.pid

    @classmethod
    async def spawn(cls, module: str, *arguments: str, pass_fds: Sequence[int] = ()) -> Child:
        """Run a Python module, with the descriptor of its socket as the first argument.

        Args:
            pass_fds: further descriptors to inherit, under the same numbers.
        """
        own_end, child_end = socket.socketpair()
        with child_end:
            command = (sys.executable, "-m", module, str(child_end.fileno()), *arguments)
            with shield_children():
                process = await asyncio.create_subprocess_exec(
                    *command, pass_fds=[child_end.fileno(), *pass_fds], stdin=asyncio.subprocess.DEVNULL
                )
        return cls(process, *await asyncio.open_connection(sock=own_end))

    async def kill(self) -> None:
        """Kill the process, whatever it is doing, and wait for its exit."""
        self.close()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def answer_requests(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    perform: Callable[[Frame], Awaitable[tuple[dict[str, Any], Arrays]]],
) -> set[asyncio.Task[None]]:
    """Answer the requests of a peer until it disconnects, and return the tasks of unanswered requests.

    Scoring that nobody waits for any more is cancelled.

    Args:
        perform: carries out a request, and returns the header and the arrays of the reply. Each request is
            carried out as soon as it arrives, even if earlier ones are not answered yet.
    """
    unanswered: set[asyncio.Task[None]] = set()
    scoring: dict[int, asyncio.Task[None]] = {}

    async def answer(frame: Frame) -> None:
        arrays: Arrays = {}
        try:
            header, arrays = await perform(frame)
        except asyncio.CancelledError:
            header = error_header(abandoned_error())
        except Exception as error:
            header = error_header(error)
        writer.write(pack({**header, "id": frame.header["id"]}, arrays))
        with suppress(ConnectionError):  # the peer is gone
            await writer.drain()

    with suppress(asyncio.IncompleteReadError, OSError, ValueError):  # disconnected, or an invalid frame
        while True:
            frame = await read_frame(reader)
            operation, request_id = frame.header["do"], frame.header["id"]
            if operation == CANCEL:
                if request_id in scoring:
                    # Once it has begun: a task that is cancelled before never runs, and would send no reply.
                    asyncio.get_running_loop().call_soon(scoring[request_id].cancel)
                continue
            unanswered.add(task := asyncio.create_task(answer(frame)))
            task.add_done_callback(unanswered.discard)
            if operation == SCORE:
                scoring[request_id] = task
                task.add_done_callback(lambda _, request_id=request_id: scoring.pop(request_id, None))  # type: ignore[misc]
    for task in scoring.values():
        task.cancel()
    return unanswered


async def spawn_worker(
    machine: MachineSettings, niceness: int = 0, listening: socket.socket | None = None
) -> Child:
    """Start a worker process; see ``rescorer.service.workers.host``.

    Args:
        niceness: how much nicer the process is than this one; higher values let other processes go first.
        listening: socket on which the process accepts clients, who share the loaded bundles; None: the
            process serves its parent only.
    """
    descriptors = [] if listening is None else [listening.fileno()]
    arguments = machine.pack(), *map(str, descriptors)
    child = await Child.spawn(HOST_MODULE, *arguments, pass_fds=descriptors)
    with suppress(OSError):  # it has exited already; the next request raises WorkerLost
        os.setpriority(os.PRIO_PROCESS, child.pid, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    return child


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read the next frame; its arrays are writable, because torch warns about read-only ones.

    Raises:
        IncompleteReadError: the connection was closed.
        ValueError: the frame is invalid.
    """
    head_bytes, body_bytes = parse_prefix(await reader.readexactly(PREFIX.size))
    return unpack(await reader.readexactly(head_bytes), bytearray(await reader.readexactly(body_bytes)))

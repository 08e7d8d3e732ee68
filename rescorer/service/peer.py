"""Owns asking another process in frames: several questions may wait, and each is answered by its number."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from typing import Any

from rescorer.errors import Unavailable
from rescorer.service.frames import PREFIX, WORKS, Arrays, Frame, fault_of, lengths, pack, unpack


class Died(Unavailable):
    """A process is gone or was given up; what it was asked may be asked of another."""


class Peer:
    """A process at the other end of a connection, for as long as that lasts."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._number = WORKS
        self.alive = True
        self.works = False
        """Whether it has said that it does."""
        self._reading = asyncio.create_task(self._read(reader))

    async def ask(self, header: dict[str, Any], arrays: Arrays | None = None) -> Frame:
        """Its answer. Raises Died, or the fault that it answers with."""
        if not self.alive:
            raise Died("a process has died")
        self._number += 1
        number = self._number  # others ask before this is answered
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(pack({**header, "id": number}, arrays))
            await self._writer.drain()
            frame = await answer
        except ConnectionError:
            raise Died("a process has died") from None
        finally:
            self._waiting.pop(number, None)
        if fault := fault_of(frame.header):
            raise fault
        return frame

    async def ended(self) -> None:
        """Waits until it is gone."""
        await asyncio.wait((self._reading,))

    def close(self) -> None:
        """Ends the connection; whoever waits for an answer is told that it died."""
        self._reading.cancel()
        self._writer.close()
        self._gone()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                self.works |= frame.header["id"] == WORKS
                answer = self._waiting.get(frame.header["id"])
                if answer is not None and not answer.done():
                    answer.set_result(frame)
        except (asyncio.IncompleteReadError, OSError, ValueError, KeyError):
            pass  # it is gone, or says what is no frame
        finally:
            self._gone()

    def _gone(self) -> None:
        self.alive = False
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Died("a process has died"))
                answer.exception()  # whoever asked may be gone: that is no news for the log


class Child(Peer):
    """A process of our own, spawned and never forked; it ends when the socket it was born with is closed."""

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
        """Runs a module of ours; the first of its arguments is its end of the socket.

        Args:
            pass_fds: others that it inherits, by the same numbers.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = (sys.executable, "-m", module, str(theirs.fileno()), *arguments)
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=[theirs.fileno(), *pass_fds], stdin=asyncio.subprocess.DEVNULL
            )
        return cls(process, *await asyncio.open_connection(sock=ours))

    async def kill(self) -> None:
        """Ends it, whatever it is doing."""
        self.close()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """The next one. Raises IncompleteReadError at the end, ValueError for what is no frame."""
    head_bytes, body_bytes = lengths(await reader.readexactly(PREFIX.size))
    return unpack(await reader.readexactly(head_bytes), await reader.readexactly(body_bytes))

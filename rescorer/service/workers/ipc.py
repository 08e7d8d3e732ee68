"""Owns the messages between processes of a server: a JSON header and flat arrays, nothing pickled.

    4 bytes magic, 4 bytes header length, 8 bytes body length, header, body

The header is an object; its ``arrays`` say name, type and shape of each array, which follow one another in
the body, each begun at a multiple of 8 bytes.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rescorer import errors
from rescorer.errors import RescorerError, ScoringError, Unavailable
from rescorer.lm.base import EdgeScores
from rescorer.trie import HypothesisTrie

PREFIX = struct.Struct("<4sIQ")
MAGIC = b"RSF1"
MAX_FRAME_BYTES = 1 << 32
"""Larger ones are no frames."""
WORKS = 0
"""The number of a frame that answers no question: the process that sends it has done some work."""
TYPES = {"<i8", "<f8", "|b1", "|u1"}

Arrays = Mapping[str, np.ndarray]


class Frame(NamedTuple):
    header: dict[str, Any]
    arrays: Arrays


def pack(header: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """A frame as bytes."""
    described, parts = [], []
    for name, array in (arrays or {}).items():
        array = np.ascontiguousarray(array)
        if array.dtype.str not in TYPES:
            raise ValueError(f"{name} is of type {array.dtype.str}; frames hold {sorted(TYPES)}")
        described.append([name, array.dtype.str, list(array.shape)])
        parts += [array.tobytes(), bytes(-array.nbytes % 8)]
    head = json.dumps({**header, "arrays": described}).encode()
    body = b"".join(parts)
    return PREFIX.pack(MAGIC, len(head), len(body)) + head + body


def lengths(prefix: bytes | bytearray) -> tuple[int, int]:
    """Bytes of the header and of the body; raises ValueError where no frame begins so."""
    magic, head, body = PREFIX.unpack(prefix)
    if magic != MAGIC or head + body > MAX_FRAME_BYTES:
        raise ValueError(f"no frame begins with {bytes(prefix)!r}")
    return head, body


def unpack(head: bytes | bytearray, body: bytes | bytearray) -> Frame:
    """The frame whose two parts these are; raises ValueError where they do not fit together."""
    header = json.loads(head)
    arrays, begin = {}, 0
    for name, kind, shape in header.pop("arrays"):
        if kind not in TYPES or any(size < 0 for size in shape):
            raise ValueError(f"array {name!r} is of type {kind!r} and shape {shape}")
        count = int(np.prod(shape, dtype=np.int64))
        dtype = np.dtype(kind)
        if begin + count * dtype.itemsize > len(body):
            raise ValueError(f"array {name!r} of shape {shape} goes beyond the frame")
        arrays[name] = np.frombuffer(body, dtype, count, begin).reshape(shape)
        begin += count * dtype.itemsize
        begin += -begin % 8
    return Frame(header, arrays)


def trie_arrays(trie: HypothesisTrie) -> Arrays:
    """A trie as flat arrays; words are UTF-8, a line each, as no word holds a line break."""
    words = "".join(f"{word}\n" for word in trie.words).encode("utf-8", "surrogatepass")
    contexts = [np.asarray(each, dtype=np.int64) for each in trie.contexts]
    return {
        "words": np.frombuffer(words, dtype=np.uint8),
        "contexts": np.concatenate([*contexts, np.zeros(0, dtype=np.int64)]),
        "context_lengths": np.array([len(each) for each in contexts], dtype=np.int64),
        "parent": trie.parent,
        "node_word": trie.node_word,
        "level_bounds": np.array(trie.level_bounds, dtype=np.int64),
        "hypothesis_node": trie.hypothesis_node,
        "end_nodes": trie.end_nodes,
    }


def trie_of(arrays: Arrays) -> HypothesisTrie:
    """The trie that ``trie_arrays`` took apart."""
    words = arrays["words"].tobytes().decode("utf-8", "surrogatepass").split("\n")[:-1]
    bounds = np.cumsum(arrays["context_lengths"])[:-1]
    return HypothesisTrie(
        words=tuple(words),
        contexts=tuple(np.split(arrays["contexts"], bounds)) if len(arrays["context_lengths"]) else (),
        parent=arrays["parent"],
        node_word=arrays["node_word"],
        level_bounds=tuple(arrays["level_bounds"].tolist()),
        hypothesis_node=arrays["hypothesis_node"],
        end_nodes=arrays["end_nodes"],
    )


def score_arrays(scores: Mapping[str, EdgeScores]) -> Arrays:
    """Edge scores as flat arrays, two a model."""
    return {f"log_probs {name}": each.log_probs for name, each in scores.items()} | {
        f"unknown {name}": each.unknown for name, each in scores.items()
    }


def scores_of(arrays: Arrays) -> dict[str, EdgeScores]:
    """The scores that ``score_arrays`` took apart."""
    names = [name.removeprefix("log_probs ") for name in arrays if name.startswith("log_probs ")]
    return {name: EdgeScores(arrays[f"log_probs {name}"], arrays[f"unknown {name}"]) for name in names}


def fault_header(fault: Exception) -> dict[str, str]:
    """The header of an answer that is a fault."""
    if isinstance(fault, RescorerError):
        return {"fault": type(fault).__name__, "message": str(fault)}
    return {"fault": ScoringError.__name__, "message": f"{type(fault).__name__}: {fault}"}


def error_from_status(header: Mapping[str, Any]) -> RescorerError | None:
    """The fault that an answer is, of our tree; None where it is another."""
    if "fault" not in header:
        return None
    kind = getattr(errors, header["fault"], ScoringError)
    known = isinstance(kind, type) and issubclass(kind, RescorerError)
    return (kind if known else ScoringError)(header["message"])


class WorkerLost(Unavailable):
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
        """Its answer. Raises WorkerLost, or the fault that it answers with."""
        if not self.alive:
            raise WorkerLost("a process has died")
        self._number += 1
        number = self._number  # others ask before this is answered
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(pack({**header, "id": number}, arrays))
            await self._writer.drain()
            frame = await answer
        except ConnectionError:
            raise WorkerLost("a process has died") from None
        finally:
            self._waiting.pop(number, None)
        if fault := error_from_status(frame.header):
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
                answer.set_exception(WorkerLost("a process has died"))
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

"""Exchange messages between the processes of a server: frames of a JSON header and flat arrays.

    4 bytes magic, 4 bytes header length, 8 bytes body length, header, body

The header is a JSON object. Its entry ``arrays`` lists the name, type and shape of each array; the body holds
the arrays in the same order, each aligned to 8 bytes. Nothing is pickled.

A request says in its header what to ``do``, and has an ``id``, which the reply repeats. A request to
``cancel`` names the id of another one, whose result nobody needs any more, and has no reply of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from traceback import format_exception
from typing import Any, NamedTuple

import numpy as np

from rescorer import errors
from rescorer.errors import BundleError, LoaderDied, RescorerError, ScoringError, Unavailable
from rescorer.runtime import ContextWords
from rescorer.signals import shield_children
from rescorer.trie import EdgeScores, HypothesisTrie

HOST_MODULE = "rescorer.service.workers.host"
"""Module that worker processes run."""
PREFIX = struct.Struct("<4sIQ")
MAGIC = b"RSF1"
MAX_FRAME_BYTES = 1 << 32
"""Largest frame in bytes, without its prefix."""
SCORE, CANCEL = "score", "cancel"
"""Operations of requests, which other modules name themselves: only scoring can be cancelled."""
HAS_WORKED = 0
"""Id of the frame by which a process reports that it has done some work; this frame answers no request."""
UNEXPECTED_ERROR = "unexpected error in a process of the server; its log has the details"
ARRAY_TYPES = {"<i8", "<f8", "|b1", "|u1"}

Arrays = Mapping[str, np.ndarray]


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


class Frame(NamedTuple):
    header: dict[str, Any]
    arrays: Arrays


def pack(header: Mapping[str, Any], arrays: Arrays | None = None) -> bytes:
    """Serialise a frame.

    Raises:
        ValueError: an array has a type that frames do not support.
    """
    descriptions, parts = [], []
    for name, array in (arrays or {}).items():
        array = np.ascontiguousarray(array)
        if array.dtype.str not in ARRAY_TYPES:
            raise ValueError(
                f"array {name!r}: expected one of the types {sorted(ARRAY_TYPES)}, got {array.dtype.str}"
            )
        descriptions.append([name, array.dtype.str, list(array.shape)])
        parts += [array.tobytes(), bytes(-array.nbytes % 8)]
    head = json.dumps({**header, "arrays": descriptions}).encode()
    body = b"".join(parts)
    return PREFIX.pack(MAGIC, len(head), len(body)) + head + body


def parse_prefix(prefix: bytes) -> tuple[int, int]:
    """Return the lengths in bytes of a frame's header and body.

    Raises:
        ValueError: the magic is wrong, or the frame is larger than ``MAX_FRAME_BYTES``.
    """
    magic, head, body = PREFIX.unpack(prefix)
    if magic != MAGIC or head + body > MAX_FRAME_BYTES:
        raise ValueError(f"invalid frame prefix {prefix!r}")
    return head, body


def unpack(head: bytes, body: bytes | bytearray) -> Frame:
    """Deserialise a frame from its header and body.

    Raises:
        ValueError: an array has an unsupported type or shape, or extends beyond the body.
    """
    header = json.loads(head)
    arrays, begin = {}, 0
    for name, kind, shape in header.pop("arrays"):
        if kind not in ARRAY_TYPES or any(size < 0 for size in shape):
            raise ValueError(f"array {name!r} has the invalid type {kind!r} or shape {shape}")
        count = int(np.prod(shape, dtype=np.int64))
        dtype = np.dtype(kind)
        if begin + count * dtype.itemsize > len(body):
            raise ValueError(f"array {name!r} of shape {shape} extends beyond the frame")
        arrays[name] = np.frombuffer(body, dtype, count, begin).reshape(shape)
        begin += count * dtype.itemsize
        begin += -begin % 8
    return Frame(header, arrays)


def error_header(error: Exception) -> dict[str, Any]:
    """Describe an error in the header of a reply.

    An error that is not ours becomes a ScoringError. Its traceback is for the log only. It is not in the
    message, because clients may get the message as the reason why a model was refused.
    """
    if isinstance(error, RescorerError):
        return {"fault": type(error).__name__, "message": str(error)}
    traceback = "".join(format_exception(error))
    return {"fault": ScoringError.__name__, "message": UNEXPECTED_ERROR, "traceback": traceback}


def error_from_header(header: Mapping[str, Any]) -> RescorerError | None:
    """Rebuild the error that the header of a reply describes; None if the header describes none."""
    if "fault" not in header:
        return None
    kind = getattr(errors, header["fault"], ScoringError)
    known = isinstance(kind, type) and issubclass(kind, RescorerError)
    error = (kind if known else ScoringError)(header["message"])
    if "traceback" in header:
        error.add_note(header["traceback"])
    return error


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
                    scoring[request_id].cancel()
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


def pack_trie(trie: HypothesisTrie) -> Arrays:
    """Convert a trie to flat arrays. Words are UTF-8, one per line, because no word contains a line break."""
    words = "".join(f"{word}\n" for word in trie.words).encode("utf-8", "surrogatepass")
    contexts = [np.asarray(context, dtype=np.int64) for context in trie.contexts]
    return {
        "words": np.frombuffer(words, dtype=np.uint8),
        "contexts": np.concatenate([*contexts, np.zeros(0, dtype=np.int64)]),
        "context_lengths": np.array([len(context) for context in contexts], dtype=np.int64),
        "parent": trie.parent,
        "node_word": trie.node_word,
        "level_bounds": np.array(trie.level_bounds, dtype=np.int64),
        "hypothesis_node": trie.hypothesis_node,
        "end_nodes": trie.end_nodes,
        "confidences": np.array([value for values in trie.confidences for value in values], dtype=np.float64),
        "confidence_counts": np.array(list(map(len, trie.confidences)), dtype=np.int64),
        "flatness": np.array(trie.flatness, dtype=np.float64),
    }


def unpack_trie(arrays: Arrays) -> HypothesisTrie:
    """Rebuild the trie that ``pack_trie`` converted."""
    words = arrays["words"].tobytes().decode("utf-8", "surrogatepass").split("\n")[:-1]
    confidences = iter(arrays["confidences"].tolist())
    bounds = np.cumsum(arrays["context_lengths"])[:-1]
    return HypothesisTrie(
        words=tuple(words),
        contexts=tuple(np.split(arrays["contexts"], bounds)) if len(arrays["context_lengths"]) else (),
        parent=arrays["parent"],
        node_word=arrays["node_word"],
        level_bounds=tuple(arrays["level_bounds"].tolist()),
        hypothesis_node=arrays["hypothesis_node"],
        end_nodes=arrays["end_nodes"],
        confidences=tuple(
            tuple(islice(confidences, count)) for count in arrays["confidence_counts"].tolist()
        ),
        flatness=tuple(arrays["flatness"].tolist()),
    )


def pack_scores(scores: Mapping[str, EdgeScores]) -> Arrays:
    """Convert edge scores by model to flat arrays.

    Each model has three arrays, one more each for a neural cache and for probabilities of words if it has
    them, and one for each of its word encodings.
    """
    arrays = {f"log_probs {name}": edges.log_probs for name, edges in scores.items()}
    arrays |= {f"unknown {name}": edges.unknown for name, edges in scores.items()}
    arrays |= {f"backward {name}": np.array([edges.backward]) for name, edges in scores.items()}
    arrays |= {f"cached {name}": edges.cached for name, edges in scores.items() if edges.cached is not None}
    for name, edges in scores.items():
        if edges.word_log_probs is not None:
            arrays[f"words {name}"] = edges.word_log_probs
    return arrays | {
        f"encoding {name}/{reranker}": values  # no name contains a slash
        for name, edges in scores.items()
        for reranker, values in edges.encodings.items()
    }


def unpack_scores(arrays: Arrays) -> dict[str, EdgeScores]:
    """Rebuild the edge scores that ``pack_scores`` converted."""
    names = [name.removeprefix("log_probs ") for name in arrays if name.startswith("log_probs ")]
    encodings: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
    for key, values in arrays.items():
        if key.startswith("encoding "):
            name, _, reranker = key.removeprefix("encoding ").partition("/")
            encodings[name][reranker] = values
    return {
        name: EdgeScores(
            arrays[f"log_probs {name}"],
            arrays[f"unknown {name}"],
            encodings[name],
            bool(arrays[f"backward {name}"][0]),
            arrays.get(f"cached {name}"),
            arrays.get(f"words {name}"),
        )
        for name in names
    }


class ScoreJob(NamedTuple):
    """A trie that a worker has to score with a bundle."""

    label: str
    """The bundle, as ``name/version``."""
    trie: HypothesisTrie
    models: Sequence[str] = ()
    """Names of the models to score with; empty: all models of the bundle."""
    encoders: Sequence[str] = ()
    """Names of rerankers of the bundle, for each of which the words are encoded."""
    surface: bool = False
    """Whether the trie holds texts as they are written; see ``ScoreRequest``."""
    overtakes: bool = False
    """Whether the trie may be scored between two steps of scoring another one."""
    words: Collection[str] = ()
    """Names of the models of which probabilities of words are needed; see ``ScoreRequest``."""

    def pack(self) -> tuple[dict[str, Any], Arrays]:
        """Return the header and the arrays of the request."""
        header = {"do": SCORE, "label": self.label, "models": [*self.models], "encoders": [*self.encoders]}
        flags = {"surface": self.surface, "overtakes": self.overtakes, "words": sorted(self.words)}
        return header | flags, pack_trie(self.trie)

    @classmethod
    def unpack(cls, frame: Frame) -> ScoreJob:
        header = frame.header
        trie, surface = unpack_trie(frame.arrays), header.get("surface", False)
        overtakes, words = header.get("overtakes", False), header.get("words", [])
        return cls(header["label"], trie, header["models"], header["encoders"], surface, overtakes, words)


class WorkerScores(NamedTuple):
    """Edge scores of a trie, with the time and memory that scoring took."""

    scores: Mapping[str, EdgeScores]
    """Edge scores by name of the model."""
    seconds: Mapping[str, float]
    """Seconds by phase. Work of a GPU is counted in the phase that waits for it."""
    context_words: ContextWords
    device_bytes: Mapping[str, int]
    """Memory on a GPU in bytes, by kind; empty on a CPU."""

    def pack(self) -> tuple[dict[str, Any], Arrays]:
        """Return the header and the arrays of the reply to a ``ScoreJob``."""
        header = {
            "seconds": self.seconds,
            "context_words": asdict(self.context_words),
            "device_bytes": self.device_bytes,
        }
        return header, pack_scores(self.scores)

    @classmethod
    def unpack(cls, frame: Frame) -> WorkerScores:
        header, scores = frame.header, unpack_scores(frame.arrays)
        context_words = ContextWords(**header["context_words"])
        return cls(scores, header["seconds"], context_words, header["device_bytes"])

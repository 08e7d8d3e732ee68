"""One process that holds the models, for several processes that prepare, rank and write lists.

The workers of a job send it tries, and get edge scores back: the frames that front ends and workers of a
server exchange. Each worker waits for the scores of one batch at a time, so that there are at most as many
batches in the process as there are workers, and the next batch is received while one is scored.

The parent of all these processes owns the socket. If the process is killed, the parent starts another, and
the workers, whose connections have ended, connect again and send their tries again.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from rescorer.errors import RescorerError, ScoringError
from rescorer.frames import (
    PREFIX,
    Frame,
    ScoreJob,
    error_from_header,
    error_header,
    pack,
    pack_scores,
    parse_prefix,
    unpack,
    unpack_scores,
)
from rescorer.models.bundle import Bundle
from rescorer.pipeline import TrieScorer, find_encoders
from rescorer.runtime import keep_freed_memory, use_threads
from rescorer.signals import hold_stops, obey_only_sigterm, shield_children
from rescorer.trie import EdgeScores, HypothesisTrie, WordEncoder

SWITCH_S = 0.0005
"""Seconds after which a thread that computes lets one run that receives a message. Each read of a message
waits so long; with Python's default of 5 ms, a message of a few reads takes as long as a small batch."""
MAX_DEATHS = 3
"""Number of times that the process may end unexpectedly while no worker finishes a batch."""

LoadScorer = Callable[[], TrieScorer]
"""Loads the models. It is pickled, to be called in the process that holds them."""


class ModelProcess:
    """The process that holds the models, as its parent sees it. It runs until ``close`` is called.

    Args:
        load: loads the models.
        threads: CPU threads of the process.

    Raises:
        ScoringError: the process cannot be started.
    """

    def __init__(self, load: LoadScorer, threads: int) -> None:
        self._load, self._threads, self._deaths = load, threads, 0
        self._context = get_context("spawn")
        self._folder = TemporaryDirectory(prefix="rescorer-", ignore_cleanup_errors=True)
        self.address = str(Path(self._folder.name) / "models")
        """Path of the socket, which stays when the process is replaced."""
        self._listening = socket.socket(socket.AF_UNIX)
        try:
            self._listening.bind(self.address)
            self._listening.listen(socket.SOMAXCONN)
        except OSError as error:
            self._remove_socket()
            reason = f"{error.strerror or error}; check TMPDIR"
            raise ScoringError(
                f"cannot make the socket of the process that holds the models: {reason}"
            ) from None
        try:
            self.news = self._start()
            """Can be read when the process has failed or ended; then call ``heed``."""
        except ScoringError:
            self._remove_socket()
            raise

    @property
    def pid(self) -> int | None:
        """Id of the process."""
        return self._process.pid

    def heed(self) -> None:
        """Replace the process if it has ended unexpectedly.

        Raises:
            RescorerError: the models could not be loaded, for this reason.
            ScoringError: the process has ended too often, or cannot be replaced.
        """
        try:
            error = self.news.recv()
        except (EOFError, OSError):
            self._end()
            self._deaths += 1
            if self._deaths == MAX_DEATHS:
                raise ScoringError(
                    f"the process that holds the models ended unexpectedly {MAX_DEATHS} times without "
                    "finishing a batch, perhaps because memory ran out; try smaller batches"
                ) from None
            self.news = self._start()
        else:
            raise error

    def note_work(self) -> None:
        """Note that a batch was finished: the process works."""
        self._deaths = 0

    def close(self) -> None:
        self._end()
        self._remove_socket()

    def _start(self) -> Connection:
        try:
            ours, theirs = self._context.Pipe()
            arguments = theirs, self._listening, self._load, self._threads
            process = self._context.Process(target=_hold_models, args=arguments, daemon=True)
            ensure_running()  # as in ``ProcessPool``
            with hold_stops(), shield_children(), theirs:
                process.start()
        except OSError as error:
            reason = error.strerror or error
            raise ScoringError(f"cannot start the process that holds the models: {reason}") from None
        self._process = process
        return ours

    def _end(self) -> None:
        self.news.close()
        self._process.kill()  # it has nothing to clean up
        self._process.join()

    def _remove_socket(self) -> None:
        self._listening.close()
        self._folder.cleanup()


def _hold_models(news: Connection, listening: socket.socket, load: LoadScorer, threads: int) -> None:
    """Load the models, and answer all who connect, until the parent closes ``news`` or is gone."""
    obey_only_sigterm()
    sys.setswitchinterval(SWITCH_S)
    Thread(target=_end_with_parent, args=(news,), daemon=True).start()
    keep_freed_memory()
    use_threads(threads)
    try:
        scorer = load()
    except Exception as error:
        if not isinstance(error, RescorerError):
            error.add_note(traceback.format_exc())
        news.send(error)
        return
    scoring = ThreadPoolExecutor(1, "scoring")
    while True:
        connection, _ = listening.accept()
        Thread(target=_answer, args=(connection, scorer, scoring), daemon=True).start()


def _end_with_parent(news: Connection) -> None:
    with suppress(EOFError, OSError):
        news.recv()
    os._exit(1)


def _answer(connection: socket.socket, scorer: TrieScorer, scoring: ThreadPoolExecutor) -> None:
    """Answer the requests of a worker until it disconnects. Only ``scoring`` runs models."""
    with connection, suppress(ConnectionError):
        while True:
            frame = receive(connection)
            try:
                job = ScoreJob.unpack(frame)
                reply = pack({}, pack_scores(scoring.submit(_score, scorer, job).result()))
            except Exception as error:
                reply = pack(error_header(error))
                if not isinstance(error, RescorerError):
                    traceback.print_exc()
            connection.sendall(reply)


def _score(scorer: TrieScorer, job: ScoreJob) -> Mapping[str, EdgeScores]:
    encoders = {name: scorer.encoders[name] for name in job.encoders}
    return scorer.score(job.trie, job.models, encoders, surface=job.surface, words=job.words)


def receive(connection: socket.socket) -> Frame:
    """Receive a frame; its arrays are writable, because torch warns about read-only ones.

    Raises:
        ConnectionError: the other end has closed the connection.
        ValueError: the frame is invalid.
    """
    head_bytes, body_bytes = parse_prefix(_receive_bytes(connection, PREFIX.size))
    return unpack(_receive_bytes(connection, head_bytes), _receive_bytes(connection, body_bytes))


def _receive_bytes(connection: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    rest = memoryview(content)
    while rest:
        received = connection.recv_into(rest)
        if not received:
            raise ConnectionResetError("the connection was closed")
        rest = rest[received:]
    return content


class RemoteScorer(TrieScorer):
    """Lets the models of a ``ModelProcess`` score tries.

    Args:
        bundle: the bundle of the models, which are not loaded here.
        address: path of the socket of the process.
    """

    def __init__(self, bundle: Bundle, address: str) -> None:
        super().__init__({}, bundle.label, find_encoders(bundle), bundle.surface)
        self._address = address
        self._connection: socket.socket | None = None

    def score(
        self,
        trie: HypothesisTrie,
        only: Sequence[str] = (),
        encoders: Mapping[str, WordEncoder] | None = None,
        *,
        surface: bool = False,
        words: Collection[str] = (),
    ) -> dict[str, EdgeScores]:
        """Score a trie as ``TrieScorer.score`` does. The encoders must be those of the bundle.

        If the process that holds the models is killed meanwhile, the next one scores the trie.
        """
        job = ScoreJob(self.label, trie, only, [*(encoders or {})], surface=surface, words=words)
        request = pack(*job.pack())
        while True:  # the parent ends this process if no model process survives
            try:
                if self._connection is None:
                    self._connection = socket.socket(socket.AF_UNIX)
                    self._connection.connect(self._address)
                self._connection.sendall(request)
                frame = receive(self._connection)
                break
            except ConnectionError:
                self.close()
        if error := error_from_header(frame.header):
            raise error
        return unpack_scores(frame.arrays)

    def close(self) -> None:
        """Close the connection; ``score`` opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

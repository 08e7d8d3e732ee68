"""Rescore batches of lists in several processes, each with its own copy of the models.

Rescore batches of lists in several processes, each with its own copy of the models.

The parent process reads the lists, distributes batches, and writes the results in input order. On CPUs,
several processes with one thread each are faster than one process with several threads, whose small matrix
products wait for one another and for Python's interpreter lock. On a GPU, the host work of one process
overlaps with the kernels of another. Processes are spawned, because torch's threads do not survive a fork.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import fields
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any, NamedTuple

from rescorer.errors import ScoringError
from rescorer.jobs.files import Batch, BatchRescorer, BatchResults, LocalRescorer, select_lists
from rescorer.runtime import count_cpus, keep_freed_memory, use_threads
from rescorer.types import Hypothesis, NBestList

MAX_BATCH_WORDS = 16_384
"""Maximum number of words per batch: enough for large matrix products, and few enough that all processes are
busy until the end of a file."""
LIST_ATTRIBUTES = [item.name for item in fields(NBestList)[2:]]
"""All but the id and the hypotheses."""
BATCHES_PER_PROCESS = 2
"""Number of batches submitted per process at a time: one is rescored while the other waits."""


class ProcessPoolRescorer:
    """Rescores batches of lists in several processes; a context manager that ends them.

    The processes start with the first batches; each loads its models when it receives its first batch.

    Args:
        load: loads the models; called once in each process.
        count: number of processes.
        threads: CPU threads per process; 0: divide the cores among the processes.
        batch_words: approximate number of words per batch, at most ``MAX_BATCH_WORDS``.
    """

    def __init__(
        self,
        load: Callable[[], LocalRescorer],
        count: int,
        threads: int = 0,
        batch_words: int = MAX_BATCH_WORDS,
    ) -> None:
        self.batch_words = min(batch_words, MAX_BATCH_WORDS)
        self.count = count
        context = get_context("spawn")
        lifeline, self._lifeline = context.Pipe(duplex=False)
        arguments = (load, threads or max(1, count_cpus() // count), lifeline)
        self._pool = ProcessPoolExecutor(count, context, _initialise_process, arguments)

    def __enter__(self) -> ProcessPoolRescorer:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        if kind is not None:  # nobody needs the results of batches in progress
            for process in list((self._pool._processes or {}).values()):
                process.terminate()
        self._pool.shutdown(cancel_futures=True)
        self._lifeline.close()

    def rescore_batches(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, BatchResults]]:
        """Yield each batch with its results, in input order.

        Raises:
            ScoringError: a process could not be started, or ended unexpectedly.
            RescorerError: any error raised in a process, such as BundleError.
        """
        submitted: deque[tuple[Batch, Future[BatchResults]]] = deque()
        try:
            for batch in batches:
                submitted.append((batch, self._submit(batch)))
                if len(submitted) > BATCHES_PER_PROCESS * self.count:
                    yield _wait_for_results(*submitted.popleft())
            while submitted:
                yield _wait_for_results(*submitted.popleft())
        except BrokenProcessPool:
            raise ScoringError(
                f"one of {self.count} scoring processes ended unexpectedly, perhaps because memory ran out; "
                "each process loads its own copy of the models, so try fewer"
            ) from None

    def _submit(self, batch: Batch) -> Future[BatchResults]:
        packed = [pack(nbest) for nbest in select_lists(batch)]
        try:
            return self._pool.submit(_rescore_packed, packed)
        except OSError as error:
            reason = error.strerror or error
            raise ScoringError(f"cannot start {self.count} scoring processes: {reason}") from None


def _wait_for_results(batch: Batch, results: Future[BatchResults]) -> tuple[Batch, BatchResults]:
    return batch, results.result()


@contextmanager
def open_rescorer(
    load: Callable[[], LocalRescorer], count: int, threads: int, batch_words: int
) -> Iterator[BatchRescorer]:
    """Provide a rescorer that runs in this process if ``count`` is 1, otherwise in ``count`` other processes.

    Args:
        load: loads the models; called once in each process.
        threads: CPU threads per process; 0: divide the cores among the processes.
        batch_words: approximate number of words per batch in other processes.
    """
    if count == 1:
        keep_freed_memory()
        use_threads(threads)
        local = load()
        with spare_existing_objects():
            yield local
    else:
        with ProcessPoolRescorer(load, count, threads, batch_words) as rescorer:
            yield rescorer


@contextmanager
def spare_existing_objects() -> Iterator[None]:
    """Keep the garbage collector away from all that exists now, such as the objects of torch and the models.

    Lists and their answers cause a full collection every few batches, and each would take 0.1 s longer.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class PackedList(NamedTuple):
    """A list stored by columns, which is ten times as fast to pickle as a hundred hypothesis objects."""

    id: str
    texts: list[str]
    fields: list[Mapping[str, Any]]
    """Fields of each hypothesis; empty if no hypothesis has any."""
    partial: list[bool]
    """Whether each hypothesis is partial; empty if none is."""
    list_attributes: tuple[Any, ...]
    """The other attributes of the list, in their order."""


def pack(nbest: NBestList) -> PackedList:
    """Convert a list for sending it to another process."""
    client_fields = [hypothesis.fields for hypothesis in nbest.hypotheses]
    partial = [hypothesis.partial for hypothesis in nbest.hypotheses]
    return PackedList(
        nbest.id,
        [hypothesis.text for hypothesis in nbest.hypotheses],
        client_fields if any(client_fields) else [],
        partial if any(partial) else [],
        tuple(getattr(nbest, name) for name in LIST_ATTRIBUTES),
    )


def unpack(packed: PackedList) -> NBestList:
    """Restore a list from its packed form."""
    n = len(packed.texts)
    columns = packed.texts, packed.fields or [{}] * n, packed.partial or [False] * n
    return NBestList(packed.id, tuple(map(Hypothesis, *columns)), *packed.list_attributes)


# State of a scoring process.
_load: Callable[[], LocalRescorer] | None = None
_rescorer: LocalRescorer | None = None


def _initialise_process(load: Callable[[], LocalRescorer], threads: int, lifeline: Connection) -> None:
    """Prepare a new process, and make it exit when the parent's end of ``lifeline`` is closed."""
    global _load
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its processes
    Thread(target=exit_when_closed, args=(lifeline,), daemon=True).start()
    keep_freed_memory()
    use_threads(threads)
    _load = load


def exit_when_closed(lifeline: Connection) -> None:
    """Exit when the parent does; if it is killed, the pool would wait forever with models in memory."""
    with suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def _rescore_packed(lists: Sequence[PackedList]) -> BatchResults:
    global _rescorer
    if _rescorer is None and _load is not None:
        _rescorer = _load()  # not in _initialise_process, whose errors the pool does not pass on
        gc.freeze()  # as in spare_existing_objects
    assert _rescorer is not None
    return _rescorer.rescore([unpack(packed) for packed in lists])

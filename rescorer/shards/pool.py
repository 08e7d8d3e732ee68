"""Run many shards in several processes of one machine, which are replaced if they are killed."""

from __future__ import annotations

import signal
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any, NamedTuple

from rescorer.cpu_count import count_cpus
from rescorer.errors import ConfigError, InputError, ModelError, RescorerError, ScoringError
from rescorer.files.parallel import exit_when_closed, open_rescorer, spare_existing_objects
from rescorer.files.rescoring import BatchRescorer, FileSummary
from rescorer.lm.malloc import keep_freed_memory
from rescorer.shards.plan import Plan, read_plan
from rescorer.shards.record import Record
from rescorer.shards.store import OutputError, Store
from rescorer.shards.worker import Job, OnBatch, load_planned, run_shard

MAX_DEATHS = 3
"""Number of times that a worker may be killed at one shard before the shard is given up."""
END_S = 10
"""Seconds for which workers that have nothing left to do may take to end."""


class Finished(NamedTuple):
    """A shard that was committed, by this call or another one, or that failed."""

    shard: int
    result: Record | RescorerError


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    shard: int | None = None
    """The shard that it runs."""
    reported: FileSummary = field(default_factory=FileSummary)


def run_shards(
    store: Store, shards: Iterable[int], job: Job, workers: int, threads: int, on_batch: OnBatch
) -> Iterator[Finished]:
    """Run shards of the plan of a store; yield each when it is committed or has failed.

    A shard that fails does not stop the others, unless it would happen to all.

    Args:
        workers: number of processes; 1: this one.
        threads: CPU threads of each process; 0: divide the cores among them.
        on_batch: called after each batch, with its number of items and the summary of its shard so far.

    Raises:
        ConfigError, ModelError: the models cannot be loaded, or are not those of the plan.
    """
    if workers == 1:
        yield from _run_here(store, shards, job, threads, on_batch)
        return
    pool = _Pool(store, job, threads or max(1, count_cpus() // workers), on_batch)
    try:
        yield from pool.run(deque(shards), workers)
    finally:
        pool.end()


def _run_here(
    store: Store, shards: Iterable[int], job: Job, threads: int, on_batch: OnBatch
) -> Iterator[Finished]:
    plan, fingerprint = read_plan(store)
    with open_rescorer(lambda: load_planned(plan, job.load), 1, threads, 0) as rescorer:
        for index in shards:
            try:
                record, _ = run_shard(store, plan, fingerprint, index, job, rescorer, on_batch)
                yield Finished(index, record)
            except InputError as error:
                if not is_local(error):
                    raise
                yield Finished(index, error)


def is_local(error: RescorerError) -> bool:
    """Whether an error is one of a single shard, so that others may succeed."""
    return isinstance(error, InputError) and not isinstance(error, OutputError)


class _Pool:
    """The workers, and the shards that they run."""

    def __init__(self, store: Store, job: Job, threads: int, on_batch: OnBatch) -> None:
        self._context = get_context("spawn")  # torch's threads do not survive a fork
        self._lifeline, self._own_lifeline = self._context.Pipe(duplex=False)
        self._arguments = store, job, threads, self._lifeline
        self._on_batch = on_batch
        self._workers: dict[Connection, _Worker] = {}
        self._deaths: Counter[int] = Counter()

    def run(self, shards: deque[int], count: int) -> Iterator[Finished]:
        """Keep up to ``count`` workers busy until all shards are done."""
        while shards or any(worker.shard is not None for worker in self._workers.values()):
            while shards and len(self._workers) < count:
                self._start()
            for worker in self._workers.values():
                if worker.shard is None and shards:
                    self._give(worker, shards)
            for connection in wait(list(self._workers)):
                assert isinstance(connection, Connection)
                worker = self._workers[connection]
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    yield from self._bury(worker, shards)
                else:
                    yield from self._handle(worker, message)

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        try:
            process.start()
        except OSError as error:
            raise ScoringError(f"cannot start another worker: {error.strerror or error}") from None
        theirs.close()
        self._workers[ours] = _Worker(process, ours)

    def _give(self, worker: _Worker, shards: deque[int]) -> None:
        worker.shard, worker.reported = shards.popleft(), FileSummary()
        with suppress(OSError):  # it was killed, which `run` finds next
            worker.connection.send(worker.shard)

    def _handle(self, worker: _Worker, message: Any) -> Iterator[Finished]:
        if isinstance(message, tuple):
            self._on_batch(*message)
            return
        if isinstance(message, RescorerError) and not is_local(message):
            raise message
        assert worker.shard is not None
        shard, worker.shard = worker.shard, None
        yield Finished(shard, message)

    def _bury(self, worker: _Worker, shards: deque[int]) -> Iterator[Finished]:
        """Put the shard of a worker that was killed back to the others, or give it up."""
        del self._workers[worker.connection]
        worker.connection.close()
        worker.process.join()
        if (shard := worker.shard) is None:
            return
        self._deaths[shard] += 1
        if self._deaths[shard] < MAX_DEATHS:
            shards.appendleft(shard)
            return
        message = (
            f"shard {shard}: its worker ended unexpectedly {MAX_DEATHS} times, perhaps for want of memory; "
            "each worker has its own copy of the models, so try fewer"
        )
        yield Finished(shard, ScoringError(message))

    def end(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            if worker.shard is not None:
                worker.process.terminate()
            worker.connection.close()
        for worker in self._workers.values():
            worker.process.join(END_S)
            worker.process.kill()
            worker.process.join()
        self._own_lifeline.close()


def _serve(connection: Connection, store: Store, job: Job, threads: int, lifeline: Connection) -> None:
    """Run the shards whose numbers arrive, until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    Thread(target=exit_when_closed, args=(lifeline,), daemon=True).start()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            plan, fingerprint = read_plan(store)
            from rescorer.lm.device import use_threads  # imports torch, which the parent does not need

            keep_freed_memory()
            use_threads(threads)
            rescorer = load_planned(plan, job.load)
        except (ConfigError, ModelError, InputError) as error:
            connection.send(ConfigError(str(error)) if isinstance(error, InputError) else error)
            return
        with spare_existing_objects():
            while True:
                index = connection.recv()
                connection.send(_run(store, plan, fingerprint, index, job, rescorer, connection))


def _run(
    store: Store,
    plan: Plan,
    fingerprint: str,
    index: int,
    job: Job,
    rescorer: BatchRescorer,
    connection: Connection,
) -> Record | RescorerError:
    def report(n_items: int, summary: FileSummary) -> None:
        connection.send((n_items, summary))

    try:
        return run_shard(store, plan, fingerprint, index, job, rescorer, report)[0]
    except RescorerError as error:
        return error

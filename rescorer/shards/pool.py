"""Run many shards in several processes of one machine, which are replaced if they are killed."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any

from rescorer.errors import ConfigError, InputError, ModelError, RescorerError, ScoringError
from rescorer.files.parallel import exit_when_closed, open_rescorer, spare_existing_objects
from rescorer.files.rescoring import FileSummary
from rescorer.runtime.cpu_count import count_cpus
from rescorer.shards.due import DueShards, Finished, is_local
from rescorer.shards.planning.plan import read_plan
from rescorer.shards.runner import ShardRunner
from rescorer.shards.store import Store
from rescorer.shards.worker import Job, OnBatch, load_planned, run_shard

END_S = 10
"""Seconds for which workers that have nothing left to do may take to end."""


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
        yield from pool.run(DueShards(shards), workers)
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


class _Pool:
    """The workers, and the shards that they run."""

    def __init__(self, store: Store, job: Job, threads: int, on_batch: OnBatch) -> None:
        self._context = get_context("spawn")  # torch's threads do not survive a fork
        self._lifeline, self._own_lifeline = self._context.Pipe(duplex=False)
        self._arguments = store, job, threads, self._lifeline
        self._on_batch = on_batch
        self._workers: dict[Connection, _Worker] = {}

    def run(self, shards: DueShards, count: int) -> Iterator[Finished]:
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

    def _give(self, worker: _Worker, shards: DueShards) -> None:
        worker.shard, worker.reported = shards.take(), FileSummary()
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

    def _bury(self, worker: _Worker, shards: DueShards) -> Iterator[Finished]:
        """Put the shard of a worker that was killed back to the others, or give it up."""
        del self._workers[worker.connection]
        worker.connection.close()
        worker.process.join()
        if worker.shard is not None and (given_up := shards.put_back(worker.shard)) is not None:
            yield given_up

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

    def report(n_items: int, summary: FileSummary) -> None:
        connection.send((n_items, summary))

    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        try:
            runner = ShardRunner.load(store, job, threads)
        except (ConfigError, ModelError) as error:
            connection.send(error)
            return
        with spare_existing_objects():
            while True:
                connection.send(runner.run(connection.recv(), report))

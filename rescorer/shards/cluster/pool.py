"""Give the shards of a plan to the actors of a cluster as they become free, and replace actors that die."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from rescorer.errors import ConfigError, ModelError, RescorerError, ScoringError
from rescorer.shards.cluster.actor import Progress, ShardActor
from rescorer.shards.cluster.connection import Cluster, connect, describe_shortage
from rescorer.shards.due import MAX_DEATHS, DueShards, Finished, is_local
from rescorer.shards.record import Record
from rescorer.shards.store import Store
from rescorer.shards.worker import Job, OnBatch

REPORT_S = 1.0
"""Seconds between the reports of an actor, of up to MAX_REPORT_RATE actors."""
MAX_REPORT_RATE = 100
"""Largest number of reports per second, of all actors together."""


def run_on_cluster(
    store: Store, shards: Iterable[int], job: Job, cluster: Cluster, on_batch: OnBatch
) -> Iterator[Finished]:
    """Run shards of the plan of a store; yield each when it is committed or has failed.

    The counterpart of ``rescorer.shards.pool.run_shards``. Store, job, models and inputs must mean the same
    on all nodes. The actors end with this process.

    Args:
        on_batch: called for each report of an actor, with the number of items since the one before and the
            summary of its shard so far.

    Raises:
        ConfigError: there is no such cluster, it lacks the resources of a worker, or the models cannot be
            loaded or are not those of the plan.
        ModelError: the same for models.
        ScoringError: workers end before they have loaded the models, or the cluster fails.
    """
    due = DueShards(shards)
    if not due:
        return
    cluster = replace(
        cluster, workers=min(cluster.workers, len(due))
    )  # a Ray started here makes room for all
    with connect(cluster) as ray:
        pool = _Pool(ray, store, job, cluster, on_batch)
        try:
            yield from pool.run(due)
        except ray.exceptions.RayError as error:
            message = f"Ray reports: {error}; --resume goes on with what is committed"
            raise ScoringError(message) from error
        finally:
            pool.end()


@dataclass(slots=True, eq=False)
class _Worker:
    actor: Any
    node: str = ""
    """Name of its node; empty as long as it waits for resources."""
    is_ready: bool = False
    """Whether it has loaded the models."""
    shard: int | None = None
    """The shard that it runs."""
    is_asked: bool = False
    """Whether a report is awaited."""


class _Pool:
    """The actors, and the calls whose results are awaited."""

    def __init__(self, ray: ModuleType, store: Store, job: Job, cluster: Cluster, on_batch: OnBatch) -> None:
        self._ray, self._cluster, self._on_batch = ray, cluster, on_batch
        self._arguments = os.getcwd(), store, job, cluster.cpus
        self._actor_class = ray.remote(ShardActor).options(
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            max_concurrency=2,  # it reports while it runs a shard
            max_restarts=0,
            scheduling_strategy="SPREAD",
        )
        self._count = cluster.workers or max(1, cluster.count_fitting(ray.nodes()))
        self._report_s = max(REPORT_S, self._count / MAX_REPORT_RATE)
        self._workers: set[_Worker] = set()
        self._calls: dict[Any, tuple[_Worker, str]] = {}
        self._failed_starts = 0
        self._placed_at = time.monotonic()

    def run(self, due: DueShards) -> Iterator[Finished]:
        """Keep the actors busy until all shards are done; each has one shard at a time."""
        while due or any(worker.shard is not None for worker in self._workers):
            n_busy = sum(worker.shard is not None for worker in self._workers)
            while len(self._workers) < min(self._count, n_busy + len(due)):
                self._start()
            for worker in self._workers:
                if due and worker.is_ready and worker.shard is None:
                    worker.shard = due.take()
                    self._call(worker, "run", worker.shard)
                if worker.shard is not None and not worker.is_asked:
                    worker.is_asked = True
                    self._call(worker, "report", self._report_s)
            for reference in self._wait():
                if reference in self._calls:  # not of an actor that is known to be dead
                    yield from self._receive(reference, due)
            self._check_resources()

    def _start(self) -> None:
        worker = _Worker(self._actor_class.remote(*self._arguments))
        self._workers.add(worker)
        self._call(worker, "find_node")
        self._call(worker, "load")

    def _call(self, worker: _Worker, method: str, *arguments: Any) -> None:
        self._calls[getattr(worker.actor, method).remote(*arguments)] = worker, method

    def _wait(self) -> list[Any]:
        """Wait a second for results; return the calls that have one, reports before the ends of shards."""
        references = list(self._calls)
        if not self._ray.wait(references, timeout=1.0)[0]:
            return []
        ready = self._ray.wait(references, num_returns=len(references), timeout=0)[0]
        return sorted(ready, key=lambda reference: self._calls[reference][1] != "report")

    def _receive(self, reference: Any, due: DueShards) -> Iterator[Finished]:
        worker, method = self._calls.pop(reference)
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            yield from self._bury(worker, due, error)
            return
        if method == "find_node":
            worker.node = answer
        elif method == "load":
            self._note_loaded(worker, answer)
        elif method == "report":
            worker.is_asked = False
            self._on_batch(*answer)
        else:
            yield self._finish(worker, *answer)

    def _note_loaded(self, worker: _Worker, error: RescorerError | None) -> None:
        if error is not None:
            paths = "inputs, models and output must be at the same paths on all nodes"
            message = f"worker on node {worker.node}: {error} ({paths})"
            raise ModelError(message) if isinstance(error, ModelError) else ConfigError(message)
        worker.is_ready, self._failed_starts = True, 0

    def _finish(self, worker: _Worker, result: Record | RescorerError, progress: Progress) -> Finished:
        self._on_batch(*progress)
        if isinstance(result, RescorerError) and not is_local(result):
            raise result
        assert worker.shard is not None
        shard, worker.shard = worker.shard, None
        return Finished(shard, result)

    def _bury(self, worker: _Worker, due: DueShards, error: Exception) -> Iterator[Finished]:
        """Forget an actor that died; put its shard back to the others, or give it up."""
        self._workers.remove(worker)
        self._calls = {call: value for call, value in self._calls.items() if value[0] is not worker}
        self._ray.kill(worker.actor)  # it may live and only be out of reach
        if worker.shard is not None:
            if (given_up := due.put_back(worker.shard)) is not None:
                yield given_up
        elif not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts == MAX_DEATHS:
                message = f"{MAX_DEATHS} workers ended before they had loaded the models: {error}"
                raise ScoringError(message)

    def _check_resources(self) -> None:
        """Raise ConfigError if no actor has had its resources for too long."""
        if any(worker.node for worker in self._workers):
            self._placed_at = time.monotonic()
        elif time.monotonic() - self._placed_at > self._cluster.wait_s:
            shortage = describe_shortage(self._ray, self._cluster)
            raise ConfigError(f"{shortage}; after {self._cluster.wait_s:g} s (--wait-s)")

    def end(self) -> None:
        """End all actors."""
        for worker in self._workers:
            self._ray.kill(worker.actor)

"""Run shards on a Ray cluster: workers on its nodes load the models once, and run one shard after another.

The shards to run and the resources of each worker come in; committed and failed shards come out. A worker is
a Ray actor: an object that lives in a process of the cluster, and whose methods are called from this process.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from threading import Condition
from types import ModuleType
from typing import Any

from rescorer.errors import ConfigError, ModelError, RescorerError, ScoringError
from rescorer.jobs.files import FileSummary
from rescorer.jobs.shards import MAX_DEATHS, DueShards, Finished, Job, OnBatch, ShardRunner, finish
from rescorer.jobs.store import Record, Store
from rescorer.runtime import count_cpus
from rescorer.signals import keep_sigterm

ADDRESS = re.compile(r"auto|(ray://)?(?P<host>[^\s:/@]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
CONNECT_S = 5.0
"""Longest time, in seconds, that a cluster may take to accept a connection."""
OBJECT_STORE_BYTES = 80 << 20
"""Memory for shared objects, if Ray is started on this machine. It is nearly the least that Ray accepts,
which is enough because workers send only counts."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster, and the resources that each worker needs.

    Args:
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; empty: start Ray on this machine.
        workers: number of workers; 0: as many as fit.
        cpus: number of CPUs of each worker, which uses as many threads.
        gpus: share of a GPU that each worker gets.
        wait_s: seconds to wait until the cluster has room for the first worker.
    """

    address: str = ""
    workers: int = 0
    cpus: int = 1
    gpus: float = 0.0
    wait_s: float = 60.0

    @property
    def request(self) -> str:
        """The resources that a worker needs, in words for messages."""
        return f"{self.cpus} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")

    def count_fitting(self, nodes: list[dict[str, Any]]) -> int:
        """The number of workers that fit on the nodes of a cluster if nothing else runs there."""
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        counts = [int(resources.get("CPU", 0)) // self.cpus for resources in alive]
        if self.gpus:
            per_gpu = int(1 / self.gpus + 1e-6)
            counts = [
                min(count, int(resources.get("GPU", 0)) * per_gpu)
                for count, resources in zip(counts, alive, strict=True)
            ]
        return sum(counts)


def import_ray() -> ModuleType:
    """Import Ray, an optional package; raise ConfigError if it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_DISABLE_FAILURE_SIGNAL_HANDLER"] = "1"  # SIGTERM ends the command, without a stack trace
    try:
        import ray
    except ModuleNotFoundError:
        raise _missing_ray() from None
    return ray


def _missing_ray() -> ConfigError:
    return ConfigError("--engine ray needs Ray, which is not installed: pip install 'rescorer[ray]'")


def check_address(address: str) -> None:
    """Raise ConfigError if the address of a cluster is malformed."""
    if address and not ADDRESS.fullmatch(address):
        raise ConfigError(f"--address {address}: expected auto, HOST:PORT or ray://HOST:PORT")


def check_reachable(address: str) -> None:
    """Check that a cluster accepts connections, without joining it: Ray itself would try for a minute.

    Raises:
        ConfigError: Ray is not installed, or nothing accepts connections at ``HOST:PORT``.
    """
    if find_spec("ray") is None:
        raise _missing_ray()
    address = _resolve(address)
    if not ((match := ADDRESS.fullmatch(address)) and match["host"]):
        return
    try:
        socket.create_connection((match["host"].strip("[]"), int(match["port"])), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        message = "no Ray cluster answers there; is its head running, and the port that of `ray start`?"
        raise ConfigError(f"--address {address}: {reason}: {message}") from None


def _resolve(address: str) -> str:
    """Replace ``auto`` by the address in the environment variable RAY_ADDRESS, if it is set."""
    return os.environ.get("RAY_ADDRESS", address) if address == "auto" else address


@contextmanager
def connect(cluster: Cluster) -> Iterator[ModuleType]:
    """Connect to a cluster, or start Ray on this machine, until the end of the block.

    Yields:
        The module ``ray``.

    Raises:
        ConfigError: Ray is not installed, nothing answers at the address, or a worker needs more than this
            machine has.
        ScoringError: Ray cannot be started, or refuses the connection.
    """
    with _join(cluster.address) if cluster.address else _start(cluster) as ray:
        try:
            if not cluster.address and not cluster.count_fitting(ray.nodes()):
                raise ConfigError(describe_shortage(ray, cluster))
            yield ray
        finally:
            ray.shutdown()


def measure_start_s(cluster: Cluster) -> float:
    """Return the seconds on the clock in which Ray starts or joins the cluster, runs an empty task, and ends.

    Raises:
        ConfigError, ScoringError: as ``connect``.
    """
    before = time.monotonic()
    with connect(cluster) as ray:
        ray.get(ray.remote(_do_nothing).remote())
    return time.monotonic() - before


def _do_nothing() -> None:
    pass


@contextmanager
def _join(address: str) -> Iterator[ModuleType]:
    check_reachable(address)
    address = _resolve(address)
    os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")  # to reach the head, of 40 s each; 20 otherwise
    ray = import_ray()
    try:
        with keep_sigterm():
            ray.init(address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        message = "is its port that of `ray start`, and do RAY_AUTH_MODE and RAY_AUTH_TOKEN hold here, too?"
        raise ConfigError(
            f"--address {address}: no Ray cluster that lets us in: {error}; {message}"
        ) from None
    except Exception as error:  # Ray raises many kinds, also plain ones
        reason = " ".join(str(error).split())  # of different versions, on several lines
        raise ScoringError(f"--address {address}: cannot join the Ray cluster: {reason}") from error
    yield ray


@contextmanager
def _start(cluster: Cluster) -> Iterator[ModuleType]:
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # its ports are open to the network
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray = import_ray()
    workers = cluster.workers or max(1, count_cpus() // cluster.cpus)
    with TemporaryDirectory(prefix="rescorer-ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        try:
            with keep_sigterm():
                ray.init(
                    "local",
                    num_cpus=workers * cluster.cpus,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level="ERROR",
                    object_store_memory=OBJECT_STORE_BYTES,
                    _temp_dir=folder,
                )
        except Exception as error:  # Ray raises many kinds, also plain ones
            message = "if this machine is very busy, repeat the command, or leave --engine ray out"
            raise ScoringError(f"Ray cannot be started here: {error}; {message}") from error
        yield ray


def describe_shortage(ray: ModuleType, cluster: Cluster) -> str:
    """Say which resources a worker needs, and which the cluster has."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    largest: dict[str, float] = max(
        nodes, key=lambda node: (node.get("GPU", 0), node.get("CPU", 0)), default={}
    )
    free = ray.available_resources()
    return (
        f"no worker can start: each asks for {cluster.request}; the cluster has {len(nodes):,} "
        f"{'node' if len(nodes) == 1 else 'nodes'}, the largest with {_describe(largest)}, and "
        f"{_describe(free)} are free now"
    )


def _describe(resources: dict[str, float]) -> str:
    return f"{resources.get('CPU', 0):g} CPU and {resources.get('GPU', 0):g} GPU"


Progress = tuple[int, FileSummary]
"""Number of items (lists and errors) since the last report, and the summary of the shard so far."""


class ShardActor:
    """Runs shards in a process of a cluster; ``report`` may be called while ``run`` works.

    Args:
        folder: working folder of the command, because names of files may be relative to this folder.
        threads: CPU threads of the process.
    """

    def __init__(self, folder: str, store: Store, job: Job, threads: int) -> None:
        self._folder, self._runner = folder, ShardRunner(store, job, threads)
        self._changed = Condition()
        self._n_items, self._summary = 0, FileSummary()
        self._is_running = False

    def find_node(self) -> str:
        """The name of the worker's node. If this call returns, the worker has got its resources."""
        return socket.gethostname()

    def load(self) -> RescorerError | None:
        """Load the models; return an error if this is impossible."""
        with suppress(OSError):  # only relative names need it; if it is missing, their errors say so
            os.chdir(self._folder)
        try:
            self._runner.load()
        except (ConfigError, ModelError) as error:
            return error
        return None

    def run(self, index: int) -> tuple[Record | RescorerError, Progress]:
        """Run a shard; return its record or error, and the progress since the last report."""
        with self._changed:
            self._n_items, self._summary, self._is_running = 0, FileSummary(), True
        result = self._runner.run(index, self._note)
        with self._changed:
            self._is_running = False
            self._changed.notify_all()
        return result, self._take()

    def report(self, wait_s: float) -> Progress:
        """Wait for some time, or until the shard is done; return the progress since the last report."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running, wait_s)
        return self._take()

    def _note(self, n_items: int, summary: FileSummary) -> None:
        with self._changed:
            self._n_items, self._summary = self._n_items + n_items, summary

    def _take(self) -> Progress:
        with self._changed:
            n_items, self._n_items = self._n_items, 0
            return n_items, self._summary


REPORT_S = 1.0
"""Seconds between two reports of a worker, but more if there are more than ``MAX_REPORT_RATE`` workers."""
MAX_REPORT_RATE = 100
"""Largest number of reports per second from all workers together."""


def run_on_cluster(
    store: Store, shards: Iterable[int], job: Job, cluster: Cluster, on_batch: OnBatch
) -> Iterator[Finished]:
    """Run shards of the plan of a store; yield each when it is committed or has failed.

    On this machine, ``rescorer.jobs.shards.run_shards`` does the same. The paths of the store,
    the models and the inputs must be the same on all nodes. The workers end when this process ends.

    Args:
        on_batch: called for each report of a worker, with the number of items since its last report and the
            summary of its shard so far.

    Raises:
        ConfigError: there is no such cluster, or it has no room for a worker.
        ConfigError, ModelError: the models cannot be loaded, or are not those of the plan.
        ScoringError: workers end before they have loaded the models, or the cluster fails.
    """
    due = DueShards(shards)
    if not due:
        return
    # A Ray started here makes room for all workers.
    cluster = replace(cluster, workers=min(cluster.workers, len(due)))
    with connect(cluster) as ray:
        pool = _ActorPool(ray, store, job, cluster, on_batch)
        try:
            yield from pool.run(due)
        except ray.exceptions.RayError as error:
            message = f"Ray reports: {error}; --resume goes on with what is committed"
            raise ScoringError(message) from error
        finally:
            pool.end()


@dataclass(slots=True, eq=False)
class _ActorWorker:
    actor: Any
    node: str = ""
    """Name of the worker's node; empty while the worker waits for resources."""
    is_ready: bool = False
    """Whether the worker has loaded the models."""
    shard: int | None = None
    """The shard that the worker runs."""
    is_asked: bool = False
    """Whether the worker has been asked for a report that has not come yet."""


class _ActorPool:
    """The workers on a cluster, and the calls to which they have not answered yet."""

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
        self._workers: set[_ActorWorker] = set()
        self._calls: dict[Any, tuple[_ActorWorker, str]] = {}
        self._failed_starts = 0
        self._placed_at = time.monotonic()

    def run(self, due: DueShards) -> Iterator[Finished]:
        """Keep the workers busy until all shards are done; each runs one shard at a time."""
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
                if reference in self._calls:  # else the call went to an actor that is known to be dead
                    yield from self._receive(reference, due)
            self._check_resources()

    def _start(self) -> None:
        worker = _ActorWorker(self._actor_class.remote(*self._arguments))
        self._workers.add(worker)
        self._call(worker, "find_node")
        self._call(worker, "load")

    def _call(self, worker: _ActorWorker, method: str, *arguments: Any) -> None:
        self._calls[getattr(worker.actor, method).remote(*arguments)] = worker, method

    def _wait(self) -> list[Any]:
        """Wait for up to a second; return the answered calls, reports first."""
        references = list(self._calls)
        if not self._ray.wait(references, timeout=1.0)[0]:
            return []
        ready = self._ray.wait(references, num_returns=len(references), timeout=0)[0]
        return sorted(ready, key=lambda reference: self._calls[reference][1] != "report")

    def _receive(self, reference: Any, due: DueShards) -> Iterator[Finished]:
        if reference not in self._calls:  # the name of a node that was waited for
            return
        worker, method = self._calls.pop(reference)
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            yield from self._bury(worker, due, error)
            return
        if method == "find_node":
            worker.node = answer
        elif method == "load":
            self._learn_node(worker)
            self._note_loaded(worker, answer)
        elif method == "report":
            worker.is_asked = False
            self._on_batch(*answer)
        else:
            yield self._finish(worker, *answer)

    def _learn_node(self, worker: _ActorWorker) -> None:
        """Store the name of a worker's node, which may arrive only after the models are loaded."""
        for reference, (asked, method) in list(self._calls.items()):
            if asked is worker and method == "find_node":
                del self._calls[reference]
                worker.node = self._ray.get(reference)

    def _note_loaded(self, worker: _ActorWorker, error: RescorerError | None) -> None:
        if error is not None:
            paths = "inputs, models and output must be at the same paths on all nodes"
            message = f"worker on node {worker.node}: {error} ({paths})"
            raise ModelError(message) if isinstance(error, ModelError) else ConfigError(message)
        worker.is_ready, self._failed_starts = True, 0

    def _finish(self, worker: _ActorWorker, result: Record | RescorerError, progress: Progress) -> Finished:
        self._on_batch(*progress)
        assert worker.shard is not None
        shard, worker.shard = worker.shard, None
        return finish(shard, result)

    def _bury(self, worker: _ActorWorker, due: DueShards, error: Exception) -> Iterator[Finished]:
        """Remove a worker that died; put its shard back or, after ``MAX_DEATHS``, give it up."""
        self._workers.remove(worker)
        self._calls = {call: value for call, value in self._calls.items() if value[0] is not worker}
        self._ray.kill(worker.actor)  # the actor may still live, out of reach
        if worker.shard is not None:
            if (given_up := due.put_back(worker.shard)) is not None:
                yield given_up
        elif not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts == MAX_DEATHS:
                message = f"{MAX_DEATHS} workers ended before they had loaded the models: {error}"
                raise ScoringError(message)

    def _check_resources(self) -> None:
        """Raise ConfigError if all workers have been waiting for resources for too long."""
        if any(worker.node for worker in self._workers):
            self._placed_at = time.monotonic()
        elif time.monotonic() - self._placed_at > self._cluster.wait_s:
            shortage = describe_shortage(self._ray, self._cluster)
            raise ConfigError(f"{shortage}; after {self._cluster.wait_s:g} s (--wait-s)")

    def end(self) -> None:
        """End all workers."""
        for worker in self._workers:
            self._ray.kill(worker.actor)

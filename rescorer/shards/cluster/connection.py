"""Connect to a Ray cluster, or start Ray on this machine, within bounded time."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from rescorer.errors import ConfigError, ScoringError
from rescorer.runtime.cpu_count import count_cpus
from rescorer.runtime.signals import keep_sigterm

ADDRESS = re.compile(r"auto|(ray://)?(?P<host>[^\s:/@]+|\[[0-9a-fA-F:]+\]):(?P<port>[0-9]{1,5})")
CONNECT_S = 5.0
"""Seconds for which a cluster may take to accept a connection."""
OBJECT_STORE_BYTES = 80 << 20
"""Memory for objects of a Ray started here, near the smallest that Ray accepts: only numbers travel."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster, and what each worker asks of it.

    Args:
        address: ``auto``, ``HOST:PORT`` or ``ray://HOST:PORT``; empty: start Ray on this machine.
        workers: number of workers; 0: as many as fit.
        cpus: CPUs of each worker, also its number of threads.
        gpus: share of a GPU of each worker.
        wait_s: seconds to wait until the cluster has the resources of a worker.
    """

    address: str = ""
    workers: int = 0
    cpus: int = 1
    gpus: float = 0.0
    wait_s: float = 60.0

    @property
    def request(self) -> str:
        """What a worker asks for, in words."""
        return f"{self.cpus} CPU" + (f" and {self.gpus:g} GPU" if self.gpus else "")

    def count_fitting(self, nodes: list[dict[str, Any]]) -> int:
        """Number of workers that fit into the nodes of a cluster, if nothing else runs there."""
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
    """Import Ray, which is an extra; raises ConfigError if it is not installed."""
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
    """Raise ConfigError if an address does not have the form of one."""
    if address and not ADDRESS.fullmatch(address):
        raise ConfigError(f"--address {address}: expected auto, HOST:PORT or ray://HOST:PORT")


def check_reachable(address: str) -> None:
    """Check what can be known of a cluster without joining it: Ray itself would try for a minute.

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
    """The address that ``auto`` stands for, if the environment has one."""
    return os.environ.get("RAY_ADDRESS", address) if address == "auto" else address


@contextmanager
def connect(cluster: Cluster) -> Iterator[ModuleType]:
    """Connect to the cluster, or start one here, which ends with the block.

    Yields:
        The module ``ray``.

    Raises:
        ConfigError: Ray is not installed, nothing answers at the address, or this machine lacks the
            resources of a worker.
        ScoringError: Ray cannot be started, or refuses the connection.
    """
    with _join(cluster.address) if cluster.address else _start(cluster) as ray:
        try:
            if not cluster.address and not cluster.count_fitting(ray.nodes()):
                raise ConfigError(describe_shortage(ray, cluster))
            yield ray
        finally:
            ray.shutdown()


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
    """Say what a worker asks for, and what the cluster has."""
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

"""Options for the processes that run shards, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from rescorer.errors import ConfigError
from rescorer.runtime.cpu_count import count_cpus
from rescorer.shards.cluster.connection import Cluster, check_address, check_reachable
from rescorer.shards.cluster.pool import run_on_cluster
from rescorer.shards.due import Finished
from rescorer.shards.pool import run_shards
from rescorer.shards.store import Store
from rescorer.shards.worker import Job, OnBatch

MIN_GPU_SHARE = 0.0001
"""Smallest share of a GPU that Ray knows."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What runs the shards."""

    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(
            help="What runs shards: local for processes of this machine; ray for workers on a cluster, each "
            "with --threads CPUs (0: one) and its own copy of the models. Needs the extra ray. --workers 0: "
            "as many as the cluster has room for.",
        ),
    ] = "local"
    address: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Ray cluster of --engine ray: auto for the one of this machine, HOST:PORT of its "
            "head, or ray://HOST:PORT from a machine outside. Default: a Ray on this machine, for this "
            "command only.",
        ),
    ] = ""
    gpus_per_worker: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Share of a GPU for each worker of --engine ray, with --device cuda: 0.25 for four per GPU.",
        ),
    ] = 0.0
    wait_s: Annotated[
        float,
        typer.Option(
            min=0, help="Seconds for which --engine ray waits until the cluster has room for a worker."
        ),
    ] = 60.0

    def check(self, device: str, *, is_sharded: bool) -> None:
        """Raise ConfigError if options contradict each other."""
        if self.engine != "ray":
            for option, is_given in (
                ("--address", self.address),
                ("--gpus-per-worker", self.gpus_per_worker),
            ):
                if is_given:
                    raise ConfigError(f"{option} is for a cluster; give --engine ray too")
            return
        check_address(self.address)
        if not is_sharded:
            raise ConfigError("--engine ray runs shards; give --shards N and -o FOLDER too")
        if 0 < self.gpus_per_worker < MIN_GPU_SHARE:
            raise ConfigError(
                f"--gpus-per-worker {self.gpus_per_worker:g}: Ray counts shares of at least {MIN_GPU_SHARE}"
            )
        if self.gpus_per_worker and device != "cuda":
            raise ConfigError(
                f"--gpus-per-worker gives each worker a GPU as its device cuda, but --device is {device}"
            )
        if device != "cpu" and not self.gpus_per_worker:
            raise ConfigError(
                f"--device {device} with --engine ray: give --gpus-per-worker too, such as 1, or 0.25 for "
                "four workers on each GPU"
            )

    def check_reachable(self) -> None:
        """Raise ConfigError if there can be no cluster, before anything is done for it."""
        if self.engine == "ray":
            check_reachable(self.address)

    def run_shards(
        self, store: Store, due: Sequence[int], job: Job, workers: int, threads: int, on_batch: OnBatch
    ) -> Iterator[Finished]:
        """Run shards by the engine that was chosen; see ``pool.run_shards`` and ``run_on_cluster``."""
        if self.engine == "local":
            count = min(workers or count_cpus(), max(1, len(due)))
            return run_shards(store, due, job, count, threads, on_batch)
        cluster = Cluster(self.address, workers, threads or 1, self.gpus_per_worker, self.wait_s)
        return run_on_cluster(store, due, job, cluster, on_batch)

"""Run ``rescorer serve --front-ends 2`` as real processes, with a repository of tiny bundles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import NamedTuple

from rescorer.bench.load import process_tree
from rescorer.client import Client
from rescorer.service.access import new_token
from rescorer.types import Weights
from tests.support.prometheus import get_value, read_samples
from tests.support.serve_command import run_serve_command
from tests.support.tiny_models import write_bundle
from tools.chaos.run import format_client
from tools.observation import read_command_line, read_metrics_port

CONNECTIONS = 20
"""Enough that both front ends get some, as the kernel picks one at random for each connection."""
WEIGHTS = Weights("default", {"acoustic": 1.0}, {"mixture": 2.0}, 0.1, -1.0, {"ngram": 1.0})


class RunningServer(NamedTuple):
    """A server of two front ends and one worker, with a repository."""

    pid: int
    port: int
    metrics_port: int
    folder: Path
    """Folder of the repository's only bundle, with its versions."""
    token: str
    """Token of a client with all roles."""

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, **options) -> Client:
        return Client(self.target, token=self.token, connections=CONNECTIONS, **options)

    def read_samples(self):
        return read_samples(self.metrics_port)

    def is_whole(self) -> bool:
        samples = self.read_samples()
        return (get_value(samples, "front_ends_up"), get_value(samples, "workers_alive")) == (2, 1)

    def front_end_pids(self) -> list[int]:
        return [
            pid
            for pid in process_tree(self.pid)[1:]
            if b"rescorer.service.front_ends" in read_command_line(pid)
        ]


@contextmanager
def run_two_front_ends(tmp_path: Path, *more: str) -> Iterator[tuple[Popen, RunningServer]]:
    repository, token = tmp_path / "models", new_token()
    write_bundle(repository, WEIGHTS, neural=False)
    access = tmp_path / "access.toml"
    access.write_text(format_client("all", ["score", "admin"], token))
    options = ("--repository", repository, "--access", access, "--admin", "--metrics-port", "0", *more)
    with run_serve_command(None, tmp_path, "--front-ends", "2", "--log-format", "json", *options) as (
        process,
        _,
    ):
        port = int((tmp_path / "port").read_text())
        metrics_port = read_metrics_port(tmp_path / "log")
        yield process, RunningServer(process.pid, port, metrics_port, repository / "tiny", token)


def values_by_front_end(server: RunningServer, name: str, **labels: str) -> list[float]:
    return [get_value(server.read_samples(), name, front_end=str(number), **labels) for number in range(2)]

"""Which processes run shards: an archive's workers are killed, and nothing else."""

import pytest

from tools.archive.usage import is_worker


@pytest.mark.parametrize(
    "command", [b"python\0-c\0from multiprocessing.spawn import spawn_main", b"ray::ShardActor.run\0\0"]
)
def test_finds_workers(command):
    assert is_worker(command)


@pytest.mark.parametrize(
    "command",
    [b"ray::IDLE\0\0", b"ray::DashboardAgent\0\0", b"ray::RuntimeEnvAgent\0\0", b"python\0-m\0rescorer.cli"],
)
def test_leaves_other_processes_alone(command):
    assert not is_worker(command)

"""A shard is committed once, whatever happens to the processes that try."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from rescorer.errors import BundleError, ConfigError, FormatError, ScoringError
from rescorer.jobs.shards import clean, merge, read_status, run_shard, run_shards, verify
from rescorer.jobs.store import LocalStore, OutputError, record_name
from tests.support.sharding import N_LISTS, load, make_job, run_all

SPAWN = get_context("spawn")


class KilledBeforeRecord(LocalStore):
    """Kills the process when all data are written and synced."""

    def create(self, name: str, content: bytes) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return False


class KilledAfterRecord(LocalStore):
    """Kills the process as soon as the record exists."""

    def create(self, name: str, content: bytes) -> bool:
        super().create(name, content)
        os.kill(os.getpid(), signal.SIGKILL)
        return False


class FullDisk(LocalStore):
    """Has no room when the data are synced."""

    def save(self, name: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(frozen=True)
class Racing(LocalStore):
    """Waits for the other processes before it commits."""

    barrier: Any

    def create(self, name: str, content: bytes) -> bool:
        self.barrier.wait()
        return super().create(name, content)


def run_one(store, index, job, results=None) -> None:
    """Run a shard in this process."""
    plan, rescorer = load(store, job)
    record, is_ours = run_shard(store, plan, index, job, rescorer)
    if results is not None:
        results.put((record.attempt, is_ours))


def run_in_process(*arguments) -> int:
    process = SPAWN.Process(target=run_one, args=arguments)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.slow
def test_of_racing_processes_one_commits(store, job):
    """All have found no record before any writes one, because they meet when their data are written."""
    n = 3
    barrier, results = SPAWN.Barrier(n), SPAWN.SimpleQueue()
    racing = Racing(store.folder, barrier)
    racers = [SPAWN.Process(target=run_one, args=(racing, 1, job, results)) for _ in range(n)]
    for racer in racers:
        racer.start()
    found = [results.get() for _ in racers]
    for racer in racers:
        racer.join()
    assert sum(is_ours for _, is_ours in found) == 1
    assert len({attempt for attempt, _ in found}) == 1  # all return the committed record
    status = read_status(store)
    assert (status.missing, status.leftovers) == ([0, 2], ())
    assert list(verify(store)) == ["shard 0: not committed", "shard 2: not committed"]


def test_creates_a_name_once(tmp_path):
    store = LocalStore(tmp_path)
    store.prepare()
    assert store.create("records/000000.json", b"first")
    assert not store.create("records/000000.json", b"second")
    with store.open("records/000000.json") as stream:
        assert stream.read() == b"first"
    assert store.list_files("attempts") == []


def test_says_that_a_file_system_has_no_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    store = LocalStore(tmp_path)
    store.prepare()
    with pytest.raises(ConfigError, match="this file system has no hard links"):
        store.create("plan.json", b"")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [KilledBeforeRecord, KilledAfterRecord])
def test_a_kill_around_the_commit_loses_and_repeats_nothing(kind, store, job, tmp_path):
    assert run_in_process(kind(store.folder), 1, job) == -signal.SIGKILL
    status = read_status(store)
    is_committed = kind is KilledAfterRecord
    assert (1 in status.records) == is_committed
    assert len(status.leftovers) == (0 if is_committed else 2)  # data and rejects
    before = status.records.get(1)
    run_all(store, job)
    after = read_status(store)
    assert after.missing == []
    assert not is_committed or after.records[1] == before
    summary = merge(store, str(tmp_path / "merged.jsonl"), None)
    ids = [json.loads(line)["id"] for line in (tmp_path / "merged.jsonl").read_text().splitlines()]
    assert ids == [f"u{i}" for i in range(N_LISTS)]
    assert summary.lists == N_LISTS
    assert clean(store, 3600) == []  # somebody may still write to them
    assert len(clean(store, 0)) == len(after.leftovers)
    assert read_status(store).leftovers == ()
    assert list(verify(store)) == []


class KilledTwice(LocalStore):
    """Kills the first two processes that commit anything."""

    def create(self, name: str, content: bytes) -> bool:
        for turn in range(2):
            if LocalStore.create(self, f"attempts/kill{turn}", b""):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().create(name, content)


@pytest.mark.slow
def test_replaces_workers_that_are_killed(store, job):
    finished = list(run_shards(KilledTwice(store.folder), range(3), job, 2, 1, lambda n, summary: None))
    assert sorted(shard for shard, _ in finished) == [0, 1, 2]
    assert list(verify(store)) == []


@pytest.mark.slow
def test_gives_a_shard_up_that_kills_its_workers(store, job):
    ((shard, error),) = run_shards(KilledBeforeRecord(store.folder), [1], job, 2, 1, lambda n, summary: None)
    assert shard == 1
    assert isinstance(error, ScoringError)
    assert "shard 1: its worker ended unexpectedly 3 times" in str(error)


def test_a_full_disk_commits_nothing_and_leaves_no_data(store, job):
    plan, rescorer = load(store, job)
    with pytest.raises(OutputError, match="No space left on device; nothing of this shard is committed"):
        run_shard(FullDisk(store.folder), plan, 0, job, rescorer)
    with pytest.raises(OutputError):  # others would fail, too
        list(run_shards(FullDisk(store.folder), range(3), job, 1, 1, lambda n, summary: None))
    status = read_status(store)
    assert (status.missing, status.leftovers) == ([0, 1, 2], ())


def run_with_small_files(store, index, job) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        run_one(store, index, job)
    except OutputError as error:
        os._exit(7 if "nothing of this shard is committed" in str(error) else 8)


@pytest.mark.slow
def test_an_exceeded_quota_commits_nothing(store, job):
    process = SPAWN.Process(target=run_with_small_files, args=(store, 0, job))
    process.start()
    process.join()
    assert process.exitcode == 7
    status = read_status(store)
    assert (status.missing, status.leftovers) == ([0, 1, 2], ())


def test_refuses_models_that_are_not_the_planned_ones(store, bundle):
    with pytest.raises(BundleError, match="changed since the plan"):
        load(store, make_job(bundle))


def damage_data(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def change_data(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"cat", b"dog"))


@pytest.mark.parametrize(
    ("change", "message"),
    [(damage_data, "bytes, its record"), (change_data, "its hash differs"), (Path.unlink, "is missing")],
)
def test_verify_and_merge_find_changed_output(change, message, store, job, tmp_path):
    run_all(store, job)
    change(store.folder / read_status(store).records[2].data.name)
    (problem,) = verify(store)
    assert problem.startswith("shard 2: ")
    assert message in problem
    with pytest.raises(FormatError, match="shard 2"):
        merge(store, str(tmp_path / "merged.jsonl"), None)
    assert not (tmp_path / "merged.jsonl").exists()
    (store.folder / record_name(2)).unlink()  # what the message says
    run_all(store, job)
    assert list(verify(store)) == []


def test_verify_finds_an_edited_record(store, job):
    run_all(store, job)
    path = store.folder / record_name(1)
    path.write_text(path.read_text().replace('"rejected": 1', '"rejected": 0'))
    problems = list(verify(store))
    assert len(problems) == 1
    assert "000001.json: this record was changed or damaged" in problems[0]
    plan, rescorer = load(store, job)
    with pytest.raises(FormatError, match="changed or damaged"):
        run_shard(store, plan, 1, job, rescorer)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("data", {"name": "/dev/zero", "n_bytes": 1, "sha256": "0" * 64}),
        ("data", {"name": "attempts/../plan.json", "n_bytes": 1, "sha256": "0" * 64}),
        ("rejects", {"name": "attempts/000002.aa.jsonl", "n_bytes": 1, "sha256": "0" * 64}),
        ("attempt", ""),
        ("seconds", "1"),
        ("worker", None),
        ("worker", "x" * 70_000),
    ],
)
def test_reads_no_file_but_those_of_the_attempt_whatever_a_record_says(field, value, store, job):
    run_all(store, job)
    path = store.folder / record_name(1)
    body = json.loads(path.read_text()) | {field: value}
    del body["sha256"]
    checksum = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    path.write_text(json.dumps(body | {"sha256": checksum}))
    problems = list(verify(store))
    assert len(problems) == 1
    assert "000001.json: " in problems[0]
    assert "this record was changed or damaged" in problems[0]


def test_verify_names_shards_that_are_missing_and_inputs_that_changed(store, job, tmp_path):
    plan, rescorer = load(store, job)
    run_shard(store, plan, 0, job, rescorer)
    assert list(verify(store)) == ["shard 1: not committed", "shard 2: not committed"]
    with pytest.raises(ConfigError, match="2 of 3 shards are not committed: 1, 2"):
        merge(store, str(tmp_path / "merged.jsonl"), None)
    lists = tmp_path / "in.jsonl"
    lists.write_bytes(lists.read_bytes()[:-20] + b" " * 19 + b"\n")
    assert any(
        "shard 2: " in problem and "changed since the plan" in problem
        for problem in verify(store, inputs=True)
    )

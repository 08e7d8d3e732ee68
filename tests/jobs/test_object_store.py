"""Shards in an object storage are committed once, whatever happens to processes, requests and objects."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import pytest

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.jobs import store as store_module
from rescorer.jobs.plan import Division, find_files, measure_all, read_plan
from rescorer.jobs.shards import clean, is_local, merge, read_status, run_shard, verify
from rescorer.jobs.store import ObjectStore, OutputError, open_store, read_file, record_name
from rescorer.storage import open_filesystem, open_object
from tests.support.object_storage import ignore_conditions, lose_answer, put, refuse
from tests.support.sharding import (
    N_LISTS,
    load,
    make_lines,
    make_source,
    plan_store,
    run_all,
    write_lines,
)

SPAWN = get_context("spawn")


@pytest.fixture
def empty(bucket, tmp_path):
    """A store without a plan."""
    return ObjectStore(f"{bucket}/out", tmp_path / "scratch")


@pytest.fixture
def store(empty, job, bucket):
    """A plan of three shards of an object."""
    put(f"{bucket}/in.jsonl", "".join(f"{line}\n" for line in make_lines(N_LISTS)))
    return plan_store(empty, [f"{bucket}/in.jsonl"], job, Division(3, "shards", None))


def run_one(store, index, job, results=None) -> None:
    """Run a shard in this process."""
    plan, rescorer = load(store, job)
    record, is_ours = run_shard(store, plan, index, job, rescorer)
    if results is not None:
        results.put((record.attempt, is_ours))


@dataclass(frozen=True, slots=True)
class Racing(ObjectStore):
    """Waits for the other processes before it commits."""

    barrier: Any

    def create(self, name: str, content: bytes) -> bool:
        self.barrier.wait()
        return ObjectStore.create(self, name, content)


class KilledBeforeRecord(ObjectStore):
    """Kills the process when all data are uploaded."""

    def create(self, name: str, content: bytes) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return False


@pytest.mark.slow
def test_of_racing_processes_one_commits(store, job):
    barrier, results = SPAWN.Barrier(2), SPAWN.SimpleQueue()
    racing = Racing(store.place, store.scratch_folder, barrier)
    racers = [SPAWN.Process(target=run_one, args=(racing, 1, job, results)) for _ in range(2)]
    for racer in racers:
        racer.start()
    found = [results.get() for _ in racers]
    for racer in racers:
        racer.join()
    assert sorted(is_ours for _, is_ours in found) == [False, True]
    assert len({attempt for attempt, _ in found}) == 1  # both return the committed record
    assert (read_status(store).missing, read_status(store).leftovers) == ([0, 2], ())


@pytest.mark.slow
def test_a_kill_between_data_and_record_loses_and_repeats_nothing(store, job, tmp_path):
    killed = KilledBeforeRecord(store.place, store.scratch_folder)
    process = SPAWN.Process(target=run_one, args=(killed, 1, job))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    status = read_status(store)
    assert (status.missing, len(status.leftovers)) == ([0, 1, 2], 2)  # data and rejects
    run_all(store, job)
    merge(store, str(tmp_path / "merged.jsonl"), None)
    ids = [json.loads(line)["id"] for line in (tmp_path / "merged.jsonl").read_text().splitlines()]
    assert ids == [f"u{i}" for i in range(N_LISTS)]
    assert clean(store, 3600) == []
    assert len(clean(store, 0)) == 2
    assert list(verify(store, inputs=True)) == []
    assert not any(path.is_file() for path in store.scratch_folder.rglob("*"))


def test_creates_a_name_once(empty):
    assert not empty.exists("records/000000.json")
    assert empty.create("records/000000.json", b"first")
    assert not empty.create("records/000000.json", b"second")
    assert read_file(empty, "records/000000.json", 100) == b"first"
    (file,) = empty.list_files("records")
    assert (file.name, file.n_bytes, file.age_s < 60) == ("records/000000.json", 5, True)
    empty.delete("records/000000.json")
    empty.delete("records/000000.json")
    assert empty.list_files("records") == []
    with pytest.raises(FileNotFoundError):
        empty.open("records/000000.json")


def test_recognises_its_own_object_when_the_answer_was_lost(empty, storage):
    with storage.fault(lose_answer("PUT", "000000.json")):
        assert empty.create("records/000000.json", b"ours")
    with storage.fault(lose_answer("PUT", "000000.json")):
        assert not empty.create("records/000000.json", b"theirs")


def test_tries_again_after_a_conflict(empty, storage, monkeypatch):
    monkeypatch.setattr(store_module, "WAIT_S", 0.001)
    with storage.fault(refuse("409 Conflict", "ConditionalRequestConflict", "PUT", times=3)):
        assert empty.create("records/000000.json", b"ours")
    with (
        storage.fault(refuse("409 Conflict", "ConditionalRequestConflict", "PUT")),
        pytest.raises(OutputError, match="ConditionalRequestConflict by the test; repair this and --resume"),
    ):
        empty.create("records/000001.json", b"ours")


def test_refuses_storages_that_replace_objects(empty, storage):
    empty.prepare()
    assert empty.list_files("attempts") == []
    with storage.fault(ignore_conditions), pytest.raises(ConfigError, match="it ignores If-None-Match"):
        empty.prepare()


@pytest.mark.parametrize("url", ["memory://out", "http://127.0.0.1:1/out", "webhdfs://out"])
def test_refuses_storages_that_are_not_known_to_create_only_once(url):
    with pytest.raises(ConfigError, match="not known to create an object only once"), open_store(url):
        pass


def test_uploads_large_files_in_parts(empty, monkeypatch):
    monkeypatch.setattr(store_module, "PART_BYTES", 5 << 20)
    content = os.urandom(1 << 20) * 11
    empty.scratch("attempts/000000.aa.jsonl").write_bytes(content)
    empty.save("attempts/000000.aa.jsonl")
    assert read_file(empty, "attempts/000000.aa.jsonl", len(content)) == content
    url = f"{empty.place}/attempts/000000.aa.jsonl"
    assert open_filesystem(url).info(url)["ETag"].endswith('-3"')  # of three parts


def test_output_that_cannot_be_uploaded_commits_nothing(store, storage, job):
    plan, rescorer = load(store, job)
    denied = refuse("403 Forbidden", "AccessDenied", "PUT", "attempts")
    with storage.fault(denied), pytest.raises(OutputError, match="access denied: these credentials need"):
        run_shard(store, plan, 0, job, rescorer)
    status = read_status(store)
    assert (status.missing, status.leftovers) == ([0, 1, 2], ())
    assert not any(path.is_file() for path in store.scratch_folder.rglob("*"))


def test_input_that_cannot_be_read_to_its_end_commits_nothing(store, storage, job, bucket):
    plan, rescorer = load(store, job)
    denied = refuse("403 Forbidden", "AccessDenied", "GET", "in.jsonl")
    with storage.fault(denied), pytest.raises(InputError, match=r"in\.jsonl: cannot be read: access denied"):
        run_shard(store, plan, 0, job, rescorer)
    assert read_status(store).missing == [0, 1, 2]


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        ("404 Not Found", "NoSuchKey", "was deleted while it was read"),
        ("400 Bad Request", "Unexpected", "cannot be read: the storage fails: .*Unexpected by the test"),
    ],
)
def test_faults_of_reading_fail_one_shard_only(status, code, message, store, storage, job):
    plan, rescorer = load(store, job)
    with (
        storage.fault(refuse(status, code, "GET", "in.jsonl")),
        pytest.raises(InputError, match=rf"in\.jsonl: {message}") as caught,
    ):
        run_shard(store, plan, 0, job, rescorer)
    assert is_local(caught.value)
    run_shard(store, plan, 1, job, rescorer)
    assert read_status(store).missing == [0, 2]


def test_finds_objects_that_changed_since_the_plan(store, job, bucket):
    content = "".join(f"{line}\n" for line in make_lines(N_LISTS))
    put(f"{bucket}/in.jsonl", content.replace('"u29"', '"v29"'))
    plan, rescorer = load(store, job)
    run_shard(store, plan, 0, job, rescorer)
    with pytest.raises(InputError, match="have changed since the plan"):
        run_shard(store, plan, 2, job, rescorer)
    assert read_status(store).missing == [1, 2]
    assert any("shard 2: s3://" in problem for problem in verify(store, inputs=True))


def test_a_change_while_an_object_is_read_is_an_error(bucket):
    url = f"{bucket}/large"
    put(url, b"a" * (9 << 20))
    with open_object(url) as stream:
        assert stream.read(3) == b"aaa"
        put(url, b"b" * (9 << 20))
        with pytest.raises(FormatError, match="large: cannot be read: changed while it was read"):
            stream.read()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.replace(b"cat", b"dog"), "its hash differs"),
        (None, "is missing; restore it, or remove s3://"),
    ],
)
def test_verify_and_merge_find_changed_output(change, message, store, job, tmp_path):
    run_all(store, job)
    name = read_status(store).records[2].data.name
    if change is None:
        store.delete(name)
        assert read_status(store).missing == [2]
    else:
        put(f"{store.place}/{name}", change(read_file(store, name, 1 << 20)))
    (problem,) = verify(store)
    assert problem.startswith("shard 2: s3://")
    assert message in problem
    with pytest.raises(FormatError, match="shard 2"):
        merge(store, str(tmp_path / "merged.jsonl"), None)
    store.delete(record_name(2))  # what the message says
    run_all(store, job)
    assert list(verify(store)) == []


def test_clean_deletes_only_what_attempts_left(store, job):
    run_all(store, job)
    names = {file.name for file in store.list_files("attempts")}
    for name in ("attempts/notes.txt", "attempts/0ab/deep.txt", "attempts/000001.5.jsonl"):
        put(f"{store.place}/{name}", "text")
    record = read_file(store, record_name(2), 1 << 16)
    put(f"{store.place}/{record_name(2)}", "garbage")
    with pytest.raises(FormatError, match=r"nothing is deleted, .*000002\.json: this record was changed"):
        clean(store, 0)
    put(f"{store.place}/{record_name(2)}", record)
    assert [file.name for file in clean(store, 0)] == ["attempts/000001.5.jsonl"]
    assert {file.name for file in store.list_files("attempts")} == names | {"attempts/notes.txt"}
    assert list(verify(store)) == []


def test_verify_finds_an_edited_record(store, job):
    run_all(store, job)
    content = read_file(store, record_name(1), 1 << 16)
    put(f"{store.place}/{record_name(1)}", content.replace(b'"rejected": 1', b'"rejected": 0'))
    problems = list(verify(store))
    assert len(problems) == 1
    assert "000001.json: this record was changed or damaged" in problems[0]


def test_finds_objects_by_globs_and_prefixes(bucket):
    names = [
        "lists/b.jsonl",
        "lists/a.jsonl",
        "lists/2026/c.jsonl",
        "lists/_SUCCESS",
        "lists/.hidden/d.jsonl",
    ]
    for name in [*names, "lists-of-another/e.jsonl"]:
        put(f"{bucket}/{name}", "\n".join(make_lines(2)))
    source = make_source()
    below = [f"{bucket}/lists/{name}" for name in ("2026/c.jsonl", "a.jsonl", "b.jsonl")]
    assert find_files([f"{bucket}/lists"], source) == find_files([f"{bucket}/lists/"], source) == below
    assert find_files([f"{bucket}/lists/*.jsonl"], source) == below[1:]
    assert find_files([below[1]], source) == below[1:2]
    assert find_files([below[1].replace("s3:", "s3a:")], source) == below[1:2]
    assert measure_all(below) == [len("\n".join(make_lines(2)))] * 3
    for missing in (f"{bucket}/none", f"{bucket}/*.none"):
        with pytest.raises(FormatError, match="none: cannot be read: there is no such object"):
            find_files([missing], source)
    with pytest.raises(FormatError, match="there is no such bucket"):
        find_files(["s3://no-such-bucket/a.jsonl"], source)
    with pytest.raises(FormatError, match=r"none\.jsonl: cannot be read: there is no such object"):
        measure_all([*below, f"{bucket}/none.jsonl"])


def test_plans_objects_as_it_plans_files(bucket, tmp_path, job):
    """Only the names differ."""
    lines = make_lines(50)
    local = write_lines(tmp_path / "in.jsonl", lines)
    put(f"{bucket}/in.jsonl", local.read_bytes())
    plans = []
    for place, name in (
        ("file://" + str(tmp_path / "out"), str(local)),
        (f"{bucket}/o", f"{bucket}/in.jsonl"),
    ):
        with open_store(place) as store:
            plan_store(store, [name], job, Division(4, "shards", 40))
            plans.append(read_plan(store))
    assert plans[0].shards == plans[1].shards
    assert len(plans[0].shards) == 4

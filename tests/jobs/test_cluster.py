"""Shards on a Ray cluster: exactly once, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

import pytest

from rescorer.errors import ConfigError, ModelError, ScoringError
from rescorer.jobs.cluster import Cluster, run_on_cluster
from rescorer.jobs.shards import merge, read_status, verify
from rescorer.jobs.store import LocalStore, Record, record_name
from tests.support.ray_cluster import N_CPUS, mark, run_ray, skip_if_busy, wait_until_gone
from tests.support.sharding import BATCH_WORDS, N_LISTS, make_lines, write_lines

pytestmark = pytest.mark.slow

N_ITEMS = 33
PATIENCE_S = 120
SPAWN = get_context("spawn")


@pytest.fixture(scope="module")
def address():
    """Address of a cluster, with a token that the commands of this module have, too."""
    if find_spec("ray") is None:
        pytest.skip("Ray has no wheel for this Python")
    with pytest.MonkeyPatch.context() as patch:
        # Ray reads these when it is imported.
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
        with run_ray() as address:
            yield address


def wait_for(path: Path) -> None:
    end = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.02)


def ignore(n_items, summary) -> None:
    pass


def test_output_is_that_of_the_plain_command(address, run, ngram_bundle, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # names are relative to it on the nodes, too
    write_lines(Path("in.jsonl"), make_lines(40))
    fixed = "in.jsonl", "--bundle", ngram_bundle, "--batch-words", BATCH_WORDS
    assert run("rescore", *fixed, "-o", "plain.jsonl")[0] == 1
    cluster = "--engine", "ray", "--address", address, "--workers", 2
    code, _, err = run("rescore", *fixed, "-o", "out", "--shards", 5, *cluster, "--json")
    assert code == 1, err
    assert run("shards", "verify", "out", "--inputs")[:2] == (0, "5 shards, all committed and intact\n")
    merged = run("shards", "merge", "out", "-o", "merged.jsonl", "--json")[2]
    assert json.loads(merged) == {"shards": 5, **json.loads(err)}
    for suffix in ("", ".rejects"):
        assert Path(f"merged.jsonl{suffix}").read_bytes() == Path(f"plain.jsonl{suffix}").read_bytes()


class KilledOnce(LocalStore):
    """Kills the first actor that commits shard 0, when its data are written.

    Shard 1 is committed only when its progress has arrived in the command.
    """

    def create(self, name: str, content: bytes) -> bool:
        if name == record_name(0) and LocalStore.create(self, "attempts/killed", b""):
            os.kill(os.getpid(), signal.SIGKILL)
        if name == record_name(1):
            wait_for(self.folder / "arrived")
        return super().create(name, content)


def test_a_plan_says_how_long_ray_takes_to_start(address, run, ngram_bundle, tmp_path):
    lists = write_lines(tmp_path / "in.jsonl", make_lines(20))
    options = "--plan", "--bundle", ngram_bundle, "--engine", "ray", "--address", address, "--json"
    code, out, err = run("rescore", lists, *options)
    assert (code, json.loads(out)["ray_start_seconds"] > 0) == (0, True), err
    code, _, err = run("rescore", lists, *options[:-2], "no address")
    assert (code, "expected auto, HOST:PORT or ray://HOST:PORT" in err) == (2, True), err


def test_an_actor_that_is_killed_is_replaced_and_progress_arrives_before_the_end(address, store, job):
    n_items = []

    def note(n, summary):
        n_items.append(n)
        if n and (store.folder / record_name(0)).exists():
            (store.folder / "arrived").touch()

    cluster = Cluster(address, workers=1, gpus=0.25)
    results = dict(run_on_cluster(KilledOnce(store.folder), range(3), job, cluster, note))
    assert sorted(results) == [0, 1, 2]
    assert all(isinstance(result, Record) for result in results.values())
    assert sum(n_items) >= N_ITEMS
    assert list(verify(store)) == []
    assert len(read_status(store).leftovers) >= 1  # of the actor that was killed


class Halting(LocalStore):
    """Commits one shard; the process then waits at its next one until it is ended."""

    def create(self, name: str, content: bytes) -> bool:
        (self.folder / "pid").write_text(str(os.getpid()))
        if any((self.folder / "records").iterdir()):
            time.sleep(PATIENCE_S)
        return super().create(name, content)


def drive(store, job, cluster) -> None:
    missing = read_status(LocalStore(store.folder)).missing
    for _, result in run_on_cluster(store, missing, job, cluster, ignore):
        assert isinstance(result, Record)


def test_drivers_that_are_killed_or_race_commit_each_shard_once(address, store, job, tmp_path):
    cluster = Cluster(address, workers=1)
    driver = SPAWN.Process(target=drive, args=(Halting(store.folder), job, cluster))
    driver.start()
    wait_for(store.folder / record_name(0))
    driver.kill()
    driver.join()
    before = read_status(store).records[0]
    actor = Path("/proc") / (store.folder / "pid").read_text()
    end = time.monotonic() + PATIENCE_S
    while actor.exists():  # ended by Ray, as its driver was
        assert time.monotonic() < end
        time.sleep(0.1)
    other = SPAWN.Process(target=drive, args=(store, job, cluster))
    other.start()
    drive(store, job, cluster)
    other.join()
    assert other.exitcode == 0
    status = read_status(store)
    assert (status.missing, status.records[0]) == ([], before)
    assert list(verify(store)) == []
    assert merge(store, str(tmp_path / "merged.jsonl"), None).lists == N_LISTS
    ids = [json.loads(line)["id"] for line in (tmp_path / "merged.jsonl").read_text().splitlines()]
    assert ids == [f"u{i}" for i in range(N_LISTS)]


def test_says_on_which_node_the_models_cannot_be_loaded(address, store, job, tmp_path):
    missing = replace(job, load=replace(job.load, bundle=tmp_path / "none"))
    with pytest.raises(ModelError, match=r"worker on node \S+: .*none: no such bundle folder"):
        list(run_on_cluster(store, [0], missing, Cluster(address, workers=1), ignore))


def fail():
    raise ValueError("of another version")


class Unreadable:
    """What a node cannot unpickle."""

    def __reduce__(self):
        return fail, ()


def test_says_why_actors_end_before_they_have_loaded_the_models(address, store, job):
    unreadable = replace(job, load=Unreadable())
    with pytest.raises(ScoringError, match=r"(?s)3 workers ended before .*of another version"):
        list(run_on_cluster(store, [0], unreadable, Cluster(address, workers=1), ignore))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"cpus": 64},
            f"each asks for 64 CPU; the cluster has 1 node, the largest with {N_CPUS} CPU and 1 GPU",
        ),
        ({"gpus": 1.0, "cpus": 5}, "each asks for 5 CPU and 1 GPU"),
    ],
)
def test_says_what_a_cluster_lacks(asked, message, address, store, job):
    cluster = Cluster(address, wait_s=0.0, **asked)
    with pytest.raises(ConfigError, match=message):
        list(run_on_cluster(store, [0], job, cluster, ignore))


def test_ray_of_the_command_ends_when_it_is_interrupted(address, run, ngram_bundle, tmp_path):
    """``address`` only lets processes of the two be told apart."""
    lists = write_lines(tmp_path / "in.jsonl", make_lines(8_000))  # seconds of work after the first shard
    fixed = lists, "-o", tmp_path / "out", "--bundle", ngram_bundle, "--batch-words", BATCH_WORDS
    options = *fixed, "--shards", 100, "--engine", "ray", "--workers", 1
    marked = mark()
    with subprocess.Popen(
        [sys.executable, "-m", "rescorer.cli", "rescore", *map(str, options)],
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env=os.environ | marked,
    ) as command:
        records = tmp_path / "out" / "records"
        while command.poll() is None and not (records.is_dir() and any(records.iterdir())):
            time.sleep(0.02)
        os.killpg(command.pid, signal.SIGINT)
        err = command.communicate()[1]
    wait_until_gone(marked)
    if "Ray cannot be started here" in err:
        skip_if_busy()
    assert command.returncode == 130, err
    missing = json.loads(run("shards", "status", tmp_path / "out", "--json")[1])["missing"]
    assert 0 < len(missing) < 100
    assert run("rescore", *fixed, "--resume")[0] == 1  # by another engine
    assert run("shards", "verify", tmp_path / "out")[0] == 0

"""A server that finds hostile versions refuses each with its file's name, goes on serving, and stops."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import grpc

from rescorer import Hypothesis, NBestList
from rescorer.protocol.v1 import models_pb2
from rescorer.protocol.v1.models_pb2_grpc import ModelServiceStub
from tests.support.hostile_bundles import PATH_ATTACKS, SECRET, SIZE_ATTACKS, edit_manifest, write_hostile
from tests.support.serve_command import run_serve_command
from tests.support.servers import wait_until
from tests.support.tiny_models import write_bundle

ATTACKS = {
    name: (PATH_ATTACKS | SIZE_ATTACKS)[name]
    for name in (
        "model path leads out",
        "n-gram path is a text file outside",
        "file is a link out",
        "weights set is a FIFO",
        "unlisted FIFO",
        "manifest is a FIFO",
        "weights set is /dev/zero",
        "huge weights set",
        "unigram line without end",
        "bigram line without end",
        "ARPA header without end",
        "ARPA of empty lines",
        "hidden size",
        "layers",
        "unknown setting with a long name",
        "vocabulary of many words",
    )
}
MEMORY_BYTES = 400 << 20
"""Growth of the largest process, or all of one that was started meanwhile."""
MAX_LOG_LINE_CHARACTERS = 50_000
"""The line of a reload has the reasons of all refused versions."""
LISTS = [NBestList("u1", (Hypothesis("the cat"),), {"acoustic": (-1.0,)})]


def peak_bytes(pid: int) -> int:
    """Largest resident memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def family(pid: int) -> list[int]:
    """A process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def test_hostile_versions_are_refused_while_the_sound_one_serves(tmp_path):
    sound = write_bundle(tmp_path / "models")
    with run_serve_command(None, tmp_path, "--repository", tmp_path / "models", "--grace-s", "1") as (
        process,
        client,
    ):
        assert client.rescore(LISTS)[0].model == "tiny/1"
        before = {pid: peak_bytes(pid) for pid in family(process.pid)}
        reasons = {}
        for version, (name, attack) in enumerate(ATTACKS.items(), 2):
            partial = tmp_path / "staging" / "tiny" / "1"
            shutil.copytree(sound, partial)
            edit_manifest(lambda values, _, number=version: values.update(version=number))(partial)
            write_hostile(partial, attack)
            reasons[f"tiny/{version}"] = name
            partial.rename(sound.parent / str(version))
        port = (tmp_path / "port").read_text().strip()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            process.send_signal(signal.SIGHUP)
            refused: dict[str, str] = {}

            def all_are_refused() -> bool:
                listed = ModelServiceStub(channel).ListModels(models_pb2.ListModelsRequest(), timeout=20)
                refused.update({model.model: model.reason for model in listed.models if model.reason})
                return set(refused) == set(reasons)

            wait_until(all_are_refused, 100)
        for label, name in reasons.items():
            assert ATTACKS[name].reason in refused[label], name
            assert SECRET not in refused[label]
        assert client.rescore(LISTS)[0].model == "tiny/1"
        grown = {pid: peak_bytes(pid) - before.get(pid, 0) for pid in family(process.pid)}
        assert max(grown.values()) <= MEMORY_BYTES, grown
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    log = (tmp_path / "log").read_text()
    assert SECRET not in log
    assert max(map(len, log.splitlines())) <= MAX_LOG_LINE_CHARACTERS
    assert all(json.loads(line) for line in log.splitlines())

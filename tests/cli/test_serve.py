"""The command ``serve`` as a process: it starts, reports its port, drains on a signal and exits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rescorer import Hypothesis, NBestList
from rescorer.cli.serve import find_target
from tests.support.serve_command import SERVE_COMMAND, run_serve_command
from tests.support.servers import wait_until
from tests.support.tiny_models import write_bundle

pytestmark = pytest.mark.slow


def test_sigterm_finishes_calls_in_flight_and_exits_with_0(bundle, tmp_path):
    # Enough work that the call is still in progress when the signal arrives.
    texts = tuple(Hypothesis(f"the cat sat on the mat number {i} of many") for i in range(400))
    lists = [NBestList(f"u{i}", texts, {"acoustic": (-900.0,) * len(texts)}) for i in range(64)]
    with run_serve_command(bundle, tmp_path) as (process, client), ThreadPoolExecutor(1) as caller:
        client.rescore(lists[:1])
        port = int((tmp_path / "port").read_text())
        call = caller.submit(client.rescore, lists)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        results = call.result(60)
        assert [result.id for result in results] == [f"u{i}" for i in range(64)]
        assert process.wait(30) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert [event for event in events if not event.startswith(("call", "model"))] == [
        "listening",
        "health has changed",
        "serving",
        "stopping",
        "health has changed",
        "stopped",
    ]
    assert lines[0]["port"] == port
    assert all(line["request_id"] for line in lines if line["event"].startswith("call"))


def test_sighup_reloads_models_and_the_choice_of_models(tmp_path, monkeypatch):
    monkeypatch.setenv("RESCORER_IMAGE", "set for another program")
    folder, config = tmp_path / "models", tmp_path / "service.toml"
    write_bundle(folder, neural=False)
    config.write_text(f'repository = "{folder}"\nmodels = ["tiny/1"]\n')
    lists = [NBestList("u1", (Hypothesis("the cat"),), {"acoustic": (-1.0,)})]
    with run_serve_command(None, tmp_path, "--config", config) as (process, client):
        assert client.rescore(lists)[0].model == "tiny/1"
        newer = folder / "tiny" / "2"
        shutil.copytree(folder / "tiny" / "1", newer)
        manifest = json.loads((newer / "manifest.json").read_text())
        (newer / "manifest.json").write_text(json.dumps(manifest | {"version": 2}))
        config.write_text(f'repository = "{folder}"\nmodels = ["tiny"]\n')
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: client.rescore(lists)[0].model == "tiny/2", 60)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["loaded"] for line in lines if line["event"] == "reloaded"] == [["tiny/2"]]
    assert [line["variable"] for line in lines if line["event"] == "unknown variable"] == ["RESCORER_IMAGE"]


@pytest.mark.slow
def test_sigint_stops_the_server(ngram_bundle, tmp_path):
    with run_serve_command(ngram_bundle, tmp_path) as (process, _):
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--host", "0.0.0.0"), 2, "allow_insecure"),
        (("--bundle", "nowhere", "--port", "0"), 4, "nowhere: no such bundle folder"),
        (("--port", "0", "--device", "foo"), 2, "device 'foo' is not available; torch has: cpu"),
    ],
)
def test_errors_at_start_are_one_line_and_an_exit_code(ngram_bundle, options, code, message):
    environment = {**os.environ, "RESCORER_BUNDLE": str(ngram_bundle)}
    done = subprocess.run(
        [*SERVE_COMMAND, *options], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_health_looks_where_the_environment_lets_a_server_listen(run, tmp_path, monkeypatch):
    settings = tmp_path / "service.toml"
    settings.write_text("port = 2\n")
    for variables, expected in [
        ({}, "127.0.0.1:50051"),
        ({"RESCORER_CONFIG": str(settings)}, "127.0.0.1:2"),
        ({"RESCORER_CONFIG": str(settings), "RESCORER_PORT": "3"}, "127.0.0.1:3"),
    ]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert find_target() == expected
    monkeypatch.setenv("RESCORER_PORT", "")
    for content in ("port =", None):
        settings.write_text(content) if content else settings.unlink()
        code, _, err = run("health")
        assert (code, f"{settings}: cannot be read as TOML" in err) == (2, True), err
